"""`bench bridge`: the cost of a bridge, compared with a plain loop of the game in its own process, in turn.

One game and several per message; the overhead per step and per byte; and the game's process killed at random
moments, after which no process may be left.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import psutil

from mission_gym.env.factory import VectorEnv
from mission_gym.vector.make_vec import make_vec
from mission_gym_bench.runner import Row, make_row
from mission_gym_bench.synthetic import measure_spins_per_us

_SMALL = 64  # bytes of an observation
_GAME = "mission_gym_bench.synthetic"


@dataclass(frozen=True, slots=True)
class BridgeGrid:
    """Cases as (microseconds per step, games per message), and how long each is measured."""

    cases: tuple[tuple[int, int], ...] = ((1000, 1), (1000, 8), (100, 1), (100, 8), (100, 32))
    sizes: tuple[int, ...] = (_SMALL, 28_224, 1 << 20)
    seconds: float = 1.0
    repeats: int = 5
    num_kills: int = 10
    between_s: float = 3.0  # at most, between two kills; a Python game starts in a third of it


def measure_bridge(grid: BridgeGrid) -> list[Row]:
    """A row per case: steps per second over the bridge, compared with the game's own."""
    spins_per_us = measure_spins_per_us()
    rows = [_measure_speed(int(us * spins_per_us), us, games, grid) for us, games in grid.cases]
    costs = {size: _measure_cost(size, grid) for size in grid.sizes}
    rows += [make_row(f"bridge: an empty step, {size:,} bytes", cost, "us") for size, cost in costs.items()]
    if len(costs) > 1:
        small, large = min(costs), max(costs)
        per_byte = 1000 * (costs[large] - costs[small]) / (large - small)
        rows.append(make_row("bridge: a byte of an observation", per_byte, "ns"))
    return [*rows, _kill(grid.num_kills, grid.between_s)]


def _measure_speed(spins: int, step_us: int, games: int, grid: BridgeGrid) -> Row:
    plain, bridged = [], []
    with _vector(spins, _SMALL, games) as vector:
        for _ in range(grid.repeats):
            _, info = vector.reset(options={"loop_s": grid.seconds / games})
            plain.append(float(np.mean(info["own_rate"])))
            bridged.append(_step(vector, games, grid.seconds))
    ratio = statistics.median(ours / own for ours, own in zip(bridged, plain, strict=True))
    several = f"{games} games in one message" if games > 1 else "1 game"
    case = f"bridge: {step_us} us per step, {several}"
    peers = {"the game's own loop": statistics.median(plain)}
    return make_row(case, statistics.median(bridged), "steps/s", peers, ratio)


def _measure_cost(size: int, grid: BridgeGrid) -> float:
    """Return the microseconds of a step that computes nothing."""
    with _vector(0, size, 1) as vector:
        return statistics.median(1e6 / _step(vector, 1, grid.seconds / 2) for _ in range(grid.repeats))


def _kill(count: int, between_s: float) -> Row:
    """Kill the game's process at random moments while a vector steps, sometimes while it starts."""
    rng, steps, killed = random.Random(0), 0, 0
    children = psutil.Process().children
    before = set(children(recursive=True))
    vector = make_vec(_name(0, _SMALL), 4, backend="serial", max_restarts=count)
    over = threading.Event()

    def strike() -> None:
        nonlocal killed
        while killed < count:
            time.sleep(rng.uniform(0.0, between_s))
            for process in set(children(recursive=True)) - before:
                with suppress(psutil.Error, OSError):
                    if _GAME in process.cmdline():  # not the subreaper
                        os.kill(process.pid, signal.SIGKILL)
                        killed += 1
                        break
        over.set()

    thread = threading.Thread(target=strike, daemon=True)
    try:
        vector.reset(seed=0)
        thread.start()
        while not over.is_set():
            vector.step(np.ones(4, np.int64))
            steps += 4
    finally:
        vector.close()
    thread.join()
    left = [process.pid for process in set(children(recursive=True)) - before]
    case = f"bridge: killed at {count} random moments"
    return make_row(case, steps, "steps made meanwhile", processes_left=len(left), holds=not left)


@contextmanager
def _vector(spins: int, size: int, games: int) -> Iterator[VectorEnv]:
    """Open a vector of games that share a process."""
    vector = make_vec(_name(spins, size), games, backend="serial")
    try:
        vector.reset(seed=0)
        yield vector
    finally:
        vector.close()


def _step(vector: VectorEnv, games: int, seconds: float) -> float:
    """Return the steps per second over the bridge."""
    actions, steps, begun = np.ones(games, np.int64), 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        vector.step(actions)
        steps += games
    return steps / (time.perf_counter() - begun)


def _name(spins: int, size: int) -> str:
    return f"bridge:{shlex.join([sys.executable, '-m', _GAME, str(spins), str(size)])}"
