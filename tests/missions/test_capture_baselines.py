"""The scripted policies do as well as the levels promise."""

import numpy as np

from mission_gym.streams import suite_seeds
from mission_gym_missions.capture.env import CaptureVectorEnv


def captured_share(level, name, episodes=128):
    vec = CaptureVectorEnv(episodes, level)
    obs, infos = vec.reset(seed=suite_seeds("select", episodes))
    won, running = np.zeros(episodes, bool), np.ones(episodes, bool)
    while running.any():
        obs, _, ended, _, infos = vec.step(vec.baselines[name](obs, infos["action_mask"]))
        if ended.any():
            won |= running & ended & (infos["final_info"]["outcome"] == "captured")
            running &= ~ended
    return won.mean()


def test_normal_is_between_hopeless_and_trivial():
    random, rush, holder = (captured_share("normal", name) for name in ("random", "rush", "holder"))
    assert random < 0.05
    assert 0.3 < rush < 0.8
    assert holder > rush


def test_easy_is_easy_and_hard_needs_more_than_a_rush():
    assert captured_share("easy", "rush") > 0.9
    assert captured_share("hard", "rush") < 0.1
    assert captured_share("hard", "holder") > 0.5
