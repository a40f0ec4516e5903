"""The reference kernel of DQN: `loss` by torch autograd, for every network and device.

A step decides nothing on the host, so it can be captured as a graph: one whose gradient is not finite has no
effect.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mission_gym.algorithms.dqn.kernel import (
    ADAM_EPSILON,
    GRAD_NORM,
    NUM_STATS,
    TARGET,
    NoiseOf,
    QSettings,
    make_evidence,
    scale_power,
)
from mission_gym.algorithms.dqn.loss import QLosses, QMinibatch, compute_losses
from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.replay_network import ReplayNetwork
from mission_gym.learner.verify import Evidence
from mission_gym.policy import PolicySpec
from mission_gym.policy.torch_forms import QNetwork
from mission_gym.policy.transfer import fetch, send


class _QNumbers(NamedTuple):
    """The settings that change between steps, as floats, or as tensors that a captured step reads again."""

    learning_rate: float | Tensor
    max_grad_norm: float | Tensor
    tau: float | Tensor


class TorchQKernel(ReplayNetwork):
    """See `kernel.QKernel`."""

    def __init__(self, spec: PolicySpec, seed: int, device: str = "cpu") -> None:
        self.online, self.target = QNetwork(spec, seed), QNetwork(spec, seed)
        # A user's network may decide something on the host.
        super().__init__(
            {"": self.online},
            device,
            ADAM_EPSILON,
            frozen={TARGET: self.target},
            can_capture=spec.network is None,
        )
        # Tensors of the target network, each with the online one that it follows; on a device one for all.
        self._pairs: list[tuple[Tensor, Tensor]] = list(
            zip(self.target.parameters(), self.online.parameters(), strict=True)
        )
        if self.device.type != "cpu":
            self._pairs = [(self.adam.flatten(self.target), self.adam.flat)]
        self._zero, self._one = torch.zeros((), device=self.device), torch.ones((), device=self.device)

    def learn(self, batch: Transitions, settings: QSettings, noise_of: NoiseOf) -> StepStats:
        num, size = len(batch.action), settings.batch_size
        inputs = [torch.split(each, size) for each in self.load(batch)]
        if self.online.noisy:
            inputs.append(self._draw_noise(noise_of, num // size).unbind())
        numbers = _QNumbers(*self.load_numbers(settings.learning_rate, settings.max_grad_norm, settings.tau))

        def run_step(*minibatch: Tensor) -> Tensor:
            return self._step(list(minibatch), settings, numbers)

        key = (settings.double, settings.huber, settings.tau < 1.0)
        return self.run_steps(inputs, run_step, key, NUM_STATS, GRAD_NORM)

    def differentiate(self, batch: Transitions, settings: QSettings) -> Evidence:
        losses = self._backward(self.load(batch), settings)
        row = fetch(_make_row(losses, torch.linalg.vector_norm(self.adam.grad)))
        stats = StepStats(row[None, :NUM_STATS].astype(np.float64), row[NUM_STATS:])
        return make_evidence(stats, self.adam.gradient())

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        heads = tuple(self.online.heads)
        with torch.no_grad():
            for network in (self.online, self.target):
                for head in network.heads.values():
                    for parameter in head.parameters():
                        parameter.mul_(factor)
        self.adam.rescale(lambda name: scale_power(name, heads), factor)

    def _draw_noise(self, noise_of: NoiseOf, num_steps: int) -> Tensor:
        """The noise of each step: of the online network, then of the target network."""
        generators = map(noise_of, range(num_steps))
        drawn = [[net.draw_noise(rng) for net in (self.online, self.target)] for rng in generators]
        return send(np.array(drawn, np.float32), self.device)

    def _step(self, minibatch: list[Tensor], settings: QSettings, numbers: _QNumbers) -> Tensor:
        """One gradient step, without leaving the device: its row of the table, followed by the errors."""
        if self.online.noisy:
            for net, noise in zip((self.online, self.target), minibatch.pop(), strict=True):
                net.set_noise(noise)
        losses = self._backward(minibatch, settings)
        norm = self.adam.clip(numbers.max_grad_norm)
        is_finite = norm < torch.inf
        self.adam.step(numbers.learning_rate, torch.where(is_finite, self._zero, self._one))
        if settings.tau < 1.0:
            with torch.no_grad():
                share = torch.where(is_finite, numbers.tau, self._zero)
                for target, online in self._pairs:
                    target.lerp_(online, share)
        return _make_row(losses, norm)

    def _backward(self, minibatch: list[Tensor], settings: QSettings) -> QLosses:
        """The loss of a minibatch, and its gradient in `adam.grad`."""
        given = self.unpack(minibatch)
        with torch.no_grad():
            next_values = self.target(given.next_inputs)
            next_scores = self.online(given.next_inputs) if settings.double else next_values
        batch = QMinibatch(
            values=self.online(given.inputs),
            action=given.number("action").long(),
            reward=given.number("reward"),
            discount=given.number("discount"),
            next_values=next_values,
            next_scores=next_scores,
            next_mask=given.columns["next_mask"].bool() if "next_mask" in given.columns else None,
            weight=given.weight,
        )
        losses = compute_losses(batch, settings.huber)
        self.adam.differentiate(losses.total)
        return losses

    def copy_to_target(self) -> None:
        buffers = zip(self.target.buffers(), self.online.buffers(), strict=True)
        with torch.no_grad():
            for target, online in (*self._pairs, *buffers):
                target.copy_(online)


def _make_row(losses: QLosses, norm: Tensor) -> Tensor:
    """A row of the table of gradient steps, followed by the errors."""
    stats = torch.stack([losses.total.detach(), losses.value.detach(), losses.error.abs().mean(), norm])
    return torch.cat([stats, losses.error])
