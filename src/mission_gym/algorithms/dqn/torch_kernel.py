"""The reference kernel of DQN: `loss` by torch autograd, for every network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mission_gym.algorithms.dqn.kernel import (
    ADAM_EPSILON,
    GRAD_NORM,
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
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.q_torch import QNetwork
from mission_gym.policy.torch_form import load_arrays, model_arrays
from mission_gym.policy.trunks import Inputs

_COLUMNS = ("action", "reward", "discount", "next_mask", "weight")  # of transitions and minibatches alike
_Rows = tuple[Inputs, Inputs, dict[str, Any]]  # a minibatch on the device: inputs of both ends, and columns


class TorchQKernel(TorchNetwork):
    """See `q_kernel.QKernel`."""

    def __init__(self, spec: PolicySpec, seed: int, device: str = "cpu") -> None:
        self.online = QNetwork(spec, seed)
        super().__init__(self.online, device, ADAM_EPSILON)
        self.target_net = QNetwork(spec, seed).to(self.device).requires_grad_(False)

    def learn(self, batches: Batches, settings: QSettings, noise_of: NoiseOf) -> QStats:
        minibatches = self._load(batches, settings.batch_size)
        table: list[list[float]] = []
        num_skipped = 0
        errors: list[Tensor] = []
        for place, minibatch in enumerate(minibatches):
            if self.online.noisy:
                rng = noise_of(place)
                self.online.disturb(rng)
                self.target_net.disturb(rng)
            losses = self._backward(minibatch, settings)
            norm = self.adam.clip(settings.max_grad_norm)
            table.append(_row(losses, norm))
            errors.append(losses.error)
            if math.isfinite(table[-1][GRAD_NORM]):
                self._step(settings)
            else:
                num_skipped += 1
        return QStats(np.array(table), torch.cat(errors).cpu().numpy(), num_skipped)

    def differentiate(self, batches: Batches, settings: QSettings) -> Evidence:
        (minibatch,) = self._load(batches, len(batches.action))
        losses = self._backward(minibatch, settings)
        row = _row(losses, torch.linalg.vector_norm(self.adam.grad))
        return make_evidence(QStats(np.array([row]), losses.error.cpu().numpy()), self.adam.gradient())

    def _load(self, batches: Batches, size: int) -> Iterator[_Rows]:
        """The transitions on the device, cut into minibatches."""
        inputs, next_inputs = self._inputs(batches.inputs), self._inputs(batches.next_inputs)
        columns = {name: self._tensor(getattr(batches, name)) for name in _COLUMNS}
        for start in range(0, len(batches.action), size):
            part = slice(start, start + size)
            cut = {name: None if column is None else column[part] for name, column in columns.items()}
            yield _cut(inputs, part), _cut(next_inputs, part), cut

    def _backward(self, rows: _Rows, settings: QSettings) -> Losses:
        """The loss of a minibatch, and its gradient in `adam.grad`."""
        inputs, next_inputs, columns = rows
        with torch.no_grad():
            next_values = self.target_net(next_inputs)
            next_judged = self.online(next_inputs) if settings.double else next_values
        values = self.online(inputs)
        batch = Minibatch(values=values, next_values=next_values, next_judged=next_judged, **columns)
        losses = compute_losses(batch, settings.huber)
        self.adam.grad.zero_()
        losses.total.backward()  # type: ignore[no-untyped-call]
        return losses

    @torch.no_grad()
    def _step(self, settings: QSettings) -> None:
        self.adam.step(settings.learning_rate)
        if settings.tau < 1.0:
            for ours, theirs in zip(self.target_net.parameters(), self.online.parameters(), strict=True):
                ours.lerp_(theirs, settings.tau)

    def copy_to_target(self) -> None:
        self.target_net.load_state_dict(self.online.state_dict())

    def target(self) -> dict[str, Array]:
        return model_arrays(self.target_net)

    def load_target(self, arrays: dict[str, Array]) -> None:
        load_arrays(self.target_net, arrays)

    def _inputs(self, inputs: Encoded) -> Inputs:
        return self._tensor(inputs.flat), tuple(map(self._tensor, inputs.shaped))

    def _tensor(self, array: Array | None) -> Any:
        return None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def _row(losses: Losses, norm: Tensor) -> list[float]:
    """A row of the table of gradient steps."""
    row: list[float] = torch.stack([losses.total, losses.value, losses.error.abs().mean(), norm]).tolist()
    return row


def _cut(inputs: Inputs, part: slice) -> Inputs:
    return inputs[0][part], tuple(image[part] for image in inputs[1])
