"""Environments that misbehave in every place, on every backend."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import psutil

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.lab import (
    SERIAL,
    WORKERS,
    Fault,
    Lab,
    must,
    must_be_tidy,
    must_be_usable,
    read_end,
)

_HAZARD = "mission_gym_bench.faults.hazard:Hazard"
# A limit that is meant to strike, on a machine that may be busy.
_STRIKES = ("--env-timeout", "4s")
_FIRST_S = 60.0  # for building and the first reset, instead of 300
_BACKENDS = {
    "workers": (*WORKERS, *_STRIKES),
    "threads": ("--vector", "threads", *_STRIKES),
    "serial": SERIAL,
}
# Kinds that end or spoil their process: allowed everywhere but where the user asked for this process.
_DEADLY = ("hang", "stop", "exit", "segfault", "kill -9", "memory", "closed descriptors", "fork", "signals")
_ODD = ("binary output", "escape codes", "other folder", "background process")
_RAISED = ("raise", "unprintable", "KeyboardInterrupt", "SystemExit")
_WRONG = ("shape", "type", "nothing", "two values", "nan reward", "nan observation")
_PLACES = {
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
_CONTAINED = "the run goes to its end; at most episodes are lost, and counted"
_REFUSED = "one message, no traceback, no run is made"
_TOLD = "the run goes to its end, or stops with the cause in one message and the last checkpoint kept"
_FILMED = "a film, or one message without a traceback"


def make_environment_faults() -> list[Fault]:
    """Every kind at every place on every backend that may meet it."""
    faults = []
    for backend in _BACKENDS:
        for place, kinds in _PLACES.items():
            for kind in kinds:
                if backend == "serial" and kind in (*_DEADLY, "background process"):
                    continue  # in the learner's own process, where the user asked for it
                holds = _REFUSED if place == "constructor" else _TOLD if kind in _WRONG else _CONTAINED
                if backend == "serial" and kind in ("KeyboardInterrupt", "SystemExit"):
                    holds = _TOLD
                once = place in ("step", "reset")
                inject = partial(_train, backend=backend, place=place, kind=kind, holds=holds, once=once)
                is_quick = kind in _QUICK.get((backend, place), ())
                faults.append(
                    Fault("environments", f"{kind} in {place}, {backend}", holds, inject, quick=is_quick)
                )
        if backend != "serial":
            inject = partial(
                _train, backend=backend, place="constructor", kind="kill -9", holds=_CONTAINED, once=True
            )
            faults.append(
                Fault("environments", f"kill -9 once in constructor, {backend}", _CONTAINED, inject)
            )
    for kind in (*_RAISED, "hang", "exit", "segfault", "kill -9", "shape", "nothing"):
        inject = partial(_film, kind=kind)
        faults.append(Fault("environments", f"{kind} in render", _FILMED, inject))
    return faults


def _kwargs(lab: Lab, kind: str, place: str, after: int, *, once: bool) -> tuple[str, ...]:
    marks = [f"once={lab.folder / 'once'}"] if once else []
    values = [f"kind={kind}", f"place={place}", f"after={after}", f"pids={lab.folder / 'pids'}"]
    return ("--env-kwargs", *values, *marks)


def _train(lab: Lab, backend: str, place: str, kind: str, holds: str, *, once: bool) -> None:
    words = lab.train(_HAZARD, *_BACKENDS[backend], *_kwargs(lab, kind, place, _CALM[place], once=once))
    strikes_first = place in ("reset", "constructor") and kind in ("hang", "stop")
    first_s = _FIRST_S if strikes_first else None
    ended = lab.start(*words, first_timeout_s=first_s).wait(first_s or 0.0)
    if holds == _REFUSED:
        ended.expect(2, 3)
        runs = [path.name for path in lab.runs_dir.iterdir()]
        must(not runs, f"a run was made: {runs}")
    elif holds == _TOLD:
        ended.expect(0, 2, 3, 130)
        if ended.code == 0 or any(lab.runs_dir.iterdir()):  # what shows while it is primed begins no run
            must_be_usable(lab.only_run())
    else:
        ended.expect(0)
        _must_be_done(lab.only_run(), struck=once, lab=lab)
    if backend != "serial":  # in our process it has our streams
        must(not ended.out, f"written to stdout: {ended.out[:40]!r}")
        must("\x1b" not in ended.err, "escape codes reached the terminal")
    if (lab.folder / "pids").exists():
        _must_be_gone(lab)
    lab.must_leave_nothing()


def _must_be_done(run: RunDir, *, struck: bool, lab: Lab) -> None:
    status = run.read_status()
    must(status.get("state") == "done", f"the status is {status.get('state')}, {status.get('cause')}")
    must(not struck or (lab.folder / "once").exists(), "the fault did not strike")
    read_end(run)
    must_be_tidy(run)


def _must_be_gone(lab: Lab) -> None:
    """What the environment started, without our mark, has ended too."""
    for text in (lab.folder / "pids").read_text().split():
        pid = int(text)
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            os.kill(pid, signal.SIGKILL)
            must(False, "a process in a session of its own outlived the run")


def _film(lab: Lab, kind: str) -> None:
    flags = _kwargs(lab, kind, "render", 3, once=False)
    lab.run(*lab.train(_HAZARD, *_BACKENDS["workers"], *flags)).expect(0)
    out: Path = lab.folder / "film.mp4"
    lab.run("record", str(lab.only_run().path), "--episodes", "1", "--out", str(out)).expect(0, 2, 3)
    lab.must_leave_nothing()
