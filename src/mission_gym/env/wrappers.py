"""The wrappers people use, for `--wrap frame-stack:4`; `wrapping` has their short names.

Images are [H, W] or [H, W, C] of uint8. `count_frames` tells blocks which observations are stacks.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
)
from gymnasium.wrappers import TimeLimit as GymTimeLimit

from mission_gym.data import Array
from mission_gym.env.agents import ParallelWrapper, is_parallel
from mission_gym.env.factory import Env
from mission_gym.errors import EnvContractError, UsageError, nearest

_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601
_RING = 64  # stacks that share one buffer
_MOST_NOOPS = 30


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
    """Shows the last `num` observations as [num, ...].

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
    """Turns colour images [H, W, 3] into grey ones [H, W]."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = _box_of(env, "Grey")
        if len(space.shape) != 3 or space.shape[2] != 3 or space.dtype != np.uint8:
            raise EnvContractError(
                f"Grey needs uint8 images [H, W, 3], and stacks behind it; the observation space is {space}"
                " [--wrap]"
            )
        self.observation_space = spaces.Box(0, 255, space.shape[:2], np.uint8)

    def observation(self, observation: Any) -> Array:
        grey: Array = (observation @ _GREY).astype(np.uint8)
        return grey


class Resize(gym.ObservationWrapper[Any, Any, Any]):
    """Scales images to `height` x `width` by area; without a width they become square."""

    def __init__(self, env: Env, height: int = 84, width: int | None = None) -> None:
        super().__init__(env)
        width = height if width is None else width
        try:
            from PIL import Image
        except ImportError as error:
            raise UsageError("Resize needs Pillow; run: pip install pillow [--wrap]") from error
        space = _box_of(env, "Resize")
        if len(space.shape) not in (2, 3) or space.dtype != np.uint8:
            raise EnvContractError(
                f"Resize needs uint8 images, and stacks behind it; the observation space is {space} [--wrap]"
            )
        self._size, self._image = (width, height), Image
        self.observation_space = spaces.Box(0, 255, (height, width, *space.shape[2:]), np.uint8)

    def observation(self, observation: Any) -> Array:
        planes = observation if observation.ndim == 3 else observation[..., None]
        scaled = [self._scale(planes[..., channel]) for channel in range(planes.shape[2])]
        return scaled[0] if observation.ndim == 2 else np.stack(scaled, -1)

    def _scale(self, plane: Array) -> Array:
        image = self._image.fromarray(np.ascontiguousarray(plane))
        return np.asarray(image.resize(self._size, self._image.Resampling.BOX))


class Atari(gym.Wrapper[Any, Any, Any, Any]):
    """DeepMind's view of an Atari game: up to 30 no-ops at the start, 4 frames a step, the last two merged,
    grey, 84 x 84. An environment that skips frames itself (`frameskip`) is left to do so."""

    def __init__(self, env: Env) -> None:
        skips = getattr(env.unwrapped, "_frameskip", 1) != 1
        super().__init__(Resize(Grey(_Frames(env, 1 if skips else 4))))


class _Frames(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats every action and shows the brighter of the last two frames, since sprites flicker."""

    def __init__(self, env: Env, skip: int) -> None:
        super().__init__(env)
        _box_of(env, "Atari")
        self._skip, self._rng = skip, np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        for _ in range(int(self._rng.integers(_MOST_NOOPS + 1))):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info

    def step(self, action: Any) -> Any:
        total, frames = 0.0, list[Any]()
        for _ in range(self._skip):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            frames = [*frames[-1:], obs]
            if terminated or truncated:
                break
        return np.maximum(frames[0], frames[-1]), total, terminated, truncated, info


class LastAction(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the last action as `last_action` beside the observation, which is called `obs` if it was not a
    Dict: one-hot for choices, as it is for numbers, zeros where an episode begins."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        shown, space = env.observation_space, env.action_space
        parts = dict(shown.spaces) if isinstance(shown, spaces.Dict) else {"obs": shown}
        if "last_action" in parts:
            raise EnvContractError("the observation has a key 'last_action' already [--wrap last-action]")
        self._is_dict, self._edges = isinstance(shown, spaces.Dict), np.zeros(0, np.int64)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
            self._edges = np.cumsum([0, *sizes[:-1]]) - np.ravel(space.start)
            parts["last_action"] = spaces.MultiBinary(int(sizes.sum()))
        elif isinstance(space, spaces.MultiBinary):
            parts["last_action"] = spaces.MultiBinary(space.shape)
        elif isinstance(space, spaces.Box):
            # What policies give is clipped to the bounds, and 0 may lie outside of them.
            low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
            parts["last_action"] = spaces.Box(low, high, dtype=space.dtype.type)
        else:
            raise EnvContractError(
                f"the action space {space} can't be shown; use Discrete, Box or the like [--wrap last-action]"
            )
        self._last = parts["last_action"]
        self.observation_space = spaces.Dict(parts)

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
        return {**(obs if self._is_dict else {"obs": obs}), "last_action": last}


class Drop(gym.ObservationWrapper[Any, Any, Any]):
    """Leaves keys of a Dict observation out."""

    def __init__(self, env: Env, *keys: str) -> None:
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        for key in keys:
            if key not in parts:
                has = f"has {', '.join(parts)}" if parts else f"is not a Dict but {space}"
                raise UsageError(
                    f"drop: there is no key {key!r}{nearest(key, parts)}; the observation {has} [--wrap]"
                )
        self._kept = [key for key in parts if key not in keys]
        if not self._kept:
            raise UsageError(f"drop: {', '.join(keys)} is the whole observation; leave some of it [--wrap]")
        self.observation_space = spaces.Dict({key: parts[key] for key in self._kept})

    def observation(self, observation: Any) -> dict[str, Any]:
        return {key: observation[key] for key in self._kept}


class Weigh(gym.RewardWrapper[Any, Any]):
    """Makes one number of a vector reward: its parts times the weights, summed."""

    def __init__(self, env: Env, *weights: float) -> None:
        super().__init__(env)
        self._weights = np.array(weights, np.float64)

    def reward(self, reward: Any) -> float:
        parts = np.asarray(reward, np.float64)
        if parts.shape != self._weights.shape:
            raise EnvContractError(
                f"weigh has {len(self._weights)} weights and the reward has shape {parts.shape}; give one for"
                " each of its parts [--wrap]"
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
    """Shows each agent of a parallel environment its number as `agent_id` beside the observation, which is
    called `obs` if it was not a Dict: agents that share a policy can then play different parts."""

    def __init__(self, env: Any) -> None:
        if not is_parallel(env):
            raise UsageError("agent-id is for parallel environments of several agents; remove it [--wrap]")
        super().__init__(env)
        self._numbers = {agent: number for number, agent in enumerate(self.possible_agents)}

    def observation_space(self, agent: str) -> spaces.Dict:
        shown = self.env.observation_space(agent)
        parts = dict(shown.spaces) if isinstance(shown, spaces.Dict) else {"obs": shown}
        if "agent_id" in parts:
            raise EnvContractError("the observation has a key 'agent_id' already [--wrap agent-id]")
        return spaces.Dict({**parts, "agent_id": spaces.Discrete(len(self._numbers))})

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


# Observations go through them as they are.
_GYM_CLEAR = (GymTimeLimit, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics)
_CLEAR = (*_GYM_CLEAR, TimeLimit, ClipReward, Weigh)


def count_frames(env: Env) -> int:
    """How many frames every observation stacks along its first axis, the first one repeated where an episode
    begins: blocks and replays may then hold each frame once. 1 if no wrapper says so."""
    while isinstance(env, gym.Wrapper) and type(env) in _CLEAR:
        env = env.env
    if type(env) is FrameStack:
        return env.num
    if type(env) is FrameStackObservation and env.padding_type == "reset":
        return int(env.stack_size)
    return 1


def _box_of(env: Env, name: str) -> spaces.Box:
    if not isinstance(env.observation_space, spaces.Box):
        raise EnvContractError(
            f"{name} needs a Box observation, the observation space is {env.observation_space} [--wrap]"
        )
    return env.observation_space
