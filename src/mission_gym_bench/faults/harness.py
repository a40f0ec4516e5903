"""The harness of a fault: its own folder, commands in it, a trained run to damage, and checks.

A failed check raises NotHeld with the observation. `SkippedFault` means that this machine lacks something.
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

_LIMIT_S = 180.0  # after which a command counts as hung, on a machine with one process per core
MARK = "MISSION_GYM_FAULT"  # in the environment of every process of a fault
SMALL = {
    "--n-envs": "2", "--n-steps": "16", "--batch-size": "16", "--timesteps": "320",
    "--eval-freq": "0", "--checkpoint-freq": "64", "--network-arch": "8", "--no-tensorboard": "",
    "--no-tune": "", "--seed": "1", "--device": "cpu", "--kernel": "compiled", "--threads": "1",
    "--overlap": "off",
}  # fmt: skip
# Without schedules, so that a run that is resumed with a new total learns as before.
_STEADY = ("--learning-rate-final", "none", "--clip-range-final", "none")
SERIAL = ("--vector", "serial")
WORKERS = ("--vector", "workers", "--num-workers", "2")
_TAIL = 300  # characters of a command's output


class NotHeld(Exception):
    """A requirement does not hold; the message names the observation."""


class SkippedFault(Exception):
    """The fault cannot be injected on this machine; the message gives the reason."""


@dataclass(frozen=True)
class FaultCase:
    """One fault: `inject` injects it and raises NotHeld unless the requirement `holds` is met afterwards."""

    group: str
    name: str
    holds: str
    inject: Callable[[Harness], None]
    quick: bool = False  # part of the default form
    tried: int = 1  # number of faults; each kill of a chain counts


def measure_limit_s() -> float:
    """Return the seconds after which something counts as hung; more on a busy machine."""
    return _LIMIT_S * max(1.0, os.getloadavg()[0] / usable_cores())


def must(condition: bool, what: str) -> None:
    """Raise NotHeld with a message unless the condition is true."""
    if not condition:
        raise NotHeld(what)


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    def expect(self, *codes: int) -> CommandResult:
        """The command must have ended with one of these codes, and without a traceback."""
        words = f"{' '.join(self.args[:2])} ended with {self.code}: {self.err.strip()[-_TAIL:]}"
        must(self.code in codes, words)
        must("Traceback (most recent call last)" not in self.err, f"a traceback: {words}")
        return self


@dataclass
class Command:
    """A running command."""

    args: tuple[str, ...]
    pid: int
    out: Path
    err: Path
    wait_code: Callable[[float], int | None]

    def wait(self, more_s: float = 0.0) -> CommandResult:
        """Wait for its end; after the limit plus `more_s` it is killed: NotHeld."""
        timeout_s = measure_limit_s() + more_s
        code = self.wait_code(timeout_s)
        if code is None:
            self.kill()
            raise NotHeld(f"{' '.join(self.args[:2])} did not end within {timeout_s:.0f} s")
        return CommandResult(self.args, code, _read(self.out), _read(self.err))

    def kill(self) -> int | None:
        """Send SIGKILL and return the exit code."""
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
class RunCache:
    """Runs that several faults start from, each made once."""

    folder: Path
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _made: dict[str, Path] = field(default_factory=dict)

    def get(self, name: str, make: Callable[[], Path]) -> Path:
        """Return the result of `make` under this name."""
        with self._lock:
            if name not in self._made:
                shutil.copytree(make(), self.folder / name, symlinks=True)
                self._made[name] = self.folder / name
            return self._made[name]


class Harness:
    """One fault's folder and processes."""

    def __init__(self, folder: Path, launcher: Launcher | None, run_cache: RunCache) -> None:
        self.folder = folder
        self.run_cache = run_cache
        self.runs_dir = folder / "runs"
        self._launcher = launcher
        self._mark = uuid.uuid4().hex
        self._number = 0
        self._temporary = folder / "tmp"
        for path in (folder, self.runs_dir, self._temporary, folder / "state", folder / "here"):
            path.mkdir(exist_ok=True)
        self.here = folder / "here"  # the commands' current folder

    def inner(self, name: str) -> Harness:
        """Return a harness inside this one; their processes are checked together."""
        harness = Harness(self.folder / name, self._launcher, self.run_cache)
        harness._mark = self._mark
        return harness

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of commands."""
        return {
            MARK: self._mark,
            "TMPDIR": str(self._temporary),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.run_cache.folder / "cache"),
            "COLUMNS": "200",
        }

    def start(self, *args: str, here: Path | None = None, first_timeout_s: float | None = None) -> Command:
        """Start a command. first_timeout_s: replaces the product's timeout of construction and the first
        reset."""
        out, err = self._outputs()
        launcher = self._launcher
        assert launcher is not None, "this harness only spawns"
        pid = launcher.start(args, here or self.here, out, err, self.env, first_timeout_s)
        return Command(args, pid, out, err, lambda timeout_s: launcher.wait(pid, timeout_s))

    def run(self, *args: str, here: Path | None = None) -> CommandResult:
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
        """Return the arguments of a small training in this harness; flags replace those of every small
        run."""
        small = [word for pair in SMALL.items() if pair[0] not in flags for word in pair if word]
        return ("train", env_id, *small, "--runs-dir", str(self.runs_dir), *flags)

    def only_run(self) -> RunDir:
        """Return the only run."""
        found = sorted(path for path in self.runs_dir.iterdir() if (path / "status.json").exists())
        must(len(found) == 1, f"there are {len(found)} runs")
        return RunDir(found[0])

    def copy_run_source(self) -> Path:
        """Return a small run of CartPole-v1 with evaluations, made once for all faults, to copy."""

        def make() -> Path:
            harness = self.inner("trained")
            flags = (*SERIAL, *_STEADY, "--eval-freq", "128", "--eval-episodes", "1")
            harness.run(*harness.train("CartPole-v1", *flags)).expect(0)
            return harness.only_run().path

        return self.run_cache.get("trained", make)

    def copy_run(self, name: str = "trained") -> RunDir:
        """Copy that run under a name."""
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
            must(time.monotonic() < deadline, f"timed out waiting for {what}")
            time.sleep(look_s)
        return True

    def wait_for_step(
        self, command: Command, step: int, meanwhile: Callable[[], None] = lambda: None
    ) -> RunDir:
        """Return the run of a command, once it has a checkpoint at this step or later."""

        def reached() -> bool:
            meanwhile()
            return any(
                info.step >= step
                for path in self.runs_dir.iterdir()
                for info in list_checkpoints(path / "checkpoints")
            )

        must(self.wait_until(reached, f"step {step}", command), f"the command ended before step {step}")
        return self.only_run()

    def must_leave_nothing(self) -> None:
        """No process, temporary file or shared memory of this fault may be left."""
        with contextlib.suppress(NotHeld):
            self.wait_until(lambda: not self.find_processes(), "processes to end")
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
        """Return the processes with this fault's mark."""
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
    """Return every array of a run's last checkpoint, verified."""
    last = load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    return last.policy | last.state


def must_equal(run: RunDir, straight: RunDir) -> None:
    """The last checkpoints of two runs must be equal, bit for bit."""
    ours, theirs = read_end(run), read_end(straight)
    must(ours.keys() == theirs.keys(), "the last checkpoints hold other arrays")
    differing = [name for name in theirs if not np.array_equal(ours[name], theirs[name], equal_nan=True)]
    must(not differing, f"differs from the straight run: {', '.join(differing[:5])}")


def must_be_tidy(run: RunDir) -> None:
    """No partly written file may be left in a run."""
    left = [path.name for path in run.path.rglob(".*") if path.name.startswith((".tmp-", ".old-"))]
    must(not left, f"left in the run: {left}")


def must_be_usable(run: RunDir) -> None:
    """A run that stopped early must state the cause, and its last checkpoint must load."""
    status = run.read_status()
    must(status.get("state") in ("done", "failed", "stopped"), f"the state is {status.get('state')!r}")
    must(bool(status.get("cause")), "the status names no cause")
    if list_checkpoints(run.checkpoints):
        read_end(run)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small file system; needs root."""
    folder.mkdir()
    _mount(["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)])
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def bind(source: Path, target: Path) -> Iterator[None]:
    """Show a file in the place of another one; needs root."""
    _mount(["--bind", str(source), str(target)])
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def _mount(words: Sequence[str]) -> None:
    program = shutil.which("mount")
    if program is None or subprocess.run([program, *words], capture_output=True).returncode:
        raise SkippedFault("mounting needs Linux and root")


def remount(folder: Path, how: str) -> None:
    """Make a small disk `ro` or `rw`."""
    _mount(["-o", f"remount,{how}", str(folder)])


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Fill a disk except for `leave_bytes`; return the file to delete."""
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
