"""Clocks set back and forward by an hour, during a run and between a kill and its resume."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from functools import partial

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.fake_clock import fake_wall_clock, set_shift
from mission_gym_bench.faults.harness import (
    SERIAL,
    WORKERS,
    FaultCase,
    Harness,
    must,
    must_be_tidy,
    must_equal,
)

_HOLDS = "the run ends with the same bits; every time is finite and not negative"
_LONG = ("--timesteps", "8000", "--checkpoint-freq", "1000", "--n-epochs", "2")
_FASTEST = 1e7  # steps/s that no run reaches


def make_clock_faults() -> Iterator[FaultCase]:
    """Yield shifts by an hour either way, during a run and between."""
    for way, shift in {"back": -3600.0, "forward": 3600.0}.items():
        for when, inject in _INJECTIONS.items():
            name, is_quick = f"set {way} an hour{when}", way == "back" and not when
            yield FaultCase("clock", name, _HOLDS, partial(inject, shift), is_quick)


def _train_straight(harness: Harness, *flags: str) -> RunDir:
    """Train without a fault, for comparison."""
    straight = harness.inner("straight")
    straight.run(*straight.train("CartPole-v1", *flags)).expect(0)
    return straight.only_run()


def _check(harness: Harness, run: RunDir, straight: RunDir, shift: float) -> None:
    now = time.time() + shift
    must(abs(run.read_status()["heartbeat"] - now) < 1800, "the clock was not set")
    must_be_tidy(run)
    must_equal(run, straight)
    must_have_sane_times(run)
    harness.must_leave_nothing()


def _jump(vector: tuple[str, ...], shift: float, harness: Harness) -> None:
    clock = harness.folder / "clock"
    set_shift(clock, 0.0)
    straight = _train_straight(harness, *vector, *_LONG)
    words = harness.train("CartPole-v1", *vector, *_LONG)
    command = harness.spawn(*words, env=fake_wall_clock(harness.folder / "site", clock))
    run = harness.wait_for_step(command, 2000)
    set_shift(clock, shift)
    command.wait().expect(0)
    _check(harness, run, straight, shift)


def _jump_between(shift: float, harness: Harness) -> None:
    clock = harness.folder / "clock"
    set_shift(clock, shift)
    straight = _train_straight(harness, *SERIAL, *_LONG)
    command = harness.start(*harness.train("CartPole-v1", *SERIAL, *_LONG))
    run = harness.wait_for_step(command, 2000)
    command.kill()
    clock_env = fake_wall_clock(harness.folder / "site", clock)
    harness.spawn("resume", str(run.path), env=clock_env).wait().expect(0)
    _check(harness, run, straight, shift)


_INJECTIONS: dict[str, Callable[[float, Harness], None]] = {
    "": partial(_jump, SERIAL),
    ", workers": partial(_jump, WORKERS),
    " before a resume": _jump_between,
}


def must_have_sane_times(run: RunDir) -> None:
    """Rates and times in the metrics and in the status must be possible."""
    documents = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    documents.append(run.read_status())
    for document in documents:
        for name, value in document.items():
            if isinstance(value, int | float) and (name.startswith("time/") or name.endswith("fps")):
                must(math.isfinite(value) and value >= 0, f"{name} is {value}")
                must(not name.endswith("fps") or value < _FASTEST, f"{name} is {value}")
