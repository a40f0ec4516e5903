"""Alarms: a reward that teaches something else than the goal, and a run that loses speed or memory.

In: rows and evaluations of a run, as its metrics stream has them. Out: a sentence where one is due, each
kind once. What was seen of rewards is kept in checkpoints as plain values, so that a resumed run says what a
straight one does; what was seen of speed is not, since a resumed run may be on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

Row = Mapping[str, Any]
SHARE = "reward_share/"
SKIPPED = "train/skipped_updates"
TOO_LARGE = 0.95  # of the reward, for one term
NUM_ROWS = 5  # rows in a row with it
NUM_EVALUATIONS = 4  # over which the return may not rise alone
# Rows are joined to stretches of some seconds, so that quick rows don't count for more than slow ones.
STRETCH_S = 5.0
NUM_STRETCHES = 12  # a minute
DECAY = 0.6  # of the best rate
GROWTH = 1.2
GROWTH_BYTES = 200e6
STARVING = 0.5
BLOCKED = 0.1  # of collecting, an event loop
WAITING = 0.3  # CPU over wall time of collecting, of what a process gets of a core


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
        found = {"share": judge_shares(self._rows), "skipped": judge_skipped(row)}
        alarms = _new(found, self._said)
        if self._stretches is not None:
            found = self._stretches.see_row(step, row) | {"loop": judge_loop(row)}
            timed = _new(found, self._said_timed)
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


def judge_skipped(row: Row) -> str | None:
    """Updates that were not made, since their gradient was not finite."""
    count = row.get(SKIPPED, 0.0)
    if not count:
        return None
    return (
        f"{count:.0f} updates were skipped so far, as their gradient was not finite; the weights stayed as"
        " they were: lower learning_rate, or set normalize_obs and normalize_returns; several in a row end"
        " the run"
    )


def judge_loop(row: Row) -> str | None:
    """An environment that waits without letting the others on its event loop run."""
    share = row.get("time/loop_blocked", 0.0)
    if share < BLOCKED:
        return None
    return (
        f"environment {row['time/loop_blocked_env']:.0f} blocks the event loop: {100 * share:.0f} % of"
        " collecting all others waited for it (time.sleep, requests); env-output.txt names the line: await"
        " what it waits for, or use --vector threads"
    )


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


@dataclass(slots=True)
class Stretch:
    """Some seconds of a run."""

    steps: int = 0
    wall_s: float = 0.0
    training_s: float = 0.0  # without what the main role does
    collect_s: float = 0.0
    learn_s: float = 0.0
    wait_s: float = 0.0
    collect_cpu_s: float = 0.0
    load: float = 1.0  # processes that want a core, the latest
    memory_bytes: float | None = None  # the latest

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.training_s if self.training_s > 0 else 0.0


class Stretches:
    """Remembers the last stretches of one process's work."""

    def __init__(self, first_step: int, *, env_cpu_is_known: bool) -> None:
        self._step = first_step
        self._env_cpu_is_known = env_cpu_is_known
        self._open = Stretch()
        self._last: list[Stretch] = []
        self._best = 0.0  # the highest rate that was held for NUM_STRETCHES

    def see_row(self, step: int, row: Mapping[str, float]) -> dict[str, str | None]:
        """Take in a row; what there is to say, by kind, where it ends a stretch."""
        now = self._open
        now.steps += step - self._step
        self._step = step
        now.wall_s += row["phase/wall_s"]
        now.training_s += row["phase/main_idle_s"]
        now.collect_s += row["phase/collect_s"]
        now.learn_s += row["phase/learn_s"]
        now.wait_s += row["phase/wait_s"]
        now.collect_cpu_s += row["phase/collect_cpu_s"]
        now.load = max(row.get("machine/load", now.load), 1.0)
        now.memory_bytes = row.get("machine/memory_bytes", now.memory_bytes)
        if now.training_s < STRETCH_S:
            return {}
        self._open = Stretch()
        self._last = [*self._last, now][-NUM_STRETCHES:]
        found = {
            "decay": judge_rate(self._last, self._best),
            "memory": judge_memory(self._last),
            "workers": judge_workers(self._last),
            "learner": judge_learner(self._last) if self._env_cpu_is_known else None,
        }
        if len(self._last) == NUM_STRETCHES:
            self._best = max(self._best, min(each.steps_per_s for each in self._last))
        return found


def judge_rate(stretches: Sequence[Stretch], best: float) -> str | None:
    """A rate that is well below the best one that was held for as long."""
    if len(stretches) < NUM_STRETCHES or max(each.steps_per_s for each in stretches) >= DECAY * best:
        return None
    now = sum(each.steps for each in stretches) / sum(each.training_s for each in stretches)
    return (
        f"the rate fell to {now:,.0f} steps/s from {best:,.0f}: look for other work on this machine, heat, or"
        " an environment that slows down; `mission-gym runs timeline` shows where the time goes"
    )


def judge_memory(stretches: Sequence[Stretch]) -> str | None:
    """Memory that grew in every stretch, and by much."""
    sizes = [each.memory_bytes for each in stretches if each.memory_bytes is not None]
    if len(sizes) < NUM_STRETCHES or any(b <= a for a, b in pairwise(sizes)):
        return None
    if sizes[-1] < GROWTH * sizes[0] or sizes[-1] - sizes[0] < GROWTH_BYTES:
        return None
    minutes = sum(each.wall_s for each in stretches) / 60
    return (
        f"memory grew from {sizes[0] / 1e9:.2f} to {sizes[-1] / 1e9:.2f} GB in {minutes:.1f} min without a"
        " pause: an environment or wrapper seems to keep what it should drop; stopping and `mission-gym"
        " resume` frees it"
    )


def judge_workers(stretches: Sequence[Stretch]) -> str | None:
    """Workers that wait for the slowest one for much of collecting."""
    if len(stretches) < 3 or any(each.wait_s < STARVING * each.collect_s for each in stretches[-3:]):
        return None
    last = stretches[-1]
    share = 100 * last.wait_s / last.collect_s if last.collect_s else 0.0
    return (
        f"workers starve: the mean one waits {share:.0f} % of collecting for the slowest; a larger"
        " --n-steps-per-env or --n-envs evens out steps of unequal cost"
    )


def judge_learner(stretches: Sequence[Stretch]) -> str | None:
    """A learner without data while the environments wait as well."""
    if len(stretches) < 3:
        return None
    for each in stretches[-3:]:
        has_data = each.learn_s >= (1 - STARVING) * each.training_s
        if has_data or each.collect_cpu_s * each.load > WAITING * each.collect_s:
            return None
    starves = 1 - stretches[-1].learn_s / stretches[-1].training_s
    return (
        f"the learner starves: it has nothing to learn from {100 * starves:.0f} % of the time, while"
        " environments wait; --vector threads and a larger --n-envs let more of them wait at once"
    )
