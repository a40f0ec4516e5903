"""`bench soak`: a long training of CartPole-v1 in workers that is disturbed all the time, from outside.

Workers are killed every few seconds and the training process every minute or so, which is then resumed; its
clock is set back and forward by up to a day; the disk is full for a while, where a small one can be made. The
run must end solved, with no row of its metrics twice or out of order, no impossible time in them, and with
flat memory and descriptors.
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
from mission_gym_bench.contest import Row
from mission_gym_bench.faults.clocks import must_tell_sane_times
from mission_gym_bench.faults.lab import Command, Lab, NotHeld, Shelf, Skipped, fill, must, small_disk
from mission_gym_bench.faults.shift import fake_wall_clock, set_shift

_SOLVED = 475.0
_FARTHEST_S = 86_400.0  # that the clock is set back or forward
_LOOK_S = 0.1  # it must not take the cores from what it looks at
_WORKER_FDS = 4  # that a worker takes here: three pipes and its leash
_HASTY = 0.25  # of the troubles come whether or not the run has come on since the last one
_DISK = "256m"
_FLAGS = (
    "--vector", "workers", "--num-workers", "2", "--no-tune", "--timesteps", "1000M", "--seed", "1",
    "--eval-freq", "25000", "--eval-episodes", "10", "--max-restarts", "1000", "--no-tensorboard",
    "--checkpoint-freq", "5000", "--learning-rate-final", "none", "--clip-range-final", "none",
)  # fmt: skip


@dataclass(frozen=True)
class Troubles:
    """How long, and how often what happens; seconds, and steps that the run must have made since the last."""

    seconds: float
    worker_s: float = 3.0  # between kills of workers
    worker_steps: int = 2_000
    process_s: float = 60.0  # between kills of the training process
    process_steps: int = 10_000  # that are saved
    clock_s: float = 15.0  # between jumps of its clock
    full_disk_s: float = 20.0  # once, in the middle


@dataclass
class _Log:
    """What was done and seen."""

    workers: int = 0
    processes: int = 0
    jumps: int = 0
    disk_was_full: bool = False
    lost: list[str] = field(default_factory=list)
    # Of each process: bytes, and descriptors without those of its workers, which come and go.
    lives: list[list[tuple[int, int]]] = field(default_factory=list)


def measure_soak(troubles: Troubles) -> list[Row]:
    """One row for each thing that must hold."""
    log = _Log()
    with TemporaryDirectory(prefix="mission-gym-soak-") as folder, contextlib.ExitStack() as stack:
        lab = Lab(Path(folder) / "lab", None, Shelf(Path(folder)))
        with contextlib.suppress(Skipped):
            lab.runs_dir = stack.enter_context(small_disk(Path(folder) / "disk", _DISK))
        try:
            return _judge(lab, _disturb(lab, troubles, log), log)
        finally:
            for process in lab.find_processes():  # of a soak that was broken off
                with contextlib.suppress(psutil.Error):
                    process.kill()


def _disturb(lab: Lab, troubles: Troubles, log: _Log) -> RunDir:
    """Train for so long, with all the troubles; the last process is stopped in order."""
    rng = random.Random(0)
    clock = lab.folder / "clock"
    set_shift(clock, 0.0)
    env = fake_wall_clock(lab.folder / "site", clock)
    words: tuple[str, ...] = ("train", "CartPole-v1", *_FLAGS, "--runs-dir", str(lab.runs_dir))
    worker = _Pulse(rng, troubles.worker_s, troubles.worker_steps)
    process = _Pulse(rng, troubles.process_s, troubles.process_steps)
    jump = _Pulse(rng, troubles.clock_s, 0)
    ballast: Path | None = None
    command = lab.spawn(*words, env=env)
    log.lives.append([])
    lab.wait_until(lambda: _find_run(lab), "the first checkpoint", command, _LOOK_S)
    run = _find_run(lab)
    must(run is not None, f"it did not start: {command.err.read_text()[-300:]}")
    assert run is not None
    end = time.monotonic() + troubles.seconds
    disk_from = end - troubles.seconds / 2
    while time.monotonic() < end:
        if not command.running:
            log.lost.append(f"it ended by itself: {command.err.read_text()[-300:]}")
            break
        log.lives[-1] += _sample(command)
        if jump.is_due(0):
            set_shift(clock, rng.uniform(-_FARTHEST_S, _FARTHEST_S))
            log.jumps += 1
        if worker.is_due(run.read_status().get("step") or 0):
            log.workers += _kill_worker(command, rng)
        if lab.runs_dir.name == "disk" and not log.disk_was_full and time.monotonic() > disk_from:
            ballast, log.disk_was_full = fill(lab.runs_dir), True
        if ballast is not None and time.monotonic() > disk_from + troubles.full_disk_s:
            ballast.unlink()
            ballast = None
        # A process that dies while the disk is full could not be taken up before it is freed.
        if ballast is None and process.is_due(list_checkpoints(run.checkpoints)[-1].step):
            command = _kill_process(lab, run, command, log, env)
        time.sleep(_LOOK_S)
    if ballast is not None:
        ballast.unlink()
    lab.wait_until(lambda: _is_at_work(run, command), "it is at work again", command, _LOOK_S)
    with contextlib.suppress(ProcessLookupError):
        os.kill(command.pid, signal.SIGTERM)
    ended = command.wait()
    if ended.code != 130:
        log.lost.append(f"it ended with {ended.code}: {ended.err[-300:]}")
    return run


class _Pulse:
    """When the next trouble comes: about every so many seconds, but mostly not before the run has made some
    steps since the last one. Else a busy machine would start processes only to have them killed."""

    def __init__(self, rng: random.Random, seconds: float, steps: int) -> None:
        self._rng, self._seconds, self._steps = rng, seconds, steps
        self._last = 0
        self._draw()

    def is_due(self, step: int) -> bool:
        """Asked again and again; step: how far the run is."""
        self._last = min(self._last, step)  # a run that was killed goes on from an earlier step
        has_come_on = step >= self._last + self._steps
        if time.monotonic() < self._at or not (has_come_on or self._is_hasty):
            return False
        self._last = step
        self._draw()
        return True

    def _draw(self) -> None:
        self._at = time.monotonic() + self._rng.uniform(0.5, 1.5) * self._seconds
        self._is_hasty = self._rng.random() < _HASTY


def _find_run(lab: Lab) -> RunDir | None:
    """The run, once it has a checkpoint to come back to."""
    for path in lab.runs_dir.iterdir():
        if list_checkpoints(path / "checkpoints"):
            return RunDir(path)
    return None


def _is_at_work(run: RunDir, command: Command) -> bool:
    status = run.read_status()
    return status.get("state") == "running" and status.get("pid") == command.pid


def _kill_worker(command: Command, rng: random.Random) -> int:
    """Kill one of the processes that run environments; 0 if there is none at this moment."""
    with contextlib.suppress(psutil.Error):
        if workers := _find_workers(psutil.Process(command.pid)):
            rng.choice(workers).kill()
            return 1
    return 0


def _find_workers(process: psutil.Process) -> list[psutil.Process]:
    """The processes that run environments, of training and of evaluations."""
    workers = process.children()
    for _ in range(1 + FORKS):  # below a template, if there is one, and a keeper each
        workers = [child for above in workers for child in above.children()]
    return workers


def _kill_process(lab: Lab, run: RunDir, command: Command, log: _Log, env: dict[str, str]) -> Command:
    command.kill()
    log.processes += 1
    checkpoint, notes = load_last_good(run.checkpoints)
    log.lost += notes
    lab.wait_until(lambda: not lab.find_processes(), "its workers end", look_s=_LOOK_S)
    resumed = lab.spawn("resume", str(run.path), env=env)
    log.lives.append([])
    print(f"killed and resumed at step {checkpoint.step:,}", file=sys.stderr)
    return resumed


def _sample(command: Command) -> list[tuple[int, int]]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(command.pid)
        num_fds = process.num_fds() if hasattr(process, "num_fds") else 0
        return [(int(process.memory_info().rss), num_fds - _WORKER_FDS * len(_find_workers(process)))]
    return []


def _judge(lab: Lab, run: RunDir, log: _Log) -> list[Row]:
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
    oddity = ""
    try:
        must_tell_sane_times(run)
    except NotHeld as error:
        oddity = str(error)
        print(f"times: {oddity}", file=sys.stderr)
    disorder = sum(later <= earlier for earlier, later in itertools.pairwise(steps))
    left = len(lab.find_processes())
    in_order = status["state"] == "stopped"
    grown_mb, more = (last[0] - middle[0]) / 1e6, last[1] - middle[1]
    return [
        _row("best return of an evaluation", best, "reward", best >= _SOLVED),
        _row("workers killed", log.workers, "count", log.workers > 0),
        _row("processes killed and resumed", log.processes, "count", log.processes > 0),
        _row("jumps of the clock", log.jumps, "count", log.jumps > 0),
        _row("impossible times in the metrics", int(bool(oddity)), "count", not oddity),
        _row("times the disk was full", int(log.disk_was_full), "count", True),
        _row("things lost", len(log.lost), "count", not log.lost),
        _row("rows of the metrics twice or out of order", disorder, "count", not disorder),
        _row("end that was not in order", int(not in_order), "count", in_order),
        _row("growth of memory in the second half", grown_mb, "MB", last[0] < 1.2 * middle[0]),
        _row("growth of descriptors in the second half", more, "count", more <= 4),
        _row("processes at the end", left, "count", not left),
    ]


def _row(case: str, ours: float, unit: str, holds: bool) -> Row:
    return {"case": f"soak: {case}", "ours": ours, "peers": {}, "ratio": None, "unit": unit, "holds": holds}
