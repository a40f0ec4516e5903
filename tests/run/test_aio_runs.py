"""Runs whose environments are coroutines: their backend, their metrics and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mission_gym.cli.main import main
from runs import train

ENV = "coroutine_toys:Awaited"
AIO = {
    "env_kwargs": {"plain": "toys:DictMask"},
    "overlap": "off",
    "vector": "auto",
    "eval_freq": 0,
    "eval_episodes": None,
}


def test_coroutines_get_an_event_loop(tmp_path: Path) -> None:
    """`test_exact_resume.py` shows that they learn as the plain form."""
    run = train(tmp_path, ENV, **AIO)
    assert "vector: aio" in run.config_yaml.read_text()
    row = next(json.loads(line) for line in run.metrics_jsonl.read_text().splitlines() if "in_flight" in line)
    assert row["time/step_latency_s"] > 0
    assert row["time/step_error_rate"] == 0
    assert "time/loop_blocked" not in row


def test_a_plain_environment_is_refused_before_a_folder_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "CartPole-v1", "--vector", "aio", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "CartPoleEnv is a plain environment" in (told := capsys.readouterr().err)
    assert "use --vector threads" in told
    assert not (tmp_path / "runs").exists()
