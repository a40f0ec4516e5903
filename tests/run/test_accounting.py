"""Phases of a role add up to its wall time, and the overlap is what it says."""

from __future__ import annotations

import pytest

from mission_gym.clock import ROLES, PhaseClock
from mission_gym.data import Phases
from mission_gym.run.telemetry import account, compute_overlap, phase_metrics


class FakeTime:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def play(*, overlapped: bool) -> tuple[Phases, float]:
    """Three updates of 4 s of collecting and 3 s of learning, an evaluation of 2 s, and 0.5 s of rows."""
    time = FakeTime()
    collector, learner, main = (PhaseClock(role, now=time) for role in ROLES)
    for _ in range(3):
        with collector.phase("collect"):
            if overlapped:
                with learner.phase("update"):
                    learner.add("values", 1.0)
                    time.now += 3.0
                time.now += 1.0
            else:
                time.now += 4.0
            collector.add("act", 1.0)
            collector.add("env", 2.0)
            collector.add("wait", 0.25)
        if not overlapped:
            with learner.phase("update"):
                learner.add("values", 1.0)
                time.now += 3.0
    with main.phase("evaluate"):
        time.now += 2.0
    time.now += 0.5
    return collector.take() | learner.take() | main.take(), time.now - 100.0


@pytest.mark.parametrize("overlapped", [False, True])
def test_the_phases_of_each_role_add_up_to_the_wall(overlapped: bool) -> None:
    phases, wall_s = play(overlapped=overlapped)
    table = account(phases, wall_s)
    for role, row in table.items():
        assert set(row) == {*ROLES[role], "idle"}
        assert sum(row.values()) == pytest.approx(wall_s)
    assert table["collector"]["copy"] == pytest.approx(3 * 0.75)
    assert table["learner"]["update"] == pytest.approx(3 * 2.0)
    assert table["main"]["idle"] == pytest.approx(wall_s - 2.0)


def test_one_after_the_other_overlaps_nothing() -> None:
    phases, wall_s = play(overlapped=False)
    assert wall_s == pytest.approx(23.5)
    metrics = phase_metrics(phases, wall_s)
    assert metrics["phase/overlap"] == 0.0
    assert metrics["phase/collect_s"] == pytest.approx(12.0)
    assert metrics["phase/learn_s"] == pytest.approx(9.0)
    assert metrics["phase/learner_idle_s"] == pytest.approx(14.5)


def test_the_overlap_is_one_minus_wall_over_both() -> None:
    phases, wall_s = play(overlapped=True)
    assert wall_s == pytest.approx(14.5)
    metrics = phase_metrics(phases, wall_s)
    assert metrics["phase/overlap"] == pytest.approx(1 - 12.5 / 21.0, abs=1e-4)
    assert compute_overlap(5.0, 5.0, 5.0) == 0.5
    assert compute_overlap(0.0, 0.0, 5.0) is None
    assert "phase/overlap" not in phase_metrics(Phases(), 1.0)
