"""The arrays that vectors write their steps into: a row for each environment, or for each of its agents.

Inside a vector the agents of an environment stay together: arrays are [B, A, ...] for B environments of A
agents, [B, ...] where there are none. Batches have one axis of rows, as what episodes ended with always has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves, StepBatch
from mission_gym.env.slot import EnvSlot

COLUMNS = ("reward", "terminated", "truncated", "valid")  # of Rows, each [B]
_NONE = np.empty(0, np.int64)
Allocate = Callable[[Any, Any], Array]  # shape, dtype -> zeros


@dataclass(slots=True)
class Rows:
    """What a vector writes its steps into, by environment; the final ones by row."""

    obs: Leaves
    mask: Array | None
    final_obs: Leaves
    final_mask: Array | None
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array

    def take(self, places: slice | list[int]) -> Rows:
        """The rows at some places, as views if they are a slice; the final ones stay as they are."""
        return replace(
            self,
            obs=tuple(leaf[places] for leaf in self.obs),
            mask=None if self.mask is None else self.mask[places],
            **{name: getattr(self, name)[places] for name in COLUMNS},
        )

    def part(self, cut: slice) -> Rows:
        """All of some environments, as views."""
        per_env = self.reward.size // len(self.reward)
        rows = slice(cut.start * per_env, cut.stop * per_env)
        final_mask = None if self.final_mask is None else self.final_mask[rows]
        return replace(
            self.take(cut), final_obs=tuple(leaf[rows] for leaf in self.final_obs), final_mask=final_mask
        )

    def flatten(self) -> Rows:
        """With one axis of rows instead of environments and agents, as views."""
        columns: dict[str, Any] = {name: join_axes(getattr(self, name)) for name in COLUMNS}
        mask = None if self.mask is None else join_axes(self.mask)
        return replace(self, obs=tuple(join_axes(leaf) for leaf in self.obs), mask=mask, **columns)

    def as_batch(self, env_ids: Array, num_ended: int, infos: dict[int, Any]) -> StepBatch:
        """The rows as a vector gives them, with the first of the final ones; who ended is not told yet."""
        if self.reward.ndim == 2:
            return self.flatten().as_batch(rows_of(env_ids, self.reward.shape[1]), num_ended, infos)
        return StepBatch(
            env_ids=env_ids,
            obs=self.obs,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            valid=self.valid,
            mask=self.mask,
            ended=_NONE,
            final_obs=tuple([leaf[:num_ended] for leaf in self.final_obs]),
            final_mask=None if self.final_mask is None else self.final_mask[:num_ended],
            infos=infos,
        )


def make_rows(spec: EnvSpec, count: int, allocate: Allocate = np.zeros) -> Rows:
    """Blank rows of so many environments, in memory of the allocator's choice."""
    axes = (count, len(spec.agents)) if spec.agents else (count,)
    num_rows = count * spec.num_agents
    obs, final_obs = make_leaves(spec, axes, allocate), make_leaves(spec, (num_rows,), allocate)
    mask = final_mask = None
    if spec.mask_source:
        mask = allocate((*axes, spec.mask_size), np.bool_)
        final_mask = allocate((num_rows, spec.mask_size), np.bool_)
    flags = [allocate(axes, np.bool_) for _ in range(3)]
    return Rows(obs, mask, final_obs, final_mask, allocate(axes, np.float64), *flags)


def make_leaves(spec: EnvSpec, axes: tuple[int, ...], allocate: Allocate) -> Leaves:
    """Blank observations [*axes, ...]; objects can't be in shared memory, so each process has its own."""
    return tuple(
        (np.zeros if leaf.kind == "object" else allocate)((*axes, *leaf.shape), leaf.dtype)
        for leaf in spec.leaves
    )


def join_axes(array: Array) -> Array:
    """An array with its first two axes as one."""
    return array.reshape(-1, *array.shape[2:])


def rows_of(env_ids: Any, per_env: int) -> Array:
    """The rows of environments, int64, in their order."""
    first = np.asarray(env_ids, np.int64) * per_env
    return (first[:, None] + np.arange(per_env)).ravel()


def write_row(slot: EnvSlot, row: int, obs: Leaves, mask: Array | None) -> None:
    """Copy what a slot shows into row arrays; the environment may reuse its own."""
    for array, leaf in zip(obs, slot.obs, strict=True):
        array[row] = leaf
    if mask is not None:
        mask[row] = slot.mask


def split_parts(count: int, unit: int, *, alone: bool) -> list[range]:
    """The environments of a worker that are stepped together: all, or each unit alone."""
    size = unit if alone else count
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def split_rows(num_envs: int, num_workers: int, unit: int = 1) -> list[range]:
    """Environments of each worker: contiguous, in whole units, as equal as possible."""
    units = -(-num_envs // unit)
    workers = min(num_workers, units)
    edges = [min(num_envs, units * i // workers * unit) for i in range(workers + 1)]
    return [range(first, last) for first, last in pairwise(edges)]
