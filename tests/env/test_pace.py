"""A step's pace: computing is told from waiting, also on a machine that has no core to spare."""

from __future__ import annotations

import time

import pytest
from gymnasium import spaces

from mission_gym.env import pace
from mission_gym.env.probe import probe
from toys import Toy


class Waiting(Toy):
    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def observe(self):
        return 0

    def step(self, action):
        time.sleep(0.002)
        return self.advance(0.0)


class Computing(Waiting):
    def step(self, action):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return self.advance(0.0)


@pytest.mark.parametrize(("env", "waits"), [(Waiting, True), (Computing, False)])
def test_waiting_and_computing(env: type[Toy], waits: bool) -> None:
    measured = pace.time_steps(env, probe(env, "toy"), 0.05)
    assert measured.waits == waits
    assert measured.step_s >= 0.001  # less the time in the queue, which is only known roughly
    assert measured.num_steps >= 4


def test_time_in_the_queue_while_clocks_are_read_is_not_taken_from_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued = [0.0]

    def look() -> float:
        """As on a busy machine: the process loses its core just here."""
        time.sleep(0.05)
        queued[0] += 0.05
        return queued[0]

    monkeypatch.setattr(pace, "read_queued_s", look)
    assert pace.time_steps(Waiting, probe(Waiting, "toy"), 0.01).waits
