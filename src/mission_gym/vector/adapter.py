"""Our vector behind Gymnasium's interface: equal to `gymnasium.vector.SyncVectorEnv` bit for bit.

Every call returns fresh arrays. Parts of an observation that are not arrays (Text, Sequence, Graph, OneOf,
spaces of the user's) are given as a tuple with one entry for each row.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, iterate

from mission_gym.data import Array, EnvSpec, LeafSpec, Leaves, StepBatch
from mission_gym.env.spaces import any_leaf_specs, make_unflattener
from mission_gym.errors import EnvContractError, MissionGymError, UsageError, WrongType, WrongValue
from mission_gym.procs import RunningCompanion
from mission_gym.vector.base import NothingSent, RowVector, StepsUnderWay, Vector

Make = Callable[..., Vector]  # spec, seed_of, infos, autoreset, late_reset -> vector
ObservationMode = str | tuple[Space[Any], Space[Any]]
_ASYNC = "step_async() and step_wait() are there; everything else waits for its reply"
_ELSEWHERE = {
    "envs": "the environments run in other processes; use call(), get_attr() and set_attr(), or "
    'backend="serial"',
    "env_fns": "the callables are not kept",
    **dict.fromkeys(("reset_async", "reset_wait", "call_async", "call_wait"), _ASYNC),
}


class NotHere(UsageError, AttributeError):
    """Something that Gymnasium's vectors have and ours do not; tells what to use instead."""


class StepTimeout(MissionGymError, multiprocessing.TimeoutError):
    """`step_wait(timeout)` was over before the steps were; it may be called again."""


class GymVector(VectorEnv[Any, Any, Any]):
    """A `gymnasium.vector.VectorEnv` on a vector of ours; only resets by the caller carry seeds.

    observation_mode: as in Gymnasium: `same` spaces of all, or spaces of one layout with `different` bounds,
    or the batched and the single space to show.
    """

    companion: RunningCompanion | None = None  # of the environments

    def __init__(
        self,
        make: Make,
        spec: EnvSpec,
        num_envs: int,
        autoreset_mode: AutoresetMode,
        observation_mode: ObservationMode = "same",
    ) -> None:
        self.num_envs = num_envs
        self._mode = autoreset_mode
        same_step, next_step = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
        vec = make(
            spec=spec, seed_of=_no_seed, infos=True,
            autoreset=autoreset_mode == same_step, late_reset=autoreset_mode == next_step,
        )  # fmt: skip
        assert isinstance(vec, RowVector)
        self._vec = vec
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        if isinstance(observation_mode, tuple):
            self.observation_space, self.single_observation_space = observation_mode
        elif observation_mode == "different":
            self.observation_space = batch_differing_spaces(vec.call("observation_space"))
        else:
            self.observation_space = batch_space(spec.observation_space, self.num_envs)
        self.action_space = batch_space(spec.action_space, self.num_envs)
        self.metadata = {**self._vec.call("metadata")[0], "autoreset_mode": autoreset_mode}
        self.render_mode = self._vec.call("render_mode")[0]
        self._obs = tuple(np.zeros((self.num_envs, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
        self._leaf_specs = spec.leaves
        self._unflatten = make_unflattener(spec.observation_space)
        self._has_objects = any(leaf.kind == "object" for leaf in spec.leaves)
        self._takes_objects = spec.action.kind == "object"
        self._under_way = False

    @property
    def inner(self) -> RowVector:
        """The vector itself, for further adapters."""
        return self._vec

    # Gymnasium declares one seed and one generator; its own vectors give one for each environment.
    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.call("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each environment's generator; a copy where the environment runs in another process."""
        return self.call("np_random")

    def __getattr__(self, name: str) -> Any:
        vec: Any = self.__dict__.get("_vec")
        if name == "envs" and hasattr(vec, "envs"):
            return vec.envs
        why = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
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
        self._keep(batch)
        return self._show(), self._collect_infos(batch)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every row; what happens at the end of an episode is the auto-reset mode's."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Send the actions; workers step while the caller goes on, `serial` steps in `step_wait`."""
        self._vec.send(self._split(actions) if self._takes_objects else np.asarray(actions))
        self._under_way = True

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """What came of the steps that were sent. timeout: seconds, after which StepTimeout is raised."""
        if not self._under_way:
            raise NothingSent("step_wait() without step_async(); send actions first")
        if timeout is not None and not self._vec.is_ready(timeout):
            raise StepTimeout(f"the steps were not over after {timeout} s; call step_wait() again, or close")
        self._under_way = False
        batch = self._vec.recv()
        self._keep(batch)
        flags = batch.terminated.copy(), batch.truncated.copy()
        return self._show(), batch.reward.copy(), *flags, self._collect_infos(batch)

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
        return pack_objects(list(iterate(self.action_space, actions)), self.num_envs)

    def _collect_infos(self, batch: StepBatch) -> dict[str, Any]:
        """Lay out the infos as Gymnasium does; in row order, since the first value decides the dtype."""
        ended = batch.ended.tolist() if self._mode == AutoresetMode.SAME_STEP else []
        infos: dict[str, Any] = {}
        if not ended and not batch.infos:
            return infos
        ids = batch.env_ids.tolist()
        for row in sorted({*ended, *batch.infos}):
            if row in ended:
                last = self._unflatten(take_final(batch, self._leaf_specs, ended.index(row)))
                final = {"final_obs": last, "final_info": batch.final_infos.get(row, {})}
                infos = self._add_info(infos, final, ids[row])
            infos = self._add_info(infos, batch.infos.get(row, {}), ids[row])
        return infos


def take_final(batch: StepBatch, leaves: Sequence[LeafSpec], place: int) -> Leaves:
    """The leaves of one last observation, as an environment gives them: fresh arrays, Discrete as an int."""
    taken: list[Any] = []
    for array, leaf in zip(batch.final_obs, leaves, strict=True):
        if leaf.kind == "object":
            taken.append(array[place])
        elif leaf.kind == "categories" and leaf.shape == ():
            taken.append(int(array[place]))
        else:
            taken.append(np.array(array[place]))
    return tuple(taken)


def pack_objects(given: Sequence[Any] | Array, num_envs: int) -> Array:
    """An array [B] of actions that are not arrays."""
    if len(given) != num_envs:
        raise WrongValue(f"{len(given)} actions for {num_envs} environments; give one for each")
    rows = np.empty(num_envs, object)
    for row, action in enumerate(given):
        rows[row] = action
    return rows


def check_observation_mode(mode: Any, spec: EnvSpec) -> None:
    """Refuse what is not one of Gymnasium's observation modes, or does not fit the environment."""
    if mode in ("same", "different"):
        return
    if not isinstance(mode, tuple) or len(mode) != 2 or not all(isinstance(each, Space) for each in mode):
        raise WrongValue(
            f"unknown observation_mode {mode!r}; use same, different, or a pair of the batched and the "
            "single space [observation_mode]"
        )
    if any_leaf_specs(mode[1]) != spec.leaves:
        raise EnvContractError(
            f"observation_mode gives the single space {mode[1]}, but the environments have "
            f"{spec.observation_space}; it must have the same shapes and dtypes [observation_mode]"
        )


def _no_seed(env_id: int, episode: int) -> None:
    """Gymnasium seeds the first episode only; the others go on with the environment's generator."""
