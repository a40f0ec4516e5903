"""The reference kernel of DQN: `loss` by torch autograd, for every network and device.

The transitions of some gradient steps are brought to the device at once, and what the steps tell is fetched
at once. A step decides nothing on the host, so that it can be captured as a graph: one whose gradient is not
finite is made without effect.
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
    Batches,
    NoiseOf,
    QSettings,
    QStats,
    make_evidence,
)
from mission_gym.algorithms.dqn.loss import Losses, Minibatch, compute_losses
from mission_gym.data import Array
from mission_gym.learner.adam import TorchNetwork
from mission_gym.learner.proof import Evidence
from mission_gym.policy import PolicySpec
from mission_gym.policy.q_torch import QNetwork
from mission_gym.policy.torch_form import load_arrays, model_arrays
from mission_gym.policy.transfer import fetch, send


class _Numbers(NamedTuple):
    """What changes from step to step, as floats, or as tensors that a captured step reads anew."""

    learning_rate: float | Tensor
    max_grad_norm: float | Tensor
    tau: float | Tensor


class TorchQKernel(TorchNetwork):
    """See `kernel.QKernel`."""

    def __init__(self, spec: PolicySpec, seed: int, device: str = "cpu") -> None:
        self.online = QNetwork(spec, seed)
        # A network of the user's own may decide something on the host.
        super().__init__(self.online, device, ADAM_EPSILON, can_capture=spec.network is None)
        self.target_net = QNetwork(spec, seed).to(self.device).requires_grad_(False)
        # Tensors of the target network, each with the one that it follows; on a device one for all.
        self._pairs: list[tuple[Tensor, Tensor]] = list(
            zip(self.target_net.parameters(), self.online.parameters(), strict=True)
        )
        if self.device.type != "cpu":
            self._pairs = [(self.adam.flatten(self.target_net), self.adam.flat)]
        self._fixed = torch.zeros(len(_Numbers._fields), device=self.device)
        self._zero, self._one = torch.zeros((), device=self.device), torch.ones((), device=self.device)

    def learn(self, batches: Batches, settings: QSettings, noise_of: NoiseOf) -> QStats:
        num, size = len(batches.action), settings.batch_size
        inputs = [torch.split(each, size) for each in self._load(batches)]
        if self.online.noisy:
            inputs.append(self._draw_noise(noise_of, num // size).unbind())
        numbers = _Numbers(settings.learning_rate, settings.max_grad_norm, settings.tau)
        if self.record is not None:
            self._fixed.copy_(send(np.array(numbers, np.float32), self.device))
            numbers = _Numbers(*self._fixed.unbind())

        def make_step(*minibatch: Tensor) -> Tensor:
            return self._step(list(minibatch), settings, numbers)

        first = [each[0] for each in inputs]
        shapes = tuple((each.shape, each.dtype) for each in first)
        key = (shapes, self._columns, settings.double, settings.huber, settings.tau < 1.0)
        step = self.capture(key, make_step, first, [target for target, _ in self._pairs])
        told = torch.empty(num // size, NUM_STATS + size, device=self.device)
        for row, *minibatch in zip(told, *inputs, strict=True):
            row.copy_(step(*minibatch))
        array = fetch(told)
        table = array[:, :NUM_STATS].astype(np.float64)
        num_skipped = int(np.count_nonzero(~np.isfinite(table[:, GRAD_NORM])))
        return QStats(table, array[:, NUM_STATS:].reshape(-1), num_skipped)

    def differentiate(self, batches: Batches, settings: QSettings) -> Evidence:
        losses = self._backward(self._load(batches), settings)
        told = fetch(_tell(losses, torch.linalg.vector_norm(self.adam.grad)))
        stats = QStats(told[None, :NUM_STATS].astype(np.float64), told[NUM_STATS:])
        return make_evidence(stats, self.adam.gradient())

    def _load(self, batches: Batches) -> list[Tensor]:
        """The transitions on the device: one table of their numbers, then the inputs of both ends."""
        fields = {
            "action": batches.action,
            "reward": batches.reward,
            "discount": batches.discount,
            "next_mask": batches.next_mask,
            "weight": batches.weight,
        }
        there = {name: array for name, array in fields.items() if array is not None}
        widths = [1 if array.ndim == 1 else array.shape[1] for array in there.values()]
        ends = np.cumsum(widths).tolist()
        self._columns = tuple(zip(there, [0, *ends[:-1]], ends, strict=True))
        table = np.column_stack(list(there.values())).astype(np.float32, copy=False)
        inputs = (each for end in (batches.inputs, batches.next_inputs) for each in (end.flat, *end.shaped))
        return [send(each, self.device) for each in (table, *inputs)]

    def _draw_noise(self, noise_of: NoiseOf, num_steps: int) -> Tensor:
        """The noise of each step: of the online network, then of the target network."""
        streams = map(noise_of, range(num_steps))
        drawn = [[net.draw_noise(rng) for net in (self.online, self.target_net)] for rng in streams]
        return send(np.array(drawn, np.float32), self.device)

    def _step(self, minibatch: list[Tensor], settings: QSettings, numbers: _Numbers) -> Tensor:
        """One gradient step, without leaving the device: its row of the table, and the errors."""
        if self.online.noisy:
            for net, noise in zip((self.online, self.target_net), minibatch.pop(), strict=True):
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
        return _tell(losses, norm)

    def _backward(self, minibatch: list[Tensor], settings: QSettings) -> Losses:
        """The loss of a minibatch, and its gradient in `adam.grad`."""
        rows, *ends = minibatch
        columns = {name: rows[:, start:end] for name, start, end in self._columns}
        half = len(ends) // 2
        inputs, next_inputs = (ends[0], tuple(ends[1:half])), (ends[half], tuple(ends[half + 1 :]))
        with torch.no_grad():
            next_values = self.target_net(next_inputs)
            next_judged = self.online(next_inputs) if settings.double else next_values
        batch = Minibatch(
            values=self.online(inputs),
            action=columns["action"].squeeze(1).long(),
            reward=columns["reward"].squeeze(1),
            discount=columns["discount"].squeeze(1),
            next_values=next_values,
            next_judged=next_judged,
            next_mask=columns["next_mask"].bool() if "next_mask" in columns else None,
            weight=columns["weight"].squeeze(1) if "weight" in columns else None,
        )
        losses = compute_losses(batch, settings.huber)
        self.adam.differentiate(losses.total)
        return losses

    def copy_to_target(self) -> None:
        buffers = zip(self.target_net.buffers(), self.online.buffers(), strict=True)
        with torch.no_grad():
            for target, online in (*self._pairs, *buffers):
                target.copy_(online)

    def target(self) -> dict[str, Array]:
        return model_arrays(self.target_net)

    def load_target(self, arrays: dict[str, Array]) -> None:
        load_arrays(self.target_net, arrays)


def _tell(losses: Losses, norm: Tensor) -> Tensor:
    """A row of the table of gradient steps, and the errors behind it."""
    stats = torch.stack([losses.total.detach(), losses.value.detach(), losses.error.abs().mean(), norm])
    return torch.cat([stats, losses.error])
