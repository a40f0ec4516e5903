"""What torch reads an observation with, before the hidden layers of actor and critic.

Images go through convolutions, the elements of a sequence through layers that they share; both are joined
with the flat features. A network of the user's own (`--network module:callable`, called with the PolicySpec)
maps observations to features [N, D], or to a pair of them (actor's, critic's); our linear heads follow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mission_gym.data import LeafSpec
from mission_gym.errors import ConfigError, describe
from mission_gym.policy.branches import ELEMENT_WIDTH, branch_width, conv_layers, image_shape, is_bytes
from mission_gym.policy.encoding import Encoder
from mission_gym.policy.layout import PolicySpec

Inputs = tuple[Tensor, tuple[Tensor, ...]]  # flat [N, F]; images [N, C, H, W] and sequences [N, L, E]
LeafSpecs = tuple[LeafSpec, ...]
SQRT2 = 2.0**0.5


def make_linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A layer with orthogonal weights and zero biases; without a generator they are left to the caller."""
    layer = nn.Linear(num_in, num_out)
    if generator is None:
        return layer
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def to_planes(leaf: LeafSpec, image: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """An image as float32 planes [N, C, H, W]: bytes from 0 to 1, ids one-hot, the rest as it is."""
    if image.device.type == "mps":
        layout = torch.contiguous_format  # channels-last convolutions have been wrong there
    if leaf.nvec:
        ids = [torch.arange(count, device=image.device)[:, None, None] for count in leaf.nvec]
        image = torch.cat([image[:, i : i + 1] == each for i, each in enumerate(ids)], dim=1)
    planes = image.to(torch.float32, memory_format=layout, copy=True)
    return planes.div_(255.0) if is_bytes(leaf) else planes


class Pool(nn.Module):
    """Sequences [N, L, E] as features: layers that all elements share, then mean and maximum over those that
    are there, and the share of places that are filled. Of an empty sequence all are 0."""

    def __init__(self, leaf: LeafSpec, generator: torch.Generator | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            make_linear(leaf.num_element_features, ELEMENT_WIDTH, SQRT2, generator),
            nn.ReLU(),
            make_linear(ELEMENT_WIDTH, ELEMENT_WIDTH, SQRT2, generator),
            nn.ReLU(),
        )

    def forward(self, elements: Tensor) -> Tensor:
        there = elements[:, :, -1:]
        features = self.layers(elements) * there  # not below 0, so that what is missing is never the maximum
        mean = features.sum(dim=1) / there.sum(dim=1).clamp(min=1.0)
        return torch.cat([mean, features.amax(dim=1), there.mean(dim=1)], dim=1)


def _make_convs(leaf: LeafSpec, generator: torch.Generator | None) -> nn.Sequential:
    """Convolutions and a dense layer behind them."""
    shape, layers = image_shape(leaf), list[nn.Module]()
    channels = shape[0]
    for num_out, kernel, stride in conv_layers(leaf):
        conv = nn.Conv2d(channels, num_out, kernel, stride)
        nn.init.orthogonal_(conv.weight, SQRT2, generator=generator)
        nn.init.zeros_(cast(Tensor, conv.bias))
        layers += [conv, nn.ReLU()]
        channels = num_out
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        flat = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, make_linear(flat, branch_width(leaf), SQRT2, generator), nn.ReLU())


class Trunk(nn.Module):
    """Layers of its own for each image and sequence, joined with the flat features."""

    def __init__(self, spec: PolicySpec, leaves: LeafSpecs, generator: torch.Generator | None) -> None:
        super().__init__()
        self.leaves = leaves
        # Their name in checkpoints; a layer that elements share is a convolution, too, of width 1.
        self.convs = nn.ModuleList(
            _make_convs(leaf, generator) if leaf.kind == "image" else Pool(leaf, generator) for leaf in leaves
        )
        self.seen = _Seen.of(spec)
        widths = list(map(branch_width, leaves))
        self.widths = sum(widths[: self.seen.num_shaped]) + self.seen.num_flat, sum(widths) + spec.num_flat

    def forward(self, flat: Tensor, shaped: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        # Acting brings what the actor sees alone.
        given = zip(self.leaves, self.convs, shaped, strict=False)
        parts = [conv(to_planes(leaf, x) if leaf.kind == "image" else x) for leaf, conv, x in given]
        seen = _join(parts[: self.seen.num_shaped], flat[:, : self.seen.num_flat])
        return seen, seen if self.seen.is_all(flat, shaped) else _join(parts, flat)


class _Seen(NamedTuple):
    """How many of the inputs the actor sees."""

    num_flat: int
    num_shaped: int

    @classmethod
    def of(cls, spec: PolicySpec) -> _Seen:
        seen = spec.seen
        return cls(seen.num_flat, sum(not leaf.is_flat for leaf in seen.leaves))

    def is_all(self, flat: Tensor, shaped: tuple[Tensor, ...]) -> bool:
        """Whether it sees all of these."""
        return self == (flat.shape[1], len(shaped))


def _join(parts: list[Tensor], flat: Tensor) -> Tensor:
    return torch.cat([*parts, flat] if flat.shape[1] else parts, dim=1)


class OwnTrunk(nn.Module):
    """The user's network: a single tensor for a plain observation, else a dict by leaf name.

    Where the critic sees more it is made twice, so that nothing of that can reach the actor: from the leaves
    that the actor sees, and from all.
    """

    def __init__(self, spec: PolicySpec, encoder: Encoder) -> None:
        super().__init__()
        self.leaves, self.seen_leaves, self.seen = spec.leaves, spec.seen.leaves, _Seen.of(spec)
        self.slices, self.shaped = encoder.slices, [leaf.name for leaf in encoder.shaped]
        self.net = _make_own(spec.seen)
        self.critic_net = _make_own(spec) if spec.critic_leaves else None

    def forward(self, flat: Tensor, shaped: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        by_name = dict(zip(self.shaped, shaped, strict=False))  # acting brings the actor's alone
        features = self._call(self.net, self.seen_leaves, flat, by_name)
        if self.critic_net is None or self.seen.is_all(flat, shaped):
            return features
        return features[0], self._call(self.critic_net, self.leaves, flat, by_name)[1]

    def _call(
        self, net: nn.Module, leaves: LeafSpecs, flat: Tensor, shaped: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        inputs = {}
        for leaf in leaves:
            if leaf.is_flat:
                inputs[leaf.name] = flat[:, self.slices[leaf.name]]
            elif leaf.kind == "sequence":
                inputs[leaf.name] = shaped[leaf.name].contiguous()
            else:  # a network of the user's own may use `view`, which other layouts refuse
                inputs[leaf.name] = to_planes(leaf, shaped[leaf.name], torch.contiguous_format)
        features = net(next(iter(inputs.values())) if len(inputs) == 1 else inputs)
        return features if isinstance(features, tuple) else (features, features)


def _make_own(spec: PolicySpec) -> nn.Module:
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
            f"network {spec.network!r} gave a {type(net).__name__}; it must return a torch.nn.Module"
            " that maps observations to features [N, D] [--network]"
        )
    return net


def load_network(path: str) -> Callable[[PolicySpec], Any]:
    """The user's callable that makes a network; ConfigError if it can't be imported."""
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
) -> tuple[Trunk | OwnTrunk | None, tuple[int, int]]:
    """What comes before the hidden layers, None for an MLP, and its widths for actor and critic."""
    encoder = Encoder(spec.leaves, False, spec.critic_leaves)
    if spec.network is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # In every form, learning included: dropout or a batch's own statistics would make another policy
            # of the one that acted.
            own = OwnTrunk(spec, encoder).eval()
        return own, _own_widths(own, spec, encoder.shaped)
    if encoder.shaped:
        trunk = Trunk(spec, encoder.shaped, generator)
        return trunk, trunk.widths
    return None, (spec.seen.num_flat, spec.num_flat)


def _own_widths(trunk: OwnTrunk, spec: PolicySpec, leaves: LeafSpecs) -> tuple[int, int]:
    shaped = tuple(map(_make_zeros, leaves))
    try:
        with torch.no_grad():
            out = trunk(torch.zeros(2, spec.num_flat), shaped)
        for features in out:
            if features.ndim != 2 or len(features) != 2:
                raise ValueError(f"it returned shape {tuple(features.shape)} for a batch of 2")
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        twice = ""
        if spec.critic_leaves:
            twice = "; with --critic-keys it is made twice, and the actor's is not given these keys"
        raise ConfigError(
            f"network {spec.network!r} fails on a batch of 2 observations: {describe(error)};"
            f" it must return features [N, D] or a pair of them{twice} [--network]"
        ) from error
    return int(out[0].shape[1]), int(out[1].shape[1])


def _make_zeros(leaf: LeafSpec) -> Tensor:
    """Two inputs of a leaf that is not flat."""
    if leaf.kind == "sequence":
        return torch.zeros(2, leaf.max_elements, leaf.num_element_features)
    planes, height, width = image_shape(leaf)
    return torch.zeros(2, len(leaf.nvec) or planes, height, width)
