"""`bench accounting`: what the accounting of phases and the sampler cost, as shares of a CartPole-v1 run.

Parts are timed alone, many times over, and held against one update of a real run, in CPU time; the sampler's
CPU time against the run's wall time. The difference of two whole runs would drown in noise.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mission_gym.clock import PhaseClock
from mission_gym.data import Progress
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym_bench.contest import Row

_LIMIT = 0.01
_TRIES = 200


def measure_accounting(timesteps: int) -> list[Row]:
    """A row for each part, and one for all of them; `ours` is a share of the run's time."""
    flags: dict[str, Any] = {"timesteps": timesteps, "seed": 1, "eval_freq": 0, "tensorboard": False}
    with TemporaryDirectory(prefix="mission-gym-accounting-") as folder:
        resolved = resolve("CartPole-v1", flags | {"runs_dir": str(Path(folder))})
        with start_run(resolved, lambda event: None) as session:
            start, began = time.process_time(), time.perf_counter()
            updates = [progress.update for progress in session.updates()]
            run_s = time.process_time() - start
            sampler_share = session.telemetry.sampler.cpu_s / (time.perf_counter() - began)
            update_s = run_s / len(updates)
            # Two readings of the clock for each vector step, and one more between acting and stepping.
            steps_s = 3 * session.blocks[0].num_steps * _time_call(time.perf_counter)
            row_s = _time_call(lambda: _account(session.telemetry, len(updates)))
    print(f"{len(updates)} updates of {1e3 * update_s:.3g} ms", file=sys.stderr)
    shares = {
        "timers in the collector's loop": steps_s / update_s,
        "phases, timeline and a row for every update": row_s / update_s,
        "sampler thread": sampler_share,
    }
    shares["all together"] = sum(shares.values())
    return [_row(case, share) for case, share in shares.items()]


def _account(telemetry: Any, update: int) -> None:
    """What one update costs beside its work: two coarse phases, two fine ones, and a row."""
    collector, learner = PhaseClock("collector"), PhaseClock("learner")
    with collector.phase("collect"):
        collector.add("act", 1e-3)
        collector.add("env", 1e-3)
    with learner.phase("update"):
        learner.add("values", 1e-3)
    phases = collector.take() | learner.take()
    telemetry.see(Progress(0, update, 0, {}, [], phases))
    row = telemetry.take_row()
    json.dumps(row)
    telemetry.make_timeline(update)


def _time_call(call: Callable[[], Any]) -> float:
    """CPU seconds of one call, as the mean of many."""
    start = time.process_time()
    for _ in range(_TRIES):
        call()
    return (time.process_time() - start) / _TRIES


def _row(case: str, share: float) -> Row:
    return {
        "case": f"accounting: {case}",
        "ours": share,
        "peers": {},
        "ratio": None,
        "unit": "share of the run's time",
        "holds": share < _LIMIT,
    }
