"""The two forms of a mission: `SingleMission` (a gymnasium.Env) and `BatchedMission` (a VectorEnv).

Row i of a batch with seed s plays the same episodes, bit for bit, as a single environment with seed s. Every
end is a rule of the mission, so episodes are terminated and never truncated.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mission_gym.data import Array
from mission_gym.errors import UsageError

if TYPE_CHECKING:  # explore loads this module without numba
    from mission_gym_missions.simulator import RowSimulator

BatchPolicy = Callable[[Any, Array], Array]  # obs [N, ...], mask [N, M] -> actions int64 [N, ...]
Metadata = dict[str, Any]
ROW = np.zeros(1, np.int64)


class RulesFile:
    """A mission whose rules are a YAML file, the keyword argument `rules_file`."""

    shipped_rules: ClassVar[Path]

    @classmethod
    def snapshot_kwargs(cls, rules_file: str | Path | None = None, **others: Any) -> dict[str, Any]:
        """Return the file of rules in use; a run keeps a copy of it."""
        return {"rules_file": str(cls.shipped_rules if rules_file is None else rules_file)}


class SingleMission(gym.Env[Any, Any]):
    """One game: the only row of a simulator."""

    def __init__(
        self, simulator: RowSimulator, baselines: Mapping[str, BatchPolicy], render_mode: str | None
    ) -> None:
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.simulator: Any = simulator
        self.observation_space, self.action_space = simulator.obs_space, simulator.action_space
        self.baselines = {name: partial(play_single, policy) for name, policy in baselines.items()}
        self.render_mode = render_mode
        self._seeded = self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: number 0 of the given seed, or the next one of the previous seed."""
        super().reset(seed=seed)
        if seed is not None:
            self.simulator.seed(ROW, np.array([to_seed(seed)]))
        elif not self._seeded:
            self.simulator.seed(ROW, self.np_random.integers(1 << 62, size=1))
        self._seeded = self._running = True
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(ROW, obs, mask)
        info = {"outcome": None, "reward_terms": {}, "action_mask": mask[0]}
        self._after(None, info)
        return _take_first(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise UsageError("step() before reset(), or after the end of the episode; reset first")
        actions = self.simulator.check_actions(np.asarray(action)[None])
        stepped = self.simulator.step(actions)
        info: dict[str, Any] = {
            "outcome": self.simulator.read_outcomes()[0],
            "reward_terms": {name: float(values[0]) for name, values in stepped.terms.items()},
            "action_mask": stepped.mask[0],
        }
        if stepped.ended[0]:
            self._running = False
            metrics = self.simulator.read_metrics(ROW)
            info["episode_metrics"] = {name: float(values[0]) for name, values in metrics.items()}
        self._after(actions[0], info)
        return _take_first(stepped.obs), float(stepped.rewards[0]), bool(stepped.ended[0]), False, info

    def render(self) -> Any:
        """Draw the game: an array [H, W, 3]."""
        require_render_mode(self.render_mode)
        return self._draw()

    def get_state(self) -> dict[str, Any]:
        """Return everything that an exact continuation needs, as plain values."""
        return {"running": self._running, **self.simulator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly from a state of `get_state`."""
        self.simulator.set_state(state)
        self._seeded, self._running = True, state["running"]

    def close(self) -> None:
        self.simulator.close()

    def _after(self, action: Array | None, info: dict[str, Any]) -> None:
        """A hook after every reset (action None) and step; it does nothing by default."""

    @abstractmethod
    def _draw(self) -> Any: ...


class BatchedMission(VectorEnv[Any, Array, Array]):
    """N games of one simulator, with same-step auto-reset and without Python per row."""

    def __init__(
        self, simulator: RowSimulator, baselines: Mapping[str, BatchPolicy], render_mode: str | None
    ) -> None:
        if render_mode is not None:
            raise UsageError(
                f"render_mode={render_mode!r} is not available in a batch; build a single environment"
            )
        self.simulator: Any = simulator
        self.num_envs, self.baselines = simulator.num_rows, baselines
        self.single_observation_space, self.single_action_space = simulator.obs_space, simulator.action_space
        self.observation_space = batch_space(simulator.obs_space, self.num_envs)
        self.action_space = batch_space(simulator.action_space, self.num_envs)
        self._rows = np.arange(self.num_envs)
        self._seeded = self._running = False

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row. seed: one per row, or a number s for s, s + 1, ..."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is not None:
            self.simulator.seed(self._rows, to_seeds(seed, self.num_envs))
        elif not self._seeded:  # otherwise every row continues with the next episode of its seed
            self.simulator.seed(self._rows, self.np_random.integers(1 << 62, size=self.num_envs))
        self._seeded = self._running = True
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(self._rows, obs, mask)
        return obs, {"outcome": np.full(self.num_envs, None, object), "action_mask": mask}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every row. A row that ended returns the first observation of its next episode; its final
        observation and info are in infos["final_obs"] and infos["final_info"]."""
        if not self._running:
            raise UsageError("step() before reset(); reset first")
        obs, mask, terms, rewards, ended = self.simulator.step(
            self.simulator.check_actions(np.asarray(actions))
        )
        infos: dict[str, Any] = {
            "outcome": np.full(self.num_envs, None, object),
            "reward_terms": terms,
            "action_mask": mask,
        }
        rows = np.flatnonzero(ended)
        if rows.size:
            infos["final_obs"], infos["_final_obs"] = copy_obs(obs), ended.copy()
            infos["final_info"] = _with_masks(
                ended,
                outcome=self.simulator.read_outcomes(),
                reward_terms=_with_masks(ended, **terms),
                episode_metrics=_spread(ended, self.simulator.read_metrics(rows)),
                action_mask=mask.copy(),
            )
            infos["_final_info"] = ended.copy()
            self.simulator.begin(rows, obs, mask)
        return obs, rewards, ended, np.zeros(self.num_envs, np.bool_), infos

    def get_state(self) -> dict[str, Any]:
        """Return everything that an exact continuation needs, as plain values."""
        state: dict[str, Any] = self.simulator.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly from a state of `get_state`."""
        self.simulator.set_state(state)
        self._seeded = self._running = True

    def close_extras(self, **kwargs: Any) -> None:
        self.simulator.close()


def make_metadata(outcomes: Sequence[str], fps: int, *modes: str) -> Metadata:
    """Return the metadata of a single environment; the first outcome is the main one."""
    return {
        "render_modes": ["rgb_array", *modes],
        "render_fps": fps,
        "outcomes": outcomes,
        "main_outcome": outcomes[0],
    }


def make_batched_metadata(metadata: Metadata) -> Metadata:
    """Return the metadata of the batched form."""
    return metadata | {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}


def check_render_mode(render_mode: str | None, modes: Sequence[str]) -> None:
    """UsageError unless it is None or one of the modes."""
    if render_mode is not None and render_mode not in modes:
        raise UsageError(f"render_mode={render_mode!r} is unknown; use {', '.join(modes)} or none")


def require_render_mode(render_mode: str | None) -> None:
    """UsageError if an environment that was built without a render mode is drawn."""
    if render_mode is None:
        raise UsageError("render() without a render mode; build the environment with render_mode='rgb_array'")


def play_single(policy: BatchPolicy, obs: Any, info: dict[str, Any]) -> Any:
    """Return the action of a batch policy for a single environment."""
    if isinstance(obs, dict):
        batch: Any = {name: np.asarray(array)[None] for name, array in obs.items()}
    else:
        batch = np.asarray(obs)[None]
    action = policy(batch, np.asarray(info["action_mask"])[None])[0]
    return action if action.ndim else int(action)


def to_seed(seed: int) -> int:
    """Fold any seed into the 63 bits that a row keeps."""
    return seed & ((1 << 63) - 1)


def to_seeds(seed: int | Sequence[int], num_rows: int) -> Array:
    """Return the seeds int64 [N] of the rows: one each, or s, s + 1, ... for one number s."""
    if isinstance(seed, int):
        seed = range(seed, seed + num_rows)
    if len(seed) != num_rows:
        raise UsageError(f"{len(seed)} seeds do not fit {num_rows} rows; give one per row [seed]")
    return np.array([to_seed(int(one)) for one in seed])


def copy_obs(obs: Any) -> Any:
    """Copy an observation: one array, or several by name."""
    return {name: array.copy() for name, array in obs.items()} if isinstance(obs, dict) else obs.copy()


def _take_first(obs: Any) -> Any:
    return {name: array[0] for name, array in obs.items()} if isinstance(obs, dict) else obs[0]


def _with_masks(ended: Array, **values: Any) -> dict[str, Any]:
    """Return values by name, each with Gymnasium's mask bool [N] of the rows that have one."""
    mask = ended.copy()
    return values | {f"_{name}": mask for name in values}


def _spread(ended: Array, values: dict[str, Array]) -> dict[str, Any]:
    """Return values [R] of the rows that ended as [N], zero elsewhere, with the masks."""
    table = np.zeros((len(values), ended.size))
    table[:, ended] = list(values.values())
    return _with_masks(ended, **dict(zip(values, table, strict=True)))
