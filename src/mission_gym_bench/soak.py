"""`bench soak`: a long training of CartPole-v1 in workers, disturbed from outside all the time.

Workers are killed every few seconds, and the training process about every minute, after which it is resumed.
Its clock is set back and forward by up to a day. The disk is full for a while, if a small disk can be
mounted. The run must end solved, without repeated or unordered rows in its metrics, without impossible times,
and with constant memory and descriptors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from mission_gym.procs.start import FORKS
from mission_gym.store.checkpoints import list_checkpoints, load_last_good
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym_bench.faults.clocks import must_have_sane_times
from mission_gym_bench.faults.fake_clock import fake_wall_clock, set_shift
from mission_gym_bench.faults.harness import (
    Command,
    Harness,
    NotHeld,
    RunCache,
    SkippedFault,
    fill,
    must,
    small_disk,
)
from mission_gym_bench.runner import Row, make_row

_SOLVED = 475.0
_FARTHEST_S = 86_400.0  # most seconds that the clock is set back or forward
_LOOK_S = 0.1  # between samples, which must not take the cores from the run
_WORKER_FDS = 4  # descriptors per worker in the training process: three pipes and a socket
_HASTY = 0.25  # share of disturbances that come without progress of the run since the last one
_DISK = "256m"
_FLAGS = (
    "--vector", "workers", "--num-workers", "2", "--no-tune", "--timesteps", "1000M", "--seed", "1",
    "--eval-freq", "25000", "--eval-episodes", "10", "--max-restarts", "1000", "--no-tensorboard",
    "--checkpoint-freq", "5000", "--learning-rate-final", "none", "--clip-range-final", "none",
)  # fmt: skip


@dataclass(frozen=True)
class Disturbances:
    """Duration, and the gaps between disturbances: in seconds, and in steps that the run makes between
    them."""

    seconds: float
    worker_s: float = 3.0  # between kills of workers
    worker_steps: int = 2_000
    process_s: float = 60.0  # between kills of the training process
    process_steps: int = 10_000  # saved in checkpoints
    clock_s: float = 15.0  # between jumps of its clock
    full_disk_s: float = 20.0  # once, in the middle


@dataclass
class _Log:
    """Disturbances and observations."""

    workers: int = 0
    processes: int = 0
    jumps: int = 0
    disk_was_full: bool = False
    lost: list[str] = field(default_factory=list)
    # Per process: bytes, and descriptors without those of its workers, whose number varies.
    lives: list[list[tuple[int, int]]] = field(default_factory=list)


def measure_soak(disturbances: Disturbances) -> list[Row]:
    """One row per requirement."""
    log = _Log()
    with TemporaryDirectory(prefix="mission-gym-soak-") as folder, contextlib.ExitStack() as stack:
        harness = Harness(Path(folder) / "harness", None, RunCache(Path(folder)))
        with contextlib.suppress(SkippedFault):
            harness.runs_dir = stack.enter_context(small_disk(Path(folder) / "disk", _DISK))
        try:
            return _judge(harness, _disturb(harness, disturbances, log), log)
        finally:
            for process in harness.find_processes():  # of an interrupted soak
                with contextlib.suppress(psutil.Error):
                    process.kill()


def _disturb(harness: Harness, disturbances: Disturbances, log: _Log) -> RunDir:
    """Train with all disturbances; the last process is stopped in order."""
    rng = random.Random(0)
    clock = harness.folder / "clock"
    set_shift(clock, 0.0)
    env = fake_wall_clock(harness.folder / "site", clock)
    words: tuple[str, ...] = ("train", "CartPole-v1", *_FLAGS, "--runs-dir", str(harness.runs_dir))
    worker = _Schedule(rng, disturbances.worker_s, disturbances.worker_steps)
    process = _Schedule(rng, disturbances.process_s, disturbances.process_steps)
    jump = _Schedule(rng, disturbances.clock_s, 0)
    ballast: Path | None = None
    command = harness.spawn(*words, env=env)
    log.lives.append([])
    harness.wait_until(lambda: _find_run(harness), "the first checkpoint", command, _LOOK_S)
    run = _find_run(harness)
    must(run is not None, f"the training did not start: {command.err.read_text()[-300:]}")
    assert run is not None
    end = time.monotonic() + disturbances.seconds
    disk_from = end - disturbances.seconds / 2
    while time.monotonic() < end:
        if not command.running:
            log.lost.append(f"the training ended by itself: {command.err.read_text()[-300:]}")
            break
        log.lives[-1] += _sample(command)
        if jump.is_due(0):
            set_shift(clock, rng.uniform(-_FARTHEST_S, _FARTHEST_S))
            log.jumps += 1
        if worker.is_due(run.read_status().get("step") or 0):
            log.workers += _kill_worker(command, rng)
        if harness.runs_dir.name == "disk" and not log.disk_was_full and time.monotonic() > disk_from:
            ballast, log.disk_was_full = fill(harness.runs_dir), True
        if ballast is not None and time.monotonic() > disk_from + disturbances.full_disk_s:
            ballast.unlink()
            ballast = None
        # A process that dies while the disk is full could not be resumed before it is freed.
        if ballast is None and process.is_due(list_checkpoints(run.checkpoints)[-1].step):
            command = _kill_process(harness, run, command, log, env)
        time.sleep(_LOOK_S)
    if ballast is not None:
        ballast.unlink()
    harness.wait_until(lambda: _is_training(run, command), "it trains again", command, _LOOK_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(command.pid, signal.SIGTERM)
    ended = command.wait()
    if ended.code != 130:
        log.lost.append(f"the training ended with {ended.code}: {ended.err[-300:]}")
    return run


class _Schedule:
    """When the next disturbance comes: after about `seconds`, but usually not before the run has made `steps`
    since the last one. Otherwise a busy machine would only start processes and kill them."""

    def __init__(self, rng: random.Random, seconds: float, steps: int) -> None:
        self._rng, self._seconds, self._steps = rng, seconds, steps
        self._last = 0
        self._draw()

    def is_due(self, step: int) -> bool:
        """Whether a disturbance is due. step: the current step of the run."""
        self._last = min(self._last, step)  # a killed run continues from an earlier step
        has_advanced = step >= self._last + self._steps
        if time.monotonic() < self._at or not (has_advanced or self._is_hasty):
            return False
        self._last = step
        self._draw()
        return True

    def _draw(self) -> None:
        self._at = time.monotonic() + self._rng.uniform(0.5, 1.5) * self._seconds
        self._is_hasty = self._rng.random() < _HASTY


def _find_run(harness: Harness) -> RunDir | None:
    """Return the run, once it has a checkpoint to resume from."""
    for path in harness.runs_dir.iterdir():
        if list_checkpoints(path / "checkpoints"):
            return RunDir(path)
    return None


def _is_training(run: RunDir, command: Command) -> bool:
    status = run.read_status()
    return status.get("state") == "running" and status.get("pid") == command.pid


def _kill_worker(command: Command, rng: random.Random) -> int:
    """Kill one of the processes that run environments; return 0 if there is none at the moment."""
    with contextlib.suppress(psutil.Error):
        if workers := _find_workers(psutil.Process(command.pid)):
            rng.choice(workers).kill()
            return 1
    return 0


def _find_workers(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that run environments, of training and of evaluations."""
    workers = process.children()
    for _ in range(1 + FORKS):  # below a fork server, if there is one, and a subreaper each
        workers = [child for above in workers for child in above.children()]
    return workers


def _kill_process(harness: Harness, run: RunDir, command: Command, log: _Log, env: dict[str, str]) -> Command:
    command.kill()
    log.processes += 1
    checkpoint, notes = load_last_good(run.checkpoints)
    log.lost += notes
    harness.wait_until(lambda: not harness.find_processes(), "its workers to end", look_s=_LOOK_S)
    resumed = harness.spawn("resume", str(run.path), env=env)
    log.lives.append([])
    print(f"killed and resumed at step {checkpoint.step:,}", file=sys.stderr)
    return resumed


def _sample(command: Command) -> list[tuple[int, int]]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(command.pid)
        num_fds = process.num_fds() if hasattr(process, "num_fds") else 0
        return [(int(process.memory_info().rss), num_fds - _WORKER_FDS * len(_find_workers(process)))]
    return []


def _judge(harness: Harness, run: RunDir, log: _Log) -> list[Row]:
    life = max(log.lives, key=len)
    middle, last = life[len(life) // 2], life[-1]
    events = list(MetricsLog.read(run.metrics_jsonl))
    steps = [row["step"] for row in events if row["event"] == "progress"]
    scores = [row["return_mean"] for row in events if row["event"] == "eval"]
    best = max(scores, default=0.0)
    status = run.read_status()
    print(f"status {status}", file=sys.stderr)
    for problem in log.lost:
        print(f"lost: {problem}", file=sys.stderr)
    bad_time = ""
    try:
        must_have_sane_times(run)
    except NotHeld as error:
        bad_time = str(error)
        print(f"times: {bad_time}", file=sys.stderr)
    disorder = sum(later <= earlier for earlier, later in itertools.pairwise(steps))
    left = len(harness.find_processes())
    in_order = status["state"] == "stopped"
    grown_mb, more = (last[0] - middle[0]) / 1e6, last[1] - middle[1]
    return [
        _row("best return of an evaluation", best, "reward", best >= _SOLVED),
        _row("workers killed", log.workers, "count", log.workers > 0),
        _row("processes killed and resumed", log.processes, "count", log.processes > 0),
        _row("jumps of the clock", log.jumps, "count", log.jumps > 0),
        _row("impossible times in the metrics", int(bool(bad_time)), "count", not bad_time),
        _row("times the disk was full", int(log.disk_was_full), "count", True),
        _row("things lost", len(log.lost), "count", not log.lost),
        _row("repeated or unordered rows of the metrics", disorder, "count", not disorder),
        _row("end that was not orderly", int(not in_order), "count", in_order),
        _row("growth of memory in the second half", grown_mb, "MB", last[0] < 1.2 * middle[0]),
        _row("growth of descriptors in the second half", more, "count", more <= 4),
        _row("processes at the end", left, "count", not left),
    ]


def _row(case: str, ours: float, unit: str, holds: bool) -> Row:
    return make_row(f"soak: {case}", ours, unit, holds=holds)
