"""The compiled kernels prove themselves against the losses; an edited loss is what trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.dqn import learner as dqn_learner
from mission_gym.algorithms.dqn import loss as dqn_loss
from mission_gym.algorithms.dqn import torch_kernel as dqn_kernel
from mission_gym.algorithms.ppo import build as ppo_build
from mission_gym.algorithms.ppo import loss as ppo_loss
from mission_gym.algorithms.ppo import torch_kernel as ppo_kernel
from mission_gym.algorithms.ppo.loss import Losses, Minibatch, compute_losses
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.config.rules import apply_rules
from mission_gym.data import LeafSpec
from mission_gym.errors import ConfigError
from mission_gym.policy import PolicySpec
from mission_gym.run.build import algorithm_of
from mission_gym.run.config import read_config, resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.resume import resume_run
from mission_gym.run.settle import settle
from mission_gym.run.start import start_run
from mission_gym.store.rundir import RunDir

SMALL = {
    "n_envs": 4, "timesteps": 512, "network_arch": "16,8", "eval_freq": 0, "tensorboard": False,
    "vector": "serial", "seed": 3,
}  # fmt: skip
PPO = SMALL | {"n_steps_per_env": 32}
DQN = SMALL | {"algo": "dqn", "learning_starts": 64}


@pytest.fixture(autouse=True)
def forget_proofs() -> Iterator[None]:
    yield
    forget()


def forget() -> None:
    ppo_build.verify_kernel.cache_clear()
    dqn_learner.verify_kernel.cache_clear()


def clip_values(batch: Minibatch, settings: StepSettings) -> Losses:
    """PPO's loss with a clipped value loss, as a researcher would write it."""
    losses = compute_losses(batch, settings)
    near = batch.old_value + (batch.value - batch.old_value).clamp(-0.2, 0.2)
    worse = torch.maximum((batch.value - batch.returns).square(), (near - batch.returns).square())
    value = (worse * batch.weight).sum()
    total = losses.total + settings.vf_coef * (value - losses.value)
    return losses._replace(value=value, total=total)


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "mission_gym/Placement-v0", "action_toys:Throw"]
)
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("threads", [1, 2])
def test_ppos_compiled_kernel_proves_itself(env_id: str, activation: str, threads: int) -> None:
    flags = PPO | {"activation": activation, "threads": threads, "ent_coef": 0.01, "vector": "auto"}
    assert prove(env_id, flags) == ""


@pytest.mark.parametrize("env_id", ["CartPole-v1", "mission_gym/Placement-v0", "action_toys:Couples"])
@pytest.mark.parametrize("switches", [{}, {"dueling": True, "loss": "mse"}, {"double": False, "tau": 0.1}])
def test_dqns_compiled_kernel_proves_itself(env_id: str, switches: dict[str, Any]) -> None:
    assert prove(env_id, DQN | switches | {"vector": "auto"}) == ""


def prove(env_id: str, flags: dict[str, Any]) -> str:
    resolved, _ = apply_rules(resolve(env_id, flags))
    environment = open_environment(resolved.config, {})
    config = settle(resolved, environment)[0].settled
    assert config.compute.kernel == "compiled"
    return algorithm_of(config).verify_compiled_kernel(config, environment.spec, config.compute.threads)


def dual_clip(batch: Minibatch, settings: StepSettings) -> Losses:
    """A floor under the surrogate of bad actions whose ratio is large."""
    ratio = (batch.log_prob - batch.old_log_prob).exp()
    clipped = ratio.clamp(1.0 - settings.clip_range, 1.0 + settings.clip_range)
    surrogate = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)
    bounded = torch.where(batch.advantage < 0, torch.maximum(surrogate, 3.0 * batch.advantage), surrogate)
    return add(batch, settings, ((surrogate - bounded) * batch.weight).sum())


def flip_entropy(batch: Minibatch, settings: StepSettings) -> Losses:
    return add(batch, settings, 2.0 * settings.ent_coef * (batch.entropy * batch.weight).sum())


def clamp_advantages(batch: Minibatch, settings: StepSettings) -> Losses:
    return compute_losses(batch._replace(advantage=batch.advantage.clamp(-4.0, 4.0)), settings)


def huber_values(batch: Minibatch, settings: StepSettings) -> Losses:
    plain = (batch.value - batch.returns).square()
    huber = 2.0 * torch.nn.functional.huber_loss(batch.value, batch.returns, reduction="none", delta=10.0)
    return add(batch, settings, settings.vf_coef * ((huber - plain) * batch.weight).sum())


def add(batch: Minibatch, settings: StepSettings, more: torch.Tensor) -> Losses:
    losses = compute_losses(batch, settings)
    return losses._replace(total=losses.total + more)


@pytest.mark.parametrize("edit", [clip_values, dual_clip, flip_entropy, clamp_advantages, huber_values])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_proof_sees_an_edit(
    edit: Callable[..., Losses], env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppo_kernel, "compute_losses", edit)
    resolved, _ = apply_rules(resolve(env_id, PPO | {"ent_coef": 1e-4}))
    _, notes = settle(resolved, open_environment(resolved.config, {}))
    assert "the compiled kernel is left out" in notes[0]


@pytest.mark.parametrize(("name", "value"), [("ADVANTAGE_FLOOR", 1e-3), ("LOG_RATIO_LIMIT", 25.0)])
def test_the_proof_sees_another_floor_under_deviations_or_limit_of_ratios(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppo_loss, name, value)
    resolved, _ = apply_rules(resolve("CartPole-v1", PPO))
    _, notes = settle(resolved, open_environment(resolved.config, {}))
    assert "the compiled kernel is left out" in notes[0]


@pytest.mark.parametrize("log_std", [-2.0, -4.0])
@pytest.mark.parametrize(("num_obs", "num_actions", "arch"), [(376, 17, (256, 256)), (24, 4, (400, 300))])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_small_deviation_is_no_disagreement(
    log_std: float, num_obs: int, num_actions: int, arch: tuple[int, ...], activation: str
) -> None:
    bounds = ((-1.0,) * num_actions, (1.0,) * num_actions)
    action = ActionSpec("box", (num_actions,), "float32", low=bounds[0], high=bounds[1])
    leaves = (LeafSpec("", (num_obs,), "float32", "vector"),)
    policy = PolicySpec(leaves, action, arch, activation, log_std_init=log_std)
    settings = StepSettings(3e-4, 0.2, 0.0, 0.5, 0.5, True)
    assert ppo_build.verify_kernel(policy, settings, 1, 0) == ""


@pytest.mark.parametrize("arch", [(8,), (16, 8), (8, 16, 8)])
@pytest.mark.parametrize("hidden", [("state",), ("pose", "gear"), ("state", "gear")])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_critic_that_sees_more_proves_itself(
    arch: tuple[int, ...], hidden: tuple[str, ...], threads: int
) -> None:
    leaves = (
        LeafSpec("state", (7,), "float32", "vector"),
        LeafSpec("pose", (3,), "float32", "vector"),
        LeafSpec("gear", (), "int64", "categories", nvec=(3,), start=(1,)),
    )
    action = ActionSpec("box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
    policy = PolicySpec(leaves, action, arch, critic_leaves=hidden)
    assert ppo_build.verify_kernel(policy, StepSettings(3e-4, 0.2, 0.01, 0.5, 0.5, True), threads, 0) == ""


@pytest.mark.parametrize("limit", [10.0, 50.0])
def test_the_proof_sees_clamped_targets_of_dqn(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dqn_loss.compute_targets
    monkeypatch.setattr(dqn_loss, "compute_targets", lambda batch: plain(batch).clamp(-limit, limit))
    resolved, _ = apply_rules(resolve("CartPole-v1", DQN))
    _, notes = settle(resolved, open_environment(resolved.config, {}))
    assert "the compiled kernel is left out" in notes[0]


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
    forget()
    monkeypatch.setattr(ppo_kernel, "compute_losses", clip_values)
    events: list[dict[str, Any]] = []
    with resume_run(run, events.append) as session:
        assert session.config.compute.kernel == "torch"
    (notes,) = [event["notes"] for event in events if event["event"] == "resume"]
    assert any("the compiled kernel is left out" in note for note in notes)
    assert any("statistical" in note for note in notes)
    assert read_config(run.config_yaml).config.compute.kernel == "torch"  # what trains from here on


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
    resolved, _ = apply_rules(resolve("CartPole-v1", DQN))
    _, notes = settle(resolved, open_environment(resolved.config, {}))
    assert "the compiled kernel is left out" in notes[0]
