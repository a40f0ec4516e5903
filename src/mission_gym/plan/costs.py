"""Measures acting, collecting and the whole training loop: real policies and vectors, timed for a moment.

The algorithm times its own updates (`Algorithm.measure_update_s`), and `env_costs` times environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from mission_gym.check.devices import device_memory
from mission_gym.clock import time_call
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec, Leaves, Weights
from mission_gym.env.factory import Factory
from mission_gym.learner import loop
from mission_gym.learner.blocks import check_finite
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.plan.facts import ActCost
from mission_gym.ray.cluster import Cluster
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import ActingPolicy, BlockCollector
from mission_gym.rollout.make import Collected
from mission_gym.vector.record import Backend

_UNENDED = 2.0  # length of an episode of which no end was seen, relative to the steps seen
_PRIME_STEPS = 256  # transitions of the short block that primes the normalizer
NUM_BLOCKS = 4  # blocks to time: other programs disturb some, and the first one loads libraries
_MAX_TIMING_S = 2.0  # after which no further block is timed
_BATCHES = (1, 32)  # batch sizes of the policy calls that are timed
# The collector's own work around a call of the policy, and for each environment in it.
_COLLECT_CALL_S, _COLLECT_ROW_S = 25e-6, 1e-6


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds parts of a run for measurements, for one environment; `run/settle.py` makes it."""

    spec: EnvSpec
    factory: Factory
    backends: dict[str, Backend]  # to choose from, the default first
    step_s: float  # of the environment, 0 if it was not timed
    cluster: Cluster | None
    algorithm: Algorithm
    settle: Callable[[Resolved], Settled]  # as a run of this config would
    make_learner: Callable[[Settled], Learner]
    make_policy: Callable[[Settled, Weights], ActingPolicy]
    make_collector: Callable[[Settled], Collected]  # the caller closes the vector

    @property
    def backend(self) -> Backend:
        """The default backend."""
        return next(iter(self.backends.values()))

    def measure_update_s(self, config: Settled) -> float:
        """Seconds of learning per transition."""
        learner = self.make_learner(config)
        with device_memory(config):
            return self.algorithm.measure_update_s(learner, config, self.spec)


def prime_steps(config: Settled) -> int:
    """Vector steps of the short block before training: a fixed count, so that equal runs stay equal."""
    return min(config.algorithm.n_steps_per_env, max(4, -(-_PRIME_STEPS // config.num_columns)))


class Collecting(NamedTuple):
    """The measurements of a short block."""

    step_s: float  # seconds of collecting a transition, the median over repetitions
    obs: Leaves  # each [N, ...], or frames [M, ...]; primes a learner's statistics
    num_failed: int  # episodes that failed
    episode_steps: float  # mean length over all agents; an estimate if no episode ended


def measure_collect(
    collector: BlockCollector, weights: Weights, num_steps: int, num_blocks: int = 1, seconds: float = 0.0
) -> Collecting:
    """Fill a block of `num_steps` from a fresh start, at least `num_blocks` times and for `seconds`.

    Each repetition plays the same block, so that the result does not depend on speed. Afterwards the
    environments start again, as if nothing had been played. Raises NotFiniteError if a block is not finite.
    """
    collector.load(weights)
    block, taken, num_failed, num_ended = collector.make_short(num_steps), list[float](), 0, 0
    begun = time.perf_counter()
    while not taken or (
        time.perf_counter() - begun < _MAX_TIMING_S and (len(taken) < num_blocks or sum(taken) < seconds)
    ):
        clear_block(block)
        collector.start()
        taken.append(time_call(lambda: collector.fill(block, -1, _never)))
        check_finite(block, None)
        num_failed = max(num_failed, sum(episode.failed for episode in block.episodes))
        num_ended = len(block.episodes)
    obs = tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs)
    if block.num_columns > collector.vec.num_envs:  # absent agents observe nothing
        obs = tuple(leaf[:num_steps][block.valid] for leaf in block.obs)
    clear_block(block)
    collector.start()
    collector.clock.take()  # does not count for the run's phases
    played = block.num_steps * block.num_columns
    if num_ended:
        episode_steps = played / num_ended
    else:  # an episode is longer than its part of the block
        episode_steps = _UNENDED * block.num_steps * block.num_columns / collector.vec.num_envs
    return Collecting(median(taken[1:] or taken) / played, obs, num_failed, episode_steps)


def predict_fps(config: Settled, collect_s: float, update_s: float) -> float:
    """Steps per second, from the seconds of collecting and learning per step."""
    return 1.0 / (max if config.compute.overlap == "on" else sum)((collect_s, update_s))


def measure_act(builder: Builder, config: Settled, weights: Weights) -> ActCost:
    """The cost of acting per call and per column, including the collector's work."""
    policy = builder.make_policy(config, weights)
    seconds = [time_act(policy, builder.spec, size) for size in _BATCHES]
    column_s = max(0.0, (seconds[1] - seconds[0]) / (_BATCHES[1] - _BATCHES[0]))
    return ActCost(seconds[0] - column_s + _COLLECT_CALL_S, column_s + _COLLECT_ROW_S)


def time_act(policy: ActingPolicy, spec: EnvSpec, size: int) -> float:
    """Seconds of one call with a batch of this size, the best of a few."""
    obs = tuple(np.zeros((size, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
    mask = np.ones((size, spec.mask_size), np.bool_) if spec.mask_size else None
    noise = np.full((size, spec.action.num_stored), 0.5, np.float32)
    inputs = (obs, mask, noise, policy.initial_state(size))
    policy.act(*inputs)
    return min(time_call(lambda: policy.act(*inputs)) for _ in range(10))


def rehearse(builder: Builder, config: Settled, seconds: float) -> float:
    """Steps per second of the real loop: at least one update after the first, then for `seconds`."""
    learner = builder.make_learner(config)
    builder.algorithm.prepare_rehearsal(learner)
    vec, collector, blocks = builder.make_collector(config)
    with vec:
        learner.prime(measure_collect(collector, learner.weights(), prime_steps(config)).obs)
        train = loop.run_overlapping if config.compute.overlap == "on" else loop.run
        updates = train(collector, learner, blocks, 1 << 62, _never)
        first, begun = next(updates).step, time.perf_counter()
        rate = elapsed = 0.0
        while elapsed < seconds or not rate:
            step, elapsed = next(updates).step, time.perf_counter() - begun
            rate = (step - first) / elapsed
        return rate


def _never() -> bool:
    return False
