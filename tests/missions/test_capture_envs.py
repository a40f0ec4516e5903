"""The capture environments: actions, and an episode that stalls. The rest is in test_contract.py."""

import numpy as np
import pytest

from mission_gym.errors import UsageError
from mission_gym_missions.capture.env import CaptureEnv


def test_wrong_actions_are_explained():
    env = CaptureEnv()
    env.reset(seed=0)
    with pytest.raises(
        UsageError, match=r"action 10 does not exist; use 0 \(hold\), 1 to 8 \(headings\) or 9"
    ):
        env.step(np.array([0, 10, 0, 0]))
    with pytest.raises(UsageError, match=r"shape \(1, 3\) .* takes integers from 0 to 9 of shape \(1, 4\)"):
        env.step(np.zeros(3, np.int64))
    with pytest.raises(UsageError, match="dtype float64 do not fit; the mission takes integers"):
        env.step(np.zeros(4))


def test_a_fleet_that_holds_stalls():
    env = CaptureEnv()
    env.reset(seed=0)
    over = False
    while not over:
        _, _, over, _, info = env.step(np.zeros(4, np.int64))
    assert info["outcome"] == "stalled"
    assert info["episode_metrics"]["units_alive"] <= 4
