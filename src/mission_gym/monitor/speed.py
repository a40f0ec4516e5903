"""What rows say of speed and memory: a rate that decays, memory that grows, a learner or workers that starve.

In: the `phase/*` and `machine/*` values of a run's rows. They are joined to stretches of some seconds, so
that quick rows don't count for more than slow ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

STRETCH_S = 5.0
NUM_STRETCHES = 12  # a minute
DECAY = 0.6  # of the best rate
GROWTH = 1.2
GROWTH_BYTES = 200e6
STARVING = 0.5
WAITING = 0.3  # CPU over wall time of collecting, of what a process gets of a core


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
