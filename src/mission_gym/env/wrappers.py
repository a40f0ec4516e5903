"""The wrappers people use, for `--wrap mission_gym.env.wrappers:FrameStack`; each works without arguments.

Images are [H, W] or [H, W, C] of uint8. For other numbers, wrap in a function of your own.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit as GymTimeLimit

from mission_gym.data import Array
from mission_gym.env.factory import Env
from mission_gym.errors import EnvContractError, UsageError

_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601
_RING = 64  # stacks that share one buffer


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats every action `skip` times and adds up the rewards; the last observation is shown."""

    def __init__(self, env: Env, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the last `num` observations as [num, ...], or images [H, W, C] as [H, W, C * num].

    Plain stacks are views of one buffer in which every frame is written once; no view is ever changed.
    """

    def __init__(self, env: Env, num: int = 4) -> None:
        super().__init__(env)
        space = _box_of(env, "FrameStack")
        self._num, self._frame = num, space
        self._image = len(space.shape) == 3
        axis = -1 if self._image else 0
        join = np.concatenate if self._image else np.stack
        low, high = join([space.low] * num, axis), join([space.high] * num, axis)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)
        self._buffer = self._make_buffer()
        self._end = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        self._buffer, self._end = self._make_buffer(), self._num
        self._buffer[: self._num] = obs
        return self._show(), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._end == len(self._buffer):
            old, self._buffer = self._buffer, self._make_buffer()
            self._buffer[: self._num - 1] = old[self._end - self._num + 1 :]
            self._end = self._num - 1
        self._buffer[self._end] = obs
        self._end += 1
        return self._show(), reward, terminated, truncated, info

    def _make_buffer(self) -> Array:
        return np.empty((self._num + _RING, *self._frame.shape), self._frame.dtype)

    def _show(self) -> Array:
        frames = self._buffer[self._end - self._num : self._end]
        return np.concatenate(list(frames), -1) if self._image else frames


class Grey(gym.ObservationWrapper[Any, Any, Any]):
    """Turns colour images [H, W, 3] into grey ones [H, W]."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = _box_of(env, "Grey")
        if len(space.shape) != 3 or space.shape[2] != 3 or space.dtype != np.uint8:
            raise EnvContractError(
                f"Grey needs uint8 images [H, W, 3], the observation space is {space} [--wrap]"
            )
        self.observation_space = spaces.Box(0, 255, space.shape[:2], np.uint8)

    def observation(self, observation: Any) -> Array:
        grey: Array = (observation @ _GREY).astype(np.uint8)
        return grey


class Resize(gym.ObservationWrapper[Any, Any, Any]):
    """Scales images to `height` x `width` by area."""

    def __init__(self, env: Env, height: int = 84, width: int = 84) -> None:
        super().__init__(env)
        try:
            from PIL import Image
        except ImportError as error:
            raise UsageError("Resize needs Pillow; run: pip install pillow [--wrap]") from error
        space = _box_of(env, "Resize")
        if len(space.shape) not in (2, 3) or space.dtype != np.uint8:
            raise EnvContractError(f"Resize needs uint8 images, the observation space is {space} [--wrap]")
        self._size, self._image = (width, height), Image
        self.observation_space = spaces.Box(0, 255, (height, width, *space.shape[2:]), np.uint8)

    def observation(self, observation: Any) -> Array:
        planes = observation if observation.ndim == 3 else observation[..., None]
        scaled = [self._scale(planes[..., channel]) for channel in range(planes.shape[2])]
        return scaled[0] if observation.ndim == 2 else np.stack(scaled, -1)

    def _scale(self, plane: Array) -> Array:
        image = self._image.fromarray(np.ascontiguousarray(plane))
        return np.asarray(image.resize(self._size, self._image.Resampling.BOX))


class ClipReward(gym.RewardWrapper[Any, Any]):
    """Clips rewards to -bound..bound."""

    def __init__(self, env: Env, bound: float = 1.0) -> None:
        super().__init__(env)
        self._bound = bound

    def reward(self, reward: Any) -> float:
        return float(min(max(reward, -self._bound), self._bound))


class TimeLimit(GymTimeLimit[Any, Any]):
    """Truncates episodes after `max_episode_steps` steps."""

    def __init__(self, env: Env, max_episode_steps: int = 1000) -> None:
        super().__init__(env, max_episode_steps)


def _box_of(env: Env, name: str) -> spaces.Box:
    if not isinstance(env.observation_space, spaces.Box):
        raise EnvContractError(
            f"{name} needs a Box observation, the observation space is {env.observation_space} [--wrap]"
        )
    return env.observation_space
