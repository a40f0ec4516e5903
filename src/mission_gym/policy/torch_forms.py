"""The torch forms: the networks that learners train, and the acting classes for those without a NumPy form.

Weights are drawn on the CPU from a seed. `trunks` reads images, sequences and users' networks before the
hidden layers. Leaves that only the critic reads come last among the inputs, so the actor reads a prefix of
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mission_gym.data import ActOut, Array, Leaves, Weights
from mission_gym.policy.encoding import EncodingPolicy
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.numpy_forms import stream_names
from mission_gym.policy.sampling import (
    Sampler,
    choose_by_value,
    draw_layer_noise,
    make_noise_generator,
    sample_squashed,
)
from mission_gym.policy.torch_cells import Memory, State, TorchMemory
from mission_gym.policy.transfer import Resident, send
from mission_gym.policy.trunks import SQRT2, Inputs, make_linear, make_trunk

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def make_mlp(
    sizes: tuple[int, ...],
    activation: type[nn.Module],
    head: tuple[int, float],
    generator: torch.Generator | None,
) -> nn.Sequential:
    """Hidden layers, each followed by the activation, and a linear head of (width, gain)."""
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [make_linear(num_in, num_out, SQRT2, generator), activation()]
    return nn.Sequential(*layers, make_linear(sizes[-1], *head, generator))


class Passed(NamedTuple):
    """The result of a pass over N rows."""

    outputs: Tensor  # of the actor [N, P]
    value: Tensor  # [N]
    state: State  # the memory after the last step, empty without memory


class ActorNetwork(nn.Module):
    """The acting network: trunk, memory, hidden layers and outputs. seed: None leaves weights to be loaded.

    The hidden layers read the memory h and the features. Actor and critic share the memory, which reads the
    actor's features: acting computes no values, so nobody would know a critic's own memory.
    """

    log_std: nn.Parameter | None

    def __init__(self, spec: PolicySpec, seed: int | None) -> None:
        super().__init__()
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._activation = ACTIVATIONS[spec.activation]
        self.trunk, self._widths = make_trunk(spec, seed or 0, self._generator)
        self.num_actor_flat = spec.actor_inputs.num_flat
        self.memory: Memory | None = None
        if spec.has_memory:
            size = spec.recurrent_size
            self.memory = Memory(spec.recurrent, self._widths[0], size, self._generator)
            self._widths = self._widths[0] + size, self._widths[1] + size
        self._hidden = () if spec.network is not None else spec.network_arch
        sizes = (self._widths[0], *self._hidden)
        self.actor = make_mlp(sizes, self._activation, (spec.num_outputs, 0.01), self._generator)
        self.log_std = None
        if spec.has_log_std:
            self.log_std = nn.Parameter(torch.full((spec.action.num_reals,), spec.log_std_init))

    def actor_outputs(self, inputs: Inputs) -> Tensor:
        """Outputs [N, P]; the actor's part of the inputs is enough."""
        return cast(Tensor, self.actor(self._features(inputs)[0]))

    def act(self, inputs: Inputs, state: Tensor) -> Tensor:
        """Outputs [N, P] and, in the columns after them, the memory after one step. state: the one before."""
        assert self.memory is not None
        features, size = self._features(inputs)[0], self.memory.size
        no_starts = torch.zeros((1, len(state)), dtype=torch.bool, device=state.device)
        h, after = self.memory(features, TorchMemory(torch.split(state, size, 1), no_starts))
        return torch.cat([self.actor(torch.cat([h, features], 1)), *after], 1)

    def _features(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The inputs of the actor's and of the critic's hidden layers."""
        flat, shaped = inputs
        if self.trunk is None:
            return flat[:, : self.num_actor_flat], flat
        return cast(tuple[Tensor, Tensor], self.trunk(flat, shaped))


class ActorCritic(ActorNetwork):
    """An actor and a critic with separate hidden layers; a trunk is shared."""

    def __init__(self, spec: PolicySpec, seed: int | None) -> None:
        super().__init__(spec, seed)
        sizes = (self._widths[1], *self._hidden)
        self.critic = make_mlp(sizes, self._activation, (1, 1.0), self._generator)
        self._critic_only: tuple[str, ...] = ("critic.", "trunk.critic_net.")
        if self.trunk is not None:
            self._critic_only += tuple(f"trunk.convs.{number}." for number in self.trunk.critic_convs)

    def is_acting(self, name: str) -> bool:
        """Whether acting needs the parameter of this name."""
        return not name.startswith(self._critic_only)

    def forward(
        self, inputs: Inputs, precision: torch.dtype = torch.float32, memory: TorchMemory | None = None
    ) -> Passed:
        """Actor outputs and values, float32. Products below the heads use the precision."""
        *actor, actor_head = self.actor
        *critic, critic_head = self.critic
        with torch.autocast(
            inputs[0].device.type, precision, enabled=precision != torch.float32, cache_enabled=False
        ):
            for_actor, for_critic = self._features(inputs)
            state: State = ()
            if self.memory is not None:
                assert memory is not None
                h, state = self.memory(for_actor, memory)
                for_actor, for_critic = (torch.cat([h, each], 1) for each in (for_actor, for_critic))
            for layer in actor:
                for_actor = layer(for_actor)
            for layer in critic:
                for_critic = layer(for_critic)
        return Passed(actor_head(for_actor.float()), critic_head(for_critic.float()).squeeze(-1), state)


class NoisyLinear(nn.Linear):
    """A linear layer with factorised noise on its weights while `noise`, `num_noise` numbers, is set."""

    def __init__(self, num_in: int, num_out: int, sigma: float) -> None:
        super().__init__(num_in, num_out)
        start = sigma / num_in**0.5
        self.weight_sigma = nn.Parameter(torch.full((num_out, num_in), start))
        self.bias_sigma = nn.Parameter(torch.full((num_out,), start))
        self.num_noise = num_in + num_out
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.noise is None:
            return super().forward(x)
        for_in, for_out = torch.split(self.noise, [self.in_features, self.out_features])
        weight = self.weight + self.weight_sigma * torch.outer(for_out, for_in)
        return F.linear(x, weight, self.bias + self.bias_sigma * for_out)


class QNetwork(nn.Module):
    """Action values [N, A]. All hidden layers but the last are shared. The last one and the output form a
    stream; a dueling network has two. Streams are noisy if noise explores."""

    def __init__(self, spec: PolicySpec, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        sigma = spec.noisy_sigma
        self.trunk, (width, _) = make_trunk(spec, seed, generator)
        arch = () if spec.network is not None else spec.network_arch
        activation = ACTIVATIONS[spec.activation]

        def make_layer(num_in: int, num_out: int, gain: float, noisy: bool) -> nn.Linear:
            if sigma is None or not noisy:
                return make_linear(num_in, num_out, gain, generator)
            layer = NoisyLinear(num_in, num_out, sigma)
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)
            return layer

        def make_hidden(num_in: int, num_out: int, noisy: bool) -> list[nn.Module]:
            layer, bound = make_layer(num_in, num_out, SQRT2, noisy), num_in**-0.5
            # With zero biases all units bend at the same point, and values are learned half as fast.
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
            return [layer, activation()]

        body: list[nn.Module] = []
        for num_out in arch[:-1]:
            body += make_hidden(width, num_out, noisy=False)
            width = num_out
        self.body = nn.Sequential(*body)
        self.stream_names = stream_names(spec)
        for name in self.stream_names:
            top = make_hidden(width, arch[-1], noisy=True) if arch else []
            num_out = spec.num_outputs if name == "q" else 1
            # A small gain: initial values are near 0, so no action looks better than it was seen to be.
            head = make_layer(arch[-1] if arch else width, num_out, 0.01, noisy=True)
            self.add_module(name, nn.Sequential(*top, head))
        self.noisy = [module for module in self.modules() if isinstance(module, NoisyLinear)]

    @property
    def heads(self) -> dict[str, nn.Module]:
        """The output layers by name."""
        streams = {name: cast(nn.Sequential, self.get_submodule(name)) for name in self.stream_names}
        return {f"{name}.{len(stream) - 1}": stream[-1] for name, stream in streams.items()}

    def forward(self, inputs: Inputs) -> Tensor:
        flat, shaped = inputs
        x = self.body(flat if self.trunk is None else self.trunk(flat, shaped)[0])
        advantage = cast(Tensor, self.get_submodule("q")(x))
        if len(self.stream_names) == 1:
            return advantage
        value = cast(Tensor, self.get_submodule("value")(x))
        return advantage + (value - advantage.mean(dim=1, keepdim=True))

    def draw_noise(self, rng: np.random.Generator) -> Array:
        """The noise of all noisy layers, concatenated."""
        drawn = [draw_layer_noise(rng, layer.in_features, layer.out_features) for layer in self.noisy]
        return np.concatenate([part for layer in drawn for part in layer])

    def set_noise(self, noise: Tensor | None) -> None:
        """Set the noise of every noisy layer; None removes it."""
        sizes = [layer.num_noise for layer in self.noisy]
        parts = [None] * len(sizes) if noise is None else torch.split(noise, sizes)
        for layer, part in zip(self.noisy, parts, strict=True):
            layer.noise = part


@cache
def _open_acting_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all policies of a device: torch has few and would reuse the learner's."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class TorchActing(EncodingPolicy):
    """Acts with a torch network: for images, sequences and users' networks."""

    def __init__(self, spec: PolicySpec, model: nn.Module, device: str) -> None:
        super().__init__(spec)
        self.device = torch.device(device)
        self._network = model.to(self.device).eval()
        self._flat = Resident(self.device)
        self._shaped = [Resident(self.device) for _ in self._encoder.shaped]
        # A learner on the same device queues whole epochs; actions must not wait behind them.
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = _open_acting_stream(self.device)
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def _on_stream(self) -> AbstractContextManager[Any]:
        # torch.cuda.stream(None) fails on MPS.
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def load(self, weights: Weights) -> None:
        """Copy the weights into the network."""
        super().load(weights)
        with self._on_stream():
            load_arrays(self._network, weights.arrays)

    def _compute(self, network: Callable[[Inputs], Tensor], obs: Leaves) -> Array:
        """The network's outputs for leaves [B, ...]."""
        encoded = self._encoder.encode(obs)
        with torch.inference_mode(), self._on_stream():
            flat = self._flat.load(encoded.flat)
            shaped = tuple(
                resident.load(each) for resident, each in zip(self._shaped, encoded.shaped, strict=True)
            )
            return network((flat, shaped)).cpu().numpy()


class TorchPolicy(TorchActing):
    """The form `actor`: samples actions from the actor's outputs."""

    def __init__(self, spec: PolicySpec, device: str = "cpu") -> None:
        self._model = ActorNetwork(spec.actor_inputs, seed=None)
        super().__init__(spec, self._model, device)
        self._sampler = Sampler(spec.action)
        self._log_std: Array | None = None

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._log_std = weights.arrays.get("log_std")

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        if not self.spec.has_memory:
            return self._sampler(self._compute(self._model.actor_outputs, obs), self._log_std, mask, noise)

        def network(inputs: Inputs) -> Tensor:
            return self._model.act(inputs, send(np.concatenate(state, 1), self.device))

        ends = self.spec.num_outputs + self.spec.recurrent_size * np.arange(len(state))
        outputs, *after = np.split(self._compute(network, obs), ends, 1)
        return self._sampler(outputs, self._log_std, mask, noise)._replace(state=tuple(after))


class TorchSquashedPolicy(TorchPolicy):
    """The form `squashed`: samples real numbers from Gaussians squashed by tanh."""

    def __init__(self, spec: PolicySpec, device: str = "cpu") -> None:
        super().__init__(spec, device)
        self._exploration = 0.0

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._exploration = weights.exploration

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        return sample_squashed(self._compute(self._model.actor_outputs, obs), noise, self._exploration)


class TorchQPolicy(TorchActing):
    """The form `values`: chooses the action with the highest value, or a random one with probability
    epsilon."""

    def __init__(self, spec: PolicySpec, device: str = "cpu") -> None:
        self._model = QNetwork(spec, seed=0)
        super().__init__(spec, self._model, device)
        self._epsilon = 0.0

    def load(self, weights: Weights) -> None:
        super().load(weights)
        self._epsilon = weights.exploration

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut:
        if self._model.noisy:
            drawn = None if noise is None else self._model.draw_noise(make_noise_generator(noise))
            self._model.set_noise(None if drawn is None else send(drawn, self.device))
        return choose_by_value(self._compute(self._model, obs), mask, noise, self._epsilon)


def model_arrays(model: nn.Module) -> dict[str, Array]:
    """Copies of every parameter and buffer of a network, by name."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: dict[str, Array]) -> None:
    """Copy arrays by name into a network; names and shapes must fit."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
