"""What both forms of a policy are built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    critic_leaves: tuple[str, ...] = ()  # names of those that the critic alone sees
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
            critic_leaves=name_leaves(section.critic_keys, spec.leaves) if q is None else (),
        )

    @property
    def seen(self) -> PolicySpec:
        """The same for the leaves that the actor sees."""
        leaves = tuple(leaf for leaf in self.leaves if leaf.name not in self.critic_leaves)
        return replace(self, leaves=leaves, critic_leaves=())

    @property
    def num_flat(self) -> int:
        """Flat features of an observation."""
        return sum(leaf.num_features for leaf in self.leaves)

    @property
    def is_flat(self) -> bool:
        """Whether every leaf is columns of flat features: no picture and no sequence."""
        return all(leaf.is_flat for leaf in self.leaves)

    @property
    def is_mlp(self) -> bool:
        """Whether the NumPy form exists: flat features and no network of the user's own."""
        return self.network is None and self.is_flat


def name_leaves(keys: tuple[str, ...], leaves: tuple[LeafSpec, ...]) -> tuple[str, ...]:
    """The names of the leaves that keys of an observation mean. A key is the path of a leaf, or of a part and
    then means all of it."""
    return tuple(leaf.name for leaf in leaves if any(f"{leaf.name}.".startswith(f"{key}.") for key in keys))
