"""The arrays that vectors write their steps into, and the shared memory between a vector and its workers.

Inside a vector the agents of an environment stay together: arrays are [B, A, ...] for B environments with A
agents, [B, ...] without agents. A StepBatch has one axis of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves, StepBatch
from mission_gym.env.contract import find_range
from mission_gym.env.slot import EnvSlot

RESETTING = -1  # a heartbeat's step during a reset
# Columns of `SharedArrays.counters`.
NUM_STEPS, LATENCY_NS = 0, 1
NUM_FAILED = 2  # steps that raised or were cancelled
HELD_SINCE = (
    3  # time.monotonic_ns() at which the environment began its turn at the event loop, 0 between turns
)
HELD_NS = 4  # duration of all its turns
BLOCKED_NS = 5  # duration of the turns in which the processor idled
FIRST_BUCKET, NUM_BUCKETS = 6, 24  # steps by latency: below 65 us, then each bucket twice as long
_NUM_COUNTERS = 32
_JOURNAL_STEPS = 4096
_JOURNAL_BYTES = 8 << 20
_NONE = np.empty(0, np.int64)
_INFINITY = float("inf")
Allocate = Callable[[Any, Any], Array]  # shape, dtype -> zeros


@dataclass(slots=True)
class StepArrays:
    """The arrays of one step. Final observations and masks are those of rows that ended, at their rows."""

    obs: Leaves
    final_obs: Leaves
    mask: Array | None
    final_mask: Array | None
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array

    def map(self, function: Callable[[Array], Array]) -> StepArrays:
        """Apply a function to each array."""
        return StepArrays(
            tuple(map(function, self.obs)),
            tuple(map(function, self.final_obs)),
            None if self.mask is None else function(self.mask),
            None if self.final_mask is None else function(self.final_mask),
            *map(function, (self.reward, self.terminated, self.truncated, self.valid)),
        )

    def take(self, index: slice | list[int]) -> StepArrays:
        """Some environments, as views if the index is a slice."""
        return self.map(lambda array: array[index])

    def as_batch(self, env_ids: Array, infos: dict[int, Any], *, has_ended: bool = False) -> StepBatch:
        """The batch of these rows. has_ended: some of them may have ended."""
        if self.reward.ndim == 2:
            rows = rows_of(env_ids, self.reward.shape[1])
            return self.map(join_axes).as_batch(rows, infos, has_ended=has_ended)
        ended = (self.terminated | self.truncated).nonzero()[0] if has_ended else _NONE
        index: Any = ended if has_ended else slice(0, 0)
        return StepBatch(
            env_ids=env_ids,
            obs=self.obs,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            valid=self.valid,
            mask=self.mask,
            ended=ended,
            final_obs=tuple([leaf[index] for leaf in self.final_obs]),
            final_mask=None if self.final_mask is None else self.final_mask[index],
            infos=infos,
        )


def make_step_arrays(spec: EnvSpec, num_envs: int, allocate: Allocate = np.zeros) -> StepArrays:
    """Blank arrays for `num_envs` environments."""
    axes = (num_envs, len(spec.agents)) if spec.agents else (num_envs,)
    obs, final_obs = (make_leaves(spec, axes, allocate) for _ in range(2))
    mask, final_mask = (
        allocate((*axes, spec.mask_size), np.bool_) if spec.mask_source else None for _ in range(2)
    )
    flags = [allocate(axes, np.bool_) for _ in range(3)]
    return StepArrays(obs, final_obs, mask, final_mask, allocate(axes, np.float64), *flags)


def make_leaves(spec: EnvSpec, axes: tuple[int, ...], allocate: Allocate) -> Leaves:
    """Blank observations, each [*axes, *leaf.shape]."""
    return tuple(allocate((*axes, *leaf.shape), leaf.dtype) for leaf in spec.leaves)


class ValueWatch:
    """Finds NaN, infinity and wrong categories in the observations of a whole batch, in few operations per
    step. A sum of squares that is not finite is only a suspicion: the caller looks at single rows."""

    def __init__(self, spec: EnvSpec) -> None:
        self._real: list[int] = []
        self._ranges: list[tuple[int, Array, Array]] = []  # leaf, lowest and highest value of each part
        for number, leaf in enumerate(() if spec.bare or spec.agents else spec.leaves):
            allowed = find_range(leaf)
            if np.dtype(leaf.dtype).kind == "f":
                self._real.append(number)
            elif allowed is not None and leaf.shape:  # single ones are tested when they are read
                low, high = (np.broadcast_to(bound, int(np.prod(leaf.shape))) for bound in allowed)
                self._ranges.append((number, low.copy(), high.copy()))

    def suspects(self, obs: Leaves) -> bool:
        """Whether some row of leaves [B, ...] may be wrong."""
        for number in self._real:
            flat = obs[number].reshape(-1)
            if not flat.dot(flat) < _INFINITY:
                return True
        for number, low, high in self._ranges:
            codes = obs[number].reshape(-1, len(low))
            if ((codes < low) | (codes > high)).any():
                return True
        return False


def join_axes(array: Array) -> Array:
    """The array with its first two axes joined."""
    return array.reshape(-1, *array.shape[2:])


def rows_of(env_ids: Any, per_env: int) -> Array:
    """The rows of environments, int64, in order."""
    first = np.asarray(env_ids, np.int64) * per_env
    return (first[:, None] + np.arange(per_env)).ravel()


def write_row(slot: EnvSlot, row: int, obs: Leaves, mask: Array | None) -> None:
    """Copy a slot's observation and mask; the environment may reuse its own arrays."""
    for array, leaf in zip(obs, slot.obs, strict=True):
        array[row] = leaf
    if mask is not None:
        mask[row] = slot.mask


class Heartbeat(NamedTuple):
    """What an environment is doing. Its worker draws a new number with every step and reset; `number` is 0
    while the environment is known to be idle. `step` is RESETTING in a reset, `stage` is -1 without a
    curriculum."""

    number: int
    env_id: int
    episode: int
    seed: int
    step: int
    stage: int

    @classmethod
    def read(cls, row: Array) -> Heartbeat:
        """Read a row of `SharedArrays.heartbeats`."""
        return cls(*row[: len(cls._fields)].tolist())


@dataclass(slots=True)
class SharedArrays:
    """The shared memory of a vector and its workers, over all B environments. `shape` is the shape of the
    actions of one environment's step (`EnvSpec.step_shape`)."""

    steps: StepArrays  # results of the last steps
    previous_obs: Leaves  # observations before these steps: the last good ones if a worker dies
    actions: Array  # [B, *shape], in the environment's units
    heartbeats: Array  # int64 [B, 8]; the first columns are the fields of Heartbeat
    counters: (
        Array  # int64 [B, _NUM_COUNTERS] of environments that are stepped concurrently, one writer per row
    )
    journal: Array  # [B, J, *shape]: actions of the running episodes
    pause: Array  # int64 [1]: not 0 asks collecting workers to stop after their current step
    stage: Array  # int64 [1]: the current stage of the curriculum

    def actions_of(self, env_id: int, step: int) -> list[Any] | None:
        """The actions of the running episode up to this step; None if the journal is too short."""
        if step >= self.journal.shape[1]:
            return None
        actions: list[Any] = self.journal[env_id, : step + 1].tolist()
        return actions


def carve_shared_arrays(allocate: Allocate, spec: EnvSpec, num_envs: int) -> SharedArrays:
    """Allocate the shared arrays. The order of allocation is the format: it is the same on both sides."""
    dtype, shape = spec.action.dtype, spec.step_shape
    action_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    steps = make_step_arrays(spec, num_envs, allocate)
    journal_steps = max(1, min(_JOURNAL_STEPS, _JOURNAL_BYTES // (num_envs * max(action_bytes, 1))))
    return SharedArrays(
        steps=steps,
        previous_obs=make_leaves(spec, steps.reward.shape, allocate),
        actions=allocate((num_envs, *shape), dtype),
        heartbeats=allocate((num_envs, 8), np.int64),
        counters=make_counters(num_envs, allocate),
        journal=allocate((num_envs, journal_steps, *shape), dtype),
        pause=allocate((1,), np.int64),
        stage=allocate((1,), np.int64),
    )


def make_counters(num_envs: int, allocate: Allocate = np.zeros) -> Array:
    """Blank counters of environments that are stepped concurrently."""
    return allocate((num_envs, _NUM_COUNTERS), np.int64)
