"""The rates of a run by a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mission_gym.data import Phases, Progress
from mission_gym.run import recorder
from mission_gym.run.recorder import StepRate


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recorder.time, "monotonic", made.read)
    return made


def loop(clock: Clock, first: int, *updates: tuple[int, float, int]) -> Iterator[Progress]:
    """Updates with their steps, seconds and gradient steps so far."""
    step = first
    for number, (steps, seconds, gradient_steps) in enumerate(updates, 1):
        clock.now += seconds
        step += steps
        yield Progress(
            update=number, step=step, metrics={}, episodes=[], gradient_steps=gradient_steps, phases=Phases()
        )


def test_only_training_counts_for_its_rate(clock: Clock) -> None:
    made = StepRate()
    made.begin_at(1000)
    made.elapsed_before_s = 50.0
    clock.now += 2.0  # until the first update
    assert (made.training, made.momentary, made.eta_s(2000)) == (None, None, None)
    assert not made.is_reliable
    for _ in made.follow(loop(clock, 1000, (100, 1.0, 5), (100, 0.25, 10), (100, 0.25, 15))):
        clock.now += 1.0  # an evaluation
    assert made.training == 400.0  # without the first update
    assert not made.is_reliable  # half a second is little
    assert made.momentary == 400.0
    assert made.count_made(1300) == 300
    assert made.elapsed_s == pytest.approx(50.0 + 2.0 + 1.5 + 3.0)
    assert made.overall(1300) == round(300 / 6.5, 1)
    assert made.eta_s(1600) == 4.5  # at the pace since the first update began, evaluations included


def test_the_last_overlapped_update_does_not_count(clock: Clock) -> None:
    made = StepRate()
    for _ in made.follow(loop(clock, 0, (100, 1.0, 5), (100, 0.01, 10)), overlaps=True):
        pass
    assert made.training is None  # its block was collected next to the first update
    for _ in made.follow(loop(clock, 200, (100, 1.0, 5), (100, 0.5, 10), (100, 0.01, 15)), overlaps=True):
        pass
    assert made.training == 200.0


def test_steps_before_learning_are_no_training(clock: Clock) -> None:
    made = StepRate()
    for _ in made.follow(loop(clock, 0, (100, 0.01, 0), (100, 0.01, 0), (100, 1.0, 3), (100, 1.0, 6))):
        pass
    assert made.training == 100.0
    assert made.is_reliable
    assert made.eta_s(400) == 0.0


def test_short_updates_are_joined_to_a_moment(clock: Clock) -> None:
    made, seen = StepRate(), []
    for _ in made.follow(loop(clock, 0, *[(10, 0.0625, 1)] * 8)):
        seen.append(made.momentary)
    assert seen == [None, None, None, 160.0, 160.0, 160.0, 160.0, 160.0]
