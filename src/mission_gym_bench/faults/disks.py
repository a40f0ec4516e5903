"""Full and read-only disks, folders that move, consoles that are gone, limits of the system."""

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
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.lab import (
    SERIAL,
    WORKERS,
    Command,
    Fault,
    Lab,
    fill,
    must,
    must_equal,
    read_end,
    remount,
    small_disk,
)

_LONG = (*SERIAL, "--timesteps", "20000", "--checkpoint-freq", "1000", "--n-epochs", "2")
_REFUSED = "one message, no traceback"
_GOES_ON = "the training goes to its end"
_KEPT = "one message with the cause; the last checkpoint that fitted can be loaded"
_SAVED = "the run stops with a checkpoint and can be resumed"
_RUNS_HELP = ("runs", "--help")
_MANY = 20  # the same sentence more often than this is noise


def make_disk_faults() -> list[Fault]:
    """All of them."""
    table: dict[str, tuple[str, Callable[[Lab], None], bool]] = {
        "disk full at the start": (_REFUSED, _full_at_start, True),
        "disk full in the middle, then freed": (_GOES_ON, partial(_full_later, freed=True), True),
        "disk full to the end": (_KEPT, partial(_full_later, freed=False), False),
        "disk full at a checkpoint": (_GOES_ON, _full_at_checkpoint, False),
        "disk read-only in the middle, then not": (_GOES_ON, partial(_read_only, freed=True), False),
        "disk read-only to the end": (_KEPT, partial(_read_only, freed=False), False),
        "disk read-only at the start": (_REFUSED, _read_only_at_start, False),
        "a log that can't be written": (_GOES_ON, partial(_full_file, name="log.txt"), True),
        "a progress table that can't be written": (_GOES_ON, partial(_full_file, name="progress.csv"), False),
        "a monitor table that can't be written": (_GOES_ON, partial(_full_file, name="monitor.csv"), False),
        "run directory moved while running": (_REFUSED, partial(_vanish, move=True), True),
        "run directory removed while running": (_REFUSED, partial(_vanish, move=False), False),
        "evaluation on a read-only disk": ("the result is shown", _eval_read_only, False),
        "evaluation on a full disk": ("the result is shown", _eval_full, False),
        "stderr is full": (_GOES_ON, _full_console, True),
        "stdout and stderr are closed": (_GOES_ON, partial(_closed, numbers=(1, 2)), False),
        "stdin is closed": (_GOES_ON, partial(_closed, numbers=(0,)), False),
        "the terminal is closed": (_SAVED, _hang_up, True),
        "the reader of --help leaves": (_REFUSED, partial(_reader_leaves, words=("--help",)), True),
        "the reader of runs --help leaves": (_REFUSED, partial(_reader_leaves, words=_RUNS_HELP), False),
        "16 descriptors": (_REFUSED, _few_descriptors, True),
        "deleted current folder": (_REFUSED, _no_folder, True),
        "a runs folder that is a file": (_REFUSED, _runs_is_a_file, True),
    }  # fmt: skip
    return [
        Fault("disk and console", name, holds, check, quick) for name, (holds, check, quick) in table.items()
    ]


def _on_disk(lab: Lab, disk: Path, *flags: str) -> tuple[str, ...]:
    """The words of a training whose runs are on a small disk."""
    lab.runs_dir = disk / "runs"
    lab.runs_dir.mkdir()
    return lab.train("CartPole-v1", *flags)


def _full_at_start(lab: Lab) -> None:
    with small_disk(lab.folder / "disk", "40k") as disk:
        words = _on_disk(lab, disk, *SERIAL, "--network-arch", "64,64")
        fill(disk)
        lab.run(*words).expect(2, 3)


def _full_later(lab: Lab, freed: bool) -> None:
    with small_disk(lab.folder / "disk", "8m") as disk:
        command = lab.start(*_on_disk(lab, disk, *_LONG))
        run = lab.wait_for_step(command, 2000)
        ballast = fill(disk)
        _see_the_end(lab, command, run, freed, ballast.unlink)


def _see_the_end(lab: Lab, command: Command, run: RunDir, freed: bool, mend: Callable[[], None]) -> None:
    """Wait until the trouble was noticed, mend it or not, and see what became of the run."""
    must(
        lab.wait_until(lambda: "checkpoint not saved" in command.err.read_text(), "a warning", command)
        or not freed,
        "it ended without a warning",
    )
    if freed:
        mend()
        ended = command.wait().expect(0)
        must(run.read_status()["state"] == "done", f"the status is {run.read_status()}")
    else:
        ended = command.wait().expect(3)
    read_end(run)
    most = max((ended.err.count(line) for line in set(ended.err.splitlines()) if line.strip()), default=0)
    must(most <= _MANY, f"the same line came {most} times")


def _full_at_checkpoint(lab: Lab) -> None:
    with small_disk(lab.folder / "disk", "8m") as disk:
        command = lab.start(*_on_disk(lab, disk, *_LONG))
        run = lab.wait_for_step(command, 2000)
        size_bytes = list_checkpoints(run.checkpoints)[-1].size_bytes
        ballast = fill(disk, leave_bytes=size_bytes // 2)  # the next one breaks off in the middle
        read_end(run)
        _see_the_end(lab, command, run, True, ballast.unlink)


def _read_only(lab: Lab, freed: bool) -> None:
    with small_disk(lab.folder / "disk", "8m") as disk:
        command = lab.start(*_on_disk(lab, disk, *_LONG))
        run = lab.wait_for_step(command, 2000)
        # Files are open for writing, so the disk can't be made read-only; the run's checkpoints can.
        subprocess.run(
            ["mount", "--bind", "-o", "ro", str(run.checkpoints), str(run.checkpoints)], check=True
        )
        remount(run.checkpoints, "bind,ro")

        def mend() -> None:
            subprocess.run(["umount", "-l", str(run.checkpoints)], check=True)

        try:
            _see_the_end(lab, command, run, freed, mend)
        finally:
            if not freed:
                mend()


def _read_only_at_start(lab: Lab) -> None:
    with small_disk(lab.folder / "disk", "8m") as disk:
        words = _on_disk(lab, disk, *SERIAL)
        remount(disk, "ro")
        lab.run(*words).expect(2, 3)


def _full_file(lab: Lab, name: str) -> None:
    """The file alone is on a disk that is full."""
    run = lab.copy_run()
    with small_disk(lab.folder / "disk", "64k") as disk:
        shutil.move(run.path / name, disk / name)
        (run.path / name).symlink_to(disk / name)
        fill(disk)
        lab.run("resume", str(run.path), "--timesteps", "640").expect(0)
        must(run.read_status()["state"] == "done", f"the status is {run.read_status()}")


def _vanish(lab: Lab, move: bool) -> None:
    command = lab.start(*lab.train("CartPole-v1", *_LONG))
    run = lab.wait_for_step(command, 2000)
    moved = lab.folder / "moved"
    run.path.rename(moved)
    if not move:
        shutil.rmtree(moved, ignore_errors=True)
    command.wait().expect(0, 2, 3)
    if move:
        must(bool(list_checkpoints(moved / "checkpoints")), "the checkpoints that were moved are gone")
    lab.must_leave_nothing()


def _eval_read_only(lab: Lab) -> None:
    with small_disk(lab.folder / "disk", "8m") as disk:
        run = _move_to(lab, disk)
        remount(disk, "ro")
        _must_show_eval(lab, run)


def _eval_full(lab: Lab) -> None:
    with small_disk(lab.folder / "disk", "8m") as disk:
        run = _move_to(lab, disk)
        fill(disk)
        _must_show_eval(lab, run)


def _move_to(lab: Lab, disk: Path) -> RunDir:
    lab.runs_dir = disk
    return lab.copy_run()


def _must_show_eval(lab: Lab, run: RunDir) -> None:
    ended = lab.run("eval", str(run.path), "--episodes", "2", "--json").expect(0, 3)
    must("return_mean" in json.loads(ended.out or "{}"), "the episodes were played and not shown")


def _full_console(lab: Lab) -> None:
    with open("/dev/full", "w") as full:
        ended = lab.spawn(*lab.train("CartPole-v1", *SERIAL), stderr=full).wait()
    must(ended.code == 0, f"it ended with {ended.code}")
    must(lab.only_run().read_status()["state"] == "done", "the run is not done")


def _closed(lab: Lab, numbers: tuple[int, ...]) -> None:
    def close() -> None:
        for number in numbers:
            os.close(number)

    command = lab.spawn(*lab.train("CartPole-v1", *WORKERS), preexec_fn=close)
    must(command.wait().code == 0, "it did not end with 0")
    must(lab.only_run().read_status()["state"] == "done", "the run is not done")
    lab.must_leave_nothing()


def _hang_up(lab: Lab) -> None:
    """The process leads a session whose terminal goes away, as when a window is closed."""
    straight, long = lab.inner("straight"), (*SERIAL, "--timesteps", "80000", "--checkpoint-freq", "8000")
    straight.run(*straight.train("CartPole-v1", *long)).expect(0)
    terminal, inside = pty.openpty()

    def take() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored here, as under nohup
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    words = lab.train("CartPole-v1", *long)
    command = lab.spawn(*words, preexec_fn=take, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    os.set_blocking(terminal, False)

    def read() -> None:
        with contextlib.suppress(OSError):  # nothing there
            os.read(terminal, 1 << 16)

    try:
        run = lab.wait_for_step(command, 2000, read)
    finally:
        os.close(terminal)
    command.wait()
    status = run.read_status()
    must(status["state"] == "stopped", f"the status is {status['state']}, {status.get('cause')}")
    lab.run("resume", str(run.path)).expect(0)
    must_equal(run, straight.only_run())
    lab.must_leave_nothing()


def _reader_leaves(lab: Lab, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = lab.spawn(*words, stdout=writer).wait()
    finally:
        os.close(writer)
    must(not ended.err.strip(), f"it said {ended.err.strip()[-200:]!r}")


def _few_descriptors(lab: Lab) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

    ended = lab.spawn(*lab.train("CartPole-v1", *WORKERS), preexec_fn=limit).wait()
    ended.expect(0, 2, 3)
    lab.must_leave_nothing()


def _no_folder(lab: Lab) -> None:
    gone = lab.folder / "gone"
    for words in (("--help",), ("runs", "list"), lab.train("CartPole-v1", *SERIAL)):
        gone.mkdir()
        command = lab.spawn(*words, cwd=gone, preexec_fn=partial(os.rmdir, gone))
        command.wait().expect(0, 2)


def _runs_is_a_file(lab: Lab) -> None:
    lab.runs_dir.rmdir()
    lab.runs_dir.write_text("not a folder")
    lab.run(*lab.train("CartPole-v1", *SERIAL)).expect(2)
    for words in (("runs", "list"), ("runs", "show", "latest"), ("eval", "latest")):
        lab.run(*words, "--runs-dir", str(lab.runs_dir)).expect(0, 2)
