"""What acting, collecting and the whole loop cost here: real policies and vectors, timed for a moment.

Learning is timed by the algorithm itself (`Algorithm.measure_update_s`), environments in `env_costs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean, median

import numpy as np
import psutil

from mission_gym.config.schema import Settled
from mission_gym.data import Weights
from mission_gym.learner.contract import Learner
from mission_gym.pipeline import loop, overlap
from mission_gym.plan.facts import ActCost
from mission_gym.plan.workshop import Workshop
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import BlockCollector

_PRIME_STEPS = 256  # transitions of the short block that primes the normaliser and is timed
_PRIME_S = 2.0  # for which it is played again
_FEWEST_BLOCKS = 3  # whose median is taken: other programs disturb some of them
_ROWS = (1, 32)  # of the acting calls that are timed
# The collector's own work around a policy's call, and for each of its rows.
_COLLECT_CALL_S, _COLLECT_ROW_S = 25e-6, 1e-6


def prime_steps(config: Settled) -> int:
    """Vector steps of the short block before the start: a fixed count, so that equal runs stay equal."""
    return min(config.algorithm.n_steps_per_env, max(4, -(-_PRIME_STEPS // config.vector.n_envs)))


def prime(collector: BlockCollector, learner: Learner, num_steps: int) -> float:
    """Play the short block: prime the learner's statistics with it, return seconds per step.

    It is played again unless that takes long: the first time also loads libraries and fills caches.
    """
    collector.policy.load(learner.weights())
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and sum(seconds) < _PRIME_S):
        start = time.perf_counter()
        obs = collector.prime(num_steps)
        seconds.append(time.perf_counter() - start)
    learner.prime(obs)
    return min(seconds) / (num_steps * int(collector.vec.num_envs))


def predict_fps(config: Settled, collect_s: float, update_s: float) -> float:
    """Steps per second from the seconds that collecting and learning take for each."""
    return 1.0 / (max if config.compute.overlap == "on" else sum)((collect_s, update_s))


def measure_act(workshop: Workshop, config: Settled, weights: Weights) -> ActCost:
    """The cost of acting by call and by row, the collector's part added."""
    policy, spec = workshop.make_policy(config, weights), workshop.environment.spec
    seconds = []
    for rows in _ROWS:
        obs = tuple(np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
        mask = np.ones((rows, spec.mask_size), np.bool_) if spec.mask_size else None
        noise = np.full((rows, spec.action.num_stored), 0.5, np.float32)
        inputs = (obs, mask, noise, policy.initial_state(rows))
        policy.act(*inputs)
        seconds.append(min(_time(lambda: policy.act(*inputs)) for _ in range(10)))  # noqa: B023
    row_s = max(0.0, (seconds[1] - seconds[0]) / (_ROWS[1] - _ROWS[0]))
    return ActCost(seconds[0] - row_s + _COLLECT_CALL_S, row_s + _COLLECT_ROW_S)


def measure_collect(
    workshop: Workshop, config: Settled, weights: Weights, seconds: float, num_steps: int
) -> tuple[float, int | None]:
    """Seconds for each transition of blocks of `num_steps`, and the bytes of a worker where there are any."""
    num_steps = min(num_steps, config.algorithm.n_steps_per_env)
    shorter = config.algorithm.model_copy(update={"n_steps_per_env": num_steps})
    config = config.model_copy(update={"algorithm": shorter})
    vec, collector, blocks = workshop.make_collector(config)
    with vec:
        collector.policy.load(weights)
        collector.start()
        block = blocks[0]
        collector.fill(block, 0, _never)
        begun = time.perf_counter()
        taken: list[float] = []
        while len(taken) < _FEWEST_BLOCKS or time.perf_counter() - begun < seconds:
            clear_block(block)
            taken.append(_time(lambda: collector.fill(block, len(taken) + 1, _never)))
        collect_s = median(taken) / (block.num_steps * block.num_rows)
        return collect_s, _weigh_workers(vec.pids())


def rehearse(workshop: Workshop, config: Settled, seconds: float) -> float:
    """Steps per second of the real loop: behind its first update one more at least, then for `seconds`."""
    learner = workshop.make_learner(config)
    workshop.algorithm.prepare_rehearsal(learner)
    vec, collector, blocks = workshop.make_collector(config)
    with vec:
        collector.policy.load(learner.weights())
        learner.prime(collector.prime(prime_steps(config)))
        train = overlap.run if config.compute.overlap == "on" else loop.run
        updates = train(collector, learner, blocks, 1 << 62, _never)
        first, begun = next(updates).step, time.perf_counter()
        rate = elapsed = 0.0
        while elapsed < seconds or not rate:
            step, elapsed = next(updates).step, time.perf_counter() - begun
            rate = (step - first) / elapsed
        return rate


def _weigh_workers(pids: list[int]) -> int | None:
    """Mean bytes of these processes, with their part of what they share; None of none, or where nobody
    tells."""
    if not pids:
        return None
    try:
        return round(fmean(psutil.Process(pid).memory_full_info().pss for pid in pids))
    except (psutil.Error, AttributeError):
        return None


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _never() -> bool:
    return False
