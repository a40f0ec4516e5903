"""Sweeps through the command line: what is refused before anything starts, and one of real trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mission_gym.cli.groups import resolve_values
from mission_gym.cli.main import main
from mission_gym.fleet.sweep.question import SweepRequest, make_question
from mission_gym.run.config import resolve
from mission_gym.store.groups import list_groups
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import read_sweep

SMALL = [
    "--n-envs",
    "4",
    "--n-steps",
    "16",
    "--timesteps",
    "512",
    "--no-tensorboard",
    "--network-arch",
    "8",
    "--kernel",
    "torch",
]
FEW = ["--trials=2", "--retest=1", "--retest-seeds=2", "--over=learning_rate=1e-4..1e-2"]


@pytest.fixture(autouse=True)
def own_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_all_problems_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    over = "learning_rte=1e-5..1e-2,gamma=0.99..0.9,clip_range=0..1,log_std_init=-2..0"
    args = ["--over", over, "--budget", "3s", "--timesteps", "30M", "--retest-seeds", "1", "--trials", "x"]
    assert main(["sweep", "toys:Identity", "--pruner", "best", "--seeds-per-trial", "0", *args]) == 2
    told = capsys.readouterr().err
    for problem in (
        "'learning_rte' is not a known field (did you mean 'learning_rate'?); correct the name [--over]",
        "gamma=0.99..0.9 is empty",
        "clip_range=0 should be greater than 0 [--over]",
        "log_std_init: runs on this environment do not use it [--over]",
        "budget=3s is too short for one trial: 30,000,000 steps of toys:Identity take at least",
        "retest_seeds=1 is not from 2 to 100 [--retest-seeds]",
        "trials: 'x' is not a whole number",
        "pruner=best is not one of none, median [--pruner]",
        "seeds_per_trial=0 is not from 1 to 100 [--seeds-per-trial]",
    ):
        assert problem in told
    assert main(["sweep", "toys:Identity", "--eval-freq", "0", "--gamma", "2", "--over", "x=1..2"]) == 2
    told = capsys.readouterr().err
    assert "gamma=2 should be less than or equal to 1 [flag --gamma]" in told
    assert "'x' is not a known field" in told
    assert main(["sweep", "toys:Identity", "--eval-freq", "0", "--timesteps", "2k"]) == 2
    assert "eval_freq=0 runs no evaluations" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_the_search_starts_with_known_settings() -> None:
    request = SweepRequest(over="learning_rate=1e-5..1e-2,n_steps=16..512", seeds_per_trial="2")
    values = {
        "env": "CartPole-v1",
        "preset": "fast",
        "learning_rate": "1e-6",
        "seed": "3",
        "timesteps": "50k",
    }
    question = make_question(request, values, resolve_values, print)
    starts = {start.source: start.values for start in question.starts}
    assert starts == {
        "default": {"learning_rate": 1e-6, "n_steps_per_env": 256},
        "shipped settings": {"learning_rate": 1e-3, "n_steps_per_env": 32},
        "defaults of the schema": {"learning_rate": 3e-4, "n_steps_per_env": 128},
    }
    default, shipped, _ = question.starts
    assert default.given == {}
    # All of the shipped settings, not of the searched fields alone.
    told = [shipped.given[name] for name in ("n_envs", "network_arch", "n_epochs", "target_kl")]
    assert told == [8, [64, 64], 20, None]
    assert (question.values["n_envs"], question.seeds, question.retest_seeds) == (16, [3, 4], [5, 6, 7, 8, 9])
    assert question.trials == 40
    assert (
        make_question(SweepRequest(budget="9h"), {"env": "CartPole-v1"}, resolve_values, print).trials is None
    )


@pytest.mark.slow
def test_a_sweep_of_trainings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "toys:Identity", *SMALL, *FEW, "--seed", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (group,) = list_groups(Path("runs"))
    assert (document["name"], document["kind"]) == ("toys-identity-sweep", "sweep")
    assert [row["state"] for row in document["trials"]] == ["complete"] * 2
    assert [row["source"] for row in document["trials"]] == ["default", "search"]
    assert document["trials"][0]["values"] == {"learning_rate": 3e-4}
    assert document["question"]["seeds"] == [5]
    assert document["question"]["retest_seeds"] == [6, 7]
    assert document["best"]["seeds"] == document["default"]["seeds"] == 2
    best = resolve("toys:Identity", {}, config_file=group.path / "best.yaml")
    for name, value in document["candidates"][0]["values"].items():
        assert getattr(best.config.algorithm, name) == value
    trained = [job for job in group.read_jobs().values() if job.name == "retest-t001-s6"]
    for run in [RunDir(job.run) for job in trained if job.run]:
        stored = run.config_yaml.read_text()
        assert f"learning_rate: {document['trials'][1]['values']['learning_rate']}" in stored
    # The same command again has nothing to do; more trials would go on; something else is refused.
    assert main(["sweep", "toys:Identity", *SMALL, *FEW, "--seed", "5"]) == 0
    assert len(read_sweep(group).trials) == 2
    assert main(["sweep", "toys:Identity", *SMALL, *FEW, "--seed", "6", "--gamma", "0.9"]) == 2
    assert "was started with other values of gamma, seed; use the same" in capsys.readouterr().err
