"""What acting, collecting and the whole loop cost here: real policies and vectors, timed for a moment.

Learning is timed by the algorithm itself (`Algorithm.measure_update_s`), environments in `env_costs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Settled
from mission_gym.data import Block, EnvSpec, Leaves, Weights
from mission_gym.learner import loop, overlap
from mission_gym.learner.blocks import check_finite
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.plan.facts import ActCost
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import ActingPolicy, BlockCollector

_PRIME_STEPS = 256  # transitions of the short block that primes the normaliser
NUM_BLOCKS = 4  # to be timed: other programs disturb some of them, and the first one loads libraries
_PATIENCE_S = 2.0  # for playing it again
_ROWS = (1, 32)  # of the acting calls that are timed
# The collector's own work around a policy's call, and for each of its rows.
_COLLECT_CALL_S, _COLLECT_ROW_S = 25e-6, 1e-6


class Workshop(Protocol):
    """What planning needs to measure: builds for one environment and one algorithm, in the run room."""

    @property
    def environment(self) -> Any:
        """The run room's Environment: spec, factory, backend, step_s."""

    @property
    def algorithm(self) -> Algorithm: ...

    def settle(self, resolved: Resolved) -> Settled:
        """A config with every `auto` resolved, as a run of it would have it."""

    def make_learner(self, config: Settled) -> Learner: ...

    def make_policy(self, config: Settled, weights: Weights) -> ActingPolicy: ...

    def make_collector(self, config: Settled) -> tuple[Any, BlockCollector, list[Block]]:
        """The vector, the collector that steps it and the blocks it fills; close the vector."""


def prime_steps(config: Settled) -> int:
    """Vector steps of the short block before the start: a fixed count, so that equal runs stay equal."""
    return min(config.algorithm.n_steps_per_env, max(4, -(-_PRIME_STEPS // config.num_columns)))


class Collecting(NamedTuple):
    """What a short block tells."""

    step_s: float  # of collecting a transition, the median of the times that it was played
    obs: Leaves  # each [N, ...], or frames [M, ...]; a learner's statistics are primed with it
    num_failed: int  # episodes that failed in it
    episode_steps: float  # mean of its episodes, of all agents; as if one had ended with it where none did


def measure_collect(
    collector: BlockCollector, weights: Weights, num_steps: int, num_blocks: int = 1, seconds: float = 0.0
) -> Collecting:
    """Fill a block of `num_steps` from a fresh start: so many times, and for `seconds`, unless that takes
    long. It is the same each time, so that what it tells does not depend on how fast it is.

    The environments start anew afterwards, as if nothing had been played. NotFiniteError for what a training
    could not learn from.
    """
    collector.policy.load(weights)
    block, taken, num_failed, num_ended = collector.make_short(num_steps), list[float](), 0, 0
    begun = time.perf_counter()
    while not taken or (
        time.perf_counter() - begun < _PATIENCE_S and (len(taken) < num_blocks or sum(taken) < seconds)
    ):
        clear_block(block)
        collector.start()
        taken.append(_time(lambda: collector.fill(block, -1, _never)))
        check_finite(block, None)
        num_failed = max(num_failed, sum(episode.failed for episode in block.episodes))
        num_ended = len(block.episodes)
    obs = tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs)
    if block.num_columns > collector.vec.num_envs:  # agents: those that are not there show nothing
        obs = tuple(leaf[:num_steps][block.valid] for leaf in block.obs)
    clear_block(block)
    collector.start()
    collector.clock.take()  # no part of a run's phases
    played = block.num_steps * block.num_columns
    return Collecting(median(taken[1:] or taken) / played, obs, num_failed, played / max(num_ended, 1))


def predict_fps(config: Settled, collect_s: float, update_s: float) -> float:
    """Steps per second from the seconds that collecting and learning take for each."""
    return 1.0 / (max if config.compute.overlap == "on" else sum)((collect_s, update_s))


def measure_act(workshop: Workshop, config: Settled, weights: Weights) -> ActCost:
    """The cost of acting by call and by row, the collector's part added."""
    policy, spec = workshop.make_policy(config, weights), workshop.environment.spec
    seconds = [time_act(policy, spec, rows) for rows in _ROWS]
    row_s = max(0.0, (seconds[1] - seconds[0]) / (_ROWS[1] - _ROWS[0]))
    return ActCost(seconds[0] - row_s + _COLLECT_CALL_S, row_s + _COLLECT_ROW_S)


def time_act(policy: ActingPolicy, spec: EnvSpec, rows: int) -> float:
    """Seconds of one call for so many rows, the best of a few."""
    obs = tuple(np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
    mask = np.ones((rows, spec.mask_size), np.bool_) if spec.mask_size else None
    noise = np.full((rows, spec.action.num_stored), 0.5, np.float32)
    inputs = (obs, mask, noise, policy.initial_state(rows))
    policy.act(*inputs)
    return min(_time(lambda: policy.act(*inputs)) for _ in range(10))


def rehearse(workshop: Workshop, config: Settled, seconds: float) -> float:
    """Steps per second of the real loop: behind its first update one more at least, then for `seconds`."""
    learner = workshop.make_learner(config)
    workshop.algorithm.prepare_rehearsal(learner)
    vec, collector, blocks = workshop.make_collector(config)
    with vec:
        learner.prime(measure_collect(collector, learner.weights(), prime_steps(config)).obs)
        train = overlap.run if config.compute.overlap == "on" else loop.run
        updates = train(collector, learner, blocks, 1 << 62, _never)
        first, begun = next(updates).step, time.perf_counter()
        rate = elapsed = 0.0
        while elapsed < seconds or not rate:
            step, elapsed = next(updates).step, time.perf_counter() - begun
            rate = (step - first) / elapsed
        return rate


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _never() -> bool:
    return False
