"""Runs whose observations are texts, sequences, ids, planes and images: learned from, and predicted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.errors import ConfigError, EnvContractError, RunStateError, UsageError
from mission_gym.store.rundir import RunDir, read_lineage, write_lineage
from mission_gym.store.tables import MetricsLog
from observation_toys import Shown
from runs import NO_EVALS, train

ENV = "observation_toys:Shown"
SHORT = {"timesteps": 128, "checkpoint_freq": 1000, "acting_rows": 2, "device": "cpu", "threads": 1}
SHORT |= {"overlap": "off"} | NO_EVALS
FEWER = {"list": {"max_sequence": 6}}  # elements that are computed, though none is there
LEARN = {
    "seed": 1, "n_envs": 8, "n_steps_per_env": 64, "learning_rate": 2e-3, "gamma": 0.5, "n_epochs": 6,
    "network_arch": "32", "tensorboard": False, "progress": False, "eval_freq": 0, "vector": "serial",
    "threads": 1, "timesteps": 4096,
}  # fmt: skip


def run_short(tmp_path: Path, form: str, **flags: Any) -> RunDir:
    return train(tmp_path, ENV, env_kwargs={"form": form}, **SHORT | flags)


@pytest.mark.parametrize(("form", "least"), [("words", 19.0), ("code", 19.0), ("list", 18.0), ("grid", 19.0)])
def test_forms_of_observations_are_learned_from(form: str, least: float, tmp_path: Path) -> None:
    wanted = LEARN | FEWER.get(form, {})
    run = mg.train(ENV, runs_dir=str(tmp_path), env_kwargs={"form": form}, **wanted)
    assert run.evaluate(episodes=10)["return_mean"] >= least
    env, policy = Shown(form), mg.load(run.path)
    shown = [env.reset(seed=seed)[0] for seed in range(20)]
    single = [int(policy.predict(obs)[0]) for obs in shown]
    batch = np.stack(shown) if form == "grid" else tuple(shown)
    assert policy.predict(batch)[0].tolist() == single
    if form == "words":
        with pytest.raises(UsageError, match=r"does not fit Text.*expected a string, got int"):
            policy.predict((1, 2))


def test_truncated_sequences_are_counted_and_reported_once(tmp_path: Path) -> None:
    run = run_short(tmp_path, "list", max_sequence=2)
    events = list(MetricsLog.read(run.metrics_jsonl))
    counts = [event["rollout/cut_sequences"] for event in events if event["event"] == "progress"]
    assert len(counts) == 2
    assert 0 < counts[0] < counts[1] < 128
    said = [event["message"] for event in events if event["event"] == "warning"]
    assert sum("sequences had more than 2 elements and were truncated" in text for text in said) == 1
    with pytest.raises(ConfigError, match="max_sequence=2 is not used: no observation is a Seq"):
        run_short(tmp_path, "words", max_sequence=2)


@pytest.mark.parametrize(
    ("form", "where"), [("mission", "'mission' space Mission"), ("list", "space Sequence")]
)
def test_make_vec_refuses_observations_that_are_not_arrays(form: str, where: str) -> None:
    with pytest.raises(EnvContractError, match=f"{where}.* is not supported by make_vec; use Box"):
        mg.make_vec(ENV, 2, backend="serial", env_kwargs={"form": form})


def test_make_vec_returns_large_numbers_as_the_environment_does() -> None:
    vec = mg.make_vec(ENV, 2, backend="serial", env_kwargs={"form": "large"})
    try:
        obs, _ = vec.reset(seed=3)
        first, _ = Shown("large").reset(seed=3)
        assert str(obs[0]) == str(first)
    finally:
        vec.close()


def test_a_grid_keeps_the_ids_that_its_run_found(tmp_path: Path) -> None:
    """Whether a rare id is among the first that are seen decides how many there are; a run keeps it."""
    flags = {"timesteps": 128, "n_envs": 2, "n_steps_per_env": 64, "vector": "serial", "eval_freq": 0}
    flags |= {"tensorboard": False, "progress": False}
    run = mg.train("observation_toys:Rare", runs_dir=str(tmp_path), **flags)
    (reading,) = read_lineage(RunDir(run.path)).readings.values()
    other = 4 if reading.nvec[0] == 16 else 16
    assert reading.nvec[0] in (16, 32)
    for _ in range(5):
        mg.load(run.path)
    # As if the look that the run was made with had shown something else.
    lineage = read_lineage(RunDir(run.path))
    write_lineage(RunDir(run.path), replace(lineage, readings={"": replace(reading, nvec=(other,) * 25)}))
    with pytest.raises(RunStateError, match=r"spaces .* have changed since .*, or this version reads them"):
        mg.load(run.path)


@pytest.mark.parametrize("form", ["from_five", "list_from_five", "narrow"])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_categories_without_zero_and_narrow_images_train(algo: str, form: str, tmp_path: Path) -> None:
    rest = {"n_epochs": 1} if algo == "ppo" else {"learning_starts": 32, "n_steps_per_env": 4}
    flags = {"algo": algo, "env_kwargs": {"form": form}, "timesteps": 64, "n_envs": 2, "eval_freq": 0}
    given = {"n_steps_per_env": 16, "batch_size": 8, "threads": 1} | flags | rest
    run = mg.train(ENV, runs_dir=str(tmp_path), tensorboard=False, progress=False, **given)
    assert run.status()["state"] == "done"
