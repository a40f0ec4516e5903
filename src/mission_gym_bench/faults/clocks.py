"""Clocks set back and forward by an hour, during a run and between a kill and its resume."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.fake_clock import fake_wall_clock, set_shift
from mission_gym_bench.faults.harness import (
    SERIAL,
    WORKERS,
    FaultCase,
    Harness,
    SkippedFault,
    must,
    must_be_tidy,
    must_equal,
)

_HOLDS = "the run ends with the same bits; every time is finite and not negative"
_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_LONG = ("--timesteps", "8000", "--checkpoint-freq", "1000", "--n-epochs", "2")
_FASTEST = 1e7  # steps/s that no run reaches


def make_clock_faults() -> Iterator[FaultCase]:
    """Yield shifts by an hour either way, during a run and between."""
    for way, shift in {"back": "-3600", "forward": "+3600"}.items():
        # In one process: libfaketime also moves the ends of sleeps, and waiting for workers fails.
        injections = {"": _jump, " before a resume": _jump_between, ", workers": _jump_with_workers}
        for when, inject in injections.items():
            name, is_quick = f"set {way} an hour{when}", way == "back" and not when
            yield FaultCase("clock", name, _HOLDS, partial(inject, shift=shift), is_quick)


def find_library() -> Path:
    """Return libfaketime; SkippedFault if it is not installed."""
    for pattern in _LIBRARIES:
        for path in Path("/").glob(pattern.lstrip("/")):
            return path
    raise SkippedFault("libfaketime is not installed (apt-get install faketime)")


def fake_clock(shift: Path) -> dict[str, str]:
    """Return the environment variables of a process whose clock follows the shift in a file."""
    return {
        "LD_PRELOAD": str(find_library()),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def _train_straight(harness: Harness, *flags: str) -> RunDir:
    """Train without a fault, for comparison."""
    straight = harness.inner("straight")
    straight.run(*straight.train("CartPole-v1", *flags)).expect(0)
    return straight.only_run()


def _check(harness: Harness, run: RunDir, straight: RunDir) -> None:
    must_be_tidy(run)
    must_equal(run, straight)
    must_have_sane_times(run)
    harness.must_leave_nothing()


def _jump(harness: Harness, shift: str) -> None:
    clock = harness.folder / "clock"
    clock.write_text("+0\n")
    straight = _train_straight(harness, *SERIAL, *_LONG)
    command = harness.spawn(*harness.train("CartPole-v1", *SERIAL, *_LONG), env=fake_clock(clock))
    run = harness.wait_for_step(command, 2000)
    clock.write_text(f"{shift}\n")
    command.wait().expect(0)
    _check(harness, run, straight)


def _jump_with_workers(harness: Harness, shift: str) -> None:
    """Shift the clock of Python processes only, workers included."""
    clock = harness.folder / "clock"
    set_shift(clock, 0.0)
    straight = _train_straight(harness, *WORKERS, *_LONG)
    words = harness.train("CartPole-v1", *WORKERS, *_LONG)
    command = harness.spawn(*words, env=fake_wall_clock(harness.folder / "site", clock))
    run = harness.wait_for_step(command, 2000)
    set_shift(clock, float(shift))
    command.wait().expect(0)
    now = time.time() + float(shift)
    must(abs(run.read_status()["heartbeat"] - now) < 1800, "the clock was not set")
    _check(harness, run, straight)


def _jump_between(harness: Harness, shift: str) -> None:
    clock = harness.folder / "clock"
    clock.write_text(f"{shift}\n")
    straight = _train_straight(harness, *SERIAL, *_LONG)
    command = harness.start(*harness.train("CartPole-v1", *SERIAL, *_LONG))
    run = harness.wait_for_step(command, 2000)
    command.kill()
    harness.spawn("resume", str(run.path), env=fake_clock(clock)).wait().expect(0)
    _check(harness, run, straight)


def must_have_sane_times(run: RunDir) -> None:
    """Rates and times in the metrics and in the status must be possible."""
    documents = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    documents.append(run.read_status())
    for document in documents:
        for name, value in document.items():
            if isinstance(value, int | float) and (name.startswith("time/") or name.endswith("fps")):
                must(math.isfinite(value) and value >= 0, f"{name} is {value}")
                must(not name.endswith("fps") or value < _FASTEST, f"{name} is {value}")
