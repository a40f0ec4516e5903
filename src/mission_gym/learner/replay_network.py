"""The torch kernels of off-policy algorithms: transitions on a device, and gradient steps on them.

The transitions of several gradient steps are copied to the device at once, and their statistics are fetched
at once. A step that decides nothing on the host can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mission_gym.learner.off_policy_learner import StepStats, Transitions
from mission_gym.learner.torch_network import TorchNetwork
from mission_gym.policy.transfer import fetch, send
from mission_gym.policy.trunks import Inputs


class ReplayMinibatch(NamedTuple):
    """The tensors of one gradient step."""

    columns: dict[str, Tensor]  # the numbers of `Transitions` that are there, each [B, width]
    inputs: Inputs
    next_inputs: Inputs

    def number(self, name: str) -> Tensor:
        """A column of one number per transition [B]."""
        return self.columns[name].squeeze(1)

    @property
    def weight(self) -> Tensor | None:
        return self.number("weight") if "weight" in self.columns else None


class ReplayNetwork(TorchNetwork):
    """Networks that learn from replayed transitions."""

    _columns: tuple[tuple[str, int, int], ...] = ()  # name, start and end in the table of numbers
    _fixed: Tensor | None = None  # numbers that captured steps read

    def load(self, batch: Transitions) -> list[Tensor]:
        """The transitions on the device: one table of their numbers, then the inputs of both observations."""
        fields = {
            "action": batch.action,
            "reward": batch.reward,
            "discount": batch.discount,
            "next_mask": batch.next_mask,
            "weight": batch.weight,
        }
        given = {name: array for name, array in fields.items() if array is not None}
        widths = [1 if array.ndim == 1 else array.shape[1] for array in given.values()]
        ends = np.cumsum(widths).tolist()
        self._columns = tuple(zip(given, [0, *ends[:-1]], ends, strict=True))
        table = np.column_stack(list(given.values())).astype(np.float32, copy=False)
        inputs = (each for end in (batch.inputs, batch.next_inputs) for each in (end.flat, *end.shaped))
        return [send(each, self.device) for each in (table, *inputs)]

    def unpack(self, tensors: Sequence[Tensor]) -> ReplayMinibatch:
        """The parts of the tensors of `load`."""
        rows, *ends = tensors
        half = len(ends) // 2
        return ReplayMinibatch(
            {name: rows[:, start:end] for name, start, end in self._columns},
            (ends[0], tuple(ends[1:half])),
            (ends[half], tuple(ends[half + 1 :])),
        )

    def load_numbers(self, *numbers: float) -> Sequence[float | Tensor]:
        """Settings that change between steps: as they are, or as tensors that a captured step reads again."""
        if self.record is None:
            return numbers
        if self._fixed is None:
            self._fixed = torch.zeros(len(numbers), device=self.device)
        self._fixed.copy_(send(np.array(numbers, np.float32), self.device))
        return self._fixed.unbind()

    def run_steps(
        self,
        inputs: Sequence[Sequence[Tensor]],
        step: Callable[..., Tensor],
        key: Hashable,
        num_stats: int,
        norm: int,
    ) -> StepStats:
        """Call the step once per minibatch, captured if possible; it returns statistics, then errors [B].

        inputs: for each argument, its tensors by minibatch. key: values that the step depends on, other than
        the shapes of its inputs. norm: the column of the gradient norm, not finite if the step was skipped.
        """
        first = [each[0] for each in inputs]
        shapes = tuple((each.shape, each.dtype) for each in first)
        run = self.capture((shapes, self._columns, key), step, first)
        rows = torch.empty(len(inputs[0]), num_stats + len(first[0]), device=self.device)
        for row, *minibatch in zip(rows, *inputs, strict=True):
            row.copy_(run(*minibatch))
        array = fetch(rows)
        table = array[:, :num_stats].astype(np.float64)
        num_skipped = int(np.count_nonzero(~np.isfinite(table[:, norm])))
        return StepStats(table, array[:, num_stats:].reshape(-1), num_skipped)
