"""Runs whose environments are coroutines: the same as with plain ones, exact resume, what is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_exact_resume import assert_equal_runs, drain, final_state, start, stop_at_poll

from mission_gym.cli.main import main
from mission_gym.run.resume import resume_run
from mission_gym.store.rundir import RunDir

ENV = "coroutine_toys:Awaited"
AIO = {
    "env_kwargs": {"plain": "toys:DictMask"},
    "overlap": "off",
    "vector": "auto",
    "eval_freq": 0,
    "eval_episodes": None,
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with start(tmp_path_factory.mktemp("straight"), ENV, **AIO) as session:
        return drain(session)


def test_coroutines_get_an_event_loop_and_learn_as_the_plain_form(tmp_path: Path, straight: RunDir) -> None:
    config = straight.config_yaml.read_text()
    assert "vector: aio" in config
    row = next(
        json.loads(line) for line in straight.metrics_jsonl.read_text().splitlines() if "in_flight" in line
    )
    assert row["time/step_latency_s"] > 0
    assert row["time/step_error_rate"] == 0
    assert "time/loop_blocked" not in row
    plain: dict[str, Any] = {name: value for name, value in AIO.items() if name != "env_kwargs"}
    with start(tmp_path, "toys:DictMask", **plain) as session:
        assert final_state(drain(session)) == final_state(straight)


@pytest.mark.parametrize("poll", [2, 5])
def test_interrupted_and_resumed_equals_a_straight_run(poll: int, tmp_path: Path, straight: RunDir) -> None:
    with start(tmp_path, ENV, **AIO) as session:
        stop_at_poll(session, poll)
        run = drain(session)
    said: list[dict[str, Any]] = []
    with resume_run(run, said.append) as session:
        drain(session)
    assert "the resume is exact" in next(event["notes"] for event in said if event["event"] == "resume")
    assert_equal_runs(run, straight)


def test_a_plain_environment_is_refused_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "CartPole-v1", "--vector", "aio", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "CartPoleEnv is a plain environment" in (told := capsys.readouterr().err)
    assert "use --vector threads" in told
    assert not (tmp_path / "runs").exists()
