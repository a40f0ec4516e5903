"""What acting, learning and collecting cost here: real policies, kernels and vectors, timed for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median

import numpy as np
import psutil

from mission_gym.config.schema import Config
from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.learner.dqn import DqnLearner
from mission_gym.learner.kernel import StepSettings
from mission_gym.pipeline import loop, overlap
from mission_gym.plan.facts import ActCost
from mission_gym.plan.sheet import prime_steps
from mission_gym.rollout.blocks import clear_block, make_block
from mission_gym.run.assemble import make_collector, make_learner, make_loaded_policy
from mission_gym.run.environment import Environment, training_seeds
from mission_gym.vector.workers import WorkersVec

_NO_LEARNING = StepSettings(0.0, 0.2, 0.0, 0.5, 0.5, True)
_ENOUGH_TRANSITIONS = 2048  # of a block that an update is timed on
_NEVER_STARTS = 1 << 60  # learning: transitions are only stored
_FEWEST_Q_STEPS, _Q_UPDATES_S, _LONGEST_Q_S = 16, 0.1, 1.0  # of DQN's timed updates
_FEWEST_BLOCKS = 3  # whose median is taken: other programs disturb some of them
_ROWS = (1, 32)  # of the acting calls that are timed
# The collector's own work around a policy's call, and for each of its rows.
_COLLECT_CALL_S, _COLLECT_ROW_S = 25e-6, 1e-6


def measure_update_s(config: Config, spec: EnvSpec) -> float:
    """Seconds of learning for each transition, on a block of noise: all epochs, or the replay ratio."""
    learner, n_epochs = make_learner(config, spec), config.ppo.n_epochs
    if isinstance(learner, DqnLearner):
        return _measure_q_update_s(learner, config, spec)
    learner.settings = replace(learner.settings, n_epochs=1)
    block = make_noise_block(spec, _fewest_steps(config), config.vector.n_envs)
    num = block.num_steps * block.num_rows
    learner.update(block)  # the first one loads libraries and takes memory
    update_s = _time(lambda: learner.update(block))
    order = np.arange(num).reshape(-1, learner.settings.batch_size)
    epoch_s = _time(lambda: learner.kernel.epoch(order, _NO_LEARNING, _never)) if n_epochs > 1 else 0.0
    return (update_s + (n_epochs - 1) * epoch_s) / num


def _measure_q_update_s(learner: DqnLearner, config: Config, spec: EnvSpec) -> float:
    """The same of DQN, with some transitions in the replay already."""
    block = make_noise_block(spec, config.dqn.n_steps_per_env, config.vector.n_envs)
    num = block.num_steps * block.num_rows
    learner.settings = replace(learner.settings, learning_starts=_NEVER_STARTS)
    for _ in range(-(-min(_ENOUGH_TRANSITIONS, config.dqn.replay_size) // num)):
        learner.update(block)
    learner.settings = replace(learner.settings, learning_starts=0)
    learner.update(block)  # the first one loads libraries and takes memory
    made = 0
    begun = now = time.perf_counter()
    while now - begun < _Q_UPDATES_S or learner.gradient_steps < _FEWEST_Q_STEPS:
        learner.update(block)
        made, now = made + 1, time.perf_counter()
        if now - begun > _LONGEST_Q_S:
            break
    return (now - begun) / (made * num)


def _fewest_steps(config: Config) -> int:
    """Steps of a block that is large enough to be timed, and still splits into whole minibatches."""
    n_envs, num_steps, batch = config.vector.n_envs, config.ppo.n_steps_per_env, config.ppo.batch_size
    assert isinstance(batch, int)
    for steps in range(1, num_steps):
        if steps * n_envs >= _ENOUGH_TRANSITIONS and steps * n_envs % batch == 0:
            return steps
    return num_steps


def make_noise_block(spec: EnvSpec, num_steps: int, num_rows: int) -> Block:
    """A full block of numbers that mean nothing, for timing."""
    rng = np.random.default_rng(0)
    block = make_block(spec, num_steps, num_rows)
    for leaf in block.obs:
        if leaf.dtype.kind == "f":
            leaf[:] = rng.standard_normal(leaf.shape, np.float32)
    if block.mask is not None:
        block.mask[:] = True
    block.reward[:] = rng.standard_normal(block.reward.shape, np.float32)
    block.valid[:] = True
    block.filled[:] = num_steps
    return block


def measure_act(config: Config, spec: EnvSpec, weights: Weights) -> ActCost:
    """The cost of acting by call and by row, the collector's part added."""
    policy = make_loaded_policy(config, spec, weights)
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
    config: Config, environment: Environment, weights: Weights, seconds: float, num_steps: int
) -> tuple[float, int | None]:
    """Seconds for each transition of blocks of `num_steps`, and the bytes of a worker where there are any."""
    num_steps = min(num_steps, config.algorithm.n_steps_per_env)
    shorter = config.algorithm.model_copy(update={"n_steps_per_env": num_steps})
    config = config.model_copy(update={config.run.algo: shorter})
    vec, collector, blocks = make_collector(config, environment, training_seeds(0, {"episode_offset": 0}))
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
        return collect_s, _weigh_workers(vec.crew.pids()) if isinstance(vec, WorkersVec) else None


def rehearse(config: Config, environment: Environment, seconds: float) -> float:
    """Steps per second of the real loop: behind its first update one more at least, then for `seconds`.

    DQN learns from the start here, as it does for most of a run.
    """
    learner = make_learner(config, environment.spec)
    if isinstance(learner, DqnLearner):
        learner.settings = replace(learner.settings, learning_starts=0)
    vec, collector, blocks = make_collector(config, environment, training_seeds(0, {"episode_offset": 0}))
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
    """Mean bytes of these processes, with their part of what they share; None where that is not told."""
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
