"""Runs of vector environments with new kinds of observations, actions and masks: equal to `serial` while no
seed of a later episode is asked for, and exact after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_exact_resume import assert_equal_runs, drain, rows, start, stop_at_poll

from mission_gym.run.resume import resume_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.rundir import RunDir

SHORT = {
    "timesteps": 128, "checkpoint_freq": 1000, "eval_freq": 0, "eval_episodes": None, "acting_rows": 4,
    "device": "cpu", "threads": 1, "overlap": "off",
}  # fmt: skip
DQN = {
    "algo": "dqn", "n_epochs": None, "n_steps_per_env": None, "learning_starts": 32, "batch_size": 8,
}  # fmt: skip
MISSION, WORDS, GRID = ({"toy": "told:Told", "form": form} for form in ("mission", "words", "grid"))
THROW, COUPLES = {"toy": "action_toys:Throw"}, {"toy": "action_toys:Couples"}
GUARDED = {"toy": "action_toys:Guarded", "form": "tuple"}
Kind = dict[str, Any]


def weights(run: RunDir) -> dict[str, bytes]:
    """Of the last checkpoint, which after several updates depend on every number before."""
    last = load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    return {name: array.tobytes() for name, array in last.policy.items()}


def run(folder: Path, vector: str, kind: Kind, flags: Kind, stop_at: int = 10**9) -> RunDir:
    name = "make_many" if vector == "batched" else "make_one"
    wanted = SHORT | flags | {"vector": vector}
    with start(folder, f"batch_toys:{name}", env_kwargs=kind, **wanted) as session:
        stop_at_poll(session, stop_at)
        return drain(session)


@pytest.mark.parametrize(("kind", "flags"), [(MISSION, {}), (GUARDED, {}), (COUPLES, DQN)])
def test_batched_runs_are_those_of_single_environments(kind: Kind, flags: Kind, tmp_path: Path) -> None:
    longer = kind | {"length": 1000}
    serial, batched = (run(tmp_path, vector, longer, flags) for vector in ("serial", "batched"))
    assert weights(serial) == weights(batched)
    assert rows(serial) == rows(batched)


@pytest.mark.parametrize(
    ("mode", "kind", "flags"),
    [
        ("SAME_STEP", WORDS, DQN),
        ("NEXT_STEP", GRID, {}),
        ("SAME_STEP", THROW, {}),
        ("NEXT_STEP", COUPLES, DQN),
    ],
)
def test_batched_runs_go_on_exactly(mode: str, kind: Kind, flags: Kind, tmp_path: Path) -> None:
    short = kind | {"length": 7, "mode": mode}
    straight, stopped = (run(tmp_path, "batched", short, flags, poll) for poll in (10**9, 20))
    assert stopped.read_status()["state"] == "stopped"
    said: list[dict[str, Any]] = []
    with resume_run(stopped, said.append) as session:
        drain(session)
    assert "the resume is exact" in next(event["notes"] for event in said if event["event"] == "resume")
    assert_equal_runs(straight, stopped)
