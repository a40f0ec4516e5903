"""`bench capture`: the capture mission's simulator in steps per second, and training on it with presets.

The named reference is the plain-Python original on two cores like those of the docs: 1,750 environment
steps a second on one core, 590 in training with 16 processes. Ours are medians of three.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np

from mission_gym.config.layers import read_presets, values_for
from mission_gym.data import Array
from mission_gym.run.config import schema
from mission_gym_bench.contest import OURS, Row, run_jobs
from mission_gym_bench.sides import Job
from mission_gym_missions import CAPTURE_ID
from mission_gym_missions.capture.env import CaptureVectorEnv

ORIGINAL = "original (plain Python)"
_ORIGINAL_STEPS, _ORIGINAL_TRAINING = 1750.0, 590.0
_REPEATS = 3
_STEPS = 200  # about two episodes


@dataclass(frozen=True, slots=True)
class CaptureGrid:
    """What is measured: (environments, threads) of the simulator, presets of the training."""

    simulators: tuple[tuple[int, int], ...] = ((1, 1), (16, 1), (256, 1), (1024, 1), (256, 2), (1024, 2))
    presets: tuple[tuple[str, int], ...] = (("fast", 6),)  # with the updates after the warm-up
    seconds: float = 1.0


def measure_capture(grid: CaptureGrid) -> list[Row]:
    """A row per simulator, one for its memory, and one per preset."""
    rows = []
    for num_envs, threads in grid.simulators:
        print(f"simulator, {num_envs} envs, {threads} threads", file=sys.stderr)
        rows.append(_measure_simulator(num_envs, threads, grid.seconds))
    rows.append(_measure_memory())
    return rows + [_measure_training(preset, num_updates) for preset, num_updates in grid.presets]


def _measure_simulator(num_envs: int, threads: int, seconds: float) -> Row:
    """The vector environment, which is what a training loop calls, under the actions of the zone-holder."""
    env = CaptureVectorEnv(num_envs, threads=threads)
    try:
        actions = _record_actions(env)
        rates = []
        for _ in range(_REPEATS):
            count, spent = 0, 0.0
            while not count or spent < seconds:
                env.reset(seed=0)
                begun = time.perf_counter()
                for action in actions:
                    env.step(action)
                spent += time.perf_counter() - begun
                count += len(actions) * num_envs
            rates.append(count / spent)
    finally:
        env.close()
    cores = "one core" if threads == 1 else f"{threads} threads"
    return _row(f"simulator, {num_envs} envs, {cores}", rates, _ORIGINAL_STEPS)


def _record_actions(env: CaptureVectorEnv) -> list[Array]:
    """What the holder plays from seed 0 on: equal seeds and actions give equal games, to be timed alone."""
    play = env.baselines["holder"]
    obs, info = env.reset(seed=0)
    actions = []
    for _ in range(_STEPS):
        actions.append(play(obs, info["action_mask"]))
        obs, *_, info = env.step(actions[-1])
    return actions


def _measure_memory() -> Row:
    """Bytes that each further environment takes, everything that a step gives included."""
    sizes = []
    for num_envs in (256, 1280):
        tracemalloc.start()
        env = CaptureVectorEnv(num_envs)
        env.reset(seed=0)
        shown = env.step(np.zeros((num_envs, env.simulator.num_attackers), np.int64))
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del shown
        env.close()
    return {
        "case": "memory of an environment", "ours": (sizes[1] - sizes[0]) / 1024, "peers": {}, "ratio": None,
        "unit": "bytes",
    }  # fmt: skip


def _measure_training(preset: str, num_updates: int) -> Row:
    """The whole training loop with a preset's sizes, after the first update."""
    values = values_for(read_presets()[preset], "ppo", schema())
    assert values is not None
    rollout = values["n_envs"] * values["n_steps_per_env"]
    flags = values | {
        "timesteps": rollout * (1 + num_updates), "eval_freq": 0, "checkpoint_freq": 50_000, "seed": 1
    }  # fmt: skip
    ((_, result),) = run_jobs([Job(OURS, CAPTURE_ID, flags)], at_once=1)
    row = _row(f"training, preset {preset}", [result.warm_steps / result.warm_s], _ORIGINAL_TRAINING)
    return row | {"gradient_steps": result.gradient_steps, "wall_s": result.wall_s, "bound": result.evidence}


def _row(case: str, rates: list[float], original: float) -> Row:
    ours = statistics.median(rates)
    return {
        "case": case, "ours": ours, "peers": {ORIGINAL: original}, "ratio": ours / original,
        "unit": "steps/s", "spread": [min(rates), max(rates)],
    }  # fmt: skip
