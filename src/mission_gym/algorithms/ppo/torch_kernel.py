"""The reference kernel: `loss` by torch autograd on any device.

The transitions of a block are copied to the device once. A gradient step reads tensors that never move and
decides nothing on the host, so it can be captured as a graph. Nothing on the device is float64: MPS has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn

from mission_gym.algorithms.ppo.kernel import ADAM_EPSILON, COLUMNS, Samples, make_evidence
from mission_gym.algorithms.ppo.loss import Losses, Minibatch, compute_losses, normalize_advantages
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.data import Array
from mission_gym.learner.blocks import SequenceMemory
from mission_gym.learner.distribution import Distribution
from mission_gym.learner.torch_network import FlatAdam, TorchNetwork
from mission_gym.learner.verify import Evidence
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.torch_cells import State, TorchMemory
from mission_gym.policy.torch_forms import ActorCritic, Passed
from mission_gym.policy.transfer import Resident, ResidentImages, fetch, send
from mission_gym.policy.trunks import Inputs

Rows = slice | Tensor
# Terms that were added to the loss follow the known columns.
_COLUMNS = COLUMNS + Losses._fields[len(COLUMNS) - 1 :]


class _Network(Protocol):
    def __call__(
        self, inputs: Inputs, precision: torch.dtype = torch.float32, memory: TorchMemory | None = None
    ) -> Passed: ...


class TorchKernel(TorchNetwork):
    """See `kernel.Kernel`.

    batch_size: rows of every pass over a block, those of a minibatch. So a pass fits in memory, and bits that
    depend on the shape are equal: with bf16 or TF32 the first ratios would not be 1 otherwise.
    """

    columns: tuple[str, ...] = _COLUMNS

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
        # A user's network may decide something on the host. Networks that share nothing are clipped apart:
        # large errors of values leave the actor's step alone.
        super().__init__(
            {"": self.model},
            device,
            ADAM_EPSILON,
            is_acting=self.model.is_acting,
            can_capture=spec.network is None,
            clipped_separately="critic." if _is_split(self.model) else None,
        )
        self._network: _Network = self.model
        if _can_stack(self.model):
            self._network = StackedActorCritic(self.model, self.adam)
        self.defers_stats = self.device.type == "cuda"
        self.distribution = Distribution(spec.action, self.device)
        self.is_low_precision = precision == "bf16"
        self._precision = torch.bfloat16 if self.is_low_precision else torch.float32
        self._batch_size = batch_size
        self._flat, self._table = Resident(self.device), Resident(self.device)
        self._shaped = [ResidentImages(self.device) for leaf in spec.leaves if not leaf.is_flat]
        self._before_chunks: State = ()  # of the block, each [T / chunk * S, ...]
        self._chunk, self._num_columns = 1, 1
        self._loaded: Encoded | None = None
        # The settings of a gradient step, as tensors that a captured step reads again each time.
        self._numbers = torch.zeros(len(StepSettings._fields), device=self.device)
        self._settings = StepSettings(*cast(Any, self._numbers.unbind()))
        self._rate: float = 0.0

    def evaluate(
        self,
        inputs: Encoded,
        action: Array,
        mask: Array | None,
        memory: SequenceMemory | None = None,
        *,
        exact: bool = False,
    ) -> tuple[Array, Array]:
        if inputs is not self._loaded:
            self._load_inputs(inputs)
        actions = send(action, self.device)
        illegal = None if mask is None else send(~mask, self.device)
        num, num_acted = len(inputs.flat), len(action)
        precision = torch.float32 if exact else self._precision
        log_probs, values = (torch.zeros(size, device=self.device) for size in (num_acted, num))

        def compute(rows: slice, part: TorchMemory | None) -> State:
            outputs, values[rows], state = self._network(
                (self._flat_rows[rows], self._take(rows)), precision, part
            )
            acted = slice(rows.start, max(rows.start, min(rows.stop, num_acted)))  # they come first
            num_outputs = len(log_probs[acted])
            if num_outputs:
                log_probs[acted], _ = self.distribution(
                    outputs[:num_outputs],
                    self.model.log_std,
                    actions[acted],
                    None if illegal is None else illegal[acted],
                )
            return state

        with torch.inference_mode():
            if memory is not None:
                self._pass_chunks(num, memory, compute)
            else:
                size = min(self._batch_size or num, num)
                for start in range(0, num, size):
                    start = min(start, num - size)  # the last pass repeats some rows, to have the same shape
                    compute(slice(start, start + size), None)
            both = fetch(torch.cat([log_probs, values]))
        return both[:num_acted], both[num_acted:]

    def _pass_chunks(
        self, num: int, memory: SequenceMemory, compute: Callable[[slice, TorchMemory], State]
    ) -> None:
        """Compute all rows of a block with the memory before them: chunks of all columns one after another,
        the observations after the last step, then final observations, one step each."""
        starts, state = send(memory.starts, self.device), self._send_all(memory.state)
        num_times, num_columns = starts.shape
        before = []
        for t in range(0, num_times, memory.chunk):
            before.append(state)
            part, first = starts[t : t + memory.chunk], t * num_columns
            state = compute(slice(first, first + part.numel()), TorchMemory(state, part))
        memory.before_chunks = tuple(fetch(torch.stack(each)) for each in zip(*before, strict=True))
        if num > starts.numel():
            no_starts = starts.new_zeros((1, num - starts.numel()))
            final = TorchMemory(self._send_all(memory.final_state), no_starts)
            compute(slice(starts.numel(), num), final)

    def _send_all(self, arrays: Sequence[Array]) -> State:
        return tuple(send(array, self.device) for array in arrays)

    def rescale_values(self, factor: float, shift: float = 0.0) -> None:
        head = cast(nn.Linear, self.model.critic[-1])
        with torch.no_grad():
            head.weight.mul_(factor)
            head.bias.mul_(factor).add_(shift)

    def sample(self, inputs: Encoded, noise: Array, memory: SequenceMemory | None = None) -> Array:
        """The real numbers of actions for the first N rows, sampled by the policy with noise [N, num_reals].
        memory: of one chunk."""
        self._load_inputs(inputs)
        rows, part = slice(len(noise)), None
        if memory is not None:
            part = TorchMemory(self._send_all(memory.state), send(memory.starts[:-1], self.device))
        with torch.inference_mode():
            outputs = fetch(self._network((self._flat_rows[rows], self._take(rows)), memory=part).outputs)
        mean = outputs[:, outputs.shape[1] - noise.shape[1] :]
        return np.asarray(mean + np.exp(self.parameters()["log_std"]) * noise, np.float32)

    def load_samples(self, samples: Samples) -> None:
        if samples.inputs is not self._loaded:
            self._load_inputs(samples.inputs)
        self._loaded = None  # frees the inputs before the next update's are loaded
        num, memory = len(samples.action), samples.memory
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
        self._before_chunks = ()
        if memory is not None:
            fields["starts"] = memory.starts[:-1].reshape(-1)
            self._before_chunks = self._send_all(
                [each[:-1].reshape(-1, each.shape[-1]) for each in memory.before_chunks]
            )
            self._chunk, self._num_columns = memory.chunk, memory.starts.shape[1]
        packed = np.column_stack(list(fields.values()))
        self._rows = self._table.load(packed.astype(np.float32, copy=False))
        widths = [1 if array.ndim == 1 else array.shape[1] for array in fields.values()]
        ends = np.cumsum(widths).tolist()
        self._fields = {
            name: slice(end - width, end) for name, width, end in zip(fields, widths, ends, strict=True)
        }

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> Tensor | None:
        flat, columns, index = self._gather(order, settings)
        self._rate = settings.learning_rate if self.record is None else self._settings.learning_rate
        first = (flat[0], columns[0], index[0])
        addresses = tuple(address for each in self._shaped for address in each.addresses())
        step = self.capture((*flat.shape[1:], *columns.shape[1:], *addresses), self._step, first)
        table = torch.empty(len(order), len(self.columns), device=self.device)
        for row, *minibatch in zip(table, flat, columns, index, strict=True):
            if stop():
                return None
            row.copy_(step(*minibatch))
        return table

    def read(self, tables: list[Tensor]) -> list[Array]:
        return list(fetch(torch.stack(tables)).astype(np.float64))

    def differentiate(self, samples: Samples, settings: StepSettings) -> Evidence:
        self.load_samples(samples)
        assert samples.memory is None or len(samples.memory.starts) == samples.memory.chunk + 1, "one chunk"
        flat, columns, index = self._gather(np.arange(len(samples.action))[None], settings)
        losses = self._backward(flat[0], columns[0], index[0])
        row = fetch(_make_row(losses, self.adam.grad.norm())).astype(np.float64)
        return make_evidence(row, self.columns, self.adam.gradient())

    def _gather(self, order: Array, settings: StepSettings) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs and columns of every minibatch, rows of `order`, in one gather for the epoch;
        minibatches are slices of it. Advantages are normalised per minibatch."""
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
        """A view of a field that has one number per row."""
        return columns[..., self._fields[name].start]

    def _step(self, flat: Tensor, columns: Tensor, index: Tensor) -> Tensor:
        """One gradient step, without leaving the device; returns a row of the table."""
        losses = self._backward(flat, columns, index)
        norm = self.adam.clip(self._settings.max_grad_norm)
        self.adam.step(self._rate)
        return _make_row(losses, norm)

    def _backward(self, flat: Tensor, columns: Tensor, index: Tensor) -> Losses:
        """The loss of a minibatch, and its gradient in `adam.grad`."""
        illegal = columns[:, self._fields["illegal"]]
        outputs, value, _ = self._network(
            (flat, self._take(index)), self._precision, self._memory_of(columns, index)
        )
        log_prob, entropy = self.distribution(
            outputs,
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

    def _memory_of(self, columns: Tensor, index: Tensor) -> TorchMemory | None:
        """The memory of a minibatch [chunk, C]; its first C rows are the first steps of its chunks."""
        if not self._before_chunks:
            return None
        starts = self._column(columns, "starts").view(self._chunk, -1) > 0
        first, num_columns = index[: starts.shape[1]], self._num_columns
        chunks = first // (self._chunk * num_columns) * num_columns + first % num_columns
        return TorchMemory(tuple(each.index_select(0, chunks) for each in self._before_chunks), starts)

    def _load_inputs(self, inputs: Encoded) -> None:
        """Copy the inputs to the device."""
        frame_index = inputs.frame_index or (None,) * len(self._shaped)
        for resident, each, index in zip(self._shaped, inputs.shaped, frame_index, strict=True):
            resident.load(each, index)
        self._flat_rows = self._flat.load(inputs.flat)
        self._loaded = inputs

    def _take(self, rows: Rows) -> tuple[Tensor, ...]:
        return tuple(each.take(rows) for each in self._shaped)


def _make_row(losses: Losses, norm: Tensor) -> Tensor:
    """A row of the table of gradient steps."""
    return torch.stack([norm, *(number.detach() for number in losses)])


def _is_split(model: ActorCritic) -> bool:
    """Whether actor and critic are MLPs without memory, which share no parameter."""
    return model.trunk is None and model.memory is None


def _can_stack(model: ActorCritic) -> bool:
    """Whether actor and critic are separate MLPs that read the same inputs, on an accelerator."""
    first, other = (cast(nn.Linear, net[0]) for net in (model.actor, model.critic))
    same = first.in_features == other.in_features == model.num_actor_flat and len(model.actor) > 1
    return _is_split(model) and same and first.weight.device.type != "cpu"


class StackedActorCritic:
    """Actor and critic in one pass, for accelerators: hidden layers of equal shapes are one batched product
    each.

    It computes what `ActorCritic.forward` computes, from the same memory.
    """

    def __init__(self, model: ActorCritic, adam: FlatAdam) -> None:
        *layers, self._actor_head = model.actor
        self._critic_head = model.critic[-1]
        self._layers: list[tuple[Tensor, Tensor] | nn.Module] = []
        for number, layer in enumerate(layers):
            if isinstance(layer, nn.Linear):
                weight, bias = (
                    adam.stack(f"actor.{number}.{part}", f"critic.{number}.{part}")
                    for part in ("weight", "bias")
                )
                self._layers.append((weight, bias))
            else:
                self._layers.append(layer)

    def __call__(
        self, inputs: Inputs, precision: torch.dtype = torch.float32, memory: TorchMemory | None = None
    ) -> Passed:
        flat, _ = inputs
        with torch.autocast(
            flat.device.type, precision, enabled=precision != torch.float32, cache_enabled=False
        ):
            x = flat.expand(2, *flat.shape)
            for layer in self._layers:
                if isinstance(layer, nn.Module):
                    x = layer(x)
                else:
                    weight, bias = layer
                    x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        for_actor, for_critic = x.float().unbind()
        return Passed(self._actor_head(for_actor), self._critic_head(for_critic).squeeze(-1), ())
