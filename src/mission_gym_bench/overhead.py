"""`bench accounting`, and the start-up row of `bench vector`: overhead around training.

Accounting: the costs of phase timers and the sampler as shares of a CartPole-v1 run. Parts are timed alone,
many times, and compared with one update of a real run in CPU time, and the sampler's CPU time with the run's
wall time; the difference of two whole runs would drown in noise.
Start-up: seconds from the start of Python to the first step of 8 CartPoles in other processes, imports
included, compared with Gymnasium. Each start is a fresh process, and the two take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from mission_gym.clock import PhaseClock
from mission_gym.data import Progress
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym_bench.runner import OURS, Row, find_medians, make_row, measure_in_turn

_LIMIT = 0.01
_TRIES = 200
_NUM_ENVS = 8
_FIRST_STEP = "vec.reset(seed=0); vec.step(vec.action_space.sample()); print(flush=True); vec.close()"
_STARTS = {
    OURS: f"import mission_gym; vec = mission_gym.make_vec('CartPole-v1', {_NUM_ENVS}, backend='workers')",
    "gymnasium async": "import gymnasium; make = lambda: gymnasium.make('CartPole-v1');"
    f" vec = gymnasium.vector.AsyncVectorEnv([make] * {_NUM_ENVS})",
}


def measure_accounting(timesteps: int) -> list[Row]:
    """A row per part, and one for the sum; `ours` is a share of the run's time."""
    flags: dict[str, Any] = {"timesteps": timesteps, "seed": 1, "eval_freq": 0, "tensorboard": False}
    with tempfile.TemporaryDirectory(prefix="mission-gym-accounting-") as folder:
        resolved = resolve("CartPole-v1", flags | {"runs_dir": folder})
        with start_run(resolved, lambda event: None) as session:
            start, began = time.process_time(), time.perf_counter()
            updates = [progress.update for progress in session.updates()]
            run_s = time.process_time() - start
            sampler_share = session.telemetry.sampler.cpu_s / (time.perf_counter() - began)
            update_s = run_s / len(updates)
            # Two readings of the clock per vector step, and one more between acting and stepping.
            steps_s = 3 * session.blocks[0].num_steps * _time_call(time.perf_counter)
            row_s = _time_call(lambda: _account(session.telemetry, len(updates)))
    print(f"{len(updates)} updates of {1e3 * update_s:.3g} ms", file=sys.stderr)
    shares = {
        "timers in the collector's loop": steps_s / update_s,
        "phases, timeline and a row for every update": row_s / update_s,
        "sampler thread": sampler_share,
    }
    shares["all together"] = sum(shares.values())
    return [
        make_row(f"accounting: {case}", share, "share of the run's time", holds=share < _LIMIT)
        for case, share in shares.items()
    ]


def _account(telemetry: Any, update: int) -> None:
    """Do the accounting of one update: two coarse phases, two fine ones, and a row."""
    collector, learner = PhaseClock("collector"), PhaseClock("learner")
    with collector.phase("collect"):
        collector.add("act", 1e-3)
        collector.add("env", 1e-3)
    with learner.phase("update"):
        learner.add("values", 1e-3)
    phases = collector.take() | learner.take()
    telemetry.see(Progress(0, update, 0, {}, [], phases))
    json.dumps(telemetry.take_row())
    telemetry.make_timeline(update)


def _time_call(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call, the mean of many."""
    start = time.process_time()
    for _ in range(_TRIES):
        call()
    return (time.process_time() - start) / _TRIES


def measure_start(repeats: int) -> Row:
    """One row, in seconds, after one start of each that fills the caches."""
    # An installed package is always compiled.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def make(code: str) -> Callable[[float], float]:
        return lambda seconds: _time_first_step(f"{code}; {_FIRST_STEP}", env)

    with tempfile.TemporaryDirectory() as folder:
        env["PYTHONPYCACHEPREFIX"] = folder
        taken = measure_in_turn({side: make(code) for side, code in _STARTS.items()}, 0.0, repeats + 1)
    medians = find_medians({side: column[1:] for side, column in taken.items()})
    ours = medians.pop(OURS)
    case = f"start-up, {_NUM_ENVS} CartPoles in workers to the first step"
    return make_row(case, ours, "s", medians, min(medians.values()) / ours)


def _time_first_step(code: str, env: dict[str, str]) -> float:
    begun = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return time.perf_counter() - begun
