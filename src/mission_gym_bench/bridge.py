"""`bench bridge`: what a bridge costs, against a plain loop of the game in its own process, in turn.

One game and several in one message; overhead by step and by byte; and the game's process killed at random
moments, after which nothing may be left.
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
from mission_gym_bench.burn import measure_spins_per_us
from mission_gym_bench.contest import Row

_SMALL = 64  # bytes of an observation


@dataclass(frozen=True, slots=True)
class BridgeGrid:
    """Cases as (microseconds a step, games in one message), and how long each is measured."""

    cases: tuple[tuple[int, int], ...] = ((1000, 1), (1000, 8), (100, 1), (100, 8), (100, 32))
    sizes: tuple[int, ...] = (_SMALL, 28_224, 1 << 20)
    seconds: float = 1.0
    repeats: int = 5
    num_kills: int = 10
    between_s: float = 3.0  # two kills at most; a game of Python starts in a third of that


def measure_bridge(grid: BridgeGrid) -> list[Row]:
    """A row for each case: steps per second over the bridge beside the game's own."""
    spins_per_us = measure_spins_per_us()
    rows = [_measure_speed(int(us * spins_per_us), us, games, grid) for us, games in grid.cases]
    costs = {size: _measure_cost(size, grid) for size in grid.sizes}
    rows += [_row(f"an empty step, {size:,} bytes", cost, "us") for size, cost in costs.items()]
    if len(costs) > 1:
        small, large = min(costs), max(costs)
        per_byte = 1000 * (costs[large] - costs[small]) / (large - small)
        rows.append(_row("a byte of an observation", per_byte, "ns"))
    return [*rows, _kill(grid.num_kills, grid.between_s)]


def _measure_speed(spins: int, step_us: int, games: int, grid: BridgeGrid) -> Row:
    plain, bridged = [], []
    with _vector(spins, _SMALL, games) as vector:
        for _ in range(grid.repeats):
            _, told = vector.reset(options={"loop_s": grid.seconds / games})
            plain.append(float(np.mean(told["own_rate"])))
            bridged.append(_step(vector, games, grid.seconds))
    ratio = statistics.median(ours / own for ours, own in zip(bridged, plain, strict=True))
    several = f"{games} games in one message" if games > 1 else "1 game"
    case = f"{step_us} us a step, {several}"
    peers = {"the game's own loop": statistics.median(plain)}
    return _row(case, statistics.median(bridged), "steps/s") | {"peers": peers, "ratio": ratio}


def _measure_cost(size: int, grid: BridgeGrid) -> float:
    """Microseconds of a step that computes nothing."""
    with _vector(0, size, 1) as vector:
        return statistics.median(1e6 / _step(vector, 1, grid.seconds / 2) for _ in range(grid.repeats))


def _kill(count: int, between_s: float) -> Row:
    """Kill the game's process at random moments while a vector steps; some of them while it starts."""
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
                    if "mission_gym_bench.bridge_game" in process.cmdline():  # not the keeper
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
    row = _row(f"killed at {count} random moments", steps, "steps made meanwhile")
    return row | {"processes_left": len(left), "holds": not left}


@contextmanager
def _vector(spins: int, size: int, games: int) -> Iterator[VectorEnv]:
    """A vector of games that share a process."""
    vector = make_vec(_name(spins, size), games, backend="serial")
    try:
        vector.reset(seed=0)
        yield vector
    finally:
        vector.close()


def _step(vector: VectorEnv, games: int, seconds: float) -> float:
    """Steps per second over the bridge."""
    actions, steps, begun = np.ones(games, np.int64), 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        vector.step(actions)
        steps += games
    return steps / (time.perf_counter() - begun)


def _name(spins: int, size: int) -> str:
    module = f"{__package__}.bridge_game"
    return f"bridge:{shlex.join([sys.executable, '-m', module, str(spins), str(size)])}"


def _row(case: str, value: float, unit: str) -> Row:
    return {"case": f"bridge: {case}", "ours": value, "peers": {}, "ratio": None, "unit": unit}
