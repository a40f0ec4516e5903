"""`bench soak`: trains CartPole-v1 in workers of which one is killed every few seconds.

The run must end with its episodes solved, and with memory, descriptors and processes as at the beginning.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from mission_gym.bench.contest import Row
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym.vector.workers import WorkersVec

_SOLVED = 475.0


def measure_soak(seconds: float, kill_every_s: float = 3.0) -> list[Row]:
    """One row for each thing that must hold."""
    flags: dict[str, Any] = {
        "vector": "workers", "tune": False, "timesteps": "100M", "max_time": f"{seconds}s", "seed": 1,
        "eval_freq": 100_000, "max_restarts": 1000, "tensorboard": False, "checkpoint_freq": 200_000,
        "learning_rate_final": None, "clip_range_final": None,
    }  # fmt: skip
    samples: list[tuple[int, int, int]] = []
    scores: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "eval":
            scores.append(event["return_mean"])

    with TemporaryDirectory(prefix="mission-gym-soak-") as folder:
        resolved = resolve("CartPole-v1", flags | {"runs_dir": folder})
        with start_run(resolved, listen) as session:
            vec = session.collector.vec
            assert isinstance(vec, WorkersVec)
            done = threading.Event()
            killer = threading.Thread(target=_kill, args=(vec.crew.pids, kill_every_s, done))
            killer.start()
            try:
                for number, _ in enumerate(session.updates()):
                    if number % 20 == 0:
                        samples.append(_sample())
            finally:
                done.set()
                killer.join()
            status = session.run.read_status()
    left = [child.pid for child in psutil.Process().children(recursive=True)]
    middle, last = samples[len(samples) // 2], samples[-1]
    print(f"status {status}", file=sys.stderr)
    return [
        _row("best return of an evaluation", max(scores), "reward", max(scores) >= _SOLVED),
        _row("workers replaced", status["worker_restarts"], "count", status["worker_restarts"] > 0),
        _row(
            "growth of memory in the second half",
            (last[0] - middle[0]) / 1e6,
            "MB",
            last[0] < 1.2 * middle[0],
        ),
        _row(
            "growth of descriptors in the second half", last[1] - middle[1], "count", last[1] <= middle[1] + 4
        ),
        _row("processes at the end", len(left), "count", not left),
    ]


def _row(case: str, ours: float, unit: str, holds: bool) -> Row:
    return {"case": f"soak: {case}", "ours": ours, "peers": {}, "ratio": None, "unit": unit, "holds": holds}


def _kill(pids: Callable[[], list[int]], every_s: float, done: threading.Event) -> None:
    rng = random.Random(0)
    while not done.wait(rng.uniform(0.5, 1.5) * every_s):
        try:
            os.kill(rng.choice(pids()), signal.SIGKILL)
        except (ProcessLookupError, IndexError):  # it was just replaced, or the run is over
            continue


def _sample() -> tuple[int, int, int]:
    """Resident bytes, open descriptors and child processes of this process."""
    me = psutil.Process()
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    return int(me.memory_info().rss), descriptors, len(me.children(recursive=True))
