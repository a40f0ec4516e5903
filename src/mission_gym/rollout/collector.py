"""Fills blocks [T, S] from a vector and a policy, one row of T per vector step.

Acting is done in groups of a fixed number of rows: bits depend on the shape of a batch. The noise of a
block is a function of (seed, group, block number): a block that was stopped half-way goes on later with the
same numbers, and it does not matter which process acts. Observations are stored raw; values are not computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.data import ActOut, Array, Block, EnvSpec, Leaves, StepBatch, Weights
from mission_gym.policy.sampling import draw_noise
from mission_gym.streams import generator


class ActingPolicy(Protocol):
    """Either form of a policy."""

    version: int

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None) -> ActOut: ...

    def load(self, weights: Weights) -> None: ...


class SteppingVector(Protocol):
    """What a collector needs of a vector."""

    num_envs: int

    def reset(self) -> StepBatch: ...

    def step(self, actions: Array) -> StepBatch: ...


def make_block(
    spec: EnvSpec, num_steps: int, num_rows: int, allocate: Callable[[Any, Any], Array] = np.zeros
) -> Block:
    """An empty block for these sizes, in memory of the allocator's choice."""
    stored = np.float32 if spec.action.kind == "box" else np.int64
    shape = (num_steps, num_rows)
    return Block(
        obs=tuple(allocate((num_steps + 1, num_rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves),
        mask=allocate((num_steps + 1, num_rows, spec.mask_size), np.bool_) if spec.mask_size else None,
        action=allocate((*shape, spec.action.num_stored), stored),
        log_prob=allocate(shape, np.float32),
        reward=allocate(shape, np.float32),
        terminated=allocate(shape, np.bool_),
        truncated=allocate(shape, np.bool_),
        valid=allocate(shape, np.bool_),
        env_ids=np.arange(num_rows, dtype=np.int64),
        version=np.zeros(num_rows, np.int64),
    )


def part_of(block: Block, num_steps: int, first: int, last: int) -> Block:
    """The first `num_steps` rows of some segments of a block, as views; its lists are new."""
    columns = slice(first, last)
    return Block(
        obs=tuple(leaf[: num_steps + 1, columns] for leaf in block.obs),
        mask=None if block.mask is None else block.mask[: num_steps + 1, columns],
        env_ids=block.env_ids[columns],
        version=block.version[columns],
        **{name: getattr(block, name)[:num_steps, columns] for name in _ROW_FIELDS},
    )


def copy_segments(source: Block, rows: slice, target: Block, first: int) -> None:
    """Copy whole segments, without their lists, to the places of another block from `first` on."""
    places = slice(first, first + rows.stop - rows.start)
    for mine, theirs in zip(target.obs, source.obs, strict=True):
        mine[:, places] = theirs[:, rows]
    if target.mask is not None and source.mask is not None:
        target.mask[:, places] = source.mask[:, rows]
    for name in _ROW_FIELDS:
        getattr(target, name)[:, places] = getattr(source, name)[:, rows]
    target.env_ids[places], target.version[places] = source.env_ids[rows], source.version[rows]


def block_bytes(spec: EnvSpec, num_steps: int, num_rows: int) -> int:
    """The memory of one block."""
    per_row = sum(leaf.size_bytes for leaf in spec.leaves) + spec.mask_size
    return num_rows * ((num_steps + 1) * per_row + num_steps * (8 * spec.action.num_stored + 11))


class BlockCollector(Protocol):
    """What the loop needs of a collector, here or in workers."""

    vec: Any
    clock: PhaseClock
    torn: bool  # a fill was broken off by an error: the environments stand at different steps

    @property
    def policy(self) -> Any: ...

    def start(self) -> None: ...

    def go_on(self, batch: StepBatch) -> None: ...

    def prime(self, num_steps: int) -> Leaves: ...

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool: ...

    def metrics(self) -> dict[str, float]: ...


class Collector:
    """Steps one vector with one policy. `start` or `go_on` first, then `fill` block after block.

    acting_rows: of a group; all rows by default. first_row: of this vector, where it is a part of one.
    """

    def __init__(
        self,
        vec: SteppingVector,
        policy: ActingPolicy,
        spec: EnvSpec,
        seed: int,
        acting_rows: int | None = None,
        first_row: int = 0,
    ) -> None:
        self.vec = vec
        self.policy = policy
        self.spec = spec
        self.seed = seed
        self.clock = PhaseClock("collector")
        self.torn = False
        self._batch: StepBatch | None = None
        size = acting_rows or vec.num_envs
        self._columns = np.arange(vec.num_envs)
        starts = range(0, vec.num_envs, size)
        self._groups = [
            ((first_row + start) // size, slice(start, min(start + size, vec.num_envs))) for start in starts
        ]

    def start(self) -> None:
        """Begin every environment's first episode."""
        self._batch = self.vec.reset()

    def go_on(self, batch: StepBatch) -> None:
        """Go on from restored environments."""
        self._batch = batch

    def prime(self, num_steps: int) -> Leaves:
        """Play a short block with a policy that was just made; return its observations [N, ...]. The
        environments start anew afterwards, as if it had never been played."""
        block = make_block(self.spec, num_steps, self.vec.num_envs)
        self.start()
        self.fill(block, -1, lambda: False)
        self.start()
        self.clock.take()  # no part of the run's phases
        return tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs)

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """Fill the block from row `block.filled` on; False if a stop was asked for before its end."""
        assert self._batch is not None, "start or go_on comes first"
        self.torn = True
        batch, action_spec = self._batch, self.spec.action
        num_steps = block.num_steps
        noise = self._draw_noise(block, number)
        block.version[:] = self.policy.version
        act_s = env_s = 0.0
        cpu_before = time.thread_time()
        stopped = False
        copy_obs(block, block.filled, batch)
        for t in range(block.filled, num_steps):
            if stop():
                stopped = True
                break
            before = time.perf_counter()
            self._act(block, t, batch, noise)
            between = time.perf_counter()
            batch = self.vec.step(action_spec.to_env(block.action[t]))
            act_s += between - before
            env_s += time.perf_counter() - between
            block.reward[t] = batch.reward
            block.terminated[t], block.truncated[t] = batch.terminated, batch.truncated
            block.valid[t] = batch.valid
            if len(batch.ended):
                block.episodes += batch.episodes
                self._keep_finals(block, np.full(len(batch.reward), t), self._columns, batch)
            copy_obs(block, t + 1, batch)
            block.filled = t + 1
        sort_finals(block)
        self._batch = batch
        self.torn = False
        self.clock.add("act", act_s)
        self.clock.add("env", env_s)
        self.clock.add("cpu", time.thread_time() - cpu_before)
        return not stopped

    def metrics(self) -> dict[str, float]:
        """What a row of metrics tells of the collecting: nothing."""
        return {}

    def _draw_noise(self, block: Block, number: int) -> list[Array]:
        """The noise [T, B, K] of each group for a whole block."""
        return [
            draw_noise(
                self.spec.action,
                generator(self.seed, "act", group, number),
                block.num_steps,
                rows.stop - rows.start,
            )
            for group, rows in self._groups
        ]

    def _act(self, block: Block, t: int, batch: StepBatch, noise: list[Array]) -> None:
        """Choose the actions of row t, group by group."""
        for (_, rows), drawn in zip(self._groups, noise, strict=True):
            mask = None if batch.mask is None else batch.mask[rows]
            self._act_group(block, t, rows, tuple(leaf[rows] for leaf in batch.obs), mask, drawn)

    def _act_group(
        self, block: Block, t: int, rows: slice, obs: Leaves, mask: Array | None, noise: Array
    ) -> None:
        out = self.policy.act(obs, mask, noise[t])
        block.action[t, rows], block.log_prob[t, rows] = out.action, out.log_prob

    @staticmethod
    def _keep_finals(block: Block, t: Array, columns: Array, batch: StepBatch) -> None:
        """Keep what episodes ended with; row i of the batch is (t[i], columns[i]) of the block."""
        for position, row in enumerate(batch.ended.tolist()):
            if batch.truncated[row] and not batch.terminated[row]:
                at, column = int(t[row]), int(columns[row])
                if not batch.valid[row]:  # lost in a failure: the step before is the last good one
                    cut_row(block, at, column)
                mask = None if batch.final_mask is None else batch.final_mask[position]
                keep_final(block, at, column, tuple(leaf[position] for leaf in batch.final_obs), mask)


def copy_obs(block: Block, t: int, batch: StepBatch) -> None:
    for stored, leaf in zip(block.obs, batch.obs, strict=True):
        stored[t] = leaf
    if block.mask is not None:
        block.mask[t] = batch.mask


def keep_final(block: Block, t: int, row: int, obs: Leaves, mask: Array | None) -> None:
    """Keep the last observation and mask of an episode that was truncated at row t."""
    block.final_at.append((t, row))
    block.final_obs.append(tuple(leaf.copy() for leaf in obs))
    if mask is not None:
        block.final_mask.append(mask.copy())


def _shown(block: Block, t: int, row: int) -> tuple[Leaves, Array | None]:
    """What a row shows at t."""
    return tuple(leaf[t, row] for leaf in block.obs), None if block.mask is None else block.mask[t, row]


def clear_block(block: Block) -> None:
    """Make the block ready to be filled anew."""
    block.filled = 0
    block.final_at, block.final_obs, block.final_mask, block.episodes = [], [], [], []


def cut_row(block: Block, end: int, row: int) -> None:
    """End the running episode of a row before `end`, for an environment that could not be brought
    back: its last transition bootstraps from the last observation that was seen."""
    t = end - 1
    if t < 0 or block.terminated[t, row] or block.truncated[t, row]:
        return
    block.truncated[t, row] = True
    keep_final(block, t, row, *_shown(block, t + 1, row))


def lose_row(block: Block, t: int, row: int) -> None:
    """Mark a transition as lost in a failure; the one before bootstraps from the last good observation."""
    cut_row(block, t, row)
    block.action[t, row] = block.log_prob[t, row] = block.reward[t, row] = 0
    block.valid[t, row] = block.terminated[t, row] = False
    block.truncated[t, row] = True
    if block.mask is not None:
        block.mask[t, row] = True  # the blank action must be legal
    keep_final(block, t, row, *_shown(block, t, row))


def sort_finals(block: Block) -> None:
    """Bring the final observations into the order of (t, s), in which a serial collector meets them."""
    order = sorted(range(len(block.final_at)), key=block.final_at.__getitem__)
    block.final_at = [block.final_at[i] for i in order]
    block.final_obs = [block.final_obs[i] for i in order]
    block.final_mask = [block.final_mask[i] for i in order if block.final_mask]


def pack_block(block: Block, prefix: str = "block") -> dict[str, Array]:
    """The filled part of a block as arrays, for a checkpoint (episodes aside)."""
    t = block.filled
    arrays = {f"obs/{i}": leaf[: t + 1] for i, leaf in enumerate(block.obs)}
    arrays |= {"env_ids": block.env_ids, "version": block.version}
    if block.mask is not None:
        arrays["mask"] = block.mask[: t + 1]
    for name in _ROW_FIELDS:
        arrays[name] = getattr(block, name)[:t]
    if block.final_at:
        arrays["final_at"] = np.array(block.final_at, np.int64)
        for i, column in enumerate(zip(*block.final_obs, strict=True)):
            arrays[f"final/{i}"] = np.stack(column)
        if block.final_mask:
            arrays["final_mask"] = np.stack(block.final_mask)
    return {f"{prefix}/{name}": np.ascontiguousarray(array) for name, array in arrays.items()}


def unpack_block(block: Block, arrays: dict[str, Array], prefix: str = "block") -> None:
    """Put a packed block back, up to its filled row."""
    t = len(arrays[f"{prefix}/reward"])
    for i, leaf in enumerate(block.obs):
        leaf[: t + 1] = arrays[f"{prefix}/obs/{i}"]
    if block.mask is not None:
        block.mask[: t + 1] = arrays[f"{prefix}/mask"]
    for name in _ROW_FIELDS:
        getattr(block, name)[:t] = arrays[f"{prefix}/{name}"]
    block.env_ids[:], block.version[:] = arrays[f"{prefix}/env_ids"], arrays[f"{prefix}/version"]
    if f"{prefix}/final_at" in arrays:
        block.final_at = [(int(a), int(b)) for a, b in arrays[f"{prefix}/final_at"]]
        columns = [arrays[f"{prefix}/final/{i}"] for i in range(len(block.obs))]
        block.final_obs = [tuple(np.array(c[e]) for c in columns) for e in range(len(block.final_at))]
        block.final_mask = list(arrays.get(f"{prefix}/final_mask", []))
    block.filled = t


_ROW_FIELDS = ("action", "log_prob", "reward", "terminated", "truncated", "valid")
