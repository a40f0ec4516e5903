"""Every kind of observation and action: stopped and resumed, a run on any backend equals a straight one, on
workers and threads a serial one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_batched_runs import SHORT
from test_exact_resume import assert_equal_runs, drain, start, stop_at_poll

from mission_gym.run.resume import resume_run
from mission_gym.store.rundir import RunDir

Kind = dict[str, Any]
TOLD = ("mission", "code", "list", "stack", "grid", "wide_grid", "planes", "floats", "frames", "large")
KINDS: list[Kind] = [
    *({"toy": "told:Told", "form": form} for form in TOLD),
    {"toy": "action_toys:Throw"},
    {"toy": "action_toys:Levers"},
    {"toy": "action_toys:Guarded", "form": "dict"},
    {"toy": "action_toys:Guarded", "form": "tuple"},
    {"toy": "action_toys:Couples", "form": "flat"},
]
SHORTER = {"timesteps": 64, "n_steps_per_env": 8, "n_epochs": 1}  # two updates
NAMES = [kind.get("form") or kind["toy"] for kind in KINDS]
FEWER = {"list": {"max_sequence": 6}, "stack": {"max_sequence": 6}}  # all are computed, though none is there


def run(folder: Path, vector: str, kind: Kind, stop_at: int = 10**9, **flags: Any) -> RunDir:
    name = "make_many" if vector == "batched" else "make_one"
    wanted = SHORT | SHORTER | {"vector": vector} | FEWER.get(kind.get("form", ""), {}) | flags
    with start(folder, f"batch_toys:{name}", env_kwargs=kind | {"length": 7}, **wanted) as session:
        stop_at_poll(session, stop_at)
        return drain(session)


def go_on(stopped: RunDir) -> None:
    """Resume a run that was stopped on its way, and hear that it is exact."""
    assert stopped.read_status()["state"] == "stopped"
    said: list[dict[str, Any]] = []
    with resume_run(stopped, said.append) as session:
        drain(session)
    assert "the resume is exact" in next(event["notes"] for event in said if event["event"] == "resume")


@pytest.mark.parametrize("number", range(len(KINDS)), ids=NAMES)
def test_stopped_on_another_backend_it_equals_a_straight_serial_run(number: int, tmp_path: Path) -> None:
    """Workers and threads in turn: which of them reads a kind makes no difference to how it is read."""
    vector = ("workers", "threads")[number % 2]
    own = {"num_workers": 2} if vector == "workers" else {}
    stopped = run(tmp_path, vector, KINDS[number], stop_at=3, acting_rows=2, **own)
    go_on(stopped)
    assert_equal_runs(run(tmp_path, "serial", KINDS[number], acting_rows=2), stopped)


@pytest.mark.parametrize("number", range(len(KINDS)), ids=NAMES)
def test_stopped_as_a_batch_it_goes_on_exactly(number: int, tmp_path: Path) -> None:
    kind = KINDS[number] | {"mode": ("SAME_STEP", "NEXT_STEP")[number % 2]}
    stopped = run(tmp_path, "batched", kind, stop_at=10)
    go_on(stopped)
    assert_equal_runs(run(tmp_path, "batched", kind), stopped)
