"""The reference kernel of SAC: `loss` by torch autograd, for every network and device.

A step moves the critics, then the actor and the temperature, then the targets of the critics. Each part is
differentiated by its own parameters alone, so the actor's step computes no gradient of critic weights. A step
decides nothing on the host, so it can be captured as a graph: one whose gradient is not finite has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mission_gym.algorithms.sac.kernel import (
    ADAM_EPSILON,
    CRITIC,
    GRAD_NORM,
    NUM_CRITICS,
    NUM_STATS,
    TARGET,
    TEMPERATURE,
    SacSettings,
    head_power,
)
from mission_gym.algorithms.sac.loss import (
    ActionSample,
    actor_loss,
    compute_targets,
    critic_loss,
    sample_actions,
    temperature_loss,
)
from mission_gym.data import Array
from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.replay_network import ReplayMinibatch, ReplayNetwork
from mission_gym.learner.verify import Evidence
from mission_gym.policy import Encoder, PolicySpec
from mission_gym.policy.torch_forms import ACTIVATIONS, ActorNetwork
from mission_gym.policy.transfer import send
from mission_gym.policy.trunks import SQRT2, Inputs, make_trunk


class CriticLayer(nn.Module):
    """A linear layer of each critic: inputs [B, I] or [C, B, I], outputs [C, B, O]."""

    def __init__(
        self, num_in: int, num_out: int, gain: float, bias: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        weights = [torch.empty(num_out, num_in) for _ in range(NUM_CRITICS)]
        for weight in weights:
            nn.init.orthogonal_(weight, gain, generator=generator)
        self.weight = nn.Parameter(torch.stack(weights).transpose(1, 2).contiguous())
        self.bias = nn.Parameter(torch.zeros(NUM_CRITICS, 1, num_out))
        nn.init.uniform_(self.bias, -bias, bias, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x.expand(NUM_CRITICS, *x.shape[-2:]), self.weight)


class Critics(nn.Module):
    """Values [C, B, M] of observations and actions. A trunk is shared by the critics."""

    def __init__(self, spec: PolicySpec, seed: int, num_outputs: int, layer_norm: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.trunk, (_, width) = make_trunk(spec, seed, generator)
        width += spec.action.num_reals
        self._activation, self._has_norm = ACTIVATIONS[spec.activation](), layer_norm
        layers = []
        for num_out in () if spec.network is not None else spec.network_arch:
            # With zero biases all units bend at the same point, and values are learned more slowly.
            layers.append(CriticLayer(width, num_out, SQRT2, width**-0.5, generator))
            width = num_out
        self.layers = nn.ModuleList(layers)
        self.head = CriticLayer(width, num_outputs, 1.0, 0.0, generator)

    def forward(self, inputs: Inputs, action: Tensor) -> Tensor:
        flat, shaped = inputs
        features = flat if self.trunk is None else self.trunk(flat, shaped)[1]
        x = torch.cat([features, action], dim=1)
        for layer in self.layers:
            x = layer(x)
            x = self._activation(F.layer_norm(x, x.shape[-1:]) if self._has_norm else x)
        return cast(Tensor, self.head(x))


class Temperature(nn.Module):
    """The weight of the entropy."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(initial)]))


class _SacNumbers(NamedTuple):
    """The settings that change between steps, as floats, or as tensors that a captured step reads again."""

    learning_rate: float | Tensor
    tau: float | Tensor


class _Policy(NamedTuple):
    """The losses of actor and temperature for a minibatch."""

    actor: Tensor
    temperature: Tensor | None
    entropy: Tensor


class TorchSacKernel(ReplayNetwork):
    """See `kernel.SacKernel`."""

    def __init__(self, spec: PolicySpec, seed: int, settings: SacSettings, device: str = "cpu") -> None:
        self.settings = settings
        own = spec.actor_inputs
        self.actor, self.temperature = ActorNetwork(own, seed), Temperature(settings.temperature)
        self._num_flat, self._num_shaped = own.num_flat, len(Encoder(own.leaves, False).shaped)
        self.critics, self.target = (
            Critics(spec, seed + 1, settings.num_quantiles, settings.layer_norm) for _ in range(2)
        )
        super().__init__(
            {"": self.actor, CRITIC: self.critics, TEMPERATURE: self.temperature},
            device,
            ADAM_EPSILON,
            frozen={TARGET: self.target},
            is_acting=lambda name: not name.startswith((f"{CRITIC}.", f"{TEMPERATURE}.")),
            # A user's network may decide something on the host; a delayed actor is decided there.
            can_capture=spec.network is None and settings.policy_delay == 1,
        )
        self._target_flat = self.adams[CRITIC].flatten(self.target)
        self._zero, self._one = torch.zeros((), device=self.device), torch.ones((), device=self.device)

    def learn(self, batch: Transitions, noise: Array, learning_rate: float, first: int) -> StepStats:
        size, delay = self.settings.batch_size, self.settings.policy_delay
        inputs: list[Sequence[Tensor]] = [torch.split(each, size) for each in self.load(batch)]
        inputs.append(send(noise, self.device).unbind())
        numbers = _SacNumbers(*self.load_numbers(learning_rate, self.settings.tau))
        moves: Iterator[bool] = (number % delay == 0 for number in range(first, first + len(noise)))

        def run_step(*tensors: Tensor) -> Tensor:
            moves_actor = delay == 1 or next(moves)
            return self._step(self.unpack(tensors[:-1]), tensors[-1], numbers, moves_actor)

        return self.run_steps(inputs, run_step, self.settings, NUM_STATS, GRAD_NORM)

    def differentiate(self, batch: Transitions, noise: Array) -> Evidence:
        minibatch, drawn = self.unpack(self.load(batch)), send(noise, self.device)
        loss, values, error = self._value_loss(minibatch, drawn[1])
        self.adams[CRITIC].differentiate(loss)
        policy = self._policy_losses(minibatch, drawn[0])
        self.adams[""].differentiate(policy.actor)
        numbers = {
            "critic loss": loss, "mean value": values.mean(), "mean error": error.abs().mean(),
            "actor loss": policy.actor, "entropy": policy.entropy,
        }  # fmt: skip
        gradient = self.adams[""].gradient() | self.adams[CRITIC].gradient()
        if policy.temperature is not None:
            self.adams[TEMPERATURE].differentiate(policy.temperature)
            gradient |= self.adams[TEMPERATURE].gradient()
        return Evidence({name: float(number.detach()) for name, number in numbers.items()}, gradient)

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        # The gradient of the actor grows by the factor; the temperature has the unit of values.
        with torch.no_grad():
            for network in (self.critics, self.target):
                for parameter in network.head.parameters():
                    parameter.mul_(factor)
            self.temperature.log_alpha.add_(math.log(factor))
        self.adams[CRITIC].rescale(head_power, factor)
        self.adams[""].rescale(lambda name: 1, factor)

    def _step(
        self, minibatch: ReplayMinibatch, noise: Tensor, numbers: _SacNumbers, moves_actor: bool
    ) -> Tensor:
        """One gradient step, without leaving the device: its row of the table, followed by the errors."""
        critic, actor = self.adams[CRITIC], self.adams[""]
        loss, values, error = self._value_loss(minibatch, noise[1])
        critic.differentiate(loss)
        norm = torch.linalg.vector_norm(critic.grad)
        critic.step(numbers.learning_rate, torch.where(norm < torch.inf, self._zero, self._one))
        alpha = self.temperature.log_alpha.detach().exp().squeeze(0)
        of_actor = [self._zero] * 4
        if moves_actor:
            policy = self._policy_losses(minibatch, noise[0])
            actor.differentiate(policy.actor)
            actor_norm = torch.linalg.vector_norm(actor.grad)
            norm = norm + 0.0 * actor_norm  # not finite if either is not
            skip = torch.where(norm < torch.inf, self._zero, self._one)
            actor.step(numbers.learning_rate, skip)
            if policy.temperature is not None:
                self.adams[TEMPERATURE].differentiate(policy.temperature)
                self.adams[TEMPERATURE].step(numbers.learning_rate, skip)
            of_actor = [self._one, policy.actor.detach(), actor_norm, policy.entropy]
        with torch.no_grad():
            share = torch.where(norm < torch.inf, numbers.tau, self._zero)
            self._target_flat.lerp_(critic.flat, share)
            stats = [loss.detach(), values.detach().mean(), error.abs().mean(), norm, *of_actor, alpha]
            return torch.cat([torch.stack(stats), error])

    def _value_loss(self, minibatch: ReplayMinibatch, next_noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of the critics, their values, and the error of each transition."""
        alpha = self.temperature.log_alpha.detach().exp()
        with torch.no_grad():
            following = self._act(minibatch.next_inputs, next_noise)
            target = compute_targets(
                minibatch.number("reward"),
                minibatch.number("discount"),
                self.target(minibatch.next_inputs, following.action),
                following.log_prob,
                alpha,
                self.settings.num_dropped,
            )
        values = self.critics(minibatch.inputs, minibatch.columns["action"])
        loss, error = critic_loss(values, target, minibatch.weight)
        return loss, values, error

    def _policy_losses(self, minibatch: ReplayMinibatch, noise: Tensor) -> _Policy:
        """The losses of actor and temperature, with new actions of the policy."""
        log_alpha = self.temperature.log_alpha
        sampled = self._act(minibatch.inputs, noise)
        values = self.critics(minibatch.inputs, sampled.action)
        loss = actor_loss(values, sampled.log_prob, log_alpha.detach().exp())
        entropy, goal = -sampled.log_prob.detach().mean(), self.settings.target_entropy
        of_alpha = None if goal is None else temperature_loss(log_alpha, sampled.log_prob, goal).squeeze(0)
        return _Policy(loss, of_alpha, entropy)

    def _act(self, inputs: Inputs, noise: Tensor) -> ActionSample:
        flat, shaped = inputs
        outputs = self.actor.actor_outputs((flat[:, : self._num_flat], shaped[: self._num_shaped]))
        return sample_actions(outputs, noise)
