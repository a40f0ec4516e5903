"""The summary of a run: the terms of the reward, and failures."""

import io

import pytest
from rich.console import Console

from mission_gym.report.terminal import view_summary
from mission_gym.store.rundir import RunDir

END = {
    "step": 64, "state": "done", "cause": "all steps made", "goal": None,
    "time/process_steps": 64, "time/elapsed_s": 2.0, "time/fps": 32.0, "time/train_fps": 40.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        ({}, None),
        ({"a": 0.25, "b": 0.75, "c": 0.0}, "reward  b 75 %, a 25 %"),
        ({"a": float("nan")}, None),
        (
            dict(zip("abcdefg", (0.4, 0.2, 0.1, 0.1, 0.1, 0.06, 0.04), strict=True)),
            "reward  a 40 %, b 20 %, c 10 %, d 10 %, e 10 %, others 10 %",
        ),
    ],
)
def test_the_largest_terms_are_named(shares, line, tmp_path):
    run = RunDir.create(tmp_path, "run")
    metrics = {f"reward_share/{name}": value for name, value in shares.items()}
    console = Console(file=io.StringIO(), width=200)
    console.print(view_summary(run, run.read_status(), END, {}, 2.0, metrics))
    lines = [text.rstrip() for text in console.file.getvalue().splitlines()]
    assert (line in lines) if line else not any(text.startswith("reward") for text in lines)


def test_the_environment_that_gave_the_least_data_is_named(tmp_path):
    metrics = {"rollout/share_min": 0.004, "rollout/share_max": 0.1426, "rollout/share_min_env": 3.0}
    console = Console(file=io.StringIO(), width=200)
    console.print(view_summary(RunDir.create(tmp_path, "run"), {}, END, {}, 2.0, metrics))
    assert "least 0.4 %, from environment 3; most 14.3 %" in console.file.getvalue()


@pytest.mark.parametrize(
    ("lost", "restarts", "line"),
    [(0, 0, None), (3, 0, "3 episodes lost, 0 workers replaced"), (2, 1, "2 episodes lost, 1 workers")],
)
def test_failures_are_shown_if_there_are_any(lost, restarts, line, tmp_path):
    run = RunDir.create(tmp_path, "run")
    run.write_status(env_failures=lost, worker_restarts=restarts)
    console = Console(file=io.StringIO(), width=200)
    console.print(view_summary(run, run.read_status(), END, {}, 2.0, {}))
    shown = [text for text in console.file.getvalue().splitlines() if text.startswith("failures")]
    assert (line in shown[0]) if line else not shown
