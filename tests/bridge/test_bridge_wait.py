"""Waiting for an answer, awake and asleep."""

import os

import pytest

from mission_gym.bridge import engine
from mission_gym.procs.pipes import PolledPipes

pytestmark = pytest.mark.skipif(engine._THREAD is None, reason="only Linux counts who lost a core")


@pytest.fixture
def ends(monkeypatch):
    """Pipes, the end to write to, how often a core was lost, and the waits that were asleep."""
    read_fd, write_fd = os.pipe()
    lost, asleep = [0], []
    wait = engine.wait_for_pipes

    def count(pipes, timeout_s, spin):
        asleep.extend([timeout_s] if timeout_s else [])
        return wait(pipes, timeout_s, spin)

    monkeypatch.setattr(engine, "wait_for_pipes", count)
    monkeypatch.setattr(engine, "_count_preemptions", lambda: lost[0])
    yield PolledPipes(write_fd, read_fd), write_fd, lost, asleep
    os.close(read_fd)
    os.close(write_fd)


def test_an_answer_that_comes_soon_is_awaited_awake(ends):
    pipes, write_fd, _, asleep = ends
    adaptive = engine.AdaptiveWait()
    for _ in range(3):
        os.write(write_fd, b"answer")
        assert adaptive.wait(pipes, 10.0)
        assert pipes.read() == (b"answer", False)
    assert not asleep


def test_behind_a_late_answer_the_next_is_awaited_asleep(ends, monkeypatch):
    pipes, write_fd, *_ = ends
    tries = []
    monkeypatch.setattr(engine.AdaptiveWait, "_spin", lambda *args: tries.append(args))
    adaptive = engine.AdaptiveWait()
    for soon_s in (0.0, 0.0, 0.0, 60.0, 60.0):  # the first three answers are late
        monkeypatch.setattr(engine, "_SOON_S", soon_s)
        os.write(write_fd, b"answer")
        assert adaptive.wait(pipes, 10.0)
        pipes.read()
    assert len(tries) == 2  # the first wait, and the one behind an answer that came soon


def test_who_loses_the_core_sleeps_for_longer_each_time(ends, monkeypatch):
    pipes, write_fd, lost, asleep = ends
    is_wanted = [True]
    monkeypatch.setattr(
        engine, "_count_preemptions", lambda: lost.append(lost.pop() + is_wanted[0]) or lost[0]
    )
    adaptive = engine.AdaptiveWait()
    os.write(write_fd, b"answer")

    def count_asleep(num_waits):
        asleep.clear()
        for _ in range(num_waits):
            assert adaptive.wait(pipes, 10.0)
        return len(asleep)

    assert count_asleep(1 + 2 + 1 + 4 + 1 + 8) == 2 + 4 + 8
    is_wanted[0] = False
    assert count_asleep(100) == 0


def test_silence_ends_at_the_deadline(ends):
    pipes, *_ = ends
    assert not engine.AdaptiveWait().wait(pipes, 0.01)
