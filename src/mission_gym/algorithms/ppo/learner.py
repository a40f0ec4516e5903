"""PPO, in the order of its equations: values, advantages, clipped surrogate, early stop.

A block comes in with raw observations and rewards. Statistics (normaliser, return scale) are frozen
while it is learned from and merged afterwards. The state before the update is kept until it is over:
a stop request or a non-finite number puts it back. A block of an older policy is weighed by importance.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from mission_gym.algorithms.ppo.kernel import EpochStats, Kernel, Samples
from mission_gym.algorithms.ppo.section import SettledPpo, StepSettings
from mission_gym.clock import PhaseClock
from mission_gym.data import Array, Block, Leaves, UpdateStats, Weights
from mission_gym.errors import NotFiniteError
from mission_gym.learner.advantages import ReturnScale, compute_gae, compute_importance
from mission_gym.learner.blocks import check_finite, prime_encoder, strip
from mission_gym.learner.minibatches import draw_rows, draw_segments
from mission_gym.policy import Encoder, PolicySpec
from mission_gym.streams import generator

_RECENT = 256  # updates whose gradient steps are remembered; an older segment counts as far as that


class PpoLearner:
    """See `learner.contract.Learner`.

    section: its hyperparameters; docs/algorithms/ppo.md explains each. total_steps: of the run, over which
    schedules fall.
    """

    keeps_updates = False
    has_extras = False

    def __init__(
        self,
        kernel: Kernel,
        spec: PolicySpec,
        section: SettledPpo,
        *,
        total_steps: int,
        num_envs: int,
        seed: int,
        normalize_returns: bool,
    ) -> None:
        self.kernel = kernel
        self.section = section
        self.seed = seed
        self._total_steps = total_steps
        self.clock = PhaseClock("learner")
        self.version = 0  # updates made
        self.step = 0  # transitions learned from
        self.gradient_steps = 0
        self.recent: list[int] = []  # gradient steps of the last updates, the newest first
        self._before: dict[str, Array] | None = None  # the last update
        self._has_memory = bool(spec.state_shapes)
        self.encoder = Encoder(spec.leaves, spec.normalize_obs)
        self.return_scale = ReturnScale(num_envs, section.gamma) if normalize_returns else None

    def prime(self, obs: Leaves) -> None:
        """Start the observation statistics from the leaves [N, ...] of one short block."""
        prime_encoder(self.encoder, obs)

    @property
    def notes(self) -> list[str]:
        return self.kernel.notes

    def weights(self) -> Weights:
        normalizer = self.encoder.normalizer
        return Weights(
            self.version, self.kernel.parameters() | (normalizer.arrays() if normalizer is not None else {})
        )

    def update(self, block: Block, stop: Callable[[], bool] = lambda: False) -> UpdateStats | None:
        """Learn from a full block. None, with the state as before, if a stop was asked for."""
        start = time.perf_counter()
        check_finite(block, self.version)
        self._before = self.arrays()
        num_steps, num_rows = block.reward.shape
        flat_raw, samples, values = self._samples(block)
        self.kernel.load_samples(samples)
        self.clock.add("values", time.perf_counter() - start)
        settings = self.step_settings()
        rng = generator(self.seed, "minibatches", self.version)
        epochs: list[EpochStats] = []
        for _ in range(self.section.n_epochs):
            stats = self.kernel.epoch(self.draw_order(rng, block), settings, stop)
            if stats is None:
                self.undo()
                return None
            if not np.isfinite(stats.grad_norm):
                self.undo()
                raise NotFiniteError(_name_cause(samples, values, stats, self.version))
            epochs.append(stats)
            if self.section.target_kl is not None and stats.approx_kl > 1.5 * self.section.target_kl:
                break

        if self.encoder.normalizer is not None:
            self.encoder.normalizer.merge(flat_raw[block.valid.ravel()])
        gradient_steps = sum(stats.gradient_steps for stats in epochs)
        lag_metrics = self._lag_metrics(block, samples)
        self.version += 1
        self.step += num_steps * num_rows
        self.gradient_steps += gradient_steps
        self.recent = [gradient_steps, *self.recent][:_RECENT]
        return UpdateStats(gradient_steps, _metrics(epochs, settings, samples, values, self) | lag_metrics)

    def draw_order(self, rng: np.random.Generator, block: Block) -> Array:
        """The minibatches of an epoch: of any rows, or of whole segments where the policy has a memory."""
        draw = draw_segments if self._has_memory else draw_rows
        return draw(rng, block.num_steps, block.num_rows, self.section.batch_size)

    def step_settings(self) -> StepSettings:
        """The numbers of the gradient steps at this step of the run."""
        return self.section.step_settings(self.step, self._total_steps)

    def undo(self) -> None:
        """Put everything back to the state before the last update."""
        assert self._before is not None, "an update comes first"
        self.load_arrays(self._before)

    def behind(self) -> Weights | None:
        """The weights before the last update, None where they are not known."""
        if self._before is None:
            return None
        return Weights(self.version - 1, strip(self._before, "policy/"))

    def load_behind(self, arrays: dict[str, Array]) -> None:
        """Take the arrays of `behind` back, where a checkpoint kept them."""
        self._before = {f"policy/{name}": array for name, array in arrays.items()}

    def _samples(self, block: Block) -> tuple[Array, Samples, Array]:
        """Values, advantages and old log-probabilities of a block, in one pass over the network."""
        num_steps, num_rows = block.reward.shape
        num = num_steps * num_rows
        flat_obs = tuple(leaf.reshape((num + num_rows, *leaf.shape[2:])) for leaf in block.obs)
        if block.finals:
            final_obs = zip(*(final.obs for final in block.finals), strict=True)
            finals = tuple(np.stack(leaf) for leaf in final_obs)
            flat_obs = tuple(np.concatenate(pair) for pair in zip(flat_obs, finals, strict=True))
        inputs = self.encoder.encode(flat_obs)
        action = block.action.reshape(num, -1)
        mask = None if block.mask is None else block.mask[:-1].reshape(num, -1)
        log_prob, value = self.kernel.evaluate(inputs, action, mask)

        values = value[: num + num_rows].reshape(num_steps + 1, num_rows).astype(np.float64)
        ended = block.terminated | block.truncated
        next_value = values[1:].copy()
        for final, final_value in zip(block.finals, value[num + num_rows :], strict=True):
            next_value[final.t, final.column] = final_value
        next_value[block.terminated] = 0.0  # terminated wins if both flags are set

        reward = block.reward.astype(np.float64)
        if self.return_scale is not None:
            reward = self.return_scale.scale(reward, ended, block.valid, block.env_ids)
        importance = compute_importance(
            log_prob.reshape(num_steps, num_rows), block.log_prob, self.version - block.version
        )
        advantage, returns = compute_gae(
            reward, values[:-1], next_value, ended, self.section.gamma, self.section.gae_lambda, importance
        )
        samples = Samples(
            inputs=inputs,
            mask=mask,
            action=action,
            log_prob=log_prob,
            advantage=advantage.ravel(),
            returns=returns.ravel(),
            value=value[:num],
            weight=None if block.valid.all() else block.valid.ravel().astype(np.float32),
            importance=None if importance is None else importance.ravel(),
        )
        return self.encoder.flatten(tuple(leaf[:num] for leaf in flat_obs)), samples, values[:-1].ravel()

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

    def lose_episode(self, env_id: int) -> None:
        if self.return_scale is not None:
            self.return_scale.sums[env_id] = 0.0

    def extras(self) -> dict[str, Array]:
        return {}

    def load_extras(self, arrays: dict[str, Array] | None) -> str:
        return ""

    def adopt(self, arrays: dict[str, Array]) -> None:
        fresh = {} if self.return_scale is None else self.return_scale.arrays()
        self.load_arrays(fresh | arrays)
        if self.return_scale is not None:
            self.return_scale.sums = fresh["return_scale.sums"]

    def arrays(self) -> dict[str, Array]:
        counters = np.array([self.version, self.step, self.gradient_steps, *self.recent], np.int64)
        arrays = {f"policy/{name}": array for name, array in self.weights().arrays.items()}
        arrays |= {f"optimizer/{name}": array for name, array in self.kernel.optimizer().items()}
        if self.return_scale is not None:
            arrays |= self.return_scale.arrays()
        return arrays | {"counters": counters}

    def load_arrays(self, arrays: dict[str, Array]) -> None:
        self._before = None
        policy = strip(arrays, "policy/")
        self.kernel.load_parameters(policy)
        self.kernel.load_optimizer(strip(arrays, "optimizer/"))
        if self.encoder.normalizer is not None:
            self.encoder.normalizer.load(policy)
        if self.return_scale is not None:
            self.return_scale.load(arrays)
        self.version, self.step, self.gradient_steps, *self.recent = (int(x) for x in arrays["counters"])


def _name_cause(samples: Samples, values: Array, stats: EpochStats, update: int) -> str:
    tensors = {
        "network input": samples.inputs.flat,
        "value": values,
        "advantage": samples.advantage,
        "old log-probability": samples.log_prob,
    }
    named = [name for name, array in tensors.items() if not np.isfinite(array).all()]
    numbers = {"policy loss": stats.policy_loss, "value loss": stats.value_loss, "entropy": stats.entropy}
    named += [name for name, number in numbers.items() if not np.isfinite(number)]
    return (
        f"gradient norm is {stats.grad_norm} in update {update} (not finite: {(named or ['gradient'])[0]});"
        " the weights are as before this update. Lower learning_rate, or set normalize_obs and"
        " normalize_returns, then resume or branch"
    )


def _metrics(
    epochs: list[EpochStats], settings: StepSettings, samples: Samples, values: Array, learner: PpoLearner
) -> dict[str, float]:
    weight = np.ones(len(values)) if samples.weight is None else samples.weight
    returns = samples.returns[weight > 0]
    spread = float(returns.var())
    explained = 1.0 - float((returns - values[weight > 0]).var()) / spread if spread > 0 else float("nan")

    def mean(field: str) -> float:
        return float(np.mean([getattr(stats, field) for stats in epochs]))

    policy_loss, value_loss, entropy = mean("policy_loss"), mean("value_loss"), mean("entropy")
    metrics = {
        "train/approx_kl": epochs[-1].approx_kl,
        "train/clip_fraction": mean("clip_fraction"),
        "train/clip_range": settings.clip_range,
        "train/entropy_loss": -entropy,
        "train/explained_variance": explained,
        "train/grad_norm": mean("grad_norm"),
        "train/learning_rate": settings.learning_rate,
        "train/loss": policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy,
        "train/n_updates": float(learner.version),
        "train/epochs_made": float(len(epochs)),
        "train/policy_gradient_loss": policy_loss,
        "train/value_loss": value_loss,
        "train/first_kl": epochs[0].first_kl,
        "train/first_ratio_error": epochs[0].first_ratio_error,
        "train/value_mean": float(values[weight > 0].mean()),
    }
    log_std = learner.kernel.parameters().get("log_std")
    if log_std is not None:
        metrics["train/std"] = float(np.exp(log_std).mean())
    return metrics
