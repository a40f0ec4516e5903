"""The reference kernel: `loss` by torch autograd on any device, Adam on one flat vector.

The transitions of a block are brought to the device once. A gradient step reads tensors that never move and
decides nothing on the host, so that it can be captured as a graph. Nothing on the device is float64: MPS has
none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mission_gym.algorithms.ppo.kernel import ADAM_EPSILON, NUM_STATS, Samples, make_evidence
from mission_gym.algorithms.ppo.loss import Losses, Minibatch, compute_losses, normalize_advantages
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.data import Array
from mission_gym.learner.adam import TorchNetwork
from mission_gym.learner.distribution import Distribution
from mission_gym.learner.proof import Evidence
from mission_gym.learner.stacked import StackedActorCritic, can_stack
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.torch_form import ActorCritic
from mission_gym.policy.transfer import Resident, ResidentPictures, fetch, send
from mission_gym.policy.trunks import Inputs

Network = Callable[[Inputs, torch.dtype], tuple[Tensor, Tensor]]


class TorchKernel(TorchNetwork):
    """See `kernel.Kernel`.

    batch_size: rows of every pass over a block. They fit where a minibatch does, and bits that depend on the
    shape are those of a minibatch: with bf16 or TF32 the first ratios would not be 1 otherwise.
    """

    def __init__(
        self,
        spec: PolicySpec,
        seed: int | None,
        device: str = "cpu",
        *,
        precision: str = "float32",
        batch_size: int | None = None,
    ) -> None:
        self.spec, self.model = spec, ActorCritic(spec, seed)
        # A network of the user's own may decide something on the host.
        super().__init__(self.model, device, ADAM_EPSILON, can_capture=spec.network is None)
        self._network: Network = self.model
        if can_stack(self.model):
            self._network = StackedActorCritic(self.model, self.adam)
        self.reads_late = self.device.type == "cuda"
        self.distribution = Distribution(spec.action, self.device)
        self.is_coarse = precision == "bf16"
        self._precision = torch.bfloat16 if self.is_coarse else torch.float32
        self._batch_size = batch_size
        self._flat, self._columns = Resident(self.device), Resident(self.device)
        self._shaped = [ResidentPictures(self.device) for leaf in spec.leaves if not leaf.is_flat]
        self._loaded: Encoded | None = None
        # The values of a gradient step, as tensors that a captured one reads anew.
        self._numbers = torch.zeros(len(StepSettings._fields), device=self.device)
        self._settings = StepSettings(*cast(Any, self._numbers.unbind()))
        self._rate: float = 0.0

    def evaluate(
        self, inputs: Encoded, action: Array, mask: Array | None, *, exact: bool = False
    ) -> tuple[Array, Array]:
        if inputs is not self._loaded:
            self._load_inputs(inputs)
        actions = send(action, self.device)
        illegal = None if mask is None else send(~mask, self.device)
        num, num_acted = len(inputs.flat), len(action)
        rows = min(self._batch_size or num, num)
        with torch.inference_mode():
            log_probs, values = (torch.zeros(size, device=self.device) for size in (num_acted, num))
            for start in range(0, num, rows):
                start = min(start, num - rows)  # the last pass makes some rows twice, and has the same shape
                part = slice(start, start + rows)
                params, value = self._network(
                    (self._flat_rows[part], self._take(part)), torch.float32 if exact else self._precision
                )
                values[part] = value
                acted = slice(start, min(start + rows, num_acted))
                if acted.start < acted.stop:
                    log_probs[acted], _ = self.distribution(
                        params[: acted.stop - start],
                        self.model.log_std,
                        actions[acted],
                        None if illegal is None else illegal[acted],
                    )
            both = fetch(torch.cat([log_probs, values]))
        return both[:num_acted], both[num_acted:]

    def rescale_values(self, factor: float, shift: float) -> None:
        head = cast(torch.nn.Linear, self.model.critic[-1])
        with torch.no_grad():
            head.weight.mul_(factor)
            head.bias.mul_(factor).add_(shift)

    def sample(self, inputs: Encoded, noise: Array) -> Array:
        """The real numbers of actions, as the policy draws them from noise [N, num_reals]."""
        self._load_inputs(inputs)
        with torch.inference_mode():
            everything = self._flat_rows, self._take(slice(None))
            params = fetch(self._network(everything, torch.float32)[0])
        mean = params[:, params.shape[1] - noise.shape[1] :]
        return np.asarray(mean + np.exp(self.parameters()["log_std"]) * noise, np.float32)

    def load_samples(self, samples: Samples) -> None:
        if samples.inputs is not self._loaded:
            self._load_inputs(samples.inputs)
        self._loaded = None  # or they would be held beside those of the next update
        num = len(samples.action)
        ones = np.ones(num, np.float32)
        fields = {
            "action": samples.action.astype(np.float32),
            "illegal": np.zeros((num, 0), np.float32) if samples.mask is None else ~samples.mask,
            "old_log_prob": samples.log_prob,
            "old_value": samples.value,
            "returns": samples.returns,
            "weight": ones if samples.weight is None else samples.weight,
            "advantage": samples.advantage,
            "importance": ones if samples.importance is None else samples.importance,
        }
        packed = np.column_stack(list(fields.values()))
        self._rows = self._columns.load(packed.astype(np.float32, copy=False))
        widths = [1 if array.ndim == 1 else array.shape[1] for array in fields.values()]
        ends = np.cumsum(widths).tolist()
        self._fields = {
            name: slice(end - width, end) for name, width, end in zip(fields, widths, ends, strict=True)
        }

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> Tensor | None:
        flat, columns, index = self._gather(order, settings)
        self._rate = settings.learning_rate if self.record is None else self._settings.learning_rate
        first = (flat[0], columns[0], index[0])
        places = tuple(address for each in self._shaped for address in each.where())
        step = self.capture((*flat.shape[1:], *columns.shape[1:], *places), self._step, first)
        table = torch.empty(len(order), NUM_STATS, device=self.device)
        for row, *minibatch in zip(table, flat, columns, index, strict=True):
            if stop():
                return None
            row.copy_(step(*minibatch))
        return table

    def read(self, tables: list[Tensor]) -> list[Array]:
        return list(fetch(torch.stack(tables)).astype(np.float64))

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        self.load_samples(samples)
        flat, columns, index = self._gather(np.arange(len(samples.action))[None], settings)
        losses = self._backward(flat[0], columns[0], index[0])
        row = _stack(losses, self.adam.grad.norm()).cpu().numpy().astype(np.float64)
        evidence = make_evidence(row, settings, self.adam.gradient())
        # The loss's own total: an edit may have added to it.
        return evidence._replace(numbers={**evidence.numbers, "loss": float(losses.total.detach())})

    def _gather(self, order: Array, settings: StepSettings) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs and columns of every minibatch, rows of `order`: one gather for the epoch, of which
        minibatches are slices. Advantages are normalised over each."""
        index = send(order, self.device)
        flat, columns = (
            source.index_select(0, index.view(-1)).view(*index.shape, -1)
            for source in (self._flat_rows, self._rows)
        )
        weight, advantage, importance = (
            self._column(columns, name) for name in ("weight", "advantage", "importance")
        )
        weight /= weight.sum(1, keepdim=True).clamp_min(1.0)
        if settings.normalize_advantage:
            advantage.copy_(normalize_advantages(advantage, weight))
        advantage *= importance
        self._numbers.copy_(send(np.array(settings, np.float32), self.device))
        return flat, columns, index

    def _column(self, columns: Tensor, name: str) -> Tensor:
        """A view of the field that is one number for each row."""
        return columns[..., self._fields[name].start]

    def _step(self, flat: Tensor, columns: Tensor, index: Tensor) -> Tensor:
        """One gradient step, without leaving the device; returns a row of the table."""
        losses = self._backward(flat, columns, index)
        norm = self.adam.clip(self._settings.max_grad_norm)
        self.adam.step(self._rate)
        return _stack(losses, norm)

    def _backward(self, flat: Tensor, columns: Tensor, index: Tensor) -> Losses:
        """The loss of a minibatch, and its gradient in `adam.grad`."""
        illegal = columns[:, self._fields["illegal"]]
        params, value = self._network((flat, self._take(index)), self._precision)
        log_prob, entropy = self.distribution(
            params,
            self.model.log_std,
            columns[:, self._fields["action"]],
            illegal.bool() if illegal.shape[1] else None,
        )
        batch = Minibatch(
            log_prob=log_prob,
            entropy=entropy,
            value=value,
            **{
                name: self._column(columns, name)
                for name in ("old_log_prob", "old_value", "returns", "advantage", "weight")
            },
        )
        losses = compute_losses(batch, self._settings)
        self.adam.differentiate(losses.total)
        return losses

    def _load_inputs(self, inputs: Encoded) -> None:
        """Bring the inputs to the device."""
        places = inputs.places or (None,) * len(self._shaped)
        for resident, each, mine in zip(self._shaped, inputs.shaped, places, strict=True):
            resident.load(each, mine)
        self._flat_rows = self._flat.load(inputs.flat)
        self._loaded = inputs

    def _take(self, rows: slice | Tensor) -> tuple[Tensor, ...]:
        return tuple(each.take(rows) for each in self._shaped)


def _stack(losses: Losses, norm: Tensor) -> Tensor:
    """A row of the table of gradient steps, in the order of its columns."""
    numbers = (losses.policy, losses.value, losses.entropy, losses.approx_kl, losses.clip_fraction)
    return torch.stack([*(number.detach() for number in numbers), losses.ratio_error, norm])
