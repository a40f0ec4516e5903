"""Runs with overlap: branches, contained failures, the choice of `auto`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError, EnvContractError, WorkerDied
from mission_gym.plan.setups import choose_overlap
from mission_gym.run.build import algorithm_of
from mission_gym.run.config import resolve
from mission_gym.store.checkpoints import list_checkpoints, load_last_good
from mission_gym.store.files import read_json
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir
from mission_gym.vector.backends import load_backend
from runs import NO_EVALS, cache_runs, drain, resume, rows, start, train

ON = {"overlap": "on"}
WORKERS = {"vector": "workers", "num_workers": 2, "tune": False} | ON | NO_EVALS
DQN = {"algo": "dqn", "threads": 1}
FAULTY = "toys:Faulty"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDir]:
    return cache_runs(lambda: tmp_path_factory.mktemp("straight"))


def test_a_branch_may_turn_overlap_on(tmp_path: Path, straight: Callable[..., RunDir]) -> None:
    parent = straight("CartPole-v1", overlap="off")
    flags = ["--overlap", "on", "--timesteps", "512", "--runs-dir", str(tmp_path)]
    assert main(["branch", f"{parent.path}@last", *flags]) == 0
    (child,) = list_runs(tmp_path)
    lags = [row["train/lag"] for row in rows(child) if row["event"] == "progress"]
    assert lags == [0, 1]


def test_a_worker_that_dies_during_an_update_costs_an_episode(tmp_path: Path) -> None:
    kwargs = ["kind=exit", "at=18", f"once={tmp_path / 'x'}"]
    flags = WORKERS | {"env_kwargs": kwargs, "max_restarts": 1}
    with start(tmp_path, "hazards:Hazard", **flags) as session:
        run = drain(session)
    status = run.read_status()
    assert status["state"] == "done"
    assert status["worker_restarts"] == 1
    assert status["env_failures"] == 2  # both environments of that worker


def test_workers_beyond_recovery_fail_the_run_with_its_checkpoint_kept(tmp_path: Path) -> None:
    flags = {
        "n_steps_per_env": 8, "env_kwargs": ["kind=exit", "at=18"], "max_restarts": 0,
        "checkpoint_freq": 10_000,
    }  # fmt: skip
    with (
        pytest.raises(WorkerDied, match=r"environment \d, seed \d+"),
        start(tmp_path, "hazards:Hazard", **WORKERS, **flags) as session,
    ):
        drain(session)
    (run,) = list_runs(tmp_path)
    assert run.read_status()["state"] == "failed"
    checkpoint, notes = load_last_good(run.checkpoints)
    assert not notes
    # The second block was whole and is kept; the third, which broke off beside its update, is dropped.
    assert checkpoint.step == 32
    assert checkpoint.state["block/filled"].tolist() == [8, 8, 8, 8]
    assert "next/filled" not in checkpoint.state
    assert checkpoint.state["block/version"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fail", "error", "match"),
    [
        ("nan", EnvContractError, r"environment \d, seed \d+, .*the observation has nan at index"),
        ("shape", EnvContractError, "shape"),
    ],
)
def test_a_failure_keeps_what_was_learned_and_can_be_mended(
    fail: str, error: type[Exception], match: str, tmp_path: Path
) -> None:
    flags = ON | NO_EVALS | {"env_kwargs": {"fail": fail, "after": 8}, "tune": False}
    with pytest.raises(error, match=match), start(tmp_path, FAULTY, **flags) as session:
        drain(session)
    (run,) = list_runs(tmp_path)
    assert run.read_status()["state"] == "failed"
    config = run.config_yaml.read_text()
    run.config_yaml.write_text(config.replace("after: 8", "after: 100000"))
    resume(run)
    assert run.read_status()["state"] == "done"


def test_a_block_too_large_to_be_saved_is_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mission_gym.run.snapshot._MAX_BLOCK_BYTES", 100)
    run = train(tmp_path, "CartPole-v1", stop_at=60, **ON)
    notes = resume(run)
    assert any("steps were not saved and are lost" in note for note in notes)
    assert any("the resume is not exact" in note for note in notes)
    assert run.read_status()["state"] == "done"


def test_checkpoints_and_evaluations_share_the_steps_of_a_run_without_overlap(
    straight: Callable[..., RunDir],
) -> None:
    names = [
        [info.step for info in list_checkpoints(straight("CartPole-v1", overlap=choice).checkpoints)]
        for choice in ("on", "off")
    ]
    assert names[0] == names[1]
    steps = [
        [row["step"] for row in rows(straight("CartPole-v1", overlap=choice))] for choice in ("on", "off")
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("flags", "value", "reason"),
    [
        ({"vector": "serial"}, "off", "share the CPU"),
        ({"vector": "workers"}, "off", "share the CPU"),
        ({"vector": "threads"}, "on", "environments wait"),
        ({"vector": "threads", "blocks": "first_ready"}, "off", "already collect during updates"),
        ({"vector": "workers", "device": "cuda"}, "on", "while the learner uses cuda"),
        ({"vector": "threads", "n_epochs": 300}, "off", "4800 gradient steps of 0.0003 without a target_kl"),
        ({"vector": "threads", "n_epochs": 300, "target_kl": 0.03}, "on", "environments wait"),
        (DQN | {"vector": "workers", "num_workers": 3, "acting": "numpy"}, "on", "leave a core"),
        (DQN | {"vector": "workers", "num_workers": 4, "acting": "numpy"}, "off", "share the CPU"),
        (DQN | {"vector": "workers", "num_workers": 1, "acting": "torch"}, "off", "share the CPU"),
        (DQN | {"vector": "serial", "num_workers": 1, "acting": "numpy"}, "off", "share the CPU"),
    ],
)
def test_auto_is_on_where_the_phases_use_different_resources(
    flags: dict[str, Any], value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mission_gym.plan.setups.usable_cores", lambda: 4)
    wanted = {"n_envs": 8, "n_steps_per_env": 128, "device": "cpu"} | flags
    resolved, _ = apply_rules(resolve("Env-v0", wanted))
    left = {path: 1 for path in resolved.sources if resolved.config.value(path) == "auto"}
    words = {"compute.acting": "numpy", "compute.kernel": "torch", "compute.precision": "float32"}
    words |= {"compute.overlap": "off"}
    config = resolved.with_values(left | {path: words[path] for path in left.keys() & words}, "plan").settled
    fact = choose_overlap(config, load_backend(config.vector.vector), algorithm_of(config))
    assert fact.value == value
    assert reason in fact.reason


@pytest.mark.parametrize(
    ("flags", "stored", "reason"),
    [
        ([], "off", "share the CPU"),
        (["--overlap", "on"], "on", "set by the config"),
        (["--set", "compute.overlap=on"], "on", "set by the config"),
        (["--vector", "threads"], "on", "environments wait"),
        (["--vector", "threads", "--overlap", "off"], "off", "set by the config"),
    ],
)
def test_the_choice_is_stored_and_explained(
    flags: list[str], stored: str, reason: str, tmp_path: Path
) -> None:
    size = ["--n-envs", "2", "--n-steps", "16", "--timesteps", "64", "--eval-freq", "0", "--no-tensorboard"]
    assert main(["train", "CartPole-v1", *size, *flags, "--runs-dir", str(tmp_path)]) == 0
    (run,) = list_runs(tmp_path)
    assert f"overlap: '{stored}'" in run.config_yaml.read_text()
    (fact,) = [fact for fact in read_json(run.plan_json)["facts"] if fact["name"] == "overlap"]
    assert fact["value"] == stored
    assert reason in fact["reason"]


def test_first_ready_segments_need_no_overlap(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"overlap=on is not used: --blocks first_ready already collects"),
        start(tmp_path, "CartPole-v1", **WORKERS, blocks="first_ready"),
    ):
        pass


@pytest.mark.slow
def test_cartpole_is_solved_with_overlap(tmp_path: Path) -> None:
    run = mg.train(
        "CartPole-v1", timesteps=100_000, seed=1, overlap="on", stop_when="return>=475",
        runs_dir=str(tmp_path), tensorboard=False, progress=False,
    )  # fmt: skip
    assert run.evaluate(episodes=100)["return_mean"] >= 475.0
