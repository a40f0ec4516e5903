"""The reference kernel of DQN: torch autograd, for every network."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mission_gym.data import Array
from mission_gym.learner.flat_adam import FlatAdam
from mission_gym.learner.q_kernel import ADAM_EPSILON, Batches, NoiseOf, QSettings, QStats
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.q_torch import QNetwork
from mission_gym.policy.sampling import FILLER
from mission_gym.policy.torch_form import Inputs, load_arrays, model_arrays


class TorchQKernel:
    """See `q_kernel.QKernel`."""

    def __init__(self, spec: PolicySpec, seed: int, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.online = QNetwork(spec, seed).to(self.device)
        self.aim = QNetwork(spec, seed).to(self.device).requires_grad_(False)
        self.adam = FlatAdam(self.online, ADAM_EPSILON)

    def learn(self, batches: Batches, settings: QSettings, noise_of: NoiseOf) -> QStats:
        inputs, next_inputs = self._inputs(batches.inputs), self._inputs(batches.next_inputs)
        columns = [batches.action, batches.reward, batches.discount, batches.weight, batches.next_mask]
        tensors = [None if column is None else torch.from_numpy(column).to(self.device) for column in columns]
        size = settings.batch_size
        rows: list[list[float]] = []
        errors: list[Tensor] = []
        for place, start in enumerate(range(0, len(batches.action), size)):
            part = slice(start, start + size)
            if self.online.noisy:
                rng = noise_of(place)
                self.online.disturb(rng)
                self.aim.disturb(rng)
            cut = [None if tensor is None else tensor[part] for tensor in tensors]
            stats, error = self._step(_cut(inputs, part), _cut(next_inputs, part), cut, settings)
            rows.append(stats.tolist())
            errors.append(error)
            if not math.isfinite(rows[-1][3]):
                break
        return QStats(np.array(rows), torch.cat(errors).cpu().numpy())

    def _step(
        self, inputs: Inputs, next_inputs: Inputs, columns: list[Tensor | None], settings: QSettings
    ) -> tuple[Tensor, Tensor]:
        """One gradient step; returns its statistics and errors."""
        action, reward, discount, weight, mask = columns
        assert action is not None
        assert reward is not None
        with torch.no_grad():
            values = self.aim(next_inputs)
            judge = self.online(next_inputs) if settings.double else values
            if mask is not None:
                judge = judge.masked_fill(~mask, FILLER)
            best = judge.argmax(dim=1, keepdim=True)
            target = reward + discount * values.gather(1, best).squeeze(1)
        value = self.online(inputs).gather(1, action.unsqueeze(1)).squeeze(1)
        error = value - target
        losses = F.huber_loss(value, target, reduction="none") if settings.huber else error.square()
        loss = (losses if weight is None else losses * weight).mean()
        self.adam.grad.zero_()
        loss.backward()
        norm = self.adam.clip(settings.max_grad_norm)
        with torch.no_grad():
            if torch.isfinite(norm):
                self.adam.step(settings.learning_rate)
                if settings.tau < 1.0:
                    for ours, theirs in zip(self.aim.parameters(), self.online.parameters(), strict=True):
                        ours.lerp_(theirs, settings.tau)
            return torch.stack([loss, value.mean(), error.abs().mean(), norm]).detach(), error.detach()

    def copy_to_target(self) -> None:
        self.aim.load_state_dict(self.online.state_dict())

    def parameters(self) -> dict[str, Array]:
        return model_arrays(self.online)

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        load_arrays(self.online, arrays)

    def target(self) -> dict[str, Array]:
        return model_arrays(self.aim)

    def load_target(self, arrays: dict[str, Array]) -> None:
        load_arrays(self.aim, arrays)

    def optimizer(self) -> dict[str, Array]:
        return self.adam.arrays()

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        self.adam.load(arrays)

    def _inputs(self, inputs: Encoded) -> Inputs:
        flat, *images = (
            torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
            for array in (inputs.flat, *inputs.images)
        )
        return flat, tuple(images)


def _cut(inputs: Inputs, part: slice) -> Inputs:
    return inputs[0][part], tuple(image[part] for image in inputs[1])
