"""The replay: transitions of every environment in rows [L, N], a ring along L, allocated once.

The next observation of row t is row t + 1. If an episode was truncated, its final observation and mask are in
a side table. Observations are stored raw and once; of stacked frames, only the newest. Rows are numbered from
the start, without wrapping: an id is row * N + column, so it shows whether its slot was overwritten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.data import Array, Block, LeafSpec, Leaves, ends_episode
from mission_gym.rollout.blocks import read_obs

_FEWEST_FINALS = 64


class ReplayLayout(NamedTuple):
    """The sizes of a replay."""

    leaves: tuple[LeafSpec, ...]
    action: ActionSpec
    mask_size: int
    num_columns: int
    capacity: int  # transitions, rounded up to whole rows
    n_step: int = 1
    gamma: float = 0.99
    episode_steps: int = 1000  # of a typical truncated episode, to estimate the number of final observations

    @property
    def frame_stack(self) -> int:
        """Frames of the deepest stack."""
        return max(leaf.frames for leaf in self.leaves)

    @property
    def length(self) -> int:
        """L: rows of transitions, the row in progress, and the frames before the first row."""
        return -(-self.capacity // self.num_columns) + self.frame_stack

    @property
    def num_finals(self) -> int:
        return max(_FEWEST_FINALS, self.capacity // self.episode_steps)

    @property
    def size_bytes(self) -> int:
        """The memory of the replay."""
        whole = sum(leaf.size_bytes for leaf in self.leaves) + self.mask_size
        stored = self.mask_size + sum(leaf.size_bytes // leaf.frames for leaf in self.leaves)
        stored += np.dtype(self.action.stored_dtype).itemsize * self.action.num_stored
        stored += 4 + 3 + 8 + 4  # reward, flags, number in the side table, age
        return self.length * self.num_columns * stored + self.num_finals * whole


class Sampled(NamedTuple):
    """Transitions [B, ...] with n-step returns: the target of a value is reward + discount * V(next_obs)."""

    both: Leaves  # each [2 B, ...]: the observations, then the next ones
    action: Array  # [B, K], as stored
    reward: Array  # float32 [B], discounted sum
    discount: Array  # float32 [B], 0 if terminated
    next_mask: Array | None  # bool [B, M]


class StoredRows(NamedTuple):
    """Numbers of the rows that a block changed; `Replay.slots_in` converts them to slots."""

    lost: range  # no longer eligible: overwritten, or without their frames
    eligible: range  # can be drawn from now on


class Replay:
    """`store` blocks in order, then `draw` ids and `gather` their transitions."""

    def __init__(self, layout: ReplayLayout) -> None:
        from mission_gym.learner import replay_loops  # loads numba

        self._loops = replay_loops
        self.layout = layout
        self.length, self.num_columns, self._stack = layout.length, layout.num_columns, layout.frame_stack
        shape = (self.length, self.num_columns)
        self.obs = tuple(np.zeros((*shape, *leaf.stored_shape), leaf.dtype) for leaf in layout.leaves)
        self.mask = np.zeros((*shape, layout.mask_size), bool) if layout.mask_size else None
        self.action = np.zeros((*shape, layout.action.num_stored), layout.action.stored_dtype)
        self.reward = np.zeros(shape, np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros(shape, bool) for _ in range(3))
        self.final = np.full(shape, -1, np.int64)  # number in the side table
        self.age = np.zeros(shape, np.int32)  # steps since the episode's first observation
        rows = (self.action, self.reward, self.terminated, self.truncated, self.valid, self.final)
        size = self.length * self.num_columns
        self._rows = replay_loops.RingRows(*rows)
        self._flat_rows = replay_loops.RingRows(*(array.reshape(size, *array.shape[2:]) for array in rows))
        self.finals = _Finals(layout)
        self.total = 0  # number of the row in progress
        self.first = 0  # number of the first row with a transition
        self.num_valid = 0

    @property
    def window(self) -> tuple[int, int]:
        """Numbers of the eligible rows, first and end: their n steps are complete, and their frames are still
        stored."""
        oldest = self.total - self.length + self._stack
        return max(self.first, oldest), self.total - self.layout.n_step + 1

    @property
    def can_draw(self) -> bool:
        """Whether a transition is eligible."""
        low, high = self.window
        return high > low and self.num_valid > (self.layout.n_step - 1) * self.num_columns

    def store(self, block: Block) -> StoredRows:
        """Append a full block."""
        if self.total == 0:
            self._begin(block)
        else:
            self._cut_broken(block)
        before, num_steps = self.window[1], block.num_steps
        # Rows without their frames are no longer eligible either.
        lost = range(self.total + 1, self.total + num_steps + self._stack)
        rows = (block.action, block.reward, block.terminated, block.truncated, block.valid)
        freed, more = self._loops.store_rows(self._rows, self.total, self._loops.BlockRows(*rows))
        self.finals.free(freed)
        self.num_valid += more
        self._store_obs(block)
        for final in block.finals:
            if block.valid[final.t, final.column]:
                row = (self.total + final.t) % self.length
                self.final[row, final.column] = self.finals.add(final.obs, final.mask)
        self.total += num_steps
        return StoredRows(lost, range(max(before, self.first), max(self.window[1], self.first)))

    def slots_in(self, rows: range, *, valid: bool = False) -> Array:
        """Flat slots of rows, int64. valid: only those of valid transitions."""
        index = np.arange(rows.start, rows.stop) % self.length
        slots = self._flat(index)
        return slots[self.valid[index].ravel()] if valid else slots

    def _ring(self, first: int, num: int) -> Any:
        """An index of `num` rows from row number `first` on: a slice, unless the ring wraps."""
        start = first % self.length
        if start + num <= self.length:
            return slice(start, start + num)
        return (start + np.arange(num)) % self.length

    def draw(self, rng: np.random.Generator, num: int) -> Array:
        """Ids of `num` transitions, uniform over the valid ones of the window."""
        low, high = self.window
        first, count, valid = low * self.num_columns, (high - low) * self.num_columns, self.valid.reshape(-1)
        ids, found = np.empty(num, np.int64), 0
        while found < num:
            found += self._loops.draw_ids(rng.random(num - found), valid, first, count, ids[found:])
        return ids

    def slots_of(self, ids: Array) -> Array:
        """Flat slots of ids."""
        return ids % (self.length * self.num_columns)

    def ids_of(self, slots: Array) -> Array:
        """Ids of the transitions that are in flat slots now."""
        size = self.length * self.num_columns
        newest = self.total * self.num_columns + self.num_columns - 1  # the last id of the row in progress
        return newest - (newest - slots) % size

    def holds(self, ids: Array) -> Array:
        """Whether each id's transition is still stored, bool [B]."""
        held: Array = ids >= (self.total - self.length + 1) * self.num_columns
        return held

    def gather(self, ids: Array) -> Sampled:
        """The transitions of ids, with n-step returns that end with the episode or with the valid data."""
        num = len(ids)
        action = np.empty((num, self.action.shape[2]), self.action.dtype)
        reward, discount = np.empty(num, np.float32), np.empty(num, np.float32)
        ends, final = np.empty((2, num), np.int64), np.empty(num, np.int64)
        num_finals = self._loops.sum_steps(
            self._flat_rows,
            self.num_columns,
            self.layout.n_step,
            self.layout.gamma,
            ids,
            self._loops.GatheredRows(action, reward, discount, ends, final),
        )
        both = self._take_obs(ends.reshape(-1))
        next_mask = None
        if self.mask is not None:
            next_mask = self.mask.reshape(-1, self.layout.mask_size).take(ends[1], axis=0)
        if num_finals:
            rows = np.flatnonzero(final >= 0)
            last_obs, last_mask = self.finals.take(final[rows])
            for leaf, last in zip(both, last_obs, strict=True):
                leaf[num + rows] = last
            if next_mask is not None:
                next_mask[rows] = last_mask
        return Sampled(both, action, reward, discount, next_mask)

    def _flat(self, rows: Array) -> Array:
        return (rows[:, None] * self.num_columns + np.arange(self.num_columns)).ravel()

    def _begin(self, block: Block) -> None:
        """Store the older frames of the first observation as rows without transitions."""
        history = self._stack - 1
        for stored, leaf, given in zip(self.obs, self.layout.leaves, block.obs, strict=True):
            if leaf.frames > 1:
                stored[:history] = given[:history]
        self.total = self.first = history
        self.age[history] = history

    def _cut_broken(self, block: Block) -> None:
        """Truncate episodes in columns where the block does not continue the last one: the environment was
        restarted in between, or its first transition was lost."""
        head, last = self.total % self.length, (self.total - 1) % self.length
        if self._stack == 1 and self._shows(head, block):
            return
        shown = self._take_obs(self._flat(np.array([head])))
        same = np.ones(self.num_columns, bool)
        for ours, given in zip(shown, read_obs(block, 0, slice(None)), strict=True):
            same &= (ours == given).reshape(self.num_columns, -1).all(axis=1)
        self.age[head, ~same] = 0
        if self.mask is not None and block.mask is not None:  # blank for a lost transition
            same &= (self.mask[head] == block.mask[0]).all(axis=1)
        broken = ~same & ~ends_episode(self.terminated[last], self.truncated[last], self.valid[last])
        for column in np.flatnonzero(broken).tolist():
            mask = None if self.mask is None else self.mask[head, column]
            self.truncated[last, column] = True
            self.final[last, column] = self.finals.add(tuple(leaf[column] for leaf in shown), mask)

    def _shows(self, row: int, block: Block) -> bool:
        """Whether a row holds, in every column, the first observation of the block."""
        for ours, given in zip(self.obs, block.obs, strict=True):
            if not (ours[row] == given[0]).all():
                return False
        return self.mask is None or bool((self.mask[row] == block.mask[0]).all())  # type: ignore[index]

    def _store_obs(self, block: Block) -> None:
        slots = self._ring(self.total, block.num_steps + 1)
        if self.mask is not None:
            self.mask[slots] = block.mask
        if self._stack == 1:
            for stored, given in zip(self.obs, block.obs, strict=True):
                stored[slots] = given
            return
        slots = (self.total + np.arange(block.num_steps + 1)) % self.length
        ended = ends_episode(block.terminated, block.truncated, block.valid)
        for t in range(block.num_steps):
            self.age[slots[t + 1]] = np.where(ended[t], 0, self.age[slots[t]] + 1)
        for stored, leaf, given in zip(self.obs, self.layout.leaves, block.obs, strict=True):
            stored[slots] = given[leaf.frames - 1 :]

    def _take_obs(self, slots: Array) -> Leaves:
        """Observations [N, ...] of flat slots."""
        size = self.length * self.num_columns
        taken = []
        for stored, leaf in zip(self.obs, self.layout.leaves, strict=True):
            flat = stored.reshape(size, *stored.shape[2:])
            if leaf.frames > 1:
                # The first frame of the episode stands for those before it.
                back = np.arange(leaf.frames - 1, -1, -1)
                back = np.minimum(back, self.age.reshape(-1).take(slots)[:, None])
                taken.append(flat.take((slots[:, None] - back * self.num_columns) % size, axis=0))
            else:
                taken.append(flat.take(slots, axis=0))
        return tuple(taken)

    def arrays(self) -> dict[str, Array]:
        """Views of the filled part, for a checkpoint."""
        filled = min(self.total + 1, self.length)
        arrays = {f"obs/{i}": leaf[:filled] for i, leaf in enumerate(self.obs)}
        if self.mask is not None:
            arrays["mask"] = self.mask[:filled]
        arrays |= {name: getattr(self, name)[:filled] for name in _ROWS}
        counters = np.array([self.total, self.first, self.num_valid], np.int64)
        return arrays | self.finals.arrays() | {"counters": counters}

    def load(self, arrays: dict[str, Array]) -> None:
        """Load the arrays that `arrays` returned."""
        filled = len(arrays["action"])
        for i, leaf in enumerate(self.obs):
            leaf[:filled] = arrays[f"obs/{i}"]
        if self.mask is not None:
            self.mask[:filled] = arrays["mask"]
        for name in _ROWS:
            getattr(self, name)[:filled] = arrays[name]
        self.finals.load(arrays)
        self.total, self.first, self.num_valid = (int(x) for x in arrays["counters"])


_ROWS = ("action", "reward", "terminated", "truncated", "valid", "final", "age")


class _Finals:
    """The side table: final observations of truncated episodes, numbered without wrapping, freed in order."""

    def __init__(self, layout: ReplayLayout) -> None:
        self._size = layout.num_finals
        self._obs = tuple(np.zeros((self._size, *leaf.shape), leaf.dtype) for leaf in layout.leaves)
        self._mask = np.zeros((self._size, layout.mask_size), bool)
        self._low = self._high = 0  # the numbers in use

    def add(self, obs: Leaves, mask: Array | None) -> int:
        """Store an observation; returns its number."""
        if self._high - self._low == self._size:
            self._grow()
        slot = self._high % self._size
        for stored, leaf in zip(self._obs, obs, strict=True):
            stored[slot] = leaf
        self._mask[slot] = True if mask is None else mask
        self._high += 1
        return self._high - 1

    def free(self, count: int) -> None:
        """Drop the oldest entries."""
        self._low += count

    def take(self, numbers: Array) -> tuple[Leaves, Array]:
        """Observations and masks by number."""
        slots = numbers % self._size
        return tuple(leaf[slots] for leaf in self._obs), self._mask[slots]

    def _grow(self) -> None:
        numbers = np.arange(self._low, self._high)
        obs, mask = self.take(numbers)
        self._size *= 2
        self._obs = tuple(np.zeros((self._size, *leaf.shape[1:]), leaf.dtype) for leaf in self._obs)
        self._mask = np.zeros((self._size, mask.shape[1]), bool)
        self._put(numbers, obs, mask)

    def _put(self, numbers: Array, obs: Leaves, mask: Array) -> None:
        slots = numbers % self._size
        for stored, leaf in zip(self._obs, obs, strict=True):
            stored[slots] = leaf
        self._mask[slots] = mask

    def arrays(self) -> dict[str, Array]:
        obs, mask = self.take(np.arange(self._low, self._high))
        named = {f"final_obs/{i}": leaf for i, leaf in enumerate(obs)}
        return named | {"final_mask": mask, "finals": np.array([self._low, self._high], np.int64)}

    def load(self, arrays: dict[str, Array]) -> None:
        self._low, self._high = (int(x) for x in arrays["finals"])
        while self._high - self._low > self._size:
            self._grow()
        obs = tuple(arrays[f"final_obs/{i}"] for i in range(len(self._obs)))
        self._put(np.arange(self._low, self._high), obs, arrays["final_mask"])
