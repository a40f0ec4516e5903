"""`bench territory`: the territory mission's simulator beside its rules in plain Python and in JavaScript.

Ours is what a training loop calls, on one core, with observations, masks and infos; the plain-Python
reference plays the same games and makes states and rewards alone. The JavaScript engine makes observations
too, in its own loop with other actions and over the bridge with the same. Medians of the repeats.
"""

from __future__ import annotations

import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.vector.make_vec import make_vec
from mission_gym_bench.contest import Row
from mission_gym_bench.territory_plain import PlainGame
from mission_gym_missions import territory
from mission_gym_missions.territory.env import TerritoryVectorEnv
from mission_gym_missions.territory.rules import load_mission

PLAIN, ENGINE, BRIDGE = "plain Python", "JavaScript", "JavaScript over the bridge, 8 games"
_ENGINE = Path(territory.__file__).parent / "engine.cjs"
_BRIDGED_GAMES = 8


@dataclass(frozen=True, slots=True)
class TerritoryGrid:
    """Maps as (cells of a side, bots), environments of the batch, and how long each is measured."""

    maps: tuple[tuple[int, int], ...] = ((128, 10),)
    num_envs: int = 16
    num_steps: int = 80  # of an episode, from its beginning
    seconds: float = 2.0
    repeats: int = 3


def measure_territory(grid: TerritoryGrid) -> list[Row]:
    """A row for each map: steps per second of one core."""
    rows = []
    for size, num_bots in grid.maps:
        print(f"{size} x {size}, {num_bots} bots", file=sys.stderr)
        actions = _record_actions(size, num_bots, grid)
        ours, peers = [], []
        for _ in range(grid.repeats):  # in turn, so that a slow minute of the machine slows all
            ours.append(_time_ours(size, num_bots, actions, grid))
            peers.append(_time_peers(size, num_bots, actions, grid))
        medians = {name: statistics.median(rates[name] for rates in peers) for name in peers[0]}
        rate = statistics.median(ours)
        rows.append(
            {
                "case": f"territory, {size} x {size}, {num_bots} bots, one core", "ours": rate,
                "peers": medians,
                "ratio": rate / medians[PLAIN], "unit": "steps/s", "spread": [min(ours), max(ours)],
            }
        )  # fmt: skip
    return rows


def _record_actions(size: int, num_bots: int, grid: TerritoryGrid) -> Array:
    """What the conqueror plays: equal seeds and actions give equal games, to be timed alone. [T, N]"""
    env = TerritoryVectorEnv(grid.num_envs, size=size, num_bots=num_bots, threads=1)
    obs, info = env.reset(seed=0)
    actions = np.empty((grid.num_steps, grid.num_envs), np.int64)
    for step in range(grid.num_steps):
        actions[step] = env.baselines["conqueror"](obs, info["action_mask"])
        obs, _, ended, _, info = env.step(actions[step])
        if ended.any():
            raise UsageError("a game ended while its actions were recorded; take fewer steps")
    env.close()
    return actions


def _time_ours(size: int, num_bots: int, actions: Array, grid: TerritoryGrid) -> float:
    env = TerritoryVectorEnv(grid.num_envs, size=size, num_bots=num_bots, threads=1)
    count, spent = 0, 0.0
    while spent < grid.seconds:
        env.reset(seed=0)
        begun = time.perf_counter()
        for each in actions:
            env.step(each)
        spent += time.perf_counter() - begun
        count += actions.size
    env.close()
    return count / spent


def _time_peers(size: int, num_bots: int, actions: Array, grid: TerritoryGrid) -> dict[str, float]:
    rates = {PLAIN: _time_plain(size, num_bots, actions, grid.seconds)}
    if shutil.which("node"):
        words = ["node", str(_ENGINE)]
        flags = ["--rate", str(grid.seconds), str(size), str(num_bots)]
        rates[ENGINE] = float(
            subprocess.run([*words, *flags], capture_output=True, text=True, check=True).stdout
        )
        rates[BRIDGE] = _time_bridge(shlex.join(words), size, num_bots, actions, grid.seconds)
    return rates


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


def _time_bridge(command: str, size: int, num_bots: int, actions: Array, seconds: float) -> float:
    kwargs = {"size": size, "num_bots": num_bots}
    vector = make_vec(f"bridge:{command}", _BRIDGED_GAMES, backend="serial", env_kwargs=kwargs)
    count, spent = 0, 0.0
    try:
        while spent < seconds:
            vector.reset(seed=0)
            begun = time.perf_counter()
            for each in actions:
                vector.step(each[:_BRIDGED_GAMES])
                count += _BRIDGED_GAMES
            spent += time.perf_counter() - begun
    finally:
        vector.close()
    return count / spent
