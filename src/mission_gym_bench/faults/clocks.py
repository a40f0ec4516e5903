"""Clocks set back and forward by an hour, while a run is at work and between a kill and its resume."""

from __future__ import annotations

import json
import math
import time
from functools import partial
from pathlib import Path

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.lab import (
    SERIAL,
    WORKERS,
    Fault,
    Lab,
    Skipped,
    must,
    must_be_tidy,
    must_equal,
)
from mission_gym_bench.faults.shift import fake_wall_clock, set_shift

_HOLDS = "the run ends with the same bits; every time is finite and not below nothing"
_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_LONG = ("--timesteps", "8000", "--checkpoint-freq", "1000", "--n-epochs", "2")
_FASTEST = 1e7  # steps/s that nothing makes


def make_clock_faults() -> list[Fault]:
    """An hour either way, at work and between."""
    faults = []
    for way, shift in {"back": "-3600", "forward": "+3600"}.items():
        # In one process: libfaketime moves the ends of sleeps, too, and those that wait for workers fail.
        jump, between = partial(_jump, shift=shift), partial(_jump_between, shift=shift)
        faults.append(Fault("clock", f"set {way} an hour", _HOLDS, jump, quick=way == "back"))
        faults.append(Fault("clock", f"set {way} an hour before a resume", _HOLDS, between))
        beside = partial(_jump_beside, shift=shift)
        faults.append(Fault("clock", f"set {way} an hour, workers", _HOLDS, beside))
    return faults


def find_library() -> Path:
    """libfaketime; Skipped where it is not installed."""
    for pattern in _LIBRARIES:
        for path in Path("/").glob(pattern.lstrip("/")):
            return path
    raise Skipped("libfaketime is not installed (apt-get install faketime)")


def fake_clock(shift: Path) -> dict[str, str]:
    """The environment of a process whose clock is shifted by what the file says, as often as that changes."""
    return {
        "LD_PRELOAD": str(find_library()),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def _jump(lab: Lab, shift: str) -> None:
    clock = lab.folder / "clock"
    clock.write_text("+0\n")
    straight = lab.inner("straight")
    straight.run(*straight.train("CartPole-v1", *SERIAL, *_LONG)).expect(0)
    command = lab.spawn(*lab.train("CartPole-v1", *SERIAL, *_LONG), env=fake_clock(clock))
    run = lab.wait_for_step(command, 2000)
    clock.write_text(f"{shift}\n")
    command.wait().expect(0)
    must_be_tidy(run)
    must_equal(run, straight.only_run())
    must_tell_sane_times(run)
    lab.must_leave_nothing()


def _jump_beside(lab: Lab, shift: str) -> None:
    """Workers, too, by a clock of Python's alone."""
    clock = lab.folder / "clock"
    set_shift(clock, 0.0)
    straight = lab.inner("straight")
    straight.run(*straight.train("CartPole-v1", *WORKERS, *_LONG)).expect(0)
    words = lab.train("CartPole-v1", *WORKERS, *_LONG)
    command = lab.spawn(*words, env=fake_wall_clock(lab.folder / "site", clock))
    run = lab.wait_for_step(command, 2000)
    set_shift(clock, float(shift))
    command.wait().expect(0)
    now = time.time() + float(shift)
    must(abs(run.read_status()["heartbeat"] - now) < 1800, "the clock was not set")
    must_be_tidy(run)
    must_equal(run, straight.only_run())
    must_tell_sane_times(run)
    lab.must_leave_nothing()


def _jump_between(lab: Lab, shift: str) -> None:
    clock = lab.folder / "clock"
    clock.write_text(f"{shift}\n")
    straight = lab.inner("straight")
    straight.run(*straight.train("CartPole-v1", *SERIAL, *_LONG)).expect(0)
    command = lab.start(*lab.train("CartPole-v1", *SERIAL, *_LONG))
    run = lab.wait_for_step(command, 2000)
    command.kill()
    lab.spawn("resume", str(run.path), env=fake_clock(clock)).wait().expect(0)
    must_equal(run, straight.only_run())
    must_tell_sane_times(run)
    lab.must_leave_nothing()


def must_tell_sane_times(run: RunDir) -> None:
    """Rates and times of every row of the metrics, and of the status, are possible."""
    documents = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    documents.append(run.read_status())
    for document in documents:
        for name, value in document.items():
            if isinstance(value, int | float) and (name.startswith("time/") or name.endswith("fps")):
                must(math.isfinite(value) and value >= 0, f"{name} is {value}")
                must(not name.endswith("fps") or value < _FASTEST, f"{name} is {value}")
