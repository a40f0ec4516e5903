"""What every fault gets: a folder of its own, commands in it, a trained run to damage, and what to check.

A check that fails raises NotHeld with what happened. `Skipped` is for what this machine does not have.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from mission_gym.data import Array
from mission_gym.procs import usable_cores
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.launcher import Launcher

_LIMIT_S = 180.0  # after which a command counts as hung, where each core has one thing to do
MARK = "MISSION_GYM_FAULT"  # in the environment of every process of a fault
SMALL = {
    "--n-envs": "2", "--n-steps": "16", "--batch-size": "16", "--timesteps": "320",
    "--eval-freq": "0", "--checkpoint-freq": "64", "--network-arch": "8", "--no-tensorboard": "",
    "--no-tune": "", "--seed": "1", "--device": "cpu", "--kernel": "compiled", "--threads": "1",
    "--overlap": "off",
}  # fmt: skip
# Without schedules that fall, so that a run that is resumed with a new total learns as before.
_STEADY = ("--learning-rate-final", "none", "--clip-range-final", "none")
SERIAL = ("--vector", "serial")
WORKERS = ("--vector", "workers", "--num-workers", "2")
_TAIL = 300  # characters of a command's last words


class NotHeld(Exception):
    """What must hold did not; the message says what happened."""


class Skipped(Exception):
    """It can't be tried here; the message says why."""


@dataclass(frozen=True)
class Fault:
    """One fault: `inject` does it and raises NotHeld unless `holds`, in words, is true afterwards."""

    group: str
    name: str
    holds: str
    inject: Callable[[Lab], None]
    quick: bool = False  # belongs to the default form
    tried: int = 1  # a chain of kills counts each of them


def measure_limit_s() -> float:
    """After so many seconds something counts as hung: the busier the machine, the more."""
    return _LIMIT_S * max(1.0, os.getloadavg()[0] / usable_cores())


def must(condition: bool, what: str) -> None:
    """Raise NotHeld with what happened unless the condition is true."""
    if not condition:
        raise NotHeld(what)


class Ended(NamedTuple):
    """A command that ended."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    def expect(self, *codes: int) -> Ended:
        """It must have ended with one of these codes, and without a traceback."""
        words = f"{' '.join(self.args[:2])} ended with {self.code}: {self.err.strip()[-_TAIL:]}"
        must(self.code in codes, words)
        must("Traceback (most recent call last)" not in self.err, f"a traceback: {words}")
        return self


@dataclass
class Command:
    """A command under way."""

    args: tuple[str, ...]
    pid: int
    out: Path
    err: Path
    wait_code: Callable[[float], int | None]

    def wait(self, more_s: float = 0.0) -> Ended:
        """Wait for its end; one that does not end, more_s later than others, is killed: NotHeld."""
        timeout_s = measure_limit_s() + more_s
        code = self.wait_code(timeout_s)
        if code is None:
            self.kill()
            raise NotHeld(f"{' '.join(self.args[:2])} did not end within {timeout_s:.0f} s")
        return Ended(self.args, code, _read(self.out), _read(self.err))

    def kill(self) -> int | None:
        """SIGKILL, and its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait_code(measure_limit_s())

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass
class Shelf:
    """Runs that several faults begin with, each made once."""

    folder: Path
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _made: dict[str, Path] = field(default_factory=dict)

    def get(self, name: str, make: Callable[[], Path]) -> Path:
        """What `make` made under this name."""
        with self._lock:
            if name not in self._made:
                shutil.copytree(make(), self.folder / name, symlinks=True)
                self._made[name] = self.folder / name
            return self._made[name]


class Lab:
    """One fault's folder and processes."""

    def __init__(self, folder: Path, launcher: Launcher | None, shelf: Shelf) -> None:
        self.folder = folder
        self.shelf = shelf
        self.runs_dir = folder / "runs"
        self._launcher = launcher
        self._mark = uuid.uuid4().hex
        self._number = 0
        self._temporary = folder / "tmp"
        for path in (folder, self.runs_dir, self._temporary, folder / "state", folder / "here"):
            path.mkdir(exist_ok=True)
        self.here = folder / "here"  # the commands' current folder

    def inner(self, name: str) -> Lab:
        """A lab inside this one, whose processes count as this one's."""
        lab = Lab(self.folder / name, self._launcher, self.shelf)
        lab._mark = self._mark
        return lab

    @property
    def env(self) -> dict[str, str]:
        """What commands find in their environment."""
        return {
            MARK: self._mark,
            "TMPDIR": str(self._temporary),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.shelf.folder / "cache"),
            "COLUMNS": "200",
        }

    def start(self, *args: str, here: Path | None = None, first_timeout_s: float | None = None) -> Command:
        """Start a command. first_timeout_s: instead of the product's own, for what is built and reset."""
        out, err = self._outputs()
        launcher = self._launcher
        assert launcher is not None, "this lab only spawns"
        pid = launcher.start(args, here or self.here, out, err, self.env, first_timeout_s)
        return Command(args, pid, out, err, lambda timeout_s: launcher.wait(pid, timeout_s))

    def run(self, *args: str, here: Path | None = None) -> Ended:
        """Run a command to its end."""
        return self.start(*args, here=here).wait()

    def spawn(self, *args: str, env: dict[str, str] | None = None, **more: Any) -> Command:
        """Start `python -m mission_gym`, imports included; `more` is for Popen."""
        out, err = self._outputs()
        with out.open("w") as stdout, err.open("w") as stderr:
            pipes: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": stdout,
                "stderr": stderr,
                "cwd": self.here,
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "mission_gym", *args],
                env=os.environ | self.env | (env or {}),
                start_new_session=True,
                **(pipes | more),
            )

        def wait_code(timeout_s: float) -> int | None:
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None

        return Command(args, process.pid, out, err, wait_code)

    def train(self, env_id: str, *flags: str) -> tuple[str, ...]:
        """The words of a small training in this lab; flags come instead of those of every small run."""
        small = [word for pair in SMALL.items() if pair[0] not in flags for word in pair if word]
        return ("train", env_id, *small, "--runs-dir", str(self.runs_dir), *flags)

    def only_run(self) -> RunDir:
        """The one run that was made."""
        found = sorted(path for path in self.runs_dir.iterdir() if (path / "status.json").exists())
        must(len(found) == 1, f"there are {len(found)} runs")
        return RunDir(found[0])

    def copy_run_source(self) -> Path:
        """A small run of CartPole-v1 with evaluations, made once for all faults: copy it."""

        def make() -> Path:
            lab = self.inner("trained")
            flags = (*SERIAL, *_STEADY, "--eval-freq", "128", "--eval-episodes", "1")
            lab.run(*lab.train("CartPole-v1", *flags)).expect(0)
            return lab.only_run().path

        return self.shelf.get("trained", make)

    def copy_run(self, name: str = "trained") -> RunDir:
        """A copy of that run, under a name."""
        target = self.runs_dir / f"{name}-20200101-000000"
        shutil.copytree(self.copy_run_source(), target)
        return RunDir(target)

    def wait_until(
        self, condition: Callable[[], Any], what: str, command: Command | None = None, look_s: float = 0.002
    ) -> bool:
        """Wait for a condition; False if the command ended first, NotHeld if neither comes."""
        deadline = time.monotonic() + measure_limit_s()
        while not condition():
            if command is not None and not command.running:
                return bool(condition())
            must(time.monotonic() < deadline, f"waited in vain: {what}")
            time.sleep(look_s)
        return True

    def wait_for_step(
        self, command: Command, step: int, meanwhile: Callable[[], None] = lambda: None
    ) -> RunDir:
        """The run of a command, once a checkpoint at this step or behind it is there."""

        def reached() -> bool:
            meanwhile()
            return any(
                info.step >= step
                for path in self.runs_dir.iterdir()
                for info in list_checkpoints(path / "checkpoints")
            )

        must(self.wait_until(reached, f"step {step}", command), f"it ended before step {step}")
        return self.only_run()

    def must_leave_nothing(self) -> None:
        """No process of this fault is left, and no temporary file."""
        with contextlib.suppress(NotHeld):
            self.wait_until(lambda: not self.find_processes(), "processes end")
        left = [(process.pid, _name(process)) for process in self.find_processes()]
        for pid, _ in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        must(not left, f"processes are left: {left}")
        files = [str(path) for path in self._temporary.rglob("*") if path.is_file()]
        must(not files, f"temporary files are left: {files[:3]}")
        shared = Path("/dev/shm")
        names = [path.name for path in shared.glob("mission-gym*")] if shared.is_dir() else []
        must(not names, f"shared memory is left: {names}")

    def find_processes(self) -> list[psutil.Process]:
        """The processes that carry this fault's mark."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _outputs(self) -> tuple[Path, Path]:
        self._number += 1
        return self.folder / f"out-{self._number}", self.folder / f"err-{self._number}"


def read_end(run: RunDir) -> dict[str, Array]:
    """Every array of a run's last checkpoint, verified."""
    last = load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    return last.policy | last.state


def must_equal(run: RunDir, straight: RunDir) -> None:
    """The last checkpoints of two runs are equal, bit for bit."""
    ours, theirs = read_end(run), read_end(straight)
    must(ours.keys() == theirs.keys(), "the last checkpoints hold other arrays")
    differing = [name for name in theirs if not np.array_equal(ours[name], theirs[name], equal_nan=True)]
    must(not differing, f"differs from the straight run: {', '.join(differing[:5])}")


def must_be_tidy(run: RunDir) -> None:
    """Nothing half written is left in a run."""
    left = [path.name for path in run.path.rglob(".*") if path.name.startswith((".tmp-", ".old-"))]
    must(not left, f"left in the run: {left}")


def must_be_usable(run: RunDir) -> None:
    """A run that did not go to its end says why, and its last checkpoint can be loaded."""
    status = run.read_status()
    must(status.get("state") in ("done", "failed", "stopped"), f"the state is {status.get('state')!r}")
    must(bool(status.get("cause")), "the status names no cause")
    if list_checkpoints(run.checkpoints):
        read_end(run)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system that can be filled; needs root."""
    folder.mkdir()
    _mount(["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)])
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(words: Sequence[str]) -> None:
    program = shutil.which("mount")
    if program is None or subprocess.run([program, *words], capture_output=True).returncode:
        raise Skipped("mounting needs Linux and root")


def remount(folder: Path, how: str) -> None:
    """Make a small disk `ro` or `rw`."""
    _mount(["-o", f"remount,{how}", str(folder)])


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Fill a disk but for so many bytes; returns the file to delete."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for piece in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * piece)
    os.truncate(ballast, ballast.stat().st_size - leave_bytes)
    return ballast


def _read(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:80]
    return "gone"
