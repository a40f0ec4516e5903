"""Which jobs start now, each with how many cores: a pure function of jobs, capacity, facts and time.

Never more cores than there are, never more memory of machine or GPU than is free. Within that as many jobs
as are sure to pay, and beyond those one at a time, as long as the aggregate rate was measured to rise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

FIRST_GUESS_BYTES = 600 << 20  # of a run of which nothing was measured: torch and a small network
FIRST_GUESS_VRAM_BYTES = 1 << 30  # likewise: its CUDA context, and a small network
_MEMORY_SHARE = 0.9  # of what is free
_RISE = 1.03  # of the aggregate rate by one more job, below which it was not worth it
_FALL = 0.95


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that could start."""

    key: str
    variant: str
    priority: int = 0
    cores: int = 1  # at least
    not_before: float = 0.0  # a retry waits a little
    uses_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs, with its share of the cores and the memory that it has now."""

    key: str
    variant: str
    cores: int
    memory_bytes: int = 0
    uses_gpu: bool = False
    vram_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the machine has: cores, and the memory that is still free."""

    cores: int
    memory_free_bytes: int
    vram_free_bytes: int | None = None  # None: not known, and not counted


@dataclass(frozen=True, slots=True)
class Facts:
    """What running jobs have taught."""

    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # the most of a run, by variant
    vram_bytes: Mapping[str, int] = field(default_factory=dict)  # likewise
    levels: Mapping[int, float] = field(default_factory=dict)  # aggregate rate by number of jobs at once
    are_long: bool = False  # the jobs go on for so long that a measurement costs nothing


@dataclass(frozen=True, slots=True)
class Start:
    """A job that starts now, with so many cores."""

    key: str
    cores: int
    node: str = ""  # of a cluster


@dataclass(frozen=True, slots=True)
class Decision:
    """What starts, and why no more does."""

    starts: tuple[Start, ...] = ()
    reason: str = ""


def plan_starts(
    waiting: Sequence[Waiting], running: Sequence[Running], capacity: Capacity, facts: Facts, now: float
) -> Decision:
    """Choose by priority, then by order. The first job that does not fit holds those behind it, so that a
    large one is not passed for ever."""
    due = [job for job in waiting if job.not_before <= now]
    if not due:
        return Decision(reason="a retry waits" if waiting else "")
    due.sort(key=lambda job: -job.priority)  # stable
    level = len(running)
    if facts.are_long and level and level not in facts.levels and level + 1 in facts.levels:
        return Decision(reason=f"measuring {level} at once")
    limit = find_limit(facts.levels, _count_sure(due, running, capacity))
    free = capacity.cores - sum(job.cores for job in running)
    on_gpu = [job for job in running if job.uses_gpu]
    memory = _MEMORY_SHARE * capacity.memory_free_bytes - sum(
        max(0, _weigh(job.variant, facts) - job.memory_bytes) for job in running
    )
    vram = _MEMORY_SHARE * (inf if capacity.vram_free_bytes is None else capacity.vram_free_bytes) - sum(
        max(0, _weigh_vram(job.variant, facts) - job.vram_bytes) for job in on_gpu
    )
    num_on_gpu = len(on_gpu)
    chosen: list[tuple[Waiting, int]] = []
    reason = ""
    for job in due:
        cores, size = min(job.cores, capacity.cores), _weigh(job.variant, facts)
        vram_size = _weigh_vram(job.variant, facts) if job.uses_gpu else 0
        number = level + len(chosen)
        if cores > free:
            reason = f"all {capacity.cores} cores are in use"
        elif number and number >= limit:
            reason = f"more than {limit} at once are to be measured first, or were measured to gain nothing"
        elif size > memory and number:
            reason = f"{size / 1e9:.1f} GB for one more are not free"
        elif vram_size > vram and num_on_gpu:
            reason = f"{vram_size / 1e9:.1f} GB of GPU memory for one more are not free"
        if reason:
            break
        chosen.append((job, cores))
        free -= cores
        memory -= size
        vram -= vram_size
        num_on_gpu += job.uses_gpu
    return Decision(_share(chosen, free), reason)


def find_limit(levels: Mapping[int, float], sure: int) -> int:
    """How many jobs may run at once: `sure` ones unless fewer were measured better; more as long as each
    level that was tried raised the aggregate rate, and one level that was not tried yet."""
    for level in range(2, sure + 1):
        if level in levels and level - 1 in levels and levels[level] < _FALL * levels[level - 1]:
            return level - 1
    limit = sure
    while limit in levels:
        if levels.get(limit + 1, float("inf")) < _RISE * levels[limit]:
            break
        limit += 1
    return limit


def _count_sure(due: Sequence[Waiting], running: Sequence[Running], capacity: Capacity) -> int:
    """A core each is sure to pay; that runs share a GPU well is to be measured."""
    on_gpu = [job.uses_gpu for job in due] + [job.uses_gpu for job in running]
    return 1 if any(on_gpu) else capacity.cores


def _weigh(variant: str, facts: Facts) -> int:
    return facts.memory_bytes.get(variant, FIRST_GUESS_BYTES)


def _weigh_vram(variant: str, facts: Facts) -> int:
    return facts.vram_bytes.get(variant, FIRST_GUESS_VRAM_BYTES)


def _share(chosen: Sequence[tuple[Waiting, int]], free: int) -> tuple[Start, ...]:
    """Cores that nobody else asks for are spread over the jobs that start, the first ones first."""
    each, more = divmod(free, len(chosen)) if chosen else (0, 0)
    return tuple(Start(job.key, cores + each + (number < more)) for number, (job, cores) in enumerate(chosen))
