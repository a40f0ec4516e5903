"""The replay: transitions of every environment in rows [L, B], a ring along L, allocated once.

The next observation of row t is row t + 1; where an episode was truncated, its last observation and mask are
in a side table. Observations are stored raw and once, of stacked frames only the newest. Rows are numbered
from the start for ever: an id is row * B + column, so that it tells whether its slot was overwritten.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, Block, LeafSpec, Leaves, ends_episode
from mission_gym.rollout.frames import read_obs

_ROW_BYTES = 4 + 4 + 3 + 8 + 4  # action, reward, flags, place in the side table, age
_FEWEST_FINALS = 64


class ReplayLayout(NamedTuple):
    """What a replay is made from."""

    leaves: tuple[LeafSpec, ...]
    mask_size: int
    num_envs: int
    capacity: int  # transitions, rounded up to whole rows
    n_step: int = 1
    gamma: float = 0.99
    episode_steps: int = 1000  # of a usual truncated episode: how many last observations are expected

    @property
    def frame_stack(self) -> int:
        """How many frames the deepest stack has."""
        return max(leaf.frames for leaf in self.leaves)

    @property
    def num_rows(self) -> int:
        """L: rows of transitions, the one whose transition is under way, and frames before the first."""
        return -(-self.capacity // self.num_envs) + self.frame_stack

    @property
    def num_finals(self) -> int:
        return max(_FEWEST_FINALS, self.capacity // self.episode_steps)

    @property
    def size_bytes(self) -> int:
        """The memory of a replay of this layout."""
        whole = sum(leaf.size_bytes for leaf in self.leaves) + self.mask_size
        stored = self.mask_size + sum(leaf.size_bytes // leaf.frames for leaf in self.leaves)
        return self.num_rows * self.num_envs * (stored + _ROW_BYTES) + self.num_finals * whole


class Sampled(NamedTuple):
    """Transitions [N, ...] with n-step returns: the target of a value is reward + discount * V(next_obs)."""

    both: Leaves  # each [2 N, ...]: the observations, then the next ones
    action: Array  # int64 [N]
    reward: Array  # float32 [N], discounted sum
    discount: Array  # float32 [N], 0 where terminated
    next_mask: Array | None  # bool [N, M]

    @property
    def obs(self) -> Leaves:
        return tuple(leaf[: len(self.action)] for leaf in self.both)

    @property
    def next_obs(self) -> Leaves:
        return tuple(leaf[len(self.action) :] for leaf in self.both)


class Stored(NamedTuple):
    """Numbers of rows that a block changed; `Replay.slots_in` has their slots."""

    lost: range  # no longer drawn: overwritten, or without their frames
    ripe: range  # drawn from now on


class Replay:
    """`store` blocks in order, then `draw` ids and `gather` their transitions."""

    def __init__(self, layout: ReplayLayout) -> None:
        from mission_gym.learner import ring  # numba, only where it is used

        self._loops = ring
        self.layout = layout
        self.num_rows, self.num_envs, self._stack = layout.num_rows, layout.num_envs, layout.frame_stack
        shape = (self.num_rows, self.num_envs)
        self.obs = tuple(np.zeros((*shape, *leaf.stored_shape), leaf.dtype) for leaf in layout.leaves)
        self.mask = np.zeros((*shape, layout.mask_size), bool) if layout.mask_size else None
        self.action, self.reward = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        self.terminated, self.truncated, self.valid = (np.zeros(shape, bool) for _ in range(3))
        self.final = np.full(shape, -1, np.int64)  # number in the side table
        self.age = np.zeros(shape, np.int32)  # steps since the episode's first observation
        self._flat_rows = (
            self.action.reshape(-1), self.reward.reshape(-1), self.terminated.reshape(-1),
            self.truncated.reshape(-1), self.valid.reshape(-1), self.final.reshape(-1),
        )  # fmt: skip
        self.finals = _Finals(layout)
        self.total = 0  # number of the row whose transition comes next
        self.first = 0  # number of the first row with a transition
        self.num_valid = 0

    @property
    def window(self) -> tuple[int, int]:
        """Numbers of the rows that may be drawn, from the first to behind the last: those whose n steps were
        made and whose frames are still there."""
        oldest = self.total - self.num_rows + self._stack
        return max(self.first, oldest), self.total - self.layout.n_step + 1

    @property
    def can_draw(self) -> bool:
        """Whether some transition may be drawn."""
        low, high = self.window
        return high > low and self.num_valid > (self.layout.n_step - 1) * self.num_envs

    def store(self, block: Block) -> Stored:
        """Append a full block."""
        if self.total == 0:
            self._begin(block)
        else:
            self._cut_broken(block)
        before, num_steps = self.window[1], block.num_steps
        # Rows whose frames are overwritten can no longer be drawn either.
        lost = range(self.total + 1, self.total + num_steps + self._stack)
        freed, more = self._loops.store_rows(
            self.action, self.reward, self.terminated, self.truncated, self.valid, self.final, self.total,
            block.action, block.reward, block.terminated, block.truncated, block.valid,
        )  # fmt: skip
        self.finals.free(freed)
        self.num_valid += more
        self._store_obs(block)
        for t, column, obs, mask, _ in block.finals:
            if block.valid[t, column]:
                place = (self.total + t) % self.num_rows
                self.final[place, column] = self.finals.add(obs, mask)
        self.total += num_steps
        return Stored(lost, range(max(before, self.first), max(self.window[1], self.first)))

    def slots_in(self, rows: range, *, valid: bool = False) -> Array:
        """Flat slots of rows, int64; `valid`: of valid transitions alone."""
        places = np.arange(rows.start, rows.stop) % self.num_rows
        slots = self._flat(places)
        return slots[self.valid[places].ravel()] if valid else slots

    def _ring(self, first: int, num: int) -> Any:
        """An index of `num` rows from row number `first` on: a slice where the ring does not end in them."""
        place = first % self.num_rows
        if place + num <= self.num_rows:
            return slice(place, place + num)
        return (place + np.arange(num)) % self.num_rows

    def draw(self, rng: np.random.Generator, num: int) -> Array:
        """Ids of `num` transitions, each valid one of the window equally likely."""
        low, high = self.window
        first, count, valid = low * self.num_envs, (high - low) * self.num_envs, self.valid.reshape(-1)
        ids, made = np.empty(num, np.int64), 0
        while made < num:
            made += self._loops.draw_ids(rng.random(num - made), valid, first, count, ids[made:])
        return ids

    def slots_of(self, ids: Array) -> Array:
        """Flat slots of ids."""
        return ids % (self.num_rows * self.num_envs)

    def ids_of(self, slots: Array) -> Array:
        """Ids of the transitions that lie in flat slots now."""
        size = self.num_rows * self.num_envs
        newest = self.total * self.num_envs + self.num_envs - 1  # the id of the last column of the head's row
        return newest - (newest - slots) % size

    def holds(self, ids: Array) -> Array:
        """Whether each id's transition is still there, bool [N]."""
        held: Array = ids >= (self.total - self.num_rows + 1) * self.num_envs
        return held

    def gather(self, ids: Array) -> Sampled:
        """The transitions of ids, with n-step returns that end where the episode or the valid data ends."""
        num = len(ids)
        action, ends, final = np.empty(num, np.int64), np.empty((2, num), np.int64), np.empty(num, np.int64)
        reward, discount = np.empty(num, np.float32), np.empty(num, np.float32)
        num_finals = self._loops.sum_steps(
            *self._flat_rows, self.num_envs, self.layout.n_step, self.layout.gamma, ids,
            action, reward, discount, ends, final,
        )  # fmt: skip
        both = self._take_obs(ends.reshape(-1))
        next_mask = None
        if self.mask is not None:
            next_mask = self.mask.reshape(-1, self.layout.mask_size).take(ends[1], axis=0)
        if num_finals:
            places = np.flatnonzero(final >= 0)
            last_obs, last_mask = self.finals.take(final[places])
            for leaf, last in zip(both, last_obs, strict=True):
                leaf[num + places] = last
            if next_mask is not None:
                next_mask[places] = last_mask
        return Sampled(both, action, reward, discount, next_mask)

    def _flat(self, rows: Array) -> Array:
        return (rows[:, None] * self.num_envs + np.arange(self.num_envs)).ravel()

    def _begin(self, block: Block) -> None:
        """Lay the frames before the newest of the first observation down as rows without transitions."""
        history = self._stack - 1
        for stored, leaf, given in zip(self.obs, self.layout.leaves, block.obs, strict=True):
            if leaf.frames > 1:
                stored[:history] = given[:history]
        self.total = self.first = history
        self.age[history] = history

    def _cut_broken(self, block: Block) -> None:
        """Where the block does not begin with what the last one ended with, the environment was started anew
        in between, or its first transition is lost: the episode is truncated there."""
        head, last = self.total % self.num_rows, (self.total - 1) % self.num_rows
        if self._stack == 1 and self._shows(head, block):
            return
        shown = self._take_obs(self._flat(np.array([head])))
        same = np.ones(self.num_envs, bool)
        for ours, given in zip(shown, read_obs(block, 0, slice(None)), strict=True):
            same &= (ours == given).reshape(self.num_envs, -1).all(axis=1)
        self.age[head, ~same] = 0
        if self.mask is not None and block.mask is not None:  # of a lost transition it is blank
            same &= (self.mask[head] == block.mask[0]).all(axis=1)
        broken = ~same & ~ends_episode(self.terminated[last], self.truncated[last], self.valid[last])
        for column in np.flatnonzero(broken).tolist():
            mask = None if self.mask is None else self.mask[head, column]
            self.truncated[last, column] = True
            self.final[last, column] = self.finals.add(tuple(leaf[column] for leaf in shown), mask)

    def _shows(self, place: int, block: Block) -> bool:
        """Whether a row, in every column, shows what the block begins with."""
        for ours, given in zip(self.obs, block.obs, strict=True):
            if not (ours[place] == given[0]).all():
                return False
        return self.mask is None or bool((self.mask[place] == block.mask[0]).all())  # type: ignore[index]

    def _store_obs(self, block: Block) -> None:
        slots = self._ring(self.total, block.num_steps + 1)
        if self.mask is not None:
            self.mask[slots] = block.mask
        if self._stack == 1:
            for stored, given in zip(self.obs, block.obs, strict=True):
                stored[slots] = given
            return
        slots = (self.total + np.arange(block.num_steps + 1)) % self.num_rows
        ended = ends_episode(block.terminated, block.truncated, block.valid)
        for t in range(block.num_steps):
            self.age[slots[t + 1]] = np.where(ended[t], 0, self.age[slots[t]] + 1)
        for stored, leaf, given in zip(self.obs, self.layout.leaves, block.obs, strict=True):
            stored[slots] = given[leaf.frames - 1 :]

    def _take_obs(self, slots: Array) -> Leaves:
        """Observations [N, ...] of flat slots."""
        size = self.num_rows * self.num_envs
        taken = []
        for stored, leaf in zip(self.obs, self.layout.leaves, strict=True):
            flat = stored.reshape(size, *stored.shape[2:])
            if leaf.frames > 1:
                # Back to the first frame of the episode, which fills what is missing.
                back = np.arange(leaf.frames - 1, -1, -1)
                back = np.minimum(back, self.age.reshape(-1).take(slots)[:, None])
                taken.append(flat.take((slots[:, None] - back * self.num_envs) % size, axis=0))
            else:
                taken.append(flat.take(slots, axis=0))
        return tuple(taken)

    def arrays(self) -> dict[str, Array]:
        """Views of everything that is filled, for a checkpoint."""
        filled = min(self.total + 1, self.num_rows)
        arrays = {f"obs/{i}": leaf[:filled] for i, leaf in enumerate(self.obs)}
        if self.mask is not None:
            arrays["mask"] = self.mask[:filled]
        arrays |= {name: getattr(self, name)[:filled] for name in _ROWS}
        counters = np.array([self.total, self.first, self.num_valid], np.int64)
        return arrays | self.finals.arrays() | {"counters": counters}

    def load(self, arrays: dict[str, Array]) -> None:
        """Take back what `arrays` gave."""
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
    """The side table: last observations of truncated episodes, numbered for ever, freed in their order."""

    def __init__(self, layout: ReplayLayout) -> None:
        self._size = layout.num_finals
        self._obs = tuple(np.zeros((self._size, *leaf.shape), leaf.dtype) for leaf in layout.leaves)
        self._mask = np.zeros((self._size, layout.mask_size), bool)
        self._low = self._high = 0  # the numbers in use

    def add(self, obs: Leaves, mask: Array | None) -> int:
        """Keep an observation; returns its number."""
        if self._high - self._low == self._size:
            self._grow()
        place = self._high % self._size
        for stored, leaf in zip(self._obs, obs, strict=True):
            stored[place] = leaf
        self._mask[place] = True if mask is None else mask
        self._high += 1
        return self._high - 1

    def free(self, count: int) -> None:
        """Forget the oldest."""
        self._low += count

    def take(self, numbers: Array) -> tuple[Leaves, Array]:
        """Observations and masks of some numbers."""
        places = numbers % self._size
        return tuple(leaf[places] for leaf in self._obs), self._mask[places]

    def _grow(self) -> None:
        numbers = np.arange(self._low, self._high)
        obs, mask = self.take(numbers)
        self._size *= 2
        self._obs = tuple(np.zeros((self._size, *leaf.shape[1:]), leaf.dtype) for leaf in self._obs)
        self._mask = np.zeros((self._size, mask.shape[1]), bool)
        self._put(numbers, obs, mask)

    def _put(self, numbers: Array, obs: Leaves, mask: Array) -> None:
        places = numbers % self._size
        for stored, leaf in zip(self._obs, obs, strict=True):
            stored[places] = leaf
        self._mask[places] = mask

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
