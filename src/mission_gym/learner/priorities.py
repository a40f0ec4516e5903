"""Priorities of the replay's slots in a compiled sum tree, float64: draws by priority in logarithmic time.

A parent is recomputed as the sum of its two children when one of them changes. So the tree is a function of
its leaves alone: nothing drifts, and a checkpoint keeps only the leaves.
"""

from __future__ import annotations

import numpy as np

from mission_gym.compiled import entry
from mission_gym.data import Array

EPSILON = 1e-6  # added to an error, so that a transition without error can still be drawn


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
