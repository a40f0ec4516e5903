"""Which jobs start, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mission_gym.fleet.schedule import (
    FIRST_GUESS_BYTES,
    FIRST_GUESS_VRAM_BYTES,
    Capacity,
    MeasuredUse,
    RunningJob,
    StartDecision,
    WaitingJob,
    find_limit,
    plan_starts,
)

GB = 10**9


def wait(key: str, **more: Any) -> WaitingJob:
    return WaitingJob(key, more.pop("variant", "v"), **more)


def run(key: str, cores: int = 1, **more: Any) -> RunningJob:
    return RunningJob(key, more.pop("variant", "v"), cores, **more)


def decide(
    waiting: list[WaitingJob],
    running: Sequence[RunningJob] = (),
    cores: int = 4,
    free: int = 64 * GB,
    vram: int | None = None,
    **use: Any,
) -> StartDecision:
    return plan_starts(waiting, running, Capacity(cores, free, vram), MeasuredUse(**use), 100.0)


def starts(decision: StartDecision) -> dict[str, int]:
    return {start.key: start.cores for start in decision.starts}


@pytest.mark.parametrize(
    ("asked", "busy", "cores", "expected"),
    [
        ([], [], 4, {}),
        ([wait("a")], [], 4, {"a": 4}),  # alone it has the whole machine
        ([wait("a"), wait("b")], [], 4, {"a": 2, "b": 2}),
        ([wait("a"), wait("b"), wait("c")], [], 4, {"a": 2, "b": 1, "c": 1}),
        ([wait("a"), wait("b"), wait("c")], [], 2, {"a": 1, "b": 1}),
        ([wait("a"), wait("b")], [run("x", 3)], 4, {"a": 1}),
        ([wait("a")], [run("x", 4)], 4, {}),
        ([wait("a"), wait("b")], [run("x", 4, min_cores=1)], 4, {"a": 1, "b": 1}),  # x got what was spare
        ([wait("a"), wait("b")], [run("x", 2, min_cores=1), run("y", 2, min_cores=2)], 4, {"a": 1}),
        ([wait("a")], [run("x", 2, min_cores=1)], 4, {"a": 2}),
        ([wait("a", cores=2)], [run("x", 4, min_cores=3)], 4, {}),
        ([wait("a", cores=3), wait("b")], [], 4, {"a": 3, "b": 1}),
        ([wait("a", cores=9)], [], 4, {"a": 4}),  # more than there are: all of them
        ([wait("a", cores=3), wait("b")], [run("x", 2)], 4, {}),  # a large job is not overtaken forever
        ([wait("a"), wait("b", priority=1)], [run("x", 3)], 4, {"b": 1}),
        ([wait("a", not_before=101.0), wait("b")], [run("x", 3)], 4, {"b": 1}),
        ([wait("a", not_before=101.0)], [], 4, {}),
    ],
)
def test_cores_are_given_once(
    asked: list[WaitingJob], busy: list[RunningJob], cores: int, expected: dict[str, int]
) -> None:
    assert starts(decide(asked, busy, cores)) == expected


@pytest.mark.parametrize(
    ("free", "busy", "known", "expected"),
    [
        (64 * GB, [], {}, ["a", "b"]),
        (1 * GB, [], {}, ["a"]),
        (0, [], {}, ["a"]),  # nothing runs: the run itself refuses, with what would fit
        (4 * GB, [], {"v": 3 * GB}, ["a"]),
        (10 * GB, [run("x", memory_bytes=1 * GB)], {"v": 4 * GB}, ["a"]),  # x is to grow by 3 GB
        (6 * GB, [run("x", memory_bytes=1 * GB)], {"v": 4 * GB}, []),
        (6 * GB, [run("x", memory_bytes=4 * GB)], {"v": 4 * GB}, ["a"]),
        (FIRST_GUESS_BYTES, [run("x", memory_bytes=9 * GB)], {}, []),  # a tenth stays free
    ],
)
def test_memory_is_not_given_twice(
    free: int, busy: list[RunningJob], known: Mapping[str, int], expected: list[str]
) -> None:
    decision = decide([wait("a"), wait("b")], busy, 8, free, memory_bytes=known)
    assert [start.key for start in decision.starts] == expected
    assert len(expected) == 2 or "not free" in decision.reason


@pytest.mark.parametrize(
    ("levels", "sure", "limit"),
    [
        ({}, 4, 4),
        ({4: 4.0}, 4, 5),
        ({3: 3.0, 4: 4.0}, 4, 5),
        ({3: 3.0, 4: 2.5}, 4, 3),  # the fourth cost more than it gave
        ({3: 3.0, 4: 2.95}, 4, 5),  # noise
        ({1: 1.0}, 1, 2),  # tries a second one
        ({1: 1.0, 2: 1.6}, 1, 3),  # it paid: tries a third
        ({1: 1.0, 2: 1.02}, 1, 1),  # it did not
        ({1: 1.0, 2: 1.6, 3: 1.5}, 1, 2),
        ({2: 1.6}, 1, 1),  # what one alone makes is not known yet
    ],
)
def test_more_run_at_once_as_long_as_the_aggregate_rises(
    levels: Mapping[int, float], sure: int, limit: int
) -> None:
    assert find_limit(levels, sure) == limit


def test_runs_on_one_gpu_are_added_one_by_one() -> None:
    many = [wait(key, uses_gpu=True) for key in "abc"]
    assert len(decide(many, cores=8).starts) == 1
    one = [run("x", uses_gpu=True)]
    assert "measured" in decide(many, one, cores=8).reason
    assert len(decide(many, one, cores=8, rates={1: 1.0}).starts) == 1
    assert not decide(many, [*one, run("y")], cores=8, rates={1: 1.0, 2: 1.0}).starts


@pytest.mark.parametrize(
    ("vram", "busy", "known", "expected"),
    [
        (None, 0, {}, "a"),  # no card is known: nothing is counted
        (0, None, {}, "a"),  # no run of ours is there: this one refuses by itself, or falls back
        (8 * GB, 0, {}, "a"),
        (2 * GB, 0, {}, ""),  # the running one will take the first guess, and so would this
        (2 * GB, FIRST_GUESS_VRAM_BYTES, {}, "a"),  # it has taken it
        (7 * GB, 1 * GB, {"v": 4 * GB}, ""),  # it is to grow by 3 GB
        (8 * GB, 1 * GB, {"v": 4 * GB}, "a"),
        (4 * GB, 4 * GB, {"v": 4 * GB}, ""),  # a tenth stays free
    ],
)
def test_memory_of_the_gpu_is_not_given_twice(
    vram: int | None, busy: int | None, known: Mapping[str, int], expected: str
) -> None:
    running = [] if busy is None else [run("x", uses_gpu=True, vram_bytes=busy)]
    cpu = [run("y", vram_bytes=0)]  # takes none
    asked = [wait("a", uses_gpu=True)]
    levels = {1: 1.0, 2: 2.0}
    decision = decide(asked, [*running, *cpu], 8, vram=vram, vram_bytes=known, rates=levels)
    assert "".join(start.key for start in decision.starts) == expected
    assert expected or "of GPU memory" in decision.reason
    if not expected:  # who needs no GPU is not held by its memory
        assert starts(decide([wait("b")], [*running, *cpu], 8, vram=vram, vram_bytes=known, rates=levels))


def test_long_jobs_are_worth_a_measurement_with_one_fewer() -> None:
    """A job ended at a level that was measured: the one below is looked at before the next starts."""
    busy = [run("x"), run("y"), run("z")]
    assert decide([wait("a")], busy, rates={4: 4.0}, are_long=True).reason == "measuring 3 at once"
    assert starts(decide([wait("a")], busy, rates={4: 4.0})) == {"a": 1}
    assert starts(decide([wait("a")], busy, rates={3: 3.0, 4: 4.0}, are_long=True)) == {"a": 1}
    assert not decide([wait("a")], busy, rates={3: 3.0, 4: 2.0}, are_long=True).starts
