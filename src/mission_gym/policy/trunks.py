"""The torch layers that read an observation before the hidden layers of actor and critic.

Images go through convolutions, the elements of a sequence through shared layers; both are concatenated with
the flat features. A user's network (`--network module:callable`, called with the PolicySpec) maps
observations to features [N, D], or to a pair of them (for actor and critic); our linear heads follow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mission_gym.data import LeafSpec
from mission_gym.errors import ConfigError, describe
from mission_gym.policy.encoding import Encoder
from mission_gym.policy.layout import (
    ELEMENT_WIDTH,
    PolicySpec,
    conv_layers,
    feature_width,
    image_shape,
    is_bytes,
)

Inputs = tuple[Tensor, tuple[Tensor, ...]]  # flat [N, F]; images [N, C, H, W] and sequences [N, L, E]
LeafSpecs = tuple[LeafSpec, ...]
SQRT2 = 2.0**0.5


def make_linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A layer with orthogonal weights and zero biases; without a generator, weights are to be loaded."""
    layer = nn.Linear(num_in, num_out)
    _initialise(layer, gain, generator)
    return layer


def _initialise(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator | None) -> None:
    if generator is not None:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(cast(Tensor, layer.bias))


def to_planes(leaf: LeafSpec, image: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """An image as float32 planes [N, C, H, W]: bytes scaled to 0..1, ids one-hot, the rest unchanged."""
    if image.device.type == "mps":
        layout = torch.contiguous_format  # channels-last convolutions gave wrong results there
    if leaf.nvec:
        ids = [torch.arange(count, device=image.device)[:, None, None] for count in leaf.nvec]
        image = torch.cat([image[:, i : i + 1] == each for i, each in enumerate(ids)], dim=1)
    planes = image.to(torch.float32, memory_format=layout, copy=True)
    return planes.div_(255.0) if is_bytes(leaf) else planes


class SequencePool(nn.Module):
    """Sequences [N, L, E] as features: layers shared by all elements, then their mean and maximum, and the
    fill ratio. An empty sequence gives zeros."""

    def __init__(self, leaf: LeafSpec, generator: torch.Generator | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            make_linear(leaf.num_element_features, ELEMENT_WIDTH, SQRT2, generator),
            nn.ReLU(),
            make_linear(ELEMENT_WIDTH, ELEMENT_WIDTH, SQRT2, generator),
            nn.ReLU(),
        )

    def forward(self, elements: Tensor) -> Tensor:
        is_present = elements[:, :, -1:]
        features = self.layers(elements) * is_present  # not negative: a missing element is never the maximum
        mean = features.sum(dim=1) / is_present.sum(dim=1).clamp(min=1.0)
        return torch.cat([mean, features.amax(dim=1), is_present.mean(dim=1)], dim=1)


def _make_convs(leaf: LeafSpec, generator: torch.Generator | None) -> nn.Sequential:
    """Convolutions, followed by a dense layer."""
    shape, layers = image_shape(leaf), list[nn.Module]()
    channels = shape[0]
    for num_out, kernel, stride in conv_layers(leaf):
        conv = nn.Conv2d(channels, num_out, kernel, stride)
        _initialise(conv, SQRT2, generator)
        layers += [conv, nn.ReLU()]
        channels = num_out
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        flat = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, make_linear(flat, feature_width(leaf), SQRT2, generator), nn.ReLU())


class _ActorPart(NamedTuple):
    """How many of the inputs the actor reads; they come first."""

    num_flat: int
    num_shaped: int

    @classmethod
    def of(cls, spec: PolicySpec) -> _ActorPart:
        read = spec.actor_inputs
        return cls(read.num_flat, sum(not leaf.is_flat for leaf in read.leaves))

    def is_all(self, flat: Tensor, shaped: tuple[Tensor, ...]) -> bool:
        """Whether the actor reads all of these inputs."""
        return self == (flat.shape[1], len(shaped))


class Trunk(nn.Module):
    """Separate layers for each image and sequence, concatenated with the flat features."""

    def __init__(self, spec: PolicySpec, leaves: LeafSpecs, generator: torch.Generator | None) -> None:
        super().__init__()
        self.leaves = leaves
        # Layers shared by the elements of a sequence are convolutions of width 1, hence one name for both.
        self.convs = nn.ModuleList(
            _make_convs(leaf, generator) if leaf.kind == "image" else SequencePool(leaf, generator)
            for leaf in leaves
        )
        self._actor = actor = _ActorPart.of(spec)
        self.critic_convs = range(actor.num_shaped, len(leaves))
        widths = list(map(feature_width, leaves))
        self.widths = sum(widths[: actor.num_shaped]) + actor.num_flat, sum(widths) + spec.num_flat

    def forward(self, flat: Tensor, shaped: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        given = zip(self.leaves, self.convs, shaped, strict=True)
        parts = [conv(to_planes(leaf, x) if leaf.kind == "image" else x) for leaf, conv, x in given]
        for_actor = _join(parts[: self._actor.num_shaped], flat[:, : self._actor.num_flat])
        return for_actor, for_actor if self._actor.is_all(flat, shaped) else _join(parts, flat)


def _join(parts: list[Tensor], flat: Tensor) -> Tensor:
    return torch.cat([*parts, flat] if flat.shape[1] else parts, dim=1)


class UserTrunk(nn.Module):
    """A user's network. It gets one tensor for a plain observation, else a dict by leaf name.

    If the critic reads more than the actor, the network is built twice: once for the actor's leaves and once
    for all leaves, so that the actor can't see the critic's.
    """

    critic_convs = range(0)

    def __init__(self, spec: PolicySpec, encoder: Encoder) -> None:
        super().__init__()
        self._leaves, self._actor_leaves = spec.leaves, spec.actor_inputs.leaves
        self._slices, self._shaped = encoder.slices, [leaf.name for leaf in encoder.shaped]
        self.net = _make_user_network(spec.actor_inputs)
        self.critic_net = _make_user_network(spec) if spec.critic_leaves else None

    def forward(self, flat: Tensor, shaped: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        by_name = dict(zip(self._shaped, shaped, strict=True))
        features = self._call(self.net, self._actor_leaves, flat, by_name)
        if self.critic_net is None:
            return features
        return features[0], self._call(self.critic_net, self._leaves, flat, by_name)[1]

    def _call(
        self, net: nn.Module, leaves: LeafSpecs, flat: Tensor, shaped: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        inputs = {}
        for leaf in leaves:
            if leaf.is_flat:
                inputs[leaf.name] = flat[:, self._slices[leaf.name]]
            elif leaf.kind == "sequence":
                inputs[leaf.name] = shaped[leaf.name].contiguous()
            else:  # users' networks may call `view`, which needs this layout
                inputs[leaf.name] = to_planes(leaf, shaped[leaf.name], torch.contiguous_format)
        features = net(next(iter(inputs.values())) if len(inputs) == 1 else inputs)
        return features if isinstance(features, tuple) else (features, features)


def _make_user_network(spec: PolicySpec) -> nn.Module:
    try:
        net = load_network(cast(str, spec.network))(spec)
    except ConfigError:
        raise
    except Exception as error:  # border: the user's callable
        raise ConfigError(
            f"network {spec.network!r} raised {describe(error)}; it is called with the"
            " PolicySpec and returns a torch.nn.Module [--network]"
        ) from error
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"network {spec.network!r} returned a {type(net).__name__}; it must return a torch.nn.Module"
            " that maps observations to features [N, D] [--network]"
        )
    return net


def load_network(path: str) -> Callable[[PolicySpec], Any]:
    """Import the user's callable that makes a network; ConfigError if that fails."""
    module_name, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"network {path!r} can't be imported: {describe(error)}; give module:callable [--network]"
        ) from error
    return cast(Callable[[PolicySpec], Any], made)


def make_trunk(
    spec: PolicySpec, seed: int, generator: torch.Generator | None
) -> tuple[Trunk | UserTrunk | None, tuple[int, int]]:
    """The layers before the hidden layers, None for an MLP, and their widths for actor and critic."""
    encoder = Encoder(spec.leaves, False, spec.critic_leaves)
    if spec.network is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # Always in evaluation mode, also while learning: dropout or batch statistics would make the
            # learned policy differ from the acting one.
            user = UserTrunk(spec, encoder).eval()
        return user, _measure_widths(user, spec, encoder.shaped)
    if encoder.shaped:
        trunk = Trunk(spec, encoder.shaped, generator)
        return trunk, trunk.widths
    return None, (spec.actor_inputs.num_flat, spec.num_flat)


def _measure_widths(trunk: UserTrunk, spec: PolicySpec, leaves: LeafSpecs) -> tuple[int, int]:
    shaped = tuple(map(_make_zeros, leaves))
    try:
        with torch.no_grad():
            out = trunk(torch.zeros(2, spec.num_flat), shaped)
        for features in out:
            if features.ndim != 2 or len(features) != 2:
                raise ValueError(f"it returned shape {tuple(features.shape)} for a batch of 2")
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        hint = ""
        if spec.critic_leaves:
            hint = "; with --critic-keys it is built twice, and the actor's does not get these keys"
        raise ConfigError(
            f"network {spec.network!r} fails on a batch of 2 observations: {describe(error)};"
            f" it must return features [N, D] or a pair of them{hint} [--network]"
        ) from error
    return int(out[0].shape[1]), int(out[1].shape[1])


def _make_zeros(leaf: LeafSpec) -> Tensor:
    """A batch of two zero inputs for a leaf that is not flat."""
    if leaf.kind == "sequence":
        return torch.zeros(2, leaf.max_elements, leaf.num_element_features)
    planes, height, width = image_shape(leaf)
    return torch.zeros(2, len(leaf.nvec) or planes, height, width)
