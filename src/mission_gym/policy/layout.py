"""What both forms of a policy are built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mission_gym.data import ActionSpec, EnvSpec, LeafSpec, Leaves

if TYPE_CHECKING:  # workers act without knowing configs
    from mission_gym.config.schema import PolicySection


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

    @classmethod
    def of(cls, section: PolicySection, spec: EnvSpec, q: QSpec | None = None) -> PolicySpec:
        """The policy that a config asks for in an environment."""
        return cls(
            leaves=spec.leaves,
            action=spec.action,
            network_arch=section.network_arch,
            activation=section.activation,
            network=section.network,
            normalize_obs=section.normalize_obs,
            log_std_init=section.log_std_init,
            q=q,
        )

    @property
    def has_images(self) -> bool:
        return any(leaf.kind == "image" for leaf in self.leaves)

    @property
    def is_mlp(self) -> bool:
        """Whether the NumPy form exists: no images and no network of the user's own."""
        return self.network is None and not self.has_images
