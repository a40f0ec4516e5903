"""Our vector behind Gymnasium's interface: equal to `gymnasium.vector.SyncVectorEnv` bit for bit.

Same-step leaves auto-reset to the vector. Next-step and disabled turn it off and reset rows by name.
Every call returns fresh arrays. Parts of an observation that are not arrays (Text, Sequence, Graph, OneOf,
spaces of the user's) are given as a tuple with one entry for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from mission_gym.data import Array, EnvSpec, StepBatch
from mission_gym.env.spaces import make_unflattener
from mission_gym.errors import UsageError
from mission_gym.vector.base import RowVector, Vector

Make = Callable[..., Vector]  # spec, seed_of, infos, autoreset -> vector


class GymVector(VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` on a vector of ours; only resets by the caller carry seeds."""

    def __init__(self, make: Make, spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode) -> None:
        self.num_envs = num_envs
        self._mode = autoreset_mode
        same_step = autoreset_mode == AutoresetMode.SAME_STEP
        vec = make(spec=spec, seed_of=_no_seed, infos=True, autoreset=same_step)
        assert isinstance(vec, RowVector)
        self._vec = vec
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        self.observation_space = batch_space(spec.observation_space, self.num_envs)
        self.action_space = batch_space(spec.action_space, self.num_envs)
        self.metadata = {**self._vec.call("metadata")[0], "autoreset_mode": autoreset_mode}
        self.render_mode = self._vec.call("render_mode")[0]
        self._obs = tuple(np.zeros((self.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
        self._unflatten = make_unflattener(spec.observation_space)
        self._has_objects = any(leaf.kind == "object" for leaf in spec.leaves)
        self._takes_objects = spec.action.kind == "object"
        self._done = np.zeros(self.num_envs, np.bool_)

    @property
    def inner(self) -> RowVector:
        """The vector itself, for further adapters."""
        return self._vec

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all rows, or those of `options["reset_mask"]`; an int seeds row i with seed + i."""
        if isinstance(seed, list):
            seeds = seed
        else:
            seeds = [None if seed is None else seed + row for row in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise UsageError(f"{len(seeds)} seeds for {self.num_envs} environments; give one for each")
        if options is None or "reset_mask" not in options:
            batch = self._vec.reset(seeds=seeds, options=options)
        else:
            chosen = self._check_reset_mask(options["reset_mask"])
            rest = {key: value for key, value in options.items() if key != "reset_mask"}
            batch = self._vec.reset(chosen, [seeds[row] for row in chosen], rest)
        self._done[batch.env_ids] = False
        self._keep(batch)
        return self._show(), self._collect_infos([batch])

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every row; what happens at the end of an episode is the auto-reset mode's."""
        rows = self._split(actions) if self._takes_objects else np.asarray(actions)
        if self._mode == AutoresetMode.SAME_STEP or not self._done.any():
            batch = self._vec.step(rows)
            self._keep(batch)
            self._done = batch.terminated | batch.truncated
            flags = batch.terminated.copy(), batch.truncated.copy()
            return self._show(), batch.reward.copy(), *flags, self._collect_infos([batch])
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        batches: list[StepBatch] = []
        live = np.arange(self.num_envs)
        if self._mode == AutoresetMode.NEXT_STEP and self._done.any():
            batches.append(
                self._vec.reset(np.flatnonzero(self._done).tolist(), [None] * int(self._done.sum()))
            )
            self._keep(batches[0])
            live = np.flatnonzero(~self._done)
        if live.size:
            self._vec.send(rows[live], live.tolist())
            batch = self._vec.recv()
            self._keep(batch)
            reward[live], terminated[live], truncated[live] = batch.reward, batch.terminated, batch.truncated
            batches.append(batch)
        self._done = terminated | truncated
        return self._show(), reward, terminated, truncated, self._collect_infos(batches)

    def render(self) -> tuple[Any, ...]:
        """Return one frame for each environment."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method, or read an attribute, of every environment."""
        return tuple(self._vec.call(name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment: one value for all, or a list or tuple with one for each."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise UsageError(
                f"{len(values)} values of {name!r} for {self.num_envs} environments; give one for each"
            )
        self._vec.set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._vec.close()

    def _check_reset_mask(self, mask: Any) -> list[int]:
        fits = isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,) and mask.dtype == np.bool_
        if not fits or not mask.any():
            raise UsageError(
                f'options["reset_mask"] is {mask!r}, expected a bool array of shape ({self.num_envs},) '
                "with at least one True"
            )
        rows: list[int] = np.flatnonzero(mask).tolist()
        return rows

    def _keep(self, batch: StepBatch) -> None:
        """Take what a batch shows into arrays of our own; those handed out before stay as they are."""
        if len(batch.env_ids) == self.num_envs:
            self._obs = tuple(leaf.copy() for leaf in batch.obs)
            return
        self._obs = tuple(leaf.copy() for leaf in self._obs)
        for kept, leaf in zip(self._obs, batch.obs, strict=True):
            kept[batch.env_ids] = leaf

    def _show(self) -> Any:
        if not self._has_objects:
            return self._unflatten(self._obs)
        return self._unflatten(tuple(tuple(leaf) if leaf.dtype == object else leaf for leaf in self._obs))

    def _split(self, actions: Any) -> Array:
        """One action for each row, as Gymnasium cuts batches of this space."""
        rows = np.empty(self.num_envs, object)
        given = list(iterate(self.action_space, actions))
        if len(given) != self.num_envs:
            raise UsageError(f"{len(given)} actions for {self.num_envs} environments; give one for each")
        for row, action in enumerate(given):
            rows[row] = action
        return rows

    def _collect_infos(self, batches: list[StepBatch]) -> dict[str, Any]:
        """Lay out the infos as Gymnasium does; in row order, since the first value decides the dtype."""
        by_row: dict[int, list[dict[str, Any]]] = {}
        same_step = self._mode == AutoresetMode.SAME_STEP
        for batch in batches:
            ended = batch.ended.tolist() if same_step else ()
            if not ended and not batch.infos:
                continue
            # Copies of all at once: what is handed out may be kept.
            batch.final_obs = tuple([leaf.copy() for leaf in batch.final_obs])
            ids = batch.env_ids.tolist()
            by_row.update({ids[row]: [info] for row, info in batch.infos.items() if info})
            for position, row in enumerate(ended):
                leaves = tuple([leaf[position] for leaf in batch.final_obs])
                final = {"final_obs": self._unflatten(leaves), "final_info": batch.final_infos.get(row, {})}
                by_row[ids[row]] = [final, batch.infos.get(row, {})]
        infos: dict[str, Any] = {}
        for row in sorted(by_row):
            for info in by_row[row]:
                infos = self._add_info(infos, info, row)
        return infos


def _no_seed(env_id: int, episode: int) -> None:
    """Gymnasium seeds the first episode only; the others go on with the environment's generator."""
