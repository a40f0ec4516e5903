"""The layout of a policy: everything that its NumPy and torch forms are built from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.data import EnvSpec, LeafSpec, Leaves
from mission_gym.policy.cells import CELLS

if TYPE_CHECKING:  # workers act without loading the config
    from mission_gym.config.schema import PolicySection


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Inputs, actions and network of a policy.

    form: how network outputs become actions; a row of `policy.FORMS`.
    dueling, noisy_sigma: options of the form `values`. noisy_sigma: None for plain layers.
    critic_leaves: names of the leaves that only the critic reads.
    recurrent: a row of `policy.cells.CELLS`, or none. recurrent_size: the units of its memory.
    """

    leaves: tuple[LeafSpec, ...]
    action: ActionSpec
    network_arch: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    network: str | None = None  # module:callable of the user's network
    normalize_obs: bool = True
    log_std_init: float = 0.0
    form: str = "actor"
    outputs_per_real: int = 1  # 1: a mean; 2: also a standard deviation that depends on the observation
    dueling: bool = False
    noisy_sigma: float | None = None
    critic_leaves: tuple[str, ...] = ()
    recurrent: str = "none"
    recurrent_size: int = 128

    @classmethod
    def of(cls, section: PolicySection, spec: EnvSpec, **fields: Any) -> PolicySpec:
        """The policy of a config in an environment. fields: those that the algorithm decides."""
        return cls(
            leaves=spec.leaves,
            action=spec.action,
            network_arch=section.network_arch,
            activation=section.activation,
            network=section.network,
            normalize_obs=section.normalize_obs,
            log_std_init=section.log_std_init,
            recurrent=section.recurrent,
            recurrent_size=section.recurrent_size,
            **fields,
        )

    @property
    def has_memory(self) -> bool:
        """Whether a recurrent cell reads the features before the hidden layers."""
        return self.recurrent != "none"

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The memory of one row, float32 arrays; empty without memory."""
        return ((self.recurrent_size,),) * CELLS[self.recurrent].num_states if self.has_memory else ()

    def count_memory(self, num_features: int) -> int:
        """Parameters of the memory's layers; 0 without memory."""
        if not self.has_memory:
            return 0
        cell, size = CELLS[self.recurrent], self.recurrent_size
        return cell.num_gates * size * (num_features + 1 + cell.reads_hidden * (size + 1))

    def initial_state(self, num_rows: int) -> Leaves:
        """The memory of rows whose episodes begin."""
        return tuple(np.zeros((num_rows, *shape), np.float32) for shape in self.state_shapes)

    @property
    def actor_inputs(self) -> PolicySpec:
        """The same policy, restricted to the leaves that the actor reads."""
        leaves = tuple(leaf for leaf in self.leaves if leaf.name not in self.critic_leaves)
        return replace(self, leaves=leaves, critic_leaves=())

    @property
    def num_outputs(self) -> int:
        """Outputs of the acting network: logits of categories and bits, then those of real numbers."""
        action = self.action
        return sum(action.nvec) + action.num_bits + self.outputs_per_real * action.num_reals

    @property
    def has_log_std(self) -> bool:
        """Whether the standard deviation of real numbers is a parameter, the same for every observation."""
        return self.outputs_per_real == 1 and self.action.num_reals > 0

    @property
    def num_flat(self) -> int:
        """Flat features of an observation."""
        return sum(leaf.num_features for leaf in self.leaves)

    @property
    def is_flat(self) -> bool:
        """Whether every leaf becomes flat features: no image and no sequence."""
        return all(leaf.is_flat for leaf in self.leaves)

    @property
    def has_numpy_form(self) -> bool:
        """Whether the policy can act without torch: flat features and our own network."""
        return self.network is None and self.is_flat

    @property
    def has_compiled_form(self) -> bool:
        """Whether compiled kernels can learn it: an MLP over flat features, without memory."""
        return self.has_numpy_form and not self.has_memory


def name_leaves(keys: tuple[str, ...], leaves: tuple[LeafSpec, ...]) -> tuple[str, ...]:
    """The names of the leaves under keys of an observation. A key is the path of a leaf, or of a part that
    contains leaves."""
    return tuple(leaf.name for leaf in leaves if any(f"{leaf.name}.".startswith(f"{key}.") for key in keys))
