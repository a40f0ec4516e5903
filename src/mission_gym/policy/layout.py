"""What both forms of a policy are built from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mission_gym.data import ActionSpec, LeafSpec, Leaves


@dataclass(frozen=True, slots=True)
class QSpec:
    """What is its own in a network of action values: streams and noise."""

    dueling: bool = False
    noisy_sigma: float | None = None  # None: plain layers, and epsilon explores


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The shape of a policy: its inputs, its action and its network."""

    leaves: tuple[LeafSpec, ...]
    action: ActionSpec
    network_arch: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    network: str | None = None  # module:callable of the user's own
    normalize_obs: bool = True
    log_std_init: float = 0.0
    q: QSpec | None = None  # action values instead of actor and critic
    state_shapes: tuple[tuple[int, ...], ...] = ()  # of one row's memory, float32; empty without memory

    def initial_state(self, num_rows: int) -> Leaves:
        """What rows remember when their episodes begin."""
        return tuple(np.zeros((num_rows, *shape), np.float32) for shape in self.state_shapes)

    @property
    def has_images(self) -> bool:
        return any(leaf.kind == "image" for leaf in self.leaves)

    @property
    def is_mlp(self) -> bool:
        """Whether the NumPy form exists: no images and no network of the user's own."""
        return self.network is None and not self.has_images
