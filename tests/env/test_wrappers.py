"""Each wrapper with numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.env import wrappers
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.errors import EnvContractError
from toys import StepCount


def test_frame_skip_adds_rewards_and_ends_with_the_episode() -> None:
    env = wrappers.FrameSkip(StepCount(), skip=3)
    env.reset()
    obs, reward, *_ = env.step(0)
    assert (obs[0], reward) == (3, 6.0)
    for _ in range(33):
        obs, reward, _, truncated, _ = env.step(0)
    assert (obs[0], reward, truncated) == (100, 100.0, True)


def test_frame_stack_shows_views_that_never_change() -> None:
    env = wrappers.FrameStack(StepCount(), num=3)
    shown = [env.reset()[0], *(env.step(0)[0] for _ in range(99))]
    assert env.observation_space.shape == (3, 2)
    for step, obs in enumerate(shown):
        assert obs[:, 0].tolist() == [max(step - 2, 0), max(step - 1, 0), step]
        assert obs.base is not None  # no copy
    assert env.reset()[0][:, 0].tolist() == [0, 0, 0]
    assert shown[-1][:, 0].tolist() == [97, 98, 99]


def test_pictures_are_stacked_as_they_are() -> None:
    env = wrappers.FrameStack(StepCount((8, 8, 1), np.uint8), num=2)
    env.reset()
    assert env.step(0)[0][:, 0, 0, 0].tolist() == [0, 1]
    assert env.observation_space.shape == (2, 8, 8, 1)


def test_grey_and_resize() -> None:
    env = wrappers.Resize(wrappers.Grey(StepCount((16, 16, 3), np.uint8)), 8, 8)
    env.reset()
    obs = env.step(0)[0]
    assert obs.shape == env.observation_space.shape == (8, 8)
    assert obs.dtype == np.uint8
    colour = wrappers.Resize(StepCount((16, 16, 3), np.uint8), 8, 4)
    assert colour.reset()[0].shape == (8, 4, 3)
    for wrap in (wrappers.Grey, wrappers.Resize):
        with pytest.raises(EnvContractError, match="uint8 images"):
            wrap(StepCount())


class Shown(gym.Env[Any, Any]):
    """Shows one picture for ever, beside a number."""

    def __init__(self, picture: Any) -> None:
        whole = spaces.Box(0, 255, picture.shape, picture.dtype)
        self.observation_space = spaces.Dict(picture=whole, number=spaces.Discrete(2))
        self.action_space = spaces.Discrete(2)
        self.picture = picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"picture": self.picture, "number": 1}, {}


def test_crop_and_pool_take_pictures_of_either_layout_and_keys_of_a_dict() -> None:
    planes = np.arange(2 * 6 * 8, dtype=np.uint8).reshape(2, 6, 8)
    for picture, axis in ((planes, 1), (np.ascontiguousarray(np.moveaxis(planes, 0, -1)), 0), (planes[0], 0)):
        top = np.moveaxis(picture, 0, -1) if axis else picture
        for env, expected in (
            (wrappers.Crop(Shown(picture), 4), top[1:5, 2:6]),
            (wrappers.Crop(Shown(picture), 4, 6, 0, 2), top[:4, 2:]),
            (
                wrappers.MeanPool(Shown(picture), 3),
                top[:, :6].reshape(2, 3, 2, 3, -1).mean((1, 3)).astype(np.uint8),
            ),
        ):
            shown = env.reset()[0]
            assert env.observation_space.contains(shown)
            assert shown["number"] == 1
            got = np.moveaxis(shown["picture"], 0, -1) if axis else shown["picture"]
            assert np.array_equal(got, expected.reshape(got.shape))


def test_crop_and_pool_refuse_what_they_can_not_show() -> None:
    picture = np.zeros((6, 8), np.uint8)
    with pytest.raises(EnvContractError, match=r"Crop needs 7 pixels from -1 on, but has 6 \[--wrap\]"):
        wrappers.Crop(Shown(picture), 7)
    with pytest.raises(EnvContractError, match=r"MeanPool needs 7 x 7 pixels, not 6 x 8"):
        wrappers.MeanPool(Shown(picture), 7)
    for wrap in (wrappers.Crop, wrappers.MeanPool):
        with pytest.raises(EnvContractError, match="needs uint8 images"):
            wrap(StepCount(), 2)


def test_clip_and_time_limit() -> None:
    env = wrappers.TimeLimit(wrappers.ClipReward(StepCount()), 2)
    env.reset()
    assert env.step(0)[1] == 1.0
    _, reward, _, truncated, _ = env.step(0)
    assert (reward, truncated) == (1.0, True)


def test_wrappers_by_name() -> None:
    names = [f"mission_gym.env.wrappers:{name}" for name in ("FrameStack", "ClipReward", "TimeLimit")]
    env = make_factory(EnvRequest("CartPole-v1", wrap=tuple(names)))()
    assert env.reset(seed=1)[0].shape == (4, 4)
    env.close()
