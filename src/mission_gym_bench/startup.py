"""Seconds from the start of Python to the first step of 8 CartPoles in other processes, ours and Gymnasium's.

Each time in a fresh process, the two in turn: what counts is what a user waits for, imports included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from mission_gym_bench.contest import OURS, Row

_NUM_ENVS = 8
_FIRST_STEP = "vec.reset(seed=0); vec.step(vec.action_space.sample()); print(flush=True); vec.close()"
_SIDES = {
    OURS: f"import mission_gym; vec = mission_gym.make_vec('CartPole-v1', {_NUM_ENVS}, backend='workers')",
    "gymnasium async": "import gymnasium; make = lambda: gymnasium.make('CartPole-v1');"
    f" vec = gymnasium.vector.AsyncVectorEnv([make] * {_NUM_ENVS})",
}


def measure_start(repeats: int) -> Row:
    """One row, in seconds; after one start of each that fills caches."""
    taken: dict[str, list[float]] = {side: [] for side in _SIDES}
    # An installed package is compiled, whatever is set here.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        env["PYTHONPYCACHEPREFIX"] = folder
        for number in range(repeats + 1):
            for side, code in _SIDES.items():
                seconds = _time_first_step(f"{code}; {_FIRST_STEP}", env)
                if number:
                    taken[side].append(seconds)
    medians = {side: statistics.median(column) for side, column in taken.items()}
    ours = medians.pop(OURS)
    return {
        "case": f"start-up, {_NUM_ENVS} CartPoles in workers to the first step", "ours": ours,
        "peers": medians, "ratio": min(medians.values()) / ours, "unit": "s",
    }  # fmt: skip


def _time_first_step(code: str, env: dict[str, str]) -> float:
    begun = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return time.perf_counter() - begun
