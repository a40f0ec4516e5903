"""The layout of a policy: everything that its NumPy and torch forms are built from.

The layers that read one image or sequence are described in numbers, without torch, so that a plan can count
the layers that `trunks` builds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.data import EnvSpec, LeafSpec, Leaves
from mission_gym.policy.cells import CELLS

if TYPE_CHECKING:  # workers act without loading the config
    from mission_gym.config.schema import PolicySection

ELEMENT_WIDTH = 64  # of the layers shared by all elements of a sequence


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


class Conv(NamedTuple):
    """One convolution with square kernels."""

    width: int
    side: int
    stride: int


# The three strided layers of the Nature DQN for large images; small images need smaller kernels.
_LARGE, _SMALL = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1)), (Conv(32, 3, 2), Conv(64, 3, 2))
# Planes, ids and small images of real numbers: each cell has a meaning, and strides would skip cells.
_CELLS, _MANY_CELLS = (Conv(16, 3, 1),), (Conv(16, 3, 1), Conv(32, 3, 2))
_MANY = 16  # cells per side


def image_shape(leaf: LeafSpec) -> tuple[int, int, int]:
    """Planes, height and width of an image as convolutions read it."""
    shape = leaf.shape
    height, width = shape[-3:-1] if leaf.channels_last else shape[-2:]
    planes = sum(leaf.nvec) or int(np.prod(shape, dtype=np.int64)) // (height * width)
    return planes, height, width


def conv_layers(leaf: LeafSpec) -> tuple[Conv, ...]:
    """The convolutions of an image."""
    short = min(image_shape(leaf)[1:])
    if is_bytes(leaf) or short >= 36:
        return _LARGE if short >= 36 else _SMALL
    return _MANY_CELLS if short >= _MANY else _CELLS


def is_bytes(leaf: LeafSpec) -> bool:
    """Whether an image has pixels from 0 to 255."""
    return leaf.dtype == "uint8" and not leaf.nvec and not leaf.high


def feature_width(leaf: LeafSpec) -> int:
    """Features that the layers of a leaf compute."""
    if leaf.kind == "sequence":
        return 2 * ELEMENT_WIDTH + 1  # mean, maximum, fill ratio
    return 128 if conv_layers(leaf) in (_CELLS, _MANY_CELLS) else 512


def count_work(leaf: LeafSpec) -> int:
    """Multiply-adds of a forward pass through the layers of a leaf, roughly."""
    if leaf.kind == "sequence":
        return leaf.max_elements * count_parameters(leaf)
    if is_bytes(leaf):  # about 200 per byte of the image, and a layer of 512 units
        return 200 * leaf.size_bytes + 300_000
    planes, height, width = image_shape(leaf)
    first, *_ = conv_layers(leaf)
    cells = height * width // first.stride**2
    return cells * first.width * planes * first.side**2 + cells * first.width * feature_width(leaf)


def count_parameters(leaf: LeafSpec) -> int:
    """Parameters of the layers of a leaf."""
    if leaf.kind == "sequence":
        return (leaf.num_element_features + 1) * ELEMENT_WIDTH + (ELEMENT_WIDTH + 1) * ELEMENT_WIDTH
    channels, *sides = image_shape(leaf)
    count = 0
    for width, side, stride in conv_layers(leaf):
        count += (channels * side * side + 1) * width
        channels, sides = width, [(length - side) // stride + 1 for length in sides]
    return count + (channels * sides[0] * sides[1] + 1) * feature_width(leaf)
