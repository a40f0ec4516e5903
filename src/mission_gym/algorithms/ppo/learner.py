"""PPO, in the order of its equations: values, advantages, clipped surrogate, early stop.

A block arrives with raw observations and rewards. The normaliser is frozen during its update and adds it
afterwards; the scale of values adds its targets before. The state before the update is kept until it is over:
a stop request restores it, and so does a gradient that is not finite, in which case the block is skipped. A
block of an older policy is weighted by importance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mission_gym.algorithms.ppo.kernel import (
    APPROX_KL,
    CLIP_FRACTION,
    COLUMNS,
    ENTROPY,
    GRAD_NORM,
    LOSS,
    POLICY_LOSS,
    RATIO_ERROR,
    VALUE_LOSS,
    Kernel,
    Samples,
)
from mission_gym.algorithms.ppo.section import SettledPpo, StepSettings
from mission_gym.data import Array, Block, Leaves, UpdateStats, Weights
from mission_gym.errors import NotFiniteError
from mission_gym.learner.advantages import ValueScale, compute_gae, compute_importance
from mission_gym.learner.blocks import (
    SequenceMemory,
    check_finite,
    draw_chunks,
    draw_rows,
    flatten_obs,
    read_memory,
    with_prefix,
)
from mission_gym.learner.contract import Learner
from mission_gym.policy import PolicySpec
from mission_gym.streams import generator

MOST_SKIPPED = 5  # consecutive updates with a gradient that is not finite; the last of them ends the run
_RECENT = 256  # updates whose gradient steps are remembered; a longer lag counts as this one


class _Before(NamedTuple):
    """The state before an update."""

    network: Any  # a snapshot of the kernel
    rest: dict[str, Array]


class _Batch(NamedTuple):
    """A block prepared for an update."""

    samples: Samples
    flat: Array  # flat observations before normalisation, [N, F]
    values: Array  # in the reward's units, [N]
    drift: float | None  # of the memory; None without memory


class PpoLearner(Learner):
    """See `learner.contract.Learner`.

    section: its hyperparameters, explained in docs/algorithms/ppo.md. total_steps: of the run; schedules
    reach their end there.
    """

    kernel: Kernel
    section: SettledPpo

    def __init__(
        self,
        kernel: Kernel,
        spec: PolicySpec,
        section: SettledPpo,
        *,
        total_steps: int,
        seed: int,
        normalize_returns: bool,
    ) -> None:
        super().__init__(spec, seed)
        self.kernel = kernel
        self.section = section
        self._total_steps = total_steps
        self.recent: list[int] = []  # gradient steps of the last updates, newest first
        self.skipped = self.skipped_in_row = 0  # updates with a gradient that was not finite
        self._before: _Before | None = None  # the last update
        self._previous_weights: Weights | None = None  # from a checkpoint, until the first update
        self._weights: Weights | None = None  # a cache of the present ones
        self.value_scale = ValueScale() if normalize_returns else None
        self._memory: Leaves = ()  # after the last block, as the learner computed it

    def prime(self, obs: Leaves) -> None:
        super().prime(obs)
        self._weights = None

    def weights(self) -> Weights:
        if self._weights is None:
            self._weights = Weights(self.version, self.policy())
        return self._weights

    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Learn from a full block; None, with the state before, if stopped."""
        start = time.perf_counter()
        check_finite(block, self.version)
        self._before, self._weights = _Before(self.kernel.snapshot(), self._rest()), None
        batch = self._prepare(block)
        self.kernel.load_samples(batch.samples)
        self.clock.add("values", time.perf_counter() - start)
        settings = self.step_settings()
        rng = generator(self.seed, "minibatches", self.version)
        target_kl = self.section.target_kl
        tables: list[Array] = []  # the statistics of each epoch
        unread: list[Any] = []
        for epoch in range(self.section.n_epochs):
            unread.append(self.kernel.epoch(self.draw_order(rng, block), settings, stop))
            if unread[-1] is None:
                self.undo()
                return None
            if self.kernel.defers_stats and target_kl is None and epoch + 1 < self.section.n_epochs:
                continue
            tables += self.kernel.read(unread)
            unread = []
            if not np.isfinite([table[:, GRAD_NORM] for table in tables]).all():
                return self._skip(block, _cut_at_failure(tables), settings, batch)
            if target_kl is not None and tables[-1].mean(axis=0)[APPROX_KL] > 1.5 * target_kl:
                break

        if self.encoder.normalizer is not None:
            self.encoder.normalizer.merge(batch.flat[block.valid.ravel()])
        self.skipped_in_row = 0
        return self._finish(block, sum(map(len, tables)), tables, settings, batch)

    def _skip(self, block: Block, tables: list[Array], settings: StepSettings, batch: _Batch) -> UpdateStats:
        """Continue without this block; NotFiniteError after several in a row."""
        before = self._before
        self.undo()
        if self.skipped_in_row + 1 >= MOST_SKIPPED:
            raise NotFiniteError(_explain_failure(batch, tables[-1], self.version, self.skipped_in_row))
        self._before = before
        self.skipped_in_row += 1
        self.skipped += 1
        with np.errstate(all="ignore"):  # means of numbers that are not finite
            return self._finish(block, 0, tables, settings, batch)

    def _finish(
        self, block: Block, gradient_steps: int, tables: list[Array], settings: StepSettings, batch: _Batch
    ) -> UpdateStats:
        """Count the update, and report it."""
        lag_metrics = self._lag_metrics(block, batch.samples)
        self._weights = None
        self.version += 1
        self.step += block.reward.size
        self.gradient_steps += gradient_steps
        self.recent = [gradient_steps, *self.recent][:_RECENT]
        return UpdateStats(gradient_steps, self._metrics(tables, settings, batch) | lag_metrics)

    def draw_order(self, rng: np.random.Generator, block: Block) -> Array:
        """The minibatches of an epoch: of valid rows, or of whole chunks for a policy with memory."""
        if self.spec.has_memory:
            return draw_chunks(rng, block.valid, self.section.bptt_steps, self.section.batch_size)
        return draw_rows(rng, block.valid, self.section.batch_size)

    def step_settings(self) -> StepSettings:
        """The settings of gradient steps at this step of the run."""
        return self.section.step_settings(self.step, self._total_steps)

    def undo(self) -> None:
        """Restore the state before the last update."""
        assert self._before is not None, "an update comes first"
        self.kernel.restore(self._before.network)
        self._load_rest(self._before.rest)

    def previous_weights(self) -> Weights | None:
        if self._before is None:
            return self._previous_weights
        acting = self.kernel.snapshot_acting(self._before.network)
        return Weights(self.version - 1, acting | with_prefix(self._before.rest, "policy/"))

    def load_previous_weights(self, weights: Weights) -> None:
        self._previous_weights = weights

    def _prepare(self, block: Block) -> _Batch:
        """Values, advantages and old log-probabilities of a block, in one pass over the network."""
        num_steps, num_columns = block.reward.shape
        num = num_steps * num_columns
        obs, frame_index = flatten_obs(block)
        inputs = self.encoder.encode(obs, frame_index)
        memory = read_memory(block, self.section.bptt_steps)
        action = block.action.reshape(num, -1)
        mask = None if block.mask is None else block.mask[:-1].reshape(num, -1)
        log_prob, output = self.kernel.evaluate(inputs, action, mask, memory)

        scale = self.value_scale
        value = output.astype(np.float64) if scale is None else scale.denormalize(output)
        values = value[: num + num_columns].reshape(num_steps + 1, num_columns)
        ended = block.terminated | block.truncated
        next_value = values[1:].copy()
        for final, final_value in zip(block.finals, value[num + num_columns :], strict=True):
            next_value[final.t, final.column] = final_value
        next_value[block.terminated] = 0.0  # terminated wins if both flags are set

        reward, acted = block.reward.astype(np.float64), log_prob
        if self.kernel.is_low_precision and (block.version != self.version).any():
            # Importance compares two policies, not two precisions.
            acted, _ = self.kernel.evaluate(inputs, action, mask, memory, exact=True)
        drift = None if memory is None else self._measure_drift(block, memory)
        importance = compute_importance(
            acted.reshape(num_steps, num_columns), block.log_prob, self.version - block.version
        )
        advantage, returns = compute_gae(
            reward, values[:-1], next_value, ended, self.section.gamma, self.section.gae_lambda, importance
        )
        old_value = output[:num]
        if scale is not None:
            factor, shift = scale.merge(returns[block.valid])
            self.kernel.rescale_values(factor, shift)
            old_value = factor * old_value + shift  # the critic's output from now on
            returns, advantage = scale.normalize(returns), advantage / scale.unit
        samples = Samples(
            inputs=inputs,
            mask=mask,
            action=action,
            log_prob=log_prob,
            advantage=advantage.astype(np.float32).ravel(),
            returns=returns.astype(np.float32).ravel(),
            value=old_value.astype(np.float32),
            weight=None if block.valid.all() else block.valid.ravel().astype(np.float32),
            importance=None if importance is None else importance.ravel(),
            memory=memory,
        )
        flat = self.encoder.flatten(obs, frame_index)[:num]
        return _Batch(samples, flat, values[:-1].ravel(), drift)

    def _measure_drift(self, block: Block, memory: SequenceMemory) -> float:
        """The mean distance of a unit between the memory with which this block began and the learner's own at
        the end of the block before. With overlap, older weights than the learner's computed it."""
        own, self._memory = self._memory, memory.after_block
        if [each.shape for each in own] != [each.shape for each in block.state]:
            return 0.0  # the first block
        return float(np.mean([np.abs(a - b).mean() for a, b in zip(own, block.state, strict=True)]))

    def _lag_metrics(self, block: Block, samples: Samples) -> dict[str, float]:
        """How old the policy that collected the block was when this update started."""
        lag = int((self.version - block.version).max())
        importance = 1.0
        if samples.importance is not None:
            importance = float(samples.importance[block.valid.ravel()].mean())
        return {
            "train/lag": float(lag),
            "train/lag_gradient_steps": float(sum(self.recent[:lag])),
            "train/importance_mean": importance,
        }

    def _metrics(self, tables: list[Array], settings: StepSettings, batch: _Batch) -> dict[str, float]:
        samples, values = batch.samples, batch.values
        weight = np.ones(len(values)) if samples.weight is None else samples.weight
        returns, predicted = samples.returns[weight > 0], values[weight > 0]
        if self.value_scale is not None:
            predicted = self.value_scale.normalize(predicted)
        spread = float(returns.var())
        explained = 1.0 - float((returns - predicted).var()) / spread if spread > 0 else float("nan")

        epochs = np.array([table.mean(axis=0) for table in tables])
        means = epochs.mean(axis=0)
        metrics = {
            "train/approx_kl": float(epochs[-1][APPROX_KL]),
            "train/clip_fraction": float(means[CLIP_FRACTION]),
            "train/clip_range": settings.clip_range,
            "train/entropy_loss": -float(means[ENTROPY]),
            "train/explained_variance": explained,
            "train/grad_norm": float(np.mean([table[:, GRAD_NORM].max() for table in tables])),
            "train/learning_rate": settings.learning_rate,
            "train/loss": float(means[LOSS]),
            "train/n_updates": float(self.version),
            "train/epochs_made": float(len(tables)),
            "train/policy_gradient_loss": float(means[POLICY_LOSS]),
            "train/value_loss": float(means[VALUE_LOSS]),
            "train/first_kl": float(tables[0][0, APPROX_KL]),
            "train/first_ratio_error": float(tables[0][0, RATIO_ERROR]),
            "train/value_mean": float(values[weight > 0].mean()),
            "train/skipped_updates": float(self.skipped),
        }
        added = zip(self.kernel.columns[len(COLUMNS) :], means[len(COLUMNS) :].tolist(), strict=True)
        metrics |= {f"train/loss_{name}": mean for name, mean in added}
        if self.value_scale is not None:
            metrics["train/value_scale"] = self.value_scale.std
            metrics["train/value_offset"] = self.value_scale.mean
        if batch.drift is not None:
            metrics["train/memory_drift"] = batch.drift
        log_std = self.weights().arrays.get("log_std")
        if log_std is not None:
            metrics["train/std"] = float(np.exp(log_std).mean())
        return metrics

    def load_from_parent(self, arrays: dict[str, Array]) -> None:
        """The critic's values stay those of the parent, whichever scale either has."""
        parent: ValueScale | None = None
        if "value_scale" in arrays:
            parent = ValueScale()
            parent.load(arrays)
        start = parent or ValueScale(var=1.0)  # without a scale, outputs are values
        self.load_arrays(arrays | start.arrays())
        self._memory = ()  # new episodes begin
        if self.value_scale is None and parent is not None:
            self.kernel.rescale_values(parent.std, parent.mean)
            self._weights = None

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | self._rest()

    def _rest(self) -> dict[str, Array]:
        """The state in addition to network and optimizer."""
        normalizer, rest = self.encoder.normalizer, dict[str, Array]()
        if normalizer is not None:
            rest = {f"policy/{name}": array for name, array in normalizer.arrays().items()}
        if self.value_scale is not None:
            rest |= self.value_scale.arrays()
        rest |= {f"learner_memory/{number}": array for number, array in enumerate(self._memory)}
        rest["skipped"] = np.array([self.skipped, self.skipped_in_row], np.int64)
        counters = (self.version, self.step, self.gradient_steps, *self.recent)
        return rest | {"counters": np.array(counters, np.int64)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        super().load_arrays(arrays)
        self._load_rest(arrays)

    def _load_rest(self, arrays: dict[str, Array]) -> None:
        self._before = self._previous_weights = self._weights = None
        if self.encoder.normalizer is not None:
            self.encoder.normalizer.load(with_prefix(arrays, "policy/"))
        if self.value_scale is not None:
            self.value_scale.load(arrays)
        self.version, self.step, self.gradient_steps = (int(count) for count in arrays["counters"][:3])
        self.recent = [int(steps) for steps in arrays["counters"][3:]]
        self.skipped, self.skipped_in_row = (int(count) for count in arrays["skipped"])
        memory = with_prefix(arrays, "learner_memory/")  # in any order
        self._memory = tuple(memory[f"{number}"] for number in range(len(memory)))


def _cut_at_failure(tables: list[Array]) -> list[Array]:
    """The epochs up to the first one that is not finite."""
    bad = next(n for n, table in enumerate(tables) if not np.isfinite(table[:, GRAD_NORM]).all())
    return tables[: bad + 1]


def _explain_failure(batch: _Batch, table: Array, update: int, skipped: int) -> str:
    samples = batch.samples
    tensors = {
        "network input": samples.inputs.flat,
        "value": batch.values,
        "advantage": samples.advantage,
        "old log-probability": samples.log_prob,
    }
    named = [name for name, array in tensors.items() if not np.isfinite(array).all()]
    for column in (POLICY_LOSS, VALUE_LOSS, ENTROPY):
        if not np.isfinite(table[:, column]).all():
            named.append(COLUMNS[column])
    norm, cause = table[:, GRAD_NORM].max(), (named or ["gradient"])[0]
    return (
        f"gradient norm is {norm} in update {update} (not finite: {cause}), after {skipped} updates that were"
        " skipped for the same reason; the weights are those before them. Lower learning_rate, or set"
        " normalize_obs and normalize_returns, then resume or branch"
    )
