"""The compiled kernels prove themselves against the losses; an edited loss is what trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mission_gym.algorithms.dqn import torch_kernel as dqn_kernel
from mission_gym.algorithms.ppo import torch_kernel as ppo_kernel
from mission_gym.algorithms.ppo.loss import Losses, Minibatch, compute_losses
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.config.rules import finish
from mission_gym.errors import ConfigError
from mission_gym.run import assemble
from mission_gym.run.assemble import algorithm_of, settle
from mission_gym.run.config import read_config, resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.start import resume_run, start_run
from mission_gym.store.rundir import RunDir

SMALL = {
    "n_envs": 4, "timesteps": 512, "network_arch": "16,8", "eval_freq": 0, "tensorboard": False,
    "vector": "serial", "seed": 3,
}  # fmt: skip
PPO = SMALL | {"n_steps_per_env": 32}
DQN = SMALL | {"algo": "dqn", "learning_starts": 64}


@pytest.fixture(autouse=True)
def forget_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_proofs", {})


def clip_values(batch: Minibatch, settings: StepSettings) -> Losses:
    """PPO's loss with a clipped value loss, as a researcher would write it."""
    losses = compute_losses(batch, settings)
    near = batch.old_value + (batch.value - batch.old_value).clamp(-0.2, 0.2)
    worse = torch.maximum((batch.value - batch.returns).square(), (near - batch.returns).square())
    value = (worse * batch.weight).sum()
    total = losses.total + settings.vf_coef * (value - losses.value)
    return losses._replace(value=value, total=total)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "mission_gym/Placement-v0"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("threads", [1, 2])
def test_ppos_compiled_kernel_proves_itself(env_id: str, activation: str, threads: int) -> None:
    flags = PPO | {"activation": activation, "threads": threads, "ent_coef": 0.01, "vector": "auto"}
    assert prove(env_id, flags) == ""


@pytest.mark.parametrize("env_id", ["CartPole-v1", "mission_gym/Placement-v0"])
@pytest.mark.parametrize("switches", [{}, {"dueling": True, "loss": "mse"}, {"double": False, "tau": 0.1}])
def test_dqns_compiled_kernel_proves_itself(env_id: str, switches: dict[str, Any]) -> None:
    assert prove(env_id, DQN | switches | {"vector": "auto"}) == ""


def prove(env_id: str, flags: dict[str, Any]) -> str:
    resolved, _ = finish(resolve(env_id, flags))
    spec = open_environment(resolved.config, {}).spec
    config = settle(resolved, spec)[0].settled
    assert config.compute.kernel == "compiled"
    return algorithm_of(config).prove(config, spec)


def test_an_edited_loss_is_what_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_kernel, "compute_losses", clip_values)
    events: list[dict[str, Any]] = []
    with start_run(resolve("CartPole-v1", PPO | {"runs_dir": str(tmp_path)}), events.append) as session:
        assert session.config.compute.kernel == "torch"
        for _ in session.updates():
            break
        run = session.run
    said = "the compiled kernel is left out, and torch trains: its value loss is"
    assert any(
        said in note for event in events if event["event"] == "plan" for note in event["time/plan"]["notes"]
    )
    assert any(said in note for note in json.loads(run.plan_json.read_text())["notes"])
    stored = read_config(run.config_yaml)
    assert stored.config.compute.kernel == "torch"
    assert said in stored.sources["compute.kernel"]


def test_a_resume_under_an_edited_loss_goes_on_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_run(resolve("CartPole-v1", PPO | {"runs_dir": str(tmp_path)}), lambda event: None) as session:
        for _ in session.updates():
            break
        run = RunDir(session.run.path)
    monkeypatch.setattr(assemble, "_proofs", {})
    monkeypatch.setattr(ppo_kernel, "compute_losses", clip_values)
    events: list[dict[str, Any]] = []
    with resume_run(run, events.append) as session:
        assert session.config.compute.kernel == "torch"
    (notes,) = [event["notes"] for event in events if event["event"] == "resume"]
    assert any("the compiled kernel is left out" in note for note in notes)
    assert any("statistical" in note for note in notes)


def test_a_compiled_kernel_that_was_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_kernel, "compute_losses", clip_values)
    with pytest.raises(
        ConfigError, match="kernel=compiled is not possible: it does not compute the loss of ppo"
    ):
        prove("CartPole-v1", PPO | {"kernel": "compiled"})


def test_an_edited_helper_of_dqns_loss_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dqn_kernel.compute_losses
    monkeypatch.setattr(
        dqn_kernel, "compute_losses", lambda batch, huber: plain(batch._replace(weight=None), huber)
    )
    resolved, _ = finish(resolve("CartPole-v1", DQN))
    _, notes = settle(resolved, open_environment(resolved.config, {}).spec)
    assert "the compiled kernel is left out" in notes[0]
