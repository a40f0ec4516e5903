"""Environments that misbehave in every method, on every backend."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.harness import (
    SERIAL,
    WORKERS,
    FaultCase,
    Harness,
    must,
    must_be_tidy,
    must_be_usable,
    read_end,
)

_HAZARD = "mission_gym_bench.faults.hazard:Hazard"
# A timeout that is meant to be reached, on a machine that may be busy.
_STRIKES = ("--env-timeout", "4s")
_FIRST_S = 60.0  # timeout of construction and the first reset, instead of 300
_BACKENDS = {
    "workers": (*WORKERS, *_STRIKES),
    "threads": ("--vector", "threads", *_STRIKES),
    "serial": SERIAL,
}
# Kinds that end or damage their process; not injected into the learner's own process.
_DEADLY = ("hang", "stop", "exit", "segfault", "kill -9", "memory", "closed descriptors", "fork", "signals")
_ODD = ("binary output", "escape codes", "other folder", "background process")
_RAISED = ("raise", "unprintable", "KeyboardInterrupt", "SystemExit")
_WRONG = ("shape", "type", "nothing", "two values", "nan reward", "nan observation")
_METHODS = {
    "step": (*_RAISED, *_DEADLY, *_ODD, *_WRONG),
    "reset": (*_RAISED, *_DEADLY, "shape", "type", "two values", "nan observation"),
    "constructor": (*_RAISED, "hang", "exit", "segfault", "kill -9", "memory", "escape codes"),
    "close": (*_RAISED, "hang", "exit", "segfault", "kill -9", "binary output"),
}
_CALM = {"step": 30, "reset": 2, "constructor": 0, "close": 0}  # calls before the fault
_QUICK = {
    ("workers", "step"): ("raise", "hang", "segfault", "kill -9", "closed descriptors", "background process"),
    ("workers", "reset"): ("unprintable",),
    ("workers", "constructor"): ("raise", "exit"),
    ("workers", "close"): ("hang", "exit"),
    ("threads", "step"): ("exit", "SystemExit"),
    ("serial", "step"): ("raise", "nan observation"),
}
_CONTAINED = "the run continues to its end; only episodes are lost, and counted"
_REFUSED = "one message, no traceback, no run is created"
_REPORTED = "the run continues to its end, or stops with the cause in one message and keeps its checkpoints"
_RECORDED = "a video, or one message without a traceback"


def make_environment_faults() -> Iterator[FaultCase]:
    """Yield every kind in every method, on every backend that can have it."""
    for backend in _BACKENDS:
        for method, kinds in _METHODS.items():
            for kind in kinds:
                if backend == "serial" and kind in (*_DEADLY, "background process"):
                    continue  # it would hit the learner's own process, as the user requested
                holds = _REFUSED if method == "constructor" else _REPORTED if kind in _WRONG else _CONTAINED
                if backend == "serial" and kind in ("KeyboardInterrupt", "SystemExit"):
                    holds = _REPORTED
                once = method in ("step", "reset")
                inject = partial(_train, backend=backend, method=method, kind=kind, holds=holds, once=once)
                is_quick = kind in _QUICK.get((backend, method), ())
                yield FaultCase("environments", f"{kind} in {method}, {backend}", holds, inject, is_quick)
        if backend != "serial":
            inject = partial(
                _train, backend=backend, method="constructor", kind="kill -9", holds=_CONTAINED, once=True
            )
            yield FaultCase("environments", f"kill -9 once in constructor, {backend}", _CONTAINED, inject)
    for kind in (*_RAISED, "hang", "exit", "segfault", "kill -9", "shape", "nothing"):
        yield FaultCase("environments", f"{kind} in render", _RECORDED, partial(_record, kind=kind))


def _kwargs(harness: Harness, kind: str, method: str, after: int, *, once: bool) -> tuple[str, ...]:
    marks = [f"once={harness.folder / 'once'}"] if once else []
    values = [f"kind={kind}", f"place={method}", f"after={after}", f"pids={harness.folder / 'pids'}"]
    return ("--env-kwargs", *values, *marks)


def _train(harness: Harness, backend: str, method: str, kind: str, holds: str, *, once: bool) -> None:
    words = harness.train(
        _HAZARD, *_BACKENDS[backend], *_kwargs(harness, kind, method, _CALM[method], once=once)
    )
    strikes_first = method in ("reset", "constructor") and kind in ("hang", "stop")
    first_s = _FIRST_S if strikes_first else None
    ended = harness.start(*words, first_timeout_s=first_s).wait(first_s or 0.0)
    if holds == _REFUSED:
        ended.expect(2, 3)
        runs = [path.name for path in harness.runs_dir.iterdir()]
        must(not runs, f"a run was created: {runs}")
    elif holds == _REPORTED:
        ended.expect(0, 2, 3, 130)
        if ended.code == 0 or any(harness.runs_dir.iterdir()):  # a fault during priming creates no run
            must_be_usable(harness.only_run())
    else:
        ended.expect(0)
        _must_be_done(harness.only_run(), struck=once, harness=harness)
    if backend != "serial":  # in our process it shares our streams
        must(not ended.out, f"written to stdout: {ended.out[:40]!r}")
        must("\x1b" not in ended.err, "escape codes reached the terminal")
    if (harness.folder / "pids").exists():
        _must_be_gone(harness)
    harness.must_leave_nothing()


def _must_be_done(run: RunDir, *, struck: bool, harness: Harness) -> None:
    status = run.read_status()
    must(status.get("state") == "done", f"the status is {status.get('state')}, {status.get('cause')}")
    must(not struck or (harness.folder / "once").exists(), "the fault did not strike")
    read_end(run)
    must_be_tidy(run)


def _must_be_gone(harness: Harness) -> None:
    """Processes that the environment started, without our mark, must have ended too."""
    for text in (harness.folder / "pids").read_text().split():
        pid = int(text)
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            os.kill(pid, signal.SIGKILL)
            must(False, "a process in its own session outlived the run")


def _record(harness: Harness, kind: str) -> None:
    flags = _kwargs(harness, kind, "render", 3, once=False)
    harness.run(*harness.train(_HAZARD, *_BACKENDS["workers"], *flags)).expect(0)
    out: Path = harness.folder / "video.mp4"
    harness.run("record", str(harness.only_run().path), "--episodes", "1", "--out", str(out)).expect(0, 2, 3)
    harness.must_leave_nothing()
