"""`bench capture` and `bench territory`: the missions' simulators in steps per second, and training with
presets.

capture: the reference is the plain-Python original on two cores like those of the docs: 1,750 environment
steps per second on one core, and 590 in training with 16 processes. territory: ours is the batched form on
one core, with observations, masks and infos. The plain-Python reference plays the same games, with states and
rewards only. The JavaScript engine computes observations too, in its own loop with other actions, and over
the bridge with the same ones.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mission_gym.config.layers import read_presets, values_for
from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.run.config import schema
from mission_gym.vector.make_vec import make_vec
from mission_gym_bench.runner import (
    OURS,
    Row,
    TrainingJob,
    find_medians,
    make_row,
    measure_in_turn,
    run_jobs,
)
from mission_gym_bench.territory_plain import PlainGame
from mission_gym_missions import CAPTURE_ID, territory
from mission_gym_missions.capture.env import CaptureVectorEnv
from mission_gym_missions.territory.env import TerritoryVectorEnv
from mission_gym_missions.territory.rules import load_mission

ORIGINAL = "original (plain Python)"
_ORIGINAL_STEPS, _ORIGINAL_TRAINING = 1750.0, 590.0
_REPEATS = 3
_STEPS = 200  # about two episodes

PLAIN, ENGINE, BRIDGE = "plain Python", "JavaScript", "JavaScript over the bridge, 8 games"
_ENGINE = Path(territory.__file__).parent / "engine.cjs"
_BRIDGED_GAMES = 8


@dataclass(frozen=True, slots=True)
class CaptureGrid:
    """(environments, threads) of the simulator; presets of the training."""

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
    """Time the vector environment, as a training loop calls it, with the actions of the holder."""
    env = CaptureVectorEnv(num_envs, threads=threads)
    try:
        actions = _record_actions(env, "holder", _STEPS)
        rates = [_replay(env, actions, num_envs, seconds) for _ in range(_REPEATS)]
    finally:
        env.close()
    cores = "one core" if threads == 1 else f"{threads} threads"
    return _compare_original(f"simulator, {num_envs} envs, {cores}", rates, _ORIGINAL_STEPS)


def _record_actions(env: Any, baseline: str, num_steps: int) -> list[Array]:
    """Return the actions of a baseline from seed 0. Equal seeds and actions give equal games, to be timed."""
    obs, info = env.reset(seed=0)
    actions = []
    for _ in range(num_steps):
        actions.append(env.baselines[baseline](obs, info["action_mask"]))
        obs, *_, info = env.step(actions[-1])
    return actions


def _replay(env: Any, actions: Iterable[Array], num_rows: int, seconds: float) -> float:
    """Return the steps per second of whole replays from seed 0, without the resets."""
    count, spent = 0, 0.0
    while not count or spent < seconds:
        env.reset(seed=0)
        begun = time.perf_counter()
        for each in actions:
            env.step(each)
            count += num_rows
        spent += time.perf_counter() - begun
    return count / spent


def _measure_memory() -> Row:
    """Measure the bytes of one more environment, including the results of a step."""
    sizes = []
    for num_envs in (256, 1280):
        tracemalloc.start()
        env = CaptureVectorEnv(num_envs)
        env.reset(seed=0)
        result = env.step(np.zeros((num_envs, env.simulator.num_attackers), np.int64))
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del result
        env.close()
    return make_row("memory of an environment", (sizes[1] - sizes[0]) / 1024, "bytes")


def _measure_training(preset: str, num_updates: int) -> Row:
    """Measure the whole training loop with a preset's sizes, after the first update."""
    values = values_for(read_presets()[preset], "ppo", schema())
    assert values is not None
    rollout = values["n_envs"] * values["n_steps_per_env"]
    flags = values | {
        "timesteps": rollout * (1 + num_updates), "eval_freq": 0, "checkpoint_freq": 50_000, "seed": 1
    }  # fmt: skip
    ((_, result),) = run_jobs([TrainingJob(OURS, CAPTURE_ID, flags)], at_once=1)
    row = _compare_original(f"training, preset {preset}", [result.steps_per_s], _ORIGINAL_TRAINING)
    return row | {"gradient_steps": result.gradient_steps, "wall_s": result.wall_s, "bound": result.evidence}


def _compare_original(case: str, rates: list[float], original: float) -> Row:
    ours = statistics.median(rates)
    spread = [min(rates), max(rates)]
    return make_row(case, ours, "steps/s", {ORIGINAL: original}, ours / original, spread=spread)


@dataclass(frozen=True, slots=True)
class TerritoryGrid:
    """Maps as (cells per side, bots), environments of the batch, and how long each is measured."""

    maps: tuple[tuple[int, int], ...] = ((128, 10),)
    num_envs: int = 16
    num_steps: int = 80  # of an episode, from its start
    seconds: float = 2.0
    repeats: int = 3


def measure_territory(grid: TerritoryGrid) -> list[Row]:
    """A row per map: steps per second on one core."""
    rows = []
    for size, num_bots in grid.maps:
        print(f"{size} x {size}, {num_bots} bots", file=sys.stderr)
        env = TerritoryVectorEnv(grid.num_envs, size=size, num_bots=num_bots, threads=1)
        actions = np.array(_record_actions(env, "conqueror", grid.num_steps))  # [T, N]
        if (env.simulator.state.games["episode"] > 0).any():
            raise UsageError("a game ended while its actions were recorded; use fewer steps")
        rates = measure_in_turn(
            {
                OURS: lambda seconds: _replay(env, actions, grid.num_envs, seconds),  # noqa: B023
                PLAIN: lambda seconds: _time_plain(size, num_bots, actions, seconds),  # noqa: B023
            }
            | (_list_engines(size, num_bots, actions) if shutil.which("node") else {}),
            grid.seconds,
            grid.repeats,
        )
        env.close()
        medians = find_medians(rates)
        ours = medians.pop(OURS)
        case = f"territory, {size} x {size}, {num_bots} bots, one core"
        spread = [min(rates[OURS]), max(rates[OURS])]
        rows.append(make_row(case, ours, "steps/s", medians, ours / medians[PLAIN], spread=spread))
    return rows


def _list_engines(size: int, num_bots: int, actions: Array) -> dict[str, Any]:
    """Return the measures of the JavaScript engine: alone, and over the bridge."""
    command = ["node", str(_ENGINE)]

    def time_engine(seconds: float) -> float:
        words = [*command, "--rate", str(seconds), str(size), str(num_bots)]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    def time_bridge(seconds: float) -> float:
        kwargs = {"size": size, "num_bots": num_bots}
        name = f"bridge:{shlex.join(command)}"
        vector = make_vec(name, _BRIDGED_GAMES, backend="serial", env_kwargs=kwargs)
        try:
            return _replay(vector, actions[:, :_BRIDGED_GAMES], _BRIDGED_GAMES, seconds)
        finally:
            vector.close()

    return {ENGINE: time_engine, BRIDGE: time_bridge}


def _time_plain(size: int, num_bots: int, actions: Array, seconds: float) -> float:
    game, count, spent = PlainGame(load_mission(size, num_bots, None)), 0, 0.0
    row = 0
    while spent < seconds:
        game.reset(row)
        for action in actions[:, row].tolist():
            begun = time.perf_counter()
            game.step(action)
            spent += time.perf_counter() - begun
            count += 1
            if spent >= seconds:
                break
        row = (row + 1) % actions.shape[1]
    return count / spent
