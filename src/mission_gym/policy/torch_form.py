"""The torch form: actor and critic networks, and the acting wrapper for those that are not plain MLPs.

MLP: actor and critic are separate. Images: one convolutional trunk for both. A network of the user's
own (`--network module:callable`, called with the PolicySpec) maps observations to features [N, D], or
to a pair of them (actor's, critic's); our linear heads follow. What the critic alone sees comes last among
the inputs: the actor reads a prefix of them, and acting needs no more.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.data import ActOut, Array, LeafSpec, Leaves, Weights
from mission_gym.errors import ConfigError, describe
from mission_gym.policy.encoding import Encoder, EncodingPolicy
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.sampling import Sampler
from mission_gym.policy.transfer import Resident

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
Inputs = tuple[Tensor, tuple[Tensor, ...]]  # flat [N, F], images uint8 [N, C, H, W]
LeafSpecs = tuple[LeafSpec, ...]
_SQRT2 = 2.0**0.5
# Convolutions: width, side and stride.
_LARGE, _SMALL = [(32, 8, 4), (64, 4, 2), (64, 3, 1)], [(32, 3, 2), (64, 3, 2)]


def make_linear(num_in: int, num_out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A layer with orthogonal weights and zero biases; without a generator they are left to the caller."""
    layer = nn.Linear(num_in, num_out)
    if generator is None:
        return layer
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(
    sizes: tuple[int, ...],
    activation: type[nn.Module],
    head: tuple[int, float],
    generator: torch.Generator | None,
) -> nn.Sequential:
    """Hidden layers, each followed by the activation, and a linear head of (width, gain)."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [make_linear(num_in, num_out, _SQRT2, generator), activation()]
    return nn.Sequential(*layers, make_linear(sizes[-1], *head, generator))


class ConvTrunk(nn.Module):
    """Convolutions for each image leaf, joined with the flat features.

    Large pictures get Nature's three strided layers; small ones, which those do not fit, two 3x3 layers.
    """

    def __init__(self, spec: PolicySpec, images: LeafSpecs, generator: torch.Generator | None) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for shape in map(_image_shape, images):
            channels, layers = shape[0], list[nn.Module]()
            for num_out, kernel, stride in _LARGE if min(shape[1:]) >= 36 else _SMALL:
                conv = nn.Conv2d(channels, num_out, kernel, stride)
                nn.init.orthogonal_(conv.weight, _SQRT2, generator=generator)
                nn.init.zeros_(cast(Tensor, conv.bias))
                layers += [conv, nn.ReLU()]
                channels = num_out
            body = nn.Sequential(*layers, nn.Flatten())
            with torch.no_grad():
                flat = body(torch.zeros(1, *shape)).shape[1]
            self.convs.append(nn.Sequential(body, make_linear(flat, 512, _SQRT2, generator), nn.ReLU()))
        self.seen = _Seen.of(spec)
        self.widths = 512 * self.seen.num_images + self.seen.num_flat, 512 * len(images) + spec.num_flat

    def forward(self, flat: Tensor, images: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        # Acting brings the actor's images alone.
        parts = [conv(_pixels(image)) for conv, image in zip(self.convs, images, strict=False)]
        seen = _join(parts[: self.seen.num_images], flat[:, : self.seen.num_flat])
        return seen, seen if self.seen.is_all(flat, images) else _join(parts, flat)


class _Seen(NamedTuple):
    """How many of the inputs the actor sees."""

    num_flat: int
    num_images: int

    @classmethod
    def of(cls, spec: PolicySpec) -> _Seen:
        seen = spec.seen
        return cls(seen.num_flat, sum(leaf.kind == "image" for leaf in seen.leaves))

    def is_all(self, flat: Tensor, images: tuple[Tensor, ...]) -> bool:
        """Whether it sees all of these."""
        return self == (flat.shape[1], len(images))


def _join(parts: list[Tensor], flat: Tensor) -> Tensor:
    return torch.cat([*parts, flat] if flat.shape[1] else parts, dim=1)


def _pixels(image: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """Bytes as float32 from 0 to 1."""
    if image.device.type == "mps":
        layout = torch.contiguous_format  # channels-last convolutions have been wrong there
    return image.to(torch.float32, memory_format=layout, copy=True).div_(255.0)


def _image_shape(leaf: LeafSpec) -> tuple[int, ...]:
    """Channels, height and width of an image."""
    return (leaf.shape[2], *leaf.shape[:2]) if leaf.channels_last else (1, *leaf.shape)[-3:]  # 1: a plane


class OwnTrunk(nn.Module):
    """The user's network: a single tensor for a plain observation, else a dict by leaf name.

    Where the critic sees more it is made twice, so that nothing of that can reach the actor: from the leaves
    that the actor sees, and from all.
    """

    def __init__(self, spec: PolicySpec, encoder: Encoder) -> None:
        super().__init__()
        self.leaves, self.seen_leaves, self.seen = spec.leaves, spec.seen.leaves, _Seen.of(spec)
        self.slices, self.images = encoder.slices, [leaf.name for leaf in encoder.images]
        self.net = _make_own(spec.seen)
        self.critic_net = _make_own(spec) if spec.critic_leaves else None

    def forward(self, flat: Tensor, images: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        pictures = dict(zip(self.images, images, strict=False))  # acting brings the actor's alone
        features = self._call(self.net, self.seen_leaves, flat, pictures)
        if self.critic_net is None or self.seen.is_all(flat, images):
            return features
        return features[0], self._call(self.critic_net, self.leaves, flat, pictures)[1]

    def _call(
        self, net: nn.Module, leaves: LeafSpecs, flat: Tensor, pictures: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        inputs = {
            # A network of the user's own may use `view`, which other layouts refuse.
            leaf.name: _pixels(pictures[leaf.name], torch.contiguous_format)
            if leaf.kind == "image"
            else flat[:, self.slices[leaf.name]]
            for leaf in leaves
        }
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
) -> tuple[ConvTrunk | OwnTrunk | None, tuple[int, int]]:
    """What comes before the hidden layers, None for an MLP, and its widths for actor and critic."""
    encoder = Encoder(spec.leaves, False, spec.critic_leaves)
    if spec.network is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # In every form, learning included: dropout or a batch's own statistics would make another policy
            # of the one that acted.
            own = OwnTrunk(spec, encoder).eval()
        return own, _own_widths(own, spec, encoder.images)
    if spec.has_images:
        conv = ConvTrunk(spec, encoder.images, generator)
        return conv, conv.widths
    return None, (spec.seen.num_flat, spec.num_flat)


def _own_widths(trunk: OwnTrunk, spec: PolicySpec, leaves: LeafSpecs) -> tuple[int, int]:
    images = tuple(torch.zeros(2, *_image_shape(leaf)) for leaf in leaves)
    try:
        with torch.no_grad():
            out = trunk(torch.zeros(2, spec.num_flat), images)
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


class ActorCritic(nn.Module):
    """`actor_params`, `value` and `log_std` for one PolicySpec, weights drawn on the CPU from `seed`; without
    one an MLP's are left to be loaded, since to draw large ones takes long."""

    log_std: nn.Parameter | None

    def __init__(self, spec: PolicySpec, seed: int | None) -> None:
        super().__init__()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        activation = ACTIVATIONS[spec.activation]
        self.trunk, widths = make_trunk(spec, seed or 0, generator)
        self.num_seen = spec.seen.num_flat
        hidden = () if spec.network is not None else spec.network_arch
        self.actor = _mlp((widths[0], *hidden), activation, (spec.action.num_params, 0.01), generator)
        self.critic = _mlp((widths[1], *hidden), activation, (1, 1.0), generator)
        self.log_std = (
            nn.Parameter(torch.full((spec.action.num_reals,), spec.log_std_init))
            if spec.action.num_reals
            else None
        )

    def actor_params(self, inputs: Inputs) -> Tensor:
        """Actor outputs [N, P]; those inputs are enough that the actor sees."""
        return cast(Tensor, self.actor(self._features(inputs)[0]))

    def forward(self, inputs: Inputs, precision: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Actor outputs [N, P] and values [N], float32. Products before the heads have the precision."""
        *actor, actor_head = self.actor
        *critic, critic_head = self.critic
        with torch.autocast(
            inputs[0].device.type, precision, enabled=precision != torch.float32, cache_enabled=False
        ):
            for_actor, for_critic = self._features(inputs)
            for layer in actor:
                for_actor = layer(for_actor)
            for layer in critic:
                for_critic = layer(for_critic)
        return actor_head(for_actor.float()), critic_head(for_critic.float()).squeeze(-1)

    def _features(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        flat, images = inputs
        if self.trunk is None:
            return flat[:, : self.num_seen], flat
        return cast(tuple[Tensor, Tensor], self.trunk(flat, images))


class TorchActing(EncodingPolicy):
    """Acts with a torch network: for images and networks of the user's own."""

    def __init__(self, spec: PolicySpec, model: nn.Module, device: str) -> None:
        super().__init__(spec)
        self.device = torch.device(device)
        self._network = model.to(self.device).eval()
        self._flat = Resident(self.device)
        self._images = [Resident(self.device) for _ in self._encoder.images]
        # A learner beside this queues a whole epoch; an action must not wait behind it.
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream())

    def _on_stream(self) -> AbstractContextManager[Any]:
        # torch takes None for a stream, too, but then asks MPS for what it does not have.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def load(self, weights: Weights) -> None:
        """Copy the weights in."""
        super().load(weights)
        with self._on_stream():
            load_arrays(self._network, weights.arrays)

    def _compute(self, network: Callable[[Inputs], Tensor], obs: Leaves) -> Array:
        """What the network says of leaves [B, ...]."""
        encoded = self._encoder.encode(obs)
        with torch.inference_mode(), self._on_stream():
            flat = self._flat.load(encoded.flat)
            images = tuple(
                resident.load(image) for resident, image in zip(self._images, encoded.images, strict=True)
            )
            return network((flat, images)).cpu().numpy()


class TorchPolicy(TorchActing):
    """Acts with the actor alone."""

    def __init__(self, spec: PolicySpec, device: str = "cpu") -> None:
        self._model = ActorCritic(spec, seed=0)
        super().__init__(spec, self._model, device)
        self._sampler = Sampler(spec.action)
        self._log_std: Array | None = None

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._log_std = weights.arrays.get("log_std")

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        """Actions for leaves [B, ...]; `noise` [B, K] explores, None plays greedily."""
        return self._sampler(self._compute(self._model.actor_params, obs), self._log_std, mask, noise)


def model_arrays(model: nn.Module) -> dict[str, Array]:
    """Every parameter and buffer of a network as a NumPy copy, by name."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: dict[str, Array]) -> None:
    """Copy arrays by name into a network; names and shapes must fit."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
