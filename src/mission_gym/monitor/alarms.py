"""Alarms: a reward that teaches something else than the goal.

In: rows and evaluations of a run, as its metrics stream has them. Out: a sentence where one is due, each
kind once in a run; what was seen is plain values, so that a resumed run says what a straight one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
SHARE = "reward_share/"
TOO_LARGE = 0.95  # of the reward, for one term
NUM_ROWS = 5  # rows in a row with it
NUM_EVALUATIONS = 4  # over which the return may not rise alone


class Watch:
    """Remembers the last rows and evaluations of one run."""

    def __init__(self, main_outcome: str | None) -> None:
        self._outcome = main_outcome
        self._rows: list[dict[str, float]] = []  # reward shares by term
        self._evaluations: list[dict[str, float]] = []
        self._said: list[str] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"rows": self._rows[:], "evaluations": self._evaluations[:], "said": self._said[:]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._rows, self._evaluations = list(state["rows"]), list(state["evaluations"])
        self._said = list(state["said"])

    def see_row(self, row: Row) -> str | None:
        """Take in a row of metrics; the alarm about reward terms, where it is due."""
        shares = {key.removeprefix(SHARE): value for key, value in row.items() if key.startswith(SHARE)}
        self._rows = [*self._rows, shares][-NUM_ROWS:]
        return self._once("share", judge_shares(self._rows))

    def see_evaluation(self, result: Row) -> str | None:
        """Take in an evaluation; the alarm about a return that rises alone, where it is due."""
        if self._outcome is None:
            return None
        seen = {key: result[key] for key in ("return_mean", "return_low", "return_high")}
        seen["rate"] = result["outcomes"][self._outcome]["rate"]
        self._evaluations = [*self._evaluations, seen][-NUM_EVALUATIONS:]
        return self._once("return", judge_evaluations(self._evaluations, self._outcome))

    def _once(self, kind: str, message: str | None) -> str | None:
        if message is None or kind in self._said:
            return None
        self._said.append(kind)
        return message


def judge_shares(rows: Sequence[Row]) -> str | None:
    """One term that makes nearly all of the reward in each of the last rows; rows are shares by term."""
    if len(rows) < NUM_ROWS or any(len(row) < 2 for row in rows):  # a single term can't crowd out others
        return None
    for term in rows[-1]:
        if all(row.get(term, 0.0) > TOO_LARGE for row in rows[-NUM_ROWS:]):
            return (
                f"the reward term {term!r} makes {100 * rows[-1][term]:.0f} % of the reward; the others "
                "teach nothing: lower its weight or raise theirs"
            )
    return None


def judge_evaluations(results: Sequence[Row], outcome: str) -> str | None:
    """A return that rose beyond its intervals while the outcome did not rise."""
    if len(results) < NUM_EVALUATIONS:
        return None
    first, last = results[-NUM_EVALUATIONS], results[-1]
    best = max(result["rate"] for result in results[-NUM_EVALUATIONS:])
    if last["return_low"] <= first["return_high"] or best > first["rate"]:
        return None
    if first["rate"] == 1.0:  # nothing is left to rise
        return None
    return (
        f"over {NUM_EVALUATIONS} evaluations the return rose from {first['return_mean']:.4g} to "
        f"{last['return_mean']:.4g}, but {outcome} did not ({100 * first['rate']:.0f} % -> "
        f"{100 * last['rate']:.0f} %): the reward pays for something else; look at the reward shares"
    )
