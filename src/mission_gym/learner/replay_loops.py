"""Compiled loops of the replay: storing transitions, drawing them, summing n-step returns, and priorities.

Priorities are the leaves of a sum tree in float64, which draws in logarithmic time. A parent is recomputed as
the sum of its two children when one of them changes. So the tree is a function of its leaves alone: nothing
drifts, and a checkpoint keeps only the leaves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mission_gym.compiled import entry
from mission_gym.data import Array

EPSILON = 1e-6  # added to an error, so that a transition without error can still be drawn


class RingRows(NamedTuple):
    """The arrays of a replay, [L, N, ...], or with both axes joined [L * N, ...]."""

    action: Array  # [..., K]
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    final: Array  # number of the final observation in the side table, -1 for none


class BlockRows(NamedTuple):
    """The arrays of a block, [T, N, ...]."""

    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array


class GatheredRows(NamedTuple):
    """The n-step transitions of a draw, [B, ...]."""

    action: Array  # [B, K]
    reward: Array
    discount: Array
    ends: Array  # int64 [2, B]: slots of the observation and of the next one
    final: Array  # number of the next observation in the side table, -1 for none


@entry
def store_rows(ring: RingRows, total: int, block: BlockRows) -> tuple[int, int]:
    """Write a block [T, N] to the ring [L, N] from row number `total` on.

    Returns the number of freed entries of the side table, and the change in the number of valid transitions.
    The row after the last one already holds an observation, so its old transition is lost too.
    """
    length, freed, more = len(ring.reward), 0, 0
    for t in range(len(block.reward)):
        row, fresh = (total + t) % length, (total + t + 1) % length
        for s in range(block.reward.shape[1]):
            freed += ring.final[fresh, s] >= 0
            more += int(block.valid[t, s]) - int(ring.valid[fresh, s])
            ring.final[fresh, s] = -1
            ring.valid[fresh, s] = False
            for k in range(block.action.shape[2]):
                ring.action[row, s, k] = block.action[t, s, k]
            ring.reward[row, s] = block.reward[t, s]
            ring.terminated[row, s] = block.terminated[t, s]
            ring.truncated[row, s] = block.truncated[t, s]
            ring.valid[row, s] = block.valid[t, s]
    return freed, more


@entry
def draw_ids(noise: Array, valid: Array, first: int, count: int, ids: Array) -> int:
    """Ids from `first` to `first + count`, for noise [B] in [0, 1). Writes the valid ones to the front of
    `ids` and returns their number."""
    num_good, size = 0, len(valid)
    for i in range(len(noise)):
        chosen = first + min(int(noise[i] * count), count - 1)
        if valid[chosen % size]:
            ids[num_good] = chosen
            num_good += 1
    return num_good


@entry
def sum_steps(
    ring: RingRows, num_columns: int, n_step: int, gamma: float, ids: Array, out: GatheredRows
) -> int:
    """R = sum gamma^j r_j over at most n steps from each id on, up to the end of the episode.

    ring: with joined axes. Writes the first action, R, the discount of the next value (0 if terminated), the
    slots of both observations and the side table's number of the next one; returns how many are in the side
    table. An
    invalid transition is not entered: the value of its observation follows instead.
    """
    size, num_finals = len(ring.reward), 0
    for i in range(len(ids)):
        slot, total, factor, last = ids[i] % size, 0.0, 1.0, -1
        out.ends[0, i] = slot
        for k in range(ring.action.shape[1]):
            out.action[i, k] = ring.action[slot, k]
        for _ in range(n_step):
            if not ring.valid[slot]:
                break
            total += factor * ring.reward[slot]
            factor = 0.0 if ring.terminated[slot] else factor * gamma
            last = ring.final[slot]
            ended = ring.terminated[slot] or ring.truncated[slot]
            slot += num_columns
            if slot >= size:
                slot -= size
            if ended:
                break
        out.reward[i], out.discount[i], out.ends[1, i], out.final[i] = total, factor, slot, last
        num_finals += last >= 0
    return num_finals


@entry
def sum_rewards(reward: Array, ended: Array, valid: Array, gamma: float, sums: Array, moments: Array) -> None:
    """R_t = r_t + gamma R_{t-1} in every column of [T, N], starting from `sums` [N]; an end resets it to 0.

    moments: count, mean and sum of squared differences from the mean (Welford), updated in place.
    """
    for t in range(len(reward)):
        for s in range(reward.shape[1]):
            if valid[t, s]:
                sums[s] = reward[t, s] + gamma * sums[s]
                moments[0] += 1.0
                off = sums[s] - moments[1]
                moments[1] += off / moments[0]
                moments[2] += off * (sums[s] - moments[1])
            if ended[t, s] or not valid[t, s]:
                sums[s] = 0.0


@entry
def _set(tree: Array, slots: Array, priorities: Array) -> None:
    size = tree.shape[0] // 2
    for index in range(slots.shape[0]):
        node = size + slots[index]
        tree[node] = priorities[index]
        node //= 2
        while node >= 1:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


@entry
def _find(tree: Array, left_over: Array, nodes: Array) -> None:
    """Descend from the root to the leaves that hold these parts of the sum; `nodes` start at 1.

    All draws descend together, level by level, so that their loads from memory overlap.
    """
    width = 1
    while width < tree.shape[0] // 2:
        for index in range(nodes.shape[0]):
            node = 2 * nodes[index]
            below = tree[node]
            # Rounding must not lead to a leaf of priority 0.
            goes_right = (left_over[index] >= below) & (tree[node + 1] > 0.0)
            left_over[index] -= below * goes_right
            nodes[index] = node + goes_right
        width *= 2


class Priorities:
    """One priority per slot. A slot of priority 0 is never drawn."""

    def __init__(self, num_slots: int, alpha: float) -> None:
        self._num_slots = num_slots
        self._alpha = alpha
        self._tree = np.zeros(2 * (1 << max(num_slots - 1, 1).bit_length()))
        self._largest = 1.0

    @property
    def values(self) -> Array:
        """The priorities, float64 [num_slots]; a view."""
        size = len(self._tree) // 2
        return self._tree[size : size + self._num_slots]

    def clear(self, slots: Array) -> None:
        """Make these slots ineligible."""
        _set(self._tree, slots, np.zeros(len(slots)))

    def add(self, slots: Array) -> None:
        """Make new transitions eligible, with the largest priority so far."""
        _set(self._tree, slots, np.full(len(slots), self._largest))

    def update(self, slots: Array, errors: Array) -> None:
        """Set priorities by error: p = (|error| + epsilon)^alpha."""
        priorities = (np.abs(errors).astype(np.float64) + EPSILON) ** self._alpha
        self._largest = max(self._largest, float(priorities.max(initial=0.0)))
        _set(self._tree, slots, priorities)

    def draw(self, noise: Array, beta: float) -> tuple[Array, Array]:
        """Slots, one from each equal part of the sum, for noise [N] in [0, 1), and their importance weights
        (1 / p)^beta, float32, scaled to a maximum of 1."""
        num = len(noise)
        nodes = np.ones(num, np.int64)
        _find(self._tree, (np.arange(num) + noise) / num * self._tree[1], nodes)
        slots = nodes - len(self._tree) // 2
        priorities = self.values[slots]
        return slots, ((priorities.min() / priorities) ** beta).astype(np.float32)

    def arrays(self, num_filled: int) -> dict[str, Array]:
        """The leaves of the first slots, and the largest priority so far."""
        return {"priorities": self.values[:num_filled], "largest_priority": np.array(self._largest)}

    def rescale(self, factor: float) -> None:
        """Follow errors that were all multiplied by a factor."""
        self._largest *= factor**self._alpha
        self.values[:] *= factor**self._alpha
        self._sum_leaves()

    def load(self, arrays: dict[str, Array]) -> None:
        self._largest = float(arrays["largest_priority"])
        self.values[: len(arrays["priorities"])] = arrays["priorities"]
        self._sum_leaves()

    def _sum_leaves(self) -> None:
        """Recompute the tree above its leaves."""
        half = len(self._tree) // 4
        while half:
            level = self._tree[2 * half : 4 * half]
            self._tree[half : 2 * half] = level[0::2] + level[1::2]
            half //= 2
