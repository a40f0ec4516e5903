"""Every bug of an environment leads to one message with its place, in `check` and in `train`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mission_gym.check.environment import check_environment
from mission_gym.check.repro import replay_bundle
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import MissionGymError
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym.store.resolve import list_runs
from runs import drain

SMALL = {
    "n_envs": 2, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 1, "timesteps": 64, "eval_freq": 0,
    "network_arch": "8", "tensorboard": False, "max_restarts": 1,
}  # fmt: skip
# bug -> exit code of `train`, and the message of both commands
BUGS = {
    "raise": (3, r"step\(\) raised KeyError: 'price of product 7'"),
    "reset": (2, r"reset\(\) raised FileNotFoundError: prices.csv"),
    "high": (2, r"observation 'day' is outside its space: it has 7, allowed are 0 to 6"),
    "low": (2, r"observation 'day' is outside its space: it has -1, allowed are 0 to 6"),
    "int64": (2, r"observation 'stock' has shape \(3,\) and dtype int64, expected .* dtype float32"),
    "float64": (2, r"observation 'stock' has shape \(3,\) and dtype float64, .*\.astype\(np\.float32\)"),
    "nan": (2, r"observation 'stock' has nan at index \[1\]"),
    "reward": (2, r"the reward is inf"),
    "shape": (2, r"observation 'stock' has shape \(4,\)"),
    "info": (2, r"info must be a dict, got list"),
    "key": (2, r"does not fit Dict.*KeyError: 'day'"),
    "no outcome": (2, r'ended without info\["outcome"\]; set it to one of sold, lost'),
    "wrong outcome": (2, r"info\[.outcome.\]='solt' is not declared .*did you mean 'sold'"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_check_finds_the_bug(bug: str) -> None:
    findings = check_environment(EnvRequest("bugs:Buggy", {"bug": bug}), num_episodes=2, budget_s=2.0)
    errors = [finding.what for finding in findings if finding.level == "error"]
    assert any(re.search(BUGS[bug][1], text) for text in errors), errors


@pytest.mark.parametrize("vector", ["serial", "workers"])
@pytest.mark.parametrize("bug", BUGS)
def test_training_stops_at_the_bug_and_leaves_a_repro(bug: str, vector: str, tmp_path: Path) -> None:
    code, match = BUGS[bug]
    values = SMALL | {"vector": vector, "runs_dir": str(tmp_path), "env_kwargs": {"bug": bug}}
    with pytest.raises(MissionGymError, match=match) as caught:  # noqa: SIM117
        with start_run(resolve("bugs:Buggy", values), lambda event: None) as session:
            drain(session)
    assert caught.value.exit_code == code
    if bug == "reset":  # it can't even be probed, so there is no run
        assert not list_runs(tmp_path)
        return
    (run,) = list_runs(tmp_path)
    events = [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]
    failures = [event for event in events if event["event"] == "failure"]
    assert re.match(r"environment \d, seed \d+, step \d+: ", failures[0]["message"])
    assert run.read_status()["failures"][0]["text"] in failures[0]["message"]
    replay = replay_bundle(run.path / failures[0]["repro"])
    assert replay.failed, replay.text
    if bug == "raise":
        assert ": KeyError: 'price of product 7' at bugs.py:" in failures[0]["message"]
        assert 'raise KeyError("price of product 7")' in run.env_output.read_text()


def test_a_call_that_hangs_is_named_at_once_and_in_the_verdict(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    values = SMALL | {"vector": "workers", "runs_dir": str(tmp_path), "env_timeout": 1.0, "max_restarts": 0}
    resolved = resolve("bugs:Buggy", values | {"env_kwargs": {"bug": "hang"}})
    with pytest.raises(MissionGymError, match=r"step\(\) did not return within 1 s"):  # noqa: SIM117
        with start_run(resolved, events.append) as session:
            drain(session)
    (failure,) = [event for event in events if event["event"] == "failure"]
    assert re.search(r"step\(\) did not return for 1 s at bugs.py:\d+; 1 so far", failure["message"])
