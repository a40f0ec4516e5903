"""Phase clocks: seconds by role and phase, and the spans of the coarse ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mission_gym.clock import PhaseClock
from mission_gym.data import Phases, Span


def ticking(*times: float) -> Iterator[float]:
    return iter(times)


def test_a_phase_gives_seconds_and_a_span() -> None:
    times = ticking(1.0, 3.5, 4.0, 4.25)
    clock = PhaseClock("learner", now=lambda: next(times))
    with clock.phase("update"):
        clock.add("values", 0.5)
    with clock.phase("update"):
        pass
    taken = clock.take()
    assert taken.seconds == {("learner", "update"): 2.75, ("learner", "values"): 0.5}
    assert taken.spans == [Span("learner", "update", 1.0, 3.5), Span("learner", "update", 4.0, 4.25)]
    assert clock.take() == Phases()


def test_a_phase_under_way_is_counted_in_two_parts() -> None:
    times = ticking(1.0, 3.0, 7.0)
    clock = PhaseClock("main", now=lambda: next(times))
    with clock.phase("record"):
        clock.split()
        assert clock.take().seconds == {("main", "record"): 2.0}
    assert clock.take().seconds == {("main", "record"): 4.0}


def test_a_phase_that_raises_is_counted() -> None:
    times = ticking(0.0, 2.0)
    clock = PhaseClock("main", now=lambda: next(times))
    with pytest.raises(ValueError, match="boom"), clock.phase("save"):
        raise ValueError("boom")
    assert clock.take().seconds == {("main", "save"): 2.0}


def test_spans_are_bounded_and_the_oldest_go_first() -> None:
    now = iter(range(2000))
    clock = PhaseClock("main", now=lambda: float(next(now)))
    for _ in range(1000):
        with clock.phase("save"):
            pass
    taken = clock.take()
    assert taken.seconds == {("main", "save"): 1000.0}
    assert len(taken.spans) == 256
    assert taken.spans[-1].end == 1999.0


def test_phases_of_two_clocks_add_up() -> None:
    first, second = PhaseClock("collector"), PhaseClock("learner")
    first.add("act", 1.0)
    second.add("act", 4.0)
    both = first.take() | second.take()
    first.add("act", 2.0)
    assert (both | first.take()).seconds == {("collector", "act"): 3.0, ("learner", "act"): 4.0}
