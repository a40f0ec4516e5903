"""Our vectors behind Gymnasium's interface: equal to `gymnasium.vector.SyncVectorEnv` bit for bit.

Every call returns fresh arrays.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mission_gym.data import Array, LeafSpec, Leaves, StepBatch
from mission_gym.env.spaces import make_action_encoder, make_unflattener
from mission_gym.errors import MissionGymError, UsageError, WrongType, WrongValue
from mission_gym.procs import RunningCompanion
from mission_gym.vector.base import NothingSent, RowVector, StepsUnderWay

_ASYNC = "step_async() and step_wait() exist; all other calls wait for their reply"
_MISSING = {
    "envs": "the environments run in other processes; use call(), get_attr() and set_attr(), or "
    'backend="serial"',
    "env_fns": "the callables are not kept",
    **dict.fromkeys(("reset_async", "reset_wait", "call_async", "call_wait"), _ASYNC),
}


class NotHere(UsageError, AttributeError):
    """An attribute that Gymnasium's vectors have and ours do not; the message names a replacement."""


class StepTimeout(MissionGymError, multiprocessing.TimeoutError):
    """`step_wait(timeout)` ended before the steps did; it can be called again."""


class GymVector(VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` on one of our vectors. Only resets by the caller carry seeds.

    companion: the companion process of the environments, which ends with the vector.
    """

    def __init__(
        self, vec: RowVector, autoreset_mode: AutoresetMode, companion: RunningCompanion | None = None
    ) -> None:
        spec = vec.spec
        self.num_envs = vec.num_envs
        self.companion = companion
        self._mode = self.autoreset_mode = autoreset_mode  # TorchRL reads the attribute
        self._vec = vec
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        self.observation_space = batch_space(spec.observation_space, self.num_envs)
        self.action_space = batch_space(spec.action_space, self.num_envs)
        self.metadata = {**vec.call("metadata")[0], "autoreset_mode": autoreset_mode}
        self.render_mode = vec.call("render_mode")[0]
        self._obs = tuple(np.zeros((self.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
        self._unflatten = make_unflattener(spec.observation_space)
        self._to_rows = make_action_encoder(spec.action_space)
        self._under_way = False

    @property
    def inner(self) -> RowVector:
        """The vector itself, for further adapters."""
        return self._vec

    # Gymnasium declares one seed and one generator; its own vectors return one for each environment.
    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.call("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each environment's generator; a copy if the environment runs in another process."""
        return self.call("np_random")

    def __getattr__(self, name: str) -> Any:
        vec: Any = self.__dict__.get("_vec")
        if name == "envs" and hasattr(vec, "envs"):
            return vec.envs
        why = f": {_MISSING[name]}" if name in _MISSING else ""
        raise NotHere(f"a vector of make_vec has no attribute {name!r}{why}")

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all rows, or those of `options["reset_mask"]`; an int seeds row i with seed + i."""
        if self._under_way:
            raise StepsUnderWay("reset() between step_async() and step_wait(); wait for the steps first")
        if isinstance(seed, list | tuple):
            seeds = list(seed)
        else:
            seeds = [None if seed is None else seed + row for row in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise WrongValue(f"{len(seeds)} seeds for {self.num_envs} environments; give one for each")
        if options is None or "reset_mask" not in options:
            batch = self._vec.reset(seeds=seeds, options=options)
        else:
            chosen = self._check_reset_mask(options["reset_mask"])
            rest = {key: value for key, value in options.items() if key != "reset_mask"}
            ids = None if len(chosen) == self.num_envs else chosen
            batch = self._vec.reset(ids, [seeds[row] for row in chosen], rest)
        return self._keep(batch), self._collect_infos(batch)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every row; the auto-reset mode decides what happens at the end of an episode."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Send the actions. Workers step meanwhile; `serial` steps in `step_wait`."""
        self._vec.send(self._to_rows(actions))
        self._under_way = True

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Return the results of the steps that were sent. timeout: seconds until StepTimeout is raised."""
        if not self._under_way:
            raise NothingSent("step_wait() without step_async(); send actions first")
        if timeout is not None and not self._vec.is_ready(timeout):
            raise StepTimeout(f"the steps did not end within {timeout} s; call step_wait() again, or close")
        self._under_way = False
        batch = self._vec.recv()
        flags = batch.terminated.copy(), batch.truncated.copy()
        return self._keep(batch), batch.reward.copy(), *flags, self._collect_infos(batch)

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
            raise WrongValue(
                f"{len(values)} values of {name!r} for {self.num_envs} environments; give one for each"
            )
        self._vec.set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._vec.close()
        self.companion = None

    def _check_reset_mask(self, mask: Any) -> list[int]:
        expected = f"expected a bool array of shape ({self.num_envs},) with at least one True"
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise WrongType(f'options["reset_mask"] is {mask!r}, {expected}')
        if mask.shape != (self.num_envs,) or not mask.any():
            raise WrongValue(f'options["reset_mask"] is {mask!r}, {expected}')
        rows: list[int] = np.flatnonzero(mask).tolist()
        return rows

    def _keep(self, batch: StepBatch) -> Any:
        """Copy the observations of a batch and return those of all rows; arrays returned before stay as they
        are."""
        if len(batch.env_ids) == self.num_envs:
            self._obs = tuple(leaf.copy() for leaf in batch.obs)
        else:
            self._obs = tuple(leaf.copy() for leaf in self._obs)
            for kept, leaf in zip(self._obs, batch.obs, strict=True):
                kept[batch.env_ids] = leaf
        return self._unflatten(self._obs)

    def _collect_infos(self, batch: StepBatch) -> dict[str, Any]:
        """Lay out the infos as Gymnasium does; in row order, since the first row decides the dtype."""
        ended = batch.ended.tolist() if self._mode == AutoresetMode.SAME_STEP else []
        infos: dict[str, Any] = {}
        if not ended and not batch.infos:
            return infos
        ids = batch.env_ids.tolist()
        for row in sorted({*ended, *batch.infos}):
            if row in ended:
                last = self._unflatten(take_final(batch, self._vec.spec.leaves, ended.index(row)))
                final = {"final_obs": last, "final_info": batch.final_infos.get(row, {})}
                infos = self._add_info(infos, final, ids[row])
            infos = self._add_info(infos, batch.infos.get(row, {}), ids[row])
        return infos


def take_final(batch: StepBatch, leaves: Sequence[LeafSpec], index: int) -> Leaves:
    """The leaves of one final observation as an environment returns them: new arrays, Discrete as an int."""
    taken: list[Any] = []
    for array, leaf in zip(batch.final_obs, leaves, strict=True):
        is_discrete = leaf.kind == "categories" and leaf.shape == ()
        taken.append(int(array[index]) if is_discrete else np.array(array[index]))
    return tuple(taken)
