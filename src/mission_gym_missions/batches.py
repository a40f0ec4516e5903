"""What the batched missions share: seeds of rows, auto-reset, and infos of the rows that ended."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from mission_gym.data import Array
from mission_gym.errors import UsageError


def to_seed(seed: int) -> int:
    """Fold any seed into the 63 bits that a row keeps."""
    return seed & ((1 << 63) - 1)


def to_seeds(seed: int | Sequence[int], num_rows: int) -> Array:
    """The seeds int64 [N] of rows: one for each, or one number s for s, s + 1, ..."""
    if isinstance(seed, int):
        seed = range(seed, seed + num_rows)
    if len(seed) != num_rows:
        raise UsageError(f"{len(seed)} seeds for {num_rows} rows; give one for each [seed]")
    return np.array([to_seed(int(one)) for one in seed])


def give(given: Array, **values: Any) -> dict[str, Any]:
    """Values by name, each with Gymnasium's mask bool [N] of the rows that gave one."""
    mask = given.copy()
    return values | {f"_{name}": mask for name in values}


def spread(given: Array, values: dict[str, Array]) -> dict[str, Any]:
    """Values [R] of the rows that gave one as [N], zero elsewhere, with the mask."""
    table = np.zeros((len(values), given.size))
    table[:, given] = list(values.values())
    return give(given, **dict(zip(values, table, strict=True)))


def refuse_drawing(render_mode: str | None) -> None:
    """Before a simulator is made: only single environments draw."""
    if render_mode is not None:
        raise UsageError(
            f"render_mode={render_mode!r}: the batched mission draws nothing; build a single environment"
        )


def copy_obs(obs: Any) -> Any:
    """A copy of observations, one array or several by name."""
    return {name: array.copy() for name, array in obs.items()} if isinstance(obs, dict) else obs.copy()


class BatchedMission(VectorEnv[Any, Array, Array]):
    """N games of one simulator, with same-step auto-reset.

    Row i with seed s plays, bit for bit, what a single environment with seed s plays, episode after episode.
    """

    def __init__(
        self,
        simulator: Any,
        num_envs: int,
        single: tuple[spaces.Space[Any], spaces.Space[Any]],
    ) -> None:
        self.num_envs, self.simulator = num_envs, simulator
        self.single_observation_space, self.single_action_space = single
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rows = np.arange(num_envs)
        self._seeded = self._running = False

    @abstractmethod
    def _begin_all(self) -> tuple[Any, Array]:
        """Begin an episode in every row; observations and masks."""

    @abstractmethod
    def _begin(self, rows: Array, obs: Any, mask: Array) -> None:
        """Begin episodes in some rows, and show them."""

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row. seed: one for each row, or one number s for s, s + 1, ..."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is not None:
            self.simulator.seed(self._rows, to_seeds(seed, self.num_envs))
        elif not self._seeded:  # else every row goes on to the next episode of its seed
            self.simulator.seed(self._rows, self.np_random.integers(1 << 62, size=self.num_envs))
        self._seeded = self._running = True
        obs, mask = self._begin_all()
        return obs, {"outcome": np.full(self.num_envs, None, object), "action_mask": mask}

    def _check_running(self) -> None:
        if not self._running:
            raise UsageError("step() before reset(); reset first")

    def _give(
        self, obs: Any, rewards: Array, mask: Array, ended: Array, terms: dict[str, Array]
    ) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """What a step returns; a row that ended shows its next episode already. What it showed last is in
        infos["final_obs"], its last info in infos["final_info"]."""
        infos: dict[str, Any] = {
            "outcome": np.full(self.num_envs, None, object),
            "reward_terms": terms,
            "action_mask": mask,
        }
        rows = np.flatnonzero(ended)
        if rows.size:
            infos["final_obs"], infos["_final_obs"] = copy_obs(obs), ended.copy()
            infos["final_info"] = give(
                ended,
                outcome=self.simulator.read_outcomes(),
                reward_terms=give(ended, **terms),
                episode_metrics=spread(ended, self.simulator.read_metrics(rows)),
                action_mask=mask.copy(),
            )
            infos["_final_info"] = ended.copy()
            self._begin(rows, obs, mask)
        return obs, rewards, ended, np.zeros(self.num_envs, np.bool_), infos

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        state: dict[str, Any] = self.simulator.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.simulator.set_state(state)
        self._seeded = self._running = True


class ThreadedMission(BatchedMission):
    """One whose simulator writes into the arrays that are shown, with threads."""

    def _begin_all(self) -> tuple[Any, Array]:
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(self._rows, obs, mask)
        return obs, mask

    def _begin(self, rows: Array, obs: Any, mask: Array) -> None:
        self.simulator.begin(rows, obs, mask)

    def close_extras(self, **kwargs: Any) -> None:
        self.simulator.close()
