"""The wrappers with short names, for `--wrap frame-stack:4`; `wrapper_names` lists them.

Images are uint8 [H, W] or [H, W, C]; Crop and MeanPool also take [C, H, W] and images in a Dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit as GymTimeLimit

from mission_gym.data import Array
from mission_gym.env.agents import ParallelWrapper, is_parallel
from mission_gym.errors import EnvContractError, UsageError, nearest

if TYPE_CHECKING:
    from mission_gym.env.factory import Env

_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601
_RING = 64  # stacks that share one buffer
_MOST_NOOPS = 30


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats every action `skip` times, sums the rewards, and returns the last observation."""

    def __init__(self, env: Env, skip: int = 4) -> None:
        super().__init__(env)
        self._skip = skip

    def step(self, action: Any) -> Any:
        total, frames = 0.0, list[Any]()
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            frames = [*frames[-1:], obs]
            if terminated or truncated:
                break
        return self._merge(frames), total, terminated, truncated, info

    def _merge(self, frames: list[Any]) -> Any:
        """Return the observation, given the last two frames or only one."""
        return frames[-1]


class FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    """Stacks the last `num` observations as [num, ...].

    Stacks are views of one buffer in which every frame is written once; no view is ever changed.
    """

    def __init__(self, env: Env, num: int = 4) -> None:
        super().__init__(env)
        space = _box_of(env, "FrameStack")
        self.num, self._frame = num, space
        low, high = np.stack([space.low] * num), np.stack([space.high] * num)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)
        self._buffer = self._make_buffer()
        self._end = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        self._buffer, self._end = self._make_buffer(), self.num
        self._buffer[: self.num] = obs
        return self._show(), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._end == len(self._buffer):
            old, self._buffer = self._buffer, self._make_buffer()
            self._buffer[: self.num - 1] = old[self._end - self.num + 1 :]
            self._end = self.num - 1
        self._buffer[self._end] = obs
        self._end += 1
        return self._show(), reward, terminated, truncated, info

    def _make_buffer(self) -> Array:
        return np.empty((self.num + _RING, *self._frame.shape), self._frame.dtype)

    def _show(self) -> Array:
        return self._buffer[self._end - self.num : self._end]


class Grey(gym.ObservationWrapper[Any, Any, Any]):
    """Converts colour images [H, W, 3] to grey [H, W]."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = _box_of(env, "Grey")
        if len(space.shape) != 3 or space.shape[2] != 3 or space.dtype != np.uint8:
            raise EnvContractError(f"Grey needs uint8 images [H, W, 3] before stacking, not {space} [--wrap]")
        self.observation_space = spaces.Box(0, 255, space.shape[:2], np.uint8)

    def observation(self, observation: Any) -> Array:
        grey: Array = (observation @ _GREY).astype(np.uint8)
        return grey


class Resize(gym.ObservationWrapper[Any, Any, Any]):
    """Scales images to `height` x `width` by area; square without a width."""

    def __init__(self, env: Env, height: int = 84, width: int | None = None) -> None:
        super().__init__(env)
        width = height if width is None else width
        try:
            from PIL import Image
        except ImportError as error:
            raise UsageError("Resize needs Pillow; run: pip install pillow [--wrap]") from error
        space = _box_of(env, "Resize")
        if len(space.shape) not in (2, 3) or space.dtype != np.uint8:
            raise EnvContractError(f"Resize needs uint8 images before stacking, not {space} [--wrap]")
        self._size, self._image = (width, height), Image
        self.observation_space = spaces.Box(0, 255, (height, width, *space.shape[2:]), np.uint8)

    def observation(self, observation: Any) -> Array:
        planes = observation if observation.ndim == 3 else observation[..., None]
        scaled = [self._scale(planes[..., channel]) for channel in range(planes.shape[2])]
        return scaled[0] if observation.ndim == 2 else np.stack(scaled, -1)

    def _scale(self, plane: Array) -> Array:
        image = self._image.fromarray(np.ascontiguousarray(plane))
        return np.asarray(image.resize(self._size, self._image.Resampling.BOX))


class _ImageWrapper(gym.ObservationWrapper[Any, Any, Any]):
    """Changes every image that is the observation or a key of it."""

    def __init__(self, env: Env, name: str) -> None:
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        self._axes = {key: axis for key, part in parts.items() if (axis := _find_height(part)) is not None}
        if not self._axes:
            raise EnvContractError(
                f"{name} needs uint8 images [H, W], [H, W, C] or [C, H, W], before stacking; the observation "
                f"space is {space} [--wrap]"
            )
        changed = {key: self._change_space(parts[key], axis) for key, axis in self._axes.items()}
        self.observation_space = spaces.Dict({**parts, **changed}) if "" not in changed else changed[""]

    def _change_space(self, space: Any, axis: int) -> spaces.Box:
        low, high = self.change(space.low, axis), self.change(space.high, axis)
        return spaces.Box(low, high, dtype=np.uint8)

    def observation(self, observation: Any) -> Any:
        if "" in self._axes:
            return self.change(observation, self._axes[""])
        changed = {key: self.change(observation[key], axis) for key, axis in self._axes.items()}
        return {**observation, **changed}

    def change(self, image: Array, axis: int) -> Array:
        """Return the changed image; axis: of its height, its width follows."""
        raise NotImplementedError


def _find_height(space: Any) -> int | None:
    """Return the axis of an image's height; None if the space is not of images."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    # As everywhere: the shorter of the two outer axes has the channels.
    return int(len(space.shape) == 3 and space.shape[0] < space.shape[2])


class Crop(_ImageWrapper):
    """Crops images to `height` x `width` (square without a width), from `top` and `left` or in the centre."""

    def __init__(
        self, env: Env, height: int, width: int | None = None, top: int | None = None, left: int | None = None
    ) -> None:
        self._size, self._from = (height, height if width is None else width), (top, left)
        super().__init__(env, "Crop")

    def change(self, image: Array, axis: int) -> Array:
        cut = [slice(None)] * image.ndim
        for at, size, first in zip((axis, axis + 1), self._size, self._from, strict=True):
            first = (image.shape[at] - size) // 2 if first is None else first
            if first < 0 or first + size > image.shape[at]:
                has = image.shape[at]
                raise EnvContractError(f"Crop needs {size} pixels from {first} on, but has {has} [--wrap]")
            cut[at] = slice(first, first + size)
        return image[tuple(cut)]


class MeanPool(_ImageWrapper):
    """Replaces each square of `side` x `side` pixels by its mean, rounded down; incomplete squares at the
    right and at the bottom are dropped."""

    def __init__(self, env: Env, side: int = 2) -> None:
        self._side = side
        super().__init__(env, "MeanPool")

    def change(self, image: Array, axis: int) -> Array:
        side, (height, width) = self._side, image.shape[axis : axis + 2]
        if side > min(height, width):
            raise EnvContractError(f"MeanPool needs {side} x {side} pixels, not {height} x {width} [--wrap]")
        cut = image[(slice(None),) * axis + (slice(height // side * side), slice(width // side * side))]
        # Sums of strided slices are several times faster than a mean over axes of a few pixels.
        total = np.zeros((), np.uint32)
        for row in range(side):
            for column in range(side):
                strided = (slice(row, None, side), slice(column, None, side))
                total = total + cut[(slice(None),) * axis + strided]
        mean: Array = (total // side**2).astype(np.uint8)
        return mean


class Atari(gym.Wrapper[Any, Any, Any, Any]):
    """DeepMind's preprocessing of Atari: up to 30 no-ops at the start, 4 frames per step, maximum of the last
    two, grey, 84 x 84. If the environment skips frames itself (`frameskip`), none are skipped here."""

    def __init__(self, env: Env) -> None:
        skips = getattr(env.unwrapped, "_frameskip", 1) != 1
        super().__init__(Resize(Grey(_AtariFrames(env, 1 if skips else 4))))


class _AtariFrames(FrameSkip):
    """Repeats every action and returns the maximum of the last two frames, because sprites flicker."""

    def __init__(self, env: Env, skip: int) -> None:
        super().__init__(env, skip)
        _box_of(env, "Atari")
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        for _ in range(int(self._rng.integers(_MOST_NOOPS + 1))):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info

    def _merge(self, frames: list[Any]) -> Any:
        return np.maximum(frames[0], frames[-1])


class LastAction(gym.Wrapper[Any, Any, Any, Any]):
    """Adds the last action as key `last_action`, one-hot for categories, zeros at the start of an episode. An
    observation that is not a Dict becomes the key `obs`."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = env.action_space
        self._edges = np.zeros(0, np.int64)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
            self._edges = np.cumsum([0, *sizes[:-1]]) - np.ravel(space.start)
            self._last: spaces.Space[Any] = spaces.MultiBinary(int(sizes.sum()))
        elif isinstance(space, spaces.MultiBinary):
            self._last = spaces.MultiBinary(space.shape)
        elif isinstance(space, spaces.Box):
            # Actions of policies are clipped to the bounds, which may exclude the 0 of the start.
            low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
            self._last = spaces.Box(low, high, dtype=space.dtype.type)
        else:
            raise EnvContractError(f"last-action needs a Discrete or Box action, not {space} [--wrap]")
        self.observation_space = _add_key(env.observation_space, "last_action", self._last, "last-action")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._show(obs, np.zeros(self._last.shape or (), self._last.dtype)), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        last = np.array(action, self._last.dtype)
        if len(self._edges):
            last = np.zeros(self._last.shape or (), self._last.dtype)
            last[np.ravel(action) + self._edges] = 1
        return self._show(obs, last), reward, terminated, truncated, info

    def _show(self, obs: Any, last: Array) -> dict[str, Any]:
        return {**(obs if isinstance(obs, dict) else {"obs": obs}), "last_action": last}


class Drop(gym.ObservationWrapper[Any, Any, Any]):
    """Removes keys of a Dict observation."""

    def __init__(self, env: Env, *keys: str) -> None:
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        for key in keys:
            if key not in parts:
                has = f"has {', '.join(map(str, parts))}" if parts else f"is not a Dict but {space}"
                hint = nearest(key, map(str, parts))
                raise UsageError(f"drop: there is no key {key!r}{hint}; the observation {has} [--wrap]")
        self._kept = [key for key in parts if key not in keys]
        if not self._kept:
            raise UsageError(f"drop: {', '.join(keys)} is the whole observation; keep some of it [--wrap]")
        self.observation_space = spaces.Dict({key: parts[key] for key in self._kept})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {key: observation[key] for key in self._kept}


class Weigh(gym.RewardWrapper[Any, Any]):
    """Converts a vector reward to the weighted sum of its parts."""

    def __init__(self, env: Env, *weights: float) -> None:
        super().__init__(env)
        self._weights = np.array(weights, np.float64)

    def reward(self, reward: Any) -> float:
        parts = np.asarray(reward, np.float64)
        if parts.shape != self._weights.shape:
            raise EnvContractError(
                f"weigh has {len(self._weights)} weights and the reward has shape {parts.shape}; give one "
                "weight for each of its parts [--wrap]"
            )
        return float(parts @ self._weights)


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


class AgentId(ParallelWrapper):
    """Adds each agent's number as key `agent_id`, so that agents that share a policy can play different
    roles. An observation that is not a Dict becomes the key `obs`."""

    def __init__(self, env: Any) -> None:
        if not is_parallel(env):
            raise UsageError("agent-id is for parallel environments of several agents; remove it [--wrap]")
        super().__init__(env)
        self._numbers = {agent: number for number, agent in enumerate(self.possible_agents)}

    def observation_space(self, agent: str) -> spaces.Dict:
        number = spaces.Discrete(len(self._numbers))
        return _add_key(self.env.observation_space(agent), "agent_id", number, "agent-id")

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._show(obs), infos

    def step(self, actions: dict[str, Any]) -> Any:
        obs, *rest = self.env.step(actions)
        return (self._show(obs), *rest)

    def _show(self, obs: dict[str, Any]) -> dict[str, Any]:
        return {
            agent: {**(each if isinstance(each, dict) else {"obs": each}), "agent_id": self._numbers[agent]}
            for agent, each in obs.items()
        }


def _add_key(shown: spaces.Space[Any], key: str, space: spaces.Space[Any], wrapper: str) -> spaces.Dict:
    parts = dict(shown.spaces) if isinstance(shown, spaces.Dict) else {"obs": shown}
    if key in parts:
        raise EnvContractError(f"the observation already has a key {key!r} [--wrap {wrapper}]")
    return spaces.Dict({**parts, key: space})


def _box_of(env: Env, name: str) -> spaces.Box:
    if not isinstance(env.observation_space, spaces.Box):
        raise EnvContractError(f"{name} needs a Box observation, not {env.observation_space} [--wrap]")
    return env.observation_space
