"""The analytic kernel for MLPs on the CPU: forward, hand-written backward and Adam on flat vectors.

Small networks are bound by call overhead, and this makes a tenth of autograd's calls. With several threads,
each learns from a fixed part of every minibatch, and their gradients are added in order. It agrees with the
torch kernel within rounding; bits depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np

from mission_gym.data import Array
from mission_gym.learner.analytic import Net, Replica, Rows, count_parameters, step_adam
from mission_gym.learner.kernel import (
    ADAM_EPSILON,
    ADVANTAGE_FLOOR,
    EpochStats,
    Samples,
    StepSettings,
    mean_stats,
)
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.team import Team

_EVALUATE_ROWS = 2048  # rows per pass over a block: activations stay in the cache

Result = TypeVar("Result")


def _normalize(advantage: Array, weight: Array) -> Array:
    centered: Array = advantage - weight.dot(advantage)
    deviation = math.sqrt(float(weight.dot(centered * centered)))
    centered *= np.float32(1.0 / max(deviation, ADVANTAGE_FLOOR))
    return centered


def _learn(rows: Rows, settings: StepSettings, replica: Replica) -> tuple[float, ...]:
    return replica.learn(rows, settings)


class NumpyKernel:
    """See `kernel.Kernel`. Begins with the arrays it is given: the same draw as the torch form's."""

    def __init__(self, spec: PolicySpec, num_flat: int, initial: dict[str, Array], threads: int = 1) -> None:
        size = count_parameters(spec, num_flat)
        self.flat = np.zeros(size, np.float32)
        self.first, self.second = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self.num_steps = 0
        self.net, self.net_first, self.net_second = (
            Net(flat, spec, num_flat) for flat in (self.flat, self.first, self.second)
        )
        self.replicas = [Replica(self.net, spec, num_flat) for _ in range(threads)]
        self.grad = self.replicas[0].grad  # where all gradients are added up
        self._team = Team(threads - 1, "replica")
        self.load_parameters(initial)

    def _share(self, tasks: Iterable[Callable[[Replica], Result]]) -> list[Result]:
        """Do the tasks, task i by replica i modulo their number; results in the order of the tasks."""
        shares: list[list[Callable[[Replica], Result]]] = [[] for _ in self.replicas]
        for number, task in enumerate(tasks):
            shares[number % len(shares)].append(task)

        def work(place: int) -> list[Result]:
            return [task(self.replicas[place]) for task in shares[place]]

        done = self._team.run([partial(work, place) for place in range(len(shares))])
        return [results[turn] for turn in range(len(done[0])) for results in done if turn < len(results)]

    def evaluate(self, inputs: Encoded, action: Array, mask: Array | None) -> tuple[Array, Array]:
        def pass_over(start: int) -> Callable[[Replica], tuple[Array, Array]]:
            rows = slice(start, start + _EVALUATE_ROWS)
            masked = None if mask is None else mask[rows]
            return lambda replica: replica.evaluate(inputs.flat[rows], action[rows], masked)

        passes = self._share(pass_over(start) for start in range(0, len(inputs.flat), _EVALUATE_ROWS))
        log_probs, values = zip(*passes, strict=True)
        return np.concatenate(log_probs), np.concatenate(values)

    def load_samples(self, samples: Samples) -> None:
        self._samples = samples

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> EpochStats | None:
        # One gather for the epoch; minibatches are slices of it.
        samples, index = self._samples, order.ravel()
        weights = np.ones(len(index), np.float32) if samples.weight is None else samples.weight.take(index)
        gathered = Rows(
            flat=samples.inputs.flat.take(index, axis=0),
            action=samples.action.take(index, axis=0),
            mask=None if samples.mask is None else samples.mask.take(index, axis=0),
            weight=weights,
            log_prob=samples.log_prob.take(index),
            advantage=samples.advantage.take(index),
            returns=samples.returns.take(index),
        )
        importance = None if samples.importance is None else samples.importance.take(index)
        stats = []
        size = order.shape[1]
        for start in range(0, len(index), size):
            if stop():
                return None
            rows = gathered.part(slice(start, start + size))
            weight = rows.weight * np.float32(1.0 / max(float(rows.weight.sum()), 1.0))
            advantage = rows.advantage
            if settings.normalize_advantage:
                advantage = _normalize(advantage, weight)
            if importance is not None:
                advantage = advantage * importance[start : start + size]
            stats.append(self._step(rows._replace(weight=weight, advantage=advantage), settings))
        return mean_stats(np.array(stats, np.float64))

    def _step(self, rows: Rows, settings: StepSettings) -> tuple[float, ...]:
        """One gradient step; returns the columns of `mean_stats`."""
        if len(self.replicas) == 1:
            *sums, worst = self.replicas[0].learn(rows, settings)
        else:
            cuts = np.linspace(0, len(rows.weight), len(self.replicas) + 1).astype(int)
            parts = [rows.part(slice(first, last)) for first, last in pairwise(cuts)]
            learned = self._share(partial(_learn, part, settings) for part in parts)
            for replica in self.replicas[1:]:
                self.grad += replica.grad
            table = np.array(learned)
            sums, worst = table[:, :-1].sum(axis=0).tolist(), float(table[:, -1].max())
        norm = math.sqrt(float(self.grad.dot(self.grad)))
        if math.isfinite(norm):
            clip = min(settings.max_grad_norm / (norm + 1e-6), 1.0)
            self.num_steps += 1
            vectors = (self.flat, self.grad, self.first, self.second)
            step_adam(vectors, self.num_steps, settings.learning_rate, clip, ADAM_EPSILON)
        return *sums, worst, norm

    def parameters(self) -> dict[str, Array]:
        return {name: view.copy() for name, view in self.net.named().items()}

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        for name, view in self.net.named().items():
            view[:] = arrays[name]

    def optimizer(self) -> dict[str, Array]:
        arrays = {f"mean.{name}": view.copy() for name, view in self.net_first.named().items()}
        arrays |= {f"square.{name}": view.copy() for name, view in self.net_second.named().items()}
        return arrays | {"step": np.array(self.num_steps, np.float32)}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        for prefix, net in (("mean", self.net_first), ("square", self.net_second)):
            for name, view in net.named().items():
                view[:] = arrays[f"{prefix}.{name}"]
        self.num_steps = int(arrays["step"])
