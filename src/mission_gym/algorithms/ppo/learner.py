"""PPO, in the order of its equations: values, advantages, clipped surrogate, early stop.

A block comes in with raw observations and rewards. The normaliser is frozen while it is learned from, and
takes it in afterwards; the scale of values takes in its targets before. The state before the update is kept
until it is over: a stop request puts it back, and so does a gradient that is not finite; then the block is
skipped. A block of an older policy is weighed by importance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mission_gym.algorithms.ppo.kernel import (
    APPROX_KL,
    CLIP_FRACTION,
    ENTROPY,
    GRAD_NORM,
    POLICY_LOSS,
    RATIO_ERROR,
    VALUE_LOSS,
    Kernel,
    Samples,
)
from mission_gym.algorithms.ppo.section import SettledPpo, StepSettings
from mission_gym.data import Array, Block, Leaves, UpdateStats, Weights
from mission_gym.errors import NotFiniteError, RunStateError
from mission_gym.learner.advantages import ValueScale, compute_gae, compute_importance
from mission_gym.learner.blocks import check_finite, flatten_obs, with_prefix
from mission_gym.learner.contract import Learner
from mission_gym.learner.minibatches import draw_rows, draw_segments
from mission_gym.policy import PolicySpec
from mission_gym.streams import generator

MOST_SKIPPED = 5  # updates in a row whose gradient was not finite: the last of them ends the run
_RECENT = 256  # updates whose gradient steps are remembered; an older segment counts as far as that


class _Before(NamedTuple):
    """The state before an update."""

    network: Any  # as its kernel keeps it
    rest: dict[str, Array]


class PpoLearner(Learner):
    """See `learner.contract.Learner`.

    section: its hyperparameters; docs/algorithms/ppo.md explains each. total_steps: of the run, over which
    schedules fall.
    """

    kernel: Kernel

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
        self.recent: list[int] = []  # gradient steps of the last updates, the newest first
        self.skipped = self.skipped_in_row = 0  # updates whose gradient was not finite
        self._before: _Before | None = None  # the last update
        self._behind: Weights | None = None  # of a checkpoint, until the first update
        self._weights: Weights | None = None  # as they are now, once somebody asked
        self._has_memory = bool(spec.state_shapes)
        self.value_scale = ValueScale() if normalize_returns else None

    def prime(self, obs: Leaves) -> None:
        super().prime(obs)
        self._weights = None

    def weights(self) -> Weights:
        if self._weights is None:
            self._weights = Weights(self.version, self.policy())
        return self._weights

    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Learn from a full block. None, with the state as before, if a stop was asked for."""
        start = time.perf_counter()
        check_finite(block, self.version)
        self._before, self._weights = _Before(self.kernel.keep(), self._rest()), None
        flat_raw, samples, values = self._samples(block)
        self.kernel.load_samples(samples)
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
            if self.kernel.reads_late and target_kl is None and epoch + 1 < self.section.n_epochs:
                continue
            tables += self.kernel.read(unread)
            unread = []
            if not np.isfinite([table[:, GRAD_NORM] for table in tables]).all():
                return self._skip(block, _cut(tables), settings, samples, values)
            if target_kl is not None and tables[-1].mean(axis=0)[APPROX_KL] > 1.5 * target_kl:
                break

        if self.encoder.normalizer is not None:
            self.encoder.normalizer.merge(flat_raw[block.valid.ravel()])
        self.skipped_in_row = 0
        return self._count(block, sum(map(len, tables)), tables, settings, samples, values)

    def _skip(
        self, block: Block, tables: list[Array], settings: StepSettings, samples: Samples, values: Array
    ) -> UpdateStats:
        """Go on without this block, as if it had not been learned from; NotFiniteError if that is common."""
        before = self._before
        self.undo()
        if self.skipped_in_row + 1 >= MOST_SKIPPED:
            cause = _name_cause(samples, values, tables[-1], self.version, self.skipped_in_row)
            raise NotFiniteError(cause)
        self._before = before
        self.skipped_in_row += 1
        self.skipped += 1
        with np.errstate(all="ignore"):  # means of what is not finite
            return self._count(block, 0, tables, settings, samples, values)

    def _count(
        self,
        block: Block,
        gradient_steps: int,
        tables: list[Array],
        settings: StepSettings,
        samples: Samples,
        values: Array,
    ) -> UpdateStats:
        """The block is done with: count it, and tell of it."""
        lag_metrics = self._lag_metrics(block, samples)
        self._weights = None
        self.version += 1
        self.step += block.num_steps * block.num_columns
        self.gradient_steps += gradient_steps
        self.recent = [gradient_steps, *self.recent][:_RECENT]
        return UpdateStats(gradient_steps, _metrics(tables, settings, samples, values, self) | lag_metrics)

    def draw_order(self, rng: np.random.Generator, block: Block) -> Array:
        """The minibatches of an epoch: of any rows, or of whole segments where the policy has a memory."""
        draw = draw_segments if self._has_memory else draw_rows
        return draw(rng, block.num_steps, block.num_columns, self.section.batch_size)

    def step_settings(self) -> StepSettings:
        """The numbers of the gradient steps at this step of the run."""
        return self.section.step_settings(self.step, self._total_steps)

    def undo(self) -> None:
        """Put everything back to the state before the last update."""
        assert self._before is not None, "an update comes first"
        self.kernel.put_back(self._before.network)
        self._load_rest(self._before.rest)

    def previous_weights(self) -> Weights | None:
        if self._before is None:
            return self._behind
        arrays = self.kernel.kept_parameters(self._before.network) | with_prefix(self._before.rest, "policy/")
        return Weights(self.version - 1, arrays)

    def load_previous_weights(self, arrays: dict[str, Array]) -> None:
        self._behind = Weights(self.version - 1, arrays)

    def _samples(self, block: Block) -> tuple[Array, Samples, Array]:
        """Values, advantages and old log-probabilities of a block, in one pass over the network."""
        num_steps, num_rows = block.reward.shape
        num = num_steps * num_rows
        obs, places = flatten_obs(block)
        inputs = self.encoder.encode(obs, places)
        action = block.action.reshape(num, -1)
        mask = None if block.mask is None else block.mask[:-1].reshape(num, -1)
        log_prob, value = self.kernel.evaluate(inputs, action, mask)

        scale = self.value_scale
        value = value.astype(np.float64) if scale is None else scale.expand(value)
        values = value[: num + num_rows].reshape(num_steps + 1, num_rows)
        ended = block.terminated | block.truncated
        next_value = values[1:].copy()
        for final, final_value in zip(block.finals, value[num + num_rows :], strict=True):
            next_value[final.t, final.column] = final_value
        next_value[block.terminated] = 0.0  # terminated wins if both flags are set

        reward, acted = block.reward.astype(np.float64), log_prob
        if self.kernel.is_coarse and (block.version != self.version).any():
            # Two policies are compared here, not two precisions.
            acted, _ = self.kernel.evaluate(inputs, action, mask, exact=True)
        importance = compute_importance(
            acted.reshape(num_steps, num_rows), block.log_prob, self.version - block.version
        )
        advantage, returns = compute_gae(
            reward, values[:-1], next_value, ended, self.section.gamma, self.section.gae_lambda, importance
        )
        value = value[:num]
        if scale is not None:
            self.kernel.rescale_values(*scale.merge(returns[block.valid]))
            value, returns = scale.shrink(value), scale.shrink(returns)
            advantage = advantage / scale.unit
        samples = Samples(
            inputs=inputs,
            mask=mask,
            action=action,
            log_prob=log_prob,
            advantage=advantage.astype(np.float32).ravel(),
            returns=returns.astype(np.float32).ravel(),
            value=value.astype(np.float32),
            weight=None if block.valid.all() else block.valid.ravel().astype(np.float32),
            importance=None if importance is None else importance.ravel(),
        )
        return self.encoder.flatten(obs, places)[:num], samples, values[:-1].ravel()

    def _lag_metrics(self, block: Block, samples: Samples) -> dict[str, float]:
        """How far the policy that collected the block was behind, before this update's version counts."""
        lag = int((self.version - block.version).max())
        importance = 1.0
        if samples.importance is not None:
            importance = float(samples.importance[block.valid.ravel()].mean())
        return {
            "train/lag": float(lag),
            "train/lag_gradient_steps": float(sum(self.recent[:lag])),
            "train/importance_mean": importance,
        }

    def adopt(self, arrays: dict[str, Array]) -> None:
        """The critic goes on to say the values that it said in the parent, whichever scale either has."""
        theirs = _read_scale(arrays)
        ours = theirs or ValueScale(var=1.0)  # a critic without a scale gives values themselves
        self.load_arrays(arrays | ours.arrays())
        if self.value_scale is None and theirs is not None:
            self.kernel.rescale_values(theirs.deviation, theirs.mean)
            self._weights = None

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | self._rest()

    def _rest(self) -> dict[str, Array]:
        """What it goes on from beside network and optimizer."""
        normalizer, rest = self.encoder.normalizer, dict[str, Array]()
        if normalizer is not None:
            rest = {f"policy/{name}": array for name, array in normalizer.arrays().items()}
        if self.value_scale is not None:
            rest |= self.value_scale.arrays()
        rest["skipped"] = np.array([self.skipped, self.skipped_in_row], np.int64)
        counters = (self.version, self.step, self.gradient_steps, *self.recent)
        return rest | {"counters": np.array(counters, np.int64)}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        if self.value_scale is not None and "value_scale" not in arrays:
            raise RunStateError(
                "the checkpoint is of a version that divided rewards by the deviation of returns, so its"
                " run can't go on as it was; `mission-gym branch` takes it over with its values [resume]"
            )
        super().load_arrays(arrays)
        self._load_rest(arrays)

    def _load_rest(self, arrays: dict[str, Array]) -> None:
        self._before = self._behind = self._weights = None
        if self.encoder.normalizer is not None:
            self.encoder.normalizer.load(with_prefix(arrays, "policy/"))
        if self.value_scale is not None:
            self.value_scale.load(arrays)
        self.version, self.step, self.gradient_steps = (int(count) for count in arrays["counters"][:3])
        self.recent = [int(steps) for steps in arrays["counters"][3:]]
        # Runs of before it was counted have skipped nothing.
        self.skipped, self.skipped_in_row = (int(count) for count in arrays.get("skipped", (0, 0)))


def _cut(tables: list[Array]) -> list[Array]:
    """Up to the first that is not finite: what comes behind it was made without need."""
    bad = next(n for n, table in enumerate(tables) if not np.isfinite(table[:, GRAD_NORM]).all())
    return tables[: bad + 1]


def _read_scale(arrays: dict[str, Array]) -> ValueScale | None:
    """How the values of a critic are read, by the arrays of its learner; None where they are its outputs."""
    if "value_scale" in arrays:
        scale = ValueScale()
        scale.load(arrays)
        return scale
    if "return_scale.moments" in arrays:  # of versions that divided rewards by the deviation of returns
        return ValueScale(var=float(arrays["return_scale.moments"][2]) + 1e-8)
    return None


def _name_cause(samples: Samples, values: Array, table: Array, update: int, skipped: int) -> str:
    tensors = {
        "network input": samples.inputs.flat,
        "value": values,
        "advantage": samples.advantage,
        "old log-probability": samples.log_prob,
    }
    named = [name for name, array in tensors.items() if not np.isfinite(array).all()]
    columns = {"policy loss": POLICY_LOSS, "value loss": VALUE_LOSS, "entropy": ENTROPY}
    named += [name for name, column in columns.items() if not np.isfinite(table[:, column]).all()]
    norm, cause = table[:, GRAD_NORM].max(), (named or ["gradient"])[0]
    return (
        f"gradient norm is {norm} in update {update} (not finite: {cause}), after {skipped} skipped for the"
        " same; the weights are as before them. Lower learning_rate, or set normalize_obs and"
        " normalize_returns, then resume or branch"
    )


def _metrics(
    tables: list[Array], settings: StepSettings, samples: Samples, values: Array, learner: PpoLearner
) -> dict[str, float]:
    weight = np.ones(len(values)) if samples.weight is None else samples.weight
    returns, predicted = samples.returns[weight > 0], samples.value[weight > 0].astype(np.float64)
    spread = float(returns.var())
    explained = 1.0 - float((returns - predicted).var()) / spread if spread > 0 else float("nan")

    means = [table.mean(axis=0) for table in tables]
    policy_loss, value_loss, entropy, clip_fraction = (
        float(np.mean([each[column] for each in means]))
        for column in (POLICY_LOSS, VALUE_LOSS, ENTROPY, CLIP_FRACTION)
    )
    metrics = {
        "train/approx_kl": float(means[-1][APPROX_KL]),
        "train/clip_fraction": clip_fraction,
        "train/clip_range": settings.clip_range,
        "train/entropy_loss": -entropy,
        "train/explained_variance": explained,
        "train/grad_norm": float(np.mean([table[:, GRAD_NORM].max() for table in tables])),
        "train/learning_rate": settings.learning_rate,
        "train/loss": policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy,
        "train/n_updates": float(learner.version),
        "train/epochs_made": float(len(tables)),
        "train/policy_gradient_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/first_kl": float(tables[0][0, APPROX_KL]),
        "train/first_ratio_error": float(tables[0][0, RATIO_ERROR]),
        "train/value_mean": float(values[weight > 0].mean()),
        "train/skipped_updates": float(learner.skipped),
    }
    if learner.value_scale is not None:
        metrics["train/value_scale"] = learner.value_scale.deviation
        metrics["train/value_offset"] = learner.value_scale.mean
    log_std = learner.weights().arrays.get("log_std")
    if log_std is not None:
        metrics["train/std"] = float(np.exp(log_std).mean())
    return metrics
