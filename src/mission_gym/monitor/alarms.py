"""Alarms: a reward that teaches something else than the goal, and a run that loses speed or memory.

In: rows and evaluations of a run, as its metrics stream has them. Out: a sentence where one is due, each
kind once. What was seen of rewards is kept in checkpoints as plain values, so that a resumed run says what a
straight one does; what was seen of speed is not, since a resumed run may be on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mission_gym.monitor.speed import Stretches

Row = Mapping[str, Any]
SHARE = "reward_share/"
TOO_LARGE = 0.95  # of the reward, for one term
NUM_ROWS = 5  # rows in a row with it
NUM_EVALUATIONS = 4  # over which the return may not rise alone


class Alarm(NamedTuple):
    """What is told; `is_timed` where it is about speed, so that equal runs need not say it."""

    message: str
    is_timed: bool = False


class Watch:
    """Remembers the last rows and evaluations of one run."""

    def __init__(self, main_outcome: str | None) -> None:
        self._outcome = main_outcome
        self._rows: list[dict[str, float]] = []  # reward shares by term
        self._evaluations: list[dict[str, float]] = []
        self._said: list[str] = []  # kinds of alarms about the reward
        self._said_timed: list[str] = []
        self._stretches: Stretches | None = None

    def watch_speed(self, step: int, *, env_cpu_is_known: bool) -> None:
        """Begin with this process's speed, from this step on."""
        self._stretches = Stretches(step, env_cpu_is_known=env_cpu_is_known)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"rows": self._rows[:], "evaluations": self._evaluations[:], "said": self._said[:]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._rows, self._evaluations = list(state["rows"]), list(state["evaluations"])
        self._said = list(state["said"])

    def see_row(self, step: int, row: Row) -> list[Alarm]:
        """Take in a row of metrics; the alarms that are due."""
        shares = {key.removeprefix(SHARE): value for key, value in row.items() if key.startswith(SHARE)}
        self._rows = [*self._rows, shares][-NUM_ROWS:]
        alarms = _new({"share": judge_shares(self._rows)}, self._said)
        if self._stretches is not None:
            timed = _new(self._stretches.see_row(step, row), self._said_timed)
            alarms += [alarm._replace(is_timed=True) for alarm in timed]
        return alarms

    def see_evaluation(self, result: Row) -> list[Alarm]:
        """Take in an evaluation; the alarm about a return that rises alone, where it is due."""
        if self._outcome is None:
            return []
        seen = {key: result[key] for key in ("return_mean", "return_low", "return_high")}
        seen["rate"] = result["outcomes"][self._outcome]["rate"]
        self._evaluations = [*self._evaluations, seen][-NUM_EVALUATIONS:]
        return _new({"return": judge_evaluations(self._evaluations, self._outcome)}, self._said)


def _new(found: Mapping[str, str | None], said: list[str]) -> list[Alarm]:
    """The alarms of kinds that were not said yet; they are added to `said`."""
    new = {kind: text for kind, text in found.items() if text is not None and kind not in said}
    said += new
    return [Alarm(text) for text in new.values()]


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
