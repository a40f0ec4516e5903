"""Every bug of an environment leads to one message with its place, in `check` and in `train`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mission_gym.check.environment import check_environment, check_in_subprocess
from mission_gym.check.repro import replay_bundle
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import MissionGymError
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir
from runs import drain

SMALL = {
    "n_envs": 2, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 1, "timesteps": 64, "eval_freq": 0,
    "network_arch": "8", "tensorboard": False, "max_restarts": 1,
}  # fmt: skip


class Bug(NamedTuple):
    """The exit code of `train` (0: it trains, and a note of the plan matches) and its message. `check`
    finds the same message as an error, or another finding."""

    code: int
    message: str
    level: str = "error"
    finding: str = ""
    has_run: bool = True  # bugs that show at once are refused before there is a run
    ends_process: bool = False  # so not for `serial`
    is_repeatable: bool = True  # by the bundle that the run leaves


BUGS = {
    "constructor": Bug(2, "building 'bugs:Buggy' raised ValueError: unknown currency EURO", has_run=False),
    "no space": Bug(2, "must have an observation_space and an action_space once it is built", has_run=False),
    "reset": Bug(2, r"reset\(\) raised FileNotFoundError: prices.csv", has_run=False),
    "reset: observation alone": Bug(
        2, r"reset\(\) must return .*such as \(observation, \{\}\), got", has_run=False
    ),
    "reset: nothing": Bug(2, r"reset\(\) must return \(observation, info\).*, got None", has_run=False),
    "reset: info of None": Bug(2, r"the info of reset\(\) must be a dict, got NoneType", has_run=False),
    # A replay has one reset, so it can't show what only later ones do.
    "later reset": Bug(3, r"reset\(\) raised FileNotFoundError: prices-2.csv", is_repeatable=False),
    "raise": Bug(3, r"step\(\) raised KeyError: 'price of product 7'"),
    "sys.exit": Bug(3, r"step\(\) raised SystemExit: no licence"),
    "exit": Bug(3, r"ended with code 7; the action was", finding="ended with code 7", ends_process=True),
    "segfault": Bug(3, r"was killed by SIGSEGV", ends_process=True),
    "category too high": Bug(2, r"observation 'day' is outside its space: it has 7, allowed are 0 to 6"),
    "category below": Bug(2, r"observation 'day' is outside its space: it has -1, allowed are 0 to 6"),
    "nan": Bug(2, r"observation 'stock' has nan at index \[1\]; look for divisions by zero"),
    "inf": Bug(2, r"observation 'stock' has inf at index \[2\]; look for divisions by zero"),
    "shape": Bug(2, r"observation 'stock' has shape \(4,\) and dtype float32, expected shape \(3,\)"),
    "ragged list": Bug(2, r"observation 'stock' has shape \(\) and dtype object, expected shape \(3,\)"),
    "real numbers as integers": Bug(
        2, r"observation 'shop' has .* dtype float64, expected .* uint8 .*\.astype\(np\.uint8\)"
    ),
    "integer that does not fit": Bug(
        2, r"observation 'shop' has values from 0 to 256 in dtype int64, expected .* dtype uint8"
    ),
    "missing key": Bug(2, r"does not fit its space \(KeyError: 'day'\)"),
    "no observation": Bug(2, r"the observation does not fit its space .*: it is None, expected Dict"),
    "array for a Dict": Bug(2, r"the observation does not fit its space .*: it is array.*, expected Dict"),
    "reward: inf": Bug(2, "the reward is inf; look for divisions by zero"),
    "reward: None": Bug(2, "the reward is None, expected one number"),
    "reward: text": Bug(2, "the reward is '0.5', expected one number"),
    "reward: vector": Bug(2, "2 numbers, but only one can be learned from; .*--wrap weigh:1,1"),
    "terminated: text": Bug(2, "terminated is 'no', expected True or False"),
    "info: list": Bug(2, "info must be a dict, got list"),
    "four values": Bug(2, r"step\(\) must return .*, got 4 values: .*; replace done by terminated"),
    "forgotten return": Bug(2, r"step\(\) must return .*, got a NoneType: None"),
    "mask: length": Bug(2, r"the action mask \(info\) is array.*, expected a flat array of 6 zeros and ones"),
    "mask: missing": Bug(2, r"the action mask \(info\) is None, expected a flat array of 6 zeros and ones"),
    "mask: no legal action": Bug(
        2, "has no legal action; every part of the action needs one, or the episode"
    ),
    "no outcome": Bug(2, r'ended without info\["outcome"\]; set it to one of sold, lost'),
    "wrong outcome": Bug(2, r"info\[.outcome.\]='solt' is not declared .*did you mean 'sold'"),
    # These train as they are meant to.
    "float64": Bug(0, "converts observation 'stock' from float64 to float32", "warning"),
    "int64": Bug(0, "converts observation 'shop' from int64 to uint8", "warning"),
    "far outside": Bug(0, "", "warning", r"observation 'stock' is outside Box.* allowed 0.0 to 20.0"),
    "array reused": Bug(0, "", "warning", "share an object, therefore, modifying one will modify the other"),
    "seed ignored": Bug(0, "", "error", "seed 0 and the same actions gave two different episodes"),
    "close": Bug(0, "", "warning", r"close\(\) raised RuntimeError: the till is open .*bugs.py, line"),
}
OF_PROCESSES = ("raise", "sys.exit", "exit", "segfault", "nan", "later reset")


@pytest.mark.parametrize("bug", BUGS)
def test_check_finds_the_bug(bug: str) -> None:
    expected = BUGS[bug]
    request = EnvRequest("bugs:Buggy", {"bug": bug})
    if expected.ends_process:
        findings = check_in_subprocess(request)
    else:
        findings = check_environment(request, num_episodes=2, budget_s=2.0)
    texts = [finding.what for finding in findings if finding.level == expected.level]
    assert any(re.search(expected.finding or expected.message, text) for text in texts), texts


def list_cases() -> list[Any]:
    """Every bug with every backend. What needs no process of its own is `slow` beyond `serial`."""
    cases = []
    for vector in ("serial", "workers", "threads"):
        for bug, expected in BUGS.items():
            if vector == "serial" and expected.ends_process:
                continue
            is_quick = vector == "serial" or bug in OF_PROCESSES
            cases.append(pytest.param(bug, vector, marks=() if is_quick else pytest.mark.slow))
    return cases


@pytest.mark.parametrize(("bug", "vector"), list_cases())
def test_training_stops_at_the_bug_and_leaves_a_repro(bug: str, vector: str, tmp_path: Path) -> None:
    expected = BUGS[bug]
    error, events = train(bug, vector, tmp_path)
    if not expected.code:
        (plan,) = [event["time/plan"] for event in events if event["event"] == "plan"]
        assert error is None
        assert any(re.search(expected.message, note) for note in [*plan["notes"], ""])
        return
    assert error is not None
    assert error.exit_code == expected.code
    assert re.search(expected.message, str(error))
    if not expected.has_run:
        assert not list_runs(tmp_path)
        return
    (run,) = list_runs(tmp_path)
    failures = [event for event in read_events(run) if event["event"] == "failure"]
    assert re.match(r"environment \d, seed \d+, (step \d+|reset): ", failures[0]["message"])
    assert run.read_status()["failures"][0]["text"] in failures[0]["message"]
    if expected.is_repeatable:
        replay = replay_bundle(run.path / failures[0]["repro"])
        assert replay.failed, replay.text
    if bug == "raise":
        assert ": KeyError: 'price of product 7' at bugs.py:" in failures[0]["message"]
        assert 'raise KeyError("price of product 7")' in run.env_output.read_text()


def train(bug: str, vector: str, runs_dir: Path, **flags: Any) -> tuple[MissionGymError | None, list[Any]]:
    """A small run: the error that ended it, and its events."""
    events: list[dict[str, Any]] = []
    values = SMALL | {"vector": vector, "runs_dir": str(runs_dir), "env_kwargs": {"bug": bug}} | flags
    try:
        with start_run(resolve("bugs:Buggy", values), events.append) as session:
            drain(session)
    except MissionGymError as error:
        return error, events
    return None, events


def read_events(run: RunDir) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in run.metrics_jsonl.read_text().splitlines()]


@pytest.mark.parametrize("vector", ["workers", "threads"])
def test_a_call_that_hangs_is_named_at_once_and_in_the_verdict(vector: str, tmp_path: Path) -> None:
    error, events = train("hang", vector, tmp_path, env_timeout=1.0, max_restarts=0)
    assert error is not None
    assert re.search(r"step\(\) did not return within 1 s", str(error))
    (failure,) = [event for event in events if event["event"] == "failure"]
    assert re.search(r"step\(\) did not return for 1 s at bugs.py:\d+; 1 so far", failure["message"])


def test_prints_go_to_the_output_of_the_run_and_not_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train("print", "workers", tmp_path)[0] is None
    (run,) = list_runs(tmp_path)
    assert "selling" in run.env_output.read_text()
    assert "selling" not in "".join(capfd.readouterr())
