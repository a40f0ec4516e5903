"""Full and read-only disks, moved folders, closed consoles and system limits."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.harness import (
    SERIAL,
    WORKERS,
    Command,
    FaultCase,
    Harness,
    bind,
    fill,
    must,
    must_equal,
    read_end,
    remount,
    small_disk,
)

_LONG = (*SERIAL, "--timesteps", "20000", "--checkpoint-freq", "1000", "--n-epochs", "2")
_REFUSED = "one message, no traceback"
_CONTINUES = "the training runs to its end"
_KEPT = "one message with the cause; the last complete checkpoint can be loaded"
_SHOWN = "the result is shown"
_SAVED = "the run stops with a checkpoint and can be resumed"
_RUNS_HELP = ("runs", "--help")
_MANY = 20  # the same line more often than this is noise


def make_disk_faults() -> list[FaultCase]:
    """Return all faults of disks, consoles and limits."""
    table: dict[str, tuple[str, Callable[[Harness], None], bool]] = {
        "disk full at the start": (_REFUSED, _full_at_start, True),
        "disk full in the middle, then freed": (_CONTINUES, partial(_full_later, freed=True), True),
        "disk full to the end": (_KEPT, partial(_full_later, freed=False), False),
        "disk full at a checkpoint": (_CONTINUES, _full_at_checkpoint, False),
        "disk read-only in the middle, then not": (_CONTINUES, partial(_read_only, freed=True), False),
        "disk read-only to the end": (_KEPT, partial(_read_only, freed=False), False),
        "disk read-only at the start": (_REFUSED, _read_only_at_start, False),
        "full disk for the log": (_CONTINUES, partial(_full_file, name="log.txt"), True),
        "full disk for the progress table": (_CONTINUES, partial(_full_file, name="progress.csv"), False),
        "full disk for the monitor table": (_CONTINUES, partial(_full_file, name="monitor.csv"), False),
        "run directory moved while running": (_REFUSED, partial(_vanish, move=True), True),
        "run directory removed while running": (_REFUSED, partial(_vanish, move=False), False),
        "evaluation on a read-only disk": (_SHOWN, partial(_eval, spoil=lambda d: remount(d, "ro")), False),
        "evaluation on a full disk": (_SHOWN, partial(_eval, spoil=fill), False),
        "stderr is full": (_CONTINUES, _full_console, True),
        "stdout and stderr are closed": (_CONTINUES, partial(_closed, numbers=(1, 2)), False),
        "stdin is closed": (_CONTINUES, partial(_closed, numbers=(0,)), False),
        "the terminal is closed": (_SAVED, _hang_up, True),
        "the reader of --help leaves": (_REFUSED, partial(_reader_leaves, words=("--help",)), True),
        "the reader of runs --help leaves": (_REFUSED, partial(_reader_leaves, words=_RUNS_HELP), False),
        "16 descriptors": (_REFUSED, _few_descriptors, True),
        "deleted current folder": (_REFUSED, _no_folder, True),
        "a runs folder that is a file": (_REFUSED, _runs_is_a_file, True),
    }  # fmt: skip
    return [
        FaultCase("disk and console", name, holds, check, quick)
        for name, (holds, check, quick) in table.items()
    ]


def _on_disk(harness: Harness, disk: Path, *flags: str) -> tuple[str, ...]:
    """Return the arguments of a training whose runs are on a small disk."""
    harness.runs_dir = disk / "runs"
    harness.runs_dir.mkdir()
    return harness.train("CartPole-v1", *flags)


def _full_at_start(harness: Harness) -> None:
    with small_disk(harness.folder / "disk", "40k") as disk:
        words = _on_disk(harness, disk, *SERIAL, "--network-arch", "64,64")
        fill(disk)
        harness.run(*words).expect(2, 3)


@contextlib.contextmanager
def _train_on_disk(harness: Harness) -> Iterator[tuple[Path, Command, RunDir]]:
    """Train on a small disk; yield once the run has some checkpoints."""
    with small_disk(harness.folder / "disk", "8m") as disk:
        command = harness.start(*_on_disk(harness, disk, *_LONG))
        yield disk, command, harness.wait_for_step(command, 2000)


def _full_later(harness: Harness, freed: bool) -> None:
    with _train_on_disk(harness) as (disk, command, run):
        _check_end(harness, command, run, freed, fill(disk).unlink)


def _check_end(harness: Harness, command: Command, run: RunDir, freed: bool, fix: Callable[[], None]) -> None:
    """Wait until the run reports the problem, fix it or not, and check the end of the run."""
    must(
        harness.wait_until(lambda: "checkpoint not saved" in command.err.read_text(), "a warning", command)
        or not freed,
        "the run ended without a warning",
    )
    if freed:
        fix()
        ended = command.wait().expect(0)
        must(run.read_status()["state"] == "done", f"the status is {run.read_status()}")
    else:
        ended = command.wait().expect(3)
    read_end(run)
    most = max((ended.err.count(line) for line in set(ended.err.splitlines()) if line.strip()), default=0)
    must(most <= _MANY, f"the same line was printed {most} times")


def _full_at_checkpoint(harness: Harness) -> None:
    with _train_on_disk(harness) as (disk, command, run):
        size_bytes = list_checkpoints(run.checkpoints)[-1].size_bytes
        ballast = fill(disk, leave_bytes=size_bytes // 2)  # the next one fails halfway
        read_end(run)
        _check_end(harness, command, run, True, ballast.unlink)


def _read_only(harness: Harness, freed: bool) -> None:
    with _train_on_disk(harness) as (_, command, run):
        # Files are open for writing, so the disk cannot become read-only; the run's checkpoints can.
        subprocess.run(
            ["mount", "--bind", "-o", "ro", str(run.checkpoints), str(run.checkpoints)], check=True
        )
        remount(run.checkpoints, "bind,ro")

        def fix() -> None:
            subprocess.run(["umount", "-l", str(run.checkpoints)], check=True)

        try:
            _check_end(harness, command, run, freed, fix)
        finally:
            if not freed:
                fix()


def _read_only_at_start(harness: Harness) -> None:
    with small_disk(harness.folder / "disk", "8m") as disk:
        words = _on_disk(harness, disk, *SERIAL)
        remount(disk, "ro")
        harness.run(*words).expect(2, 3)


def _full_file(harness: Harness, name: str) -> None:
    """Only this file is on a full disk."""
    run = harness.copy_run()
    with small_disk(harness.folder / "disk", "64k") as disk:
        shutil.copy(run.path / name, disk / name)
        fill(disk)
        with bind(disk / name, run.path / name):  # a link would be refused
            harness.run("resume", str(run.path), "--timesteps", "640").expect(0)
        must(run.read_status()["state"] == "done", f"the status is {run.read_status()}")


def _vanish(harness: Harness, move: bool) -> None:
    command = harness.start(*harness.train("CartPole-v1", *_LONG))
    run = harness.wait_for_step(command, 2000)
    moved = harness.folder / "moved"
    run.path.rename(moved)
    if not move:
        shutil.rmtree(moved, ignore_errors=True)
    command.wait().expect(0, 2, 3)
    if move:
        must(bool(list_checkpoints(moved / "checkpoints")), "the moved checkpoints are gone")
    harness.must_leave_nothing()


def _eval(harness: Harness, spoil: Callable[[Path], object]) -> None:
    """Evaluate a run on a disk that is full or read-only."""
    with small_disk(harness.folder / "disk", "8m") as disk:
        harness.runs_dir = disk
        run = harness.copy_run()
        spoil(disk)
        ended = harness.run("eval", str(run.path), "--episodes", "2", "--json").expect(0, 3)
        shown = json.loads(ended.out or "{}")
        must("return_mean" in shown, "the episodes were played, but the result was not shown")


def _full_console(harness: Harness) -> None:
    with open("/dev/full", "w") as full:
        ended = harness.spawn(*harness.train("CartPole-v1", *SERIAL), stderr=full).wait()
    must(ended.code == 0, f"the training ended with {ended.code}")
    must(harness.only_run().read_status()["state"] == "done", "the run is not done")


def _closed(harness: Harness, numbers: tuple[int, ...]) -> None:
    def close() -> None:
        for number in numbers:
            os.close(number)

    command = harness.spawn(*harness.train("CartPole-v1", *WORKERS), preexec_fn=close)
    must(command.wait().code == 0, "the training did not end with 0")
    must(harness.only_run().read_status()["state"] == "done", "the run is not done")
    harness.must_leave_nothing()


def _hang_up(harness: Harness) -> None:
    """Close the terminal of the process's session, as when a window is closed."""
    straight, long = harness.inner("straight"), (*SERIAL, "--timesteps", "80000", "--checkpoint-freq", "8000")
    straight.run(*straight.train("CartPole-v1", *long)).expect(0)
    terminal, inside = pty.openpty()

    def take() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # this process may ignore it, as under nohup
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    words = harness.train("CartPole-v1", *long)
    command = harness.spawn(*words, preexec_fn=take, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    os.set_blocking(terminal, False)

    def read() -> None:
        with contextlib.suppress(OSError):  # no output
            os.read(terminal, 1 << 16)

    try:
        run = harness.wait_for_step(command, 2000, read)
    finally:
        os.close(terminal)
    command.wait()
    status = run.read_status()
    must(status["state"] == "stopped", f"the status is {status['state']}, {status.get('cause')}")
    harness.run("resume", str(run.path)).expect(0)
    must_equal(run, straight.only_run())
    harness.must_leave_nothing()


def _reader_leaves(harness: Harness, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = harness.spawn(*words, stdout=writer).wait()
    finally:
        os.close(writer)
    must(not ended.err.strip(), f"it printed {ended.err.strip()[-200:]!r}")


def _few_descriptors(harness: Harness) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

    ended = harness.spawn(*harness.train("CartPole-v1", *WORKERS), preexec_fn=limit).wait()
    ended.expect(0, 2, 3)
    harness.must_leave_nothing()


def _no_folder(harness: Harness) -> None:
    gone = harness.folder / "gone"
    for words in (("--help",), ("runs", "list"), harness.train("CartPole-v1", *SERIAL)):
        gone.mkdir()
        command = harness.spawn(*words, cwd=gone, preexec_fn=partial(os.rmdir, gone))
        command.wait().expect(0, 2)


def _runs_is_a_file(harness: Harness) -> None:
    harness.runs_dir.rmdir()
    harness.runs_dir.write_text("not a folder")
    harness.run(*harness.train("CartPole-v1", *SERIAL)).expect(2)
    for words in (("runs", "list"), ("runs", "show", "latest"), ("eval", "latest")):
        harness.run(*words, "--runs-dir", str(harness.runs_dir)).expect(0, 2)
