"""Runs of policies with memory: refusals, learning, predict, branches. `test_exact_resume` has their
resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.config.plain_yaml import read_stored
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import settle
from runs import NO_EVALS, rows, start, train
from toys import Recall

GRU = {"recurrent": "gru", "recurrent_size": 8}
RECALL = {
    "n_envs": 16, "n_steps_per_env": 48, "vector": "serial", "threads": 1, "eval_freq": 0,
    "recurrent_size": 16, "network_arch": "16", "learning_rate": 3e-3, "n_epochs": 4, "tensorboard": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"algo": "dqn"},
            "recurrent=gru is not possible with algo=dqn: its replay samples single transitions",
        ),
        ({"algo": "sac", "env": "Pendulum-v1"}, "recurrent=gru is not possible with algo=sac"),
        (
            {"kernel": "compiled"},
            "kernel=compiled is not possible with recurrent=gru: it has no recurrent cells",
        ),
        ({"precision": "bf16"}, "precision=bf16 is not possible with recurrent=gru: rounding"),
        (
            {"blocks": "first_ready", "vector": "workers"},
            "blocks=first_ready is not possible with recurrent=gru: its segments begin with weights of",
        ),
        (
            {"bptt_steps": 24},
            r"bptt_steps=24 does not divide n_steps_per_env=128 into equal chunks; use 16, 32",
        ),
        (
            {"batch_size": 64, "bptt_steps": 32},
            r"batch_size=64 is not a multiple of bptt_steps=32, or below 128",
        ),
        ({"batch_size": 100}, r"batch_size=100 does not divide the rollout of 1024"),
        ({"recurrent": "none"}, r"recurrent_size=8 is not used: the policy has no memory"),
        (
            {"recurrent": "none", "recurrent_size": None, "bptt_steps": 16},
            r"bptt_steps=16 is not used: the policy has no memory",
        ),
    ],
)
def test_what_memory_rules_out_is_refused(flags: dict[str, Any], message: str) -> None:
    env = flags.pop("env", "CartPole-v1")
    flags = {name: value for name, value in (GRU | flags).items() if value is not None}
    base = {"n_envs": 8} | ({} if "algo" in flags else {"n_steps_per_env": 128})
    resolved = resolve(env, base | flags)
    with pytest.raises(ConfigError, match=message):
        settle(resolved, open_environment(resolved.config, {}))


@pytest.mark.parametrize(
    ("sizes", "chunk", "batch"),
    [
        ({}, 32, 128),
        ({"batch_size": "auto"}, 32, 256),
        ({"batch_size": 64}, 16, 64),
        ({"n_envs": 64}, 32, 256),
        ({"n_steps_per_env": 100}, 25, 100),
        ({"n_steps_per_env": 16}, 16, 64),
        ({"bptt_steps": 64}, 64, 256),
        ({"n_envs": 1, "n_steps_per_env": 64}, 16, 64),
    ],
)
def test_minibatches_hold_at_least_four_chunks(sizes: dict[str, Any], chunk: int, batch: int) -> None:
    base = {"n_envs": 8, "n_steps_per_env": 128} | GRU
    resolved, notes = apply_rules(resolve("toys:Recall", base | sizes))
    section = resolved.config.algorithm
    assert (section.bptt_steps, section.batch_size) == (chunk, batch)
    assert not any("chunks" in note for note in notes)


def test_short_chunks_are_noted() -> None:
    base = {"n_envs": 8, "n_steps_per_env": 127}
    resolved, notes = apply_rules(resolve("toys:Recall", base | GRU))
    assert resolved.config.algorithm.bptt_steps == 1
    assert any("memory is learned in chunks of 1 steps" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "lstm", "mingru"])
def test_a_sign_is_remembered(kind: str, tmp_path: Path) -> None:
    run = mg.train("toys:Recall", runs_dir=str(tmp_path), timesteps=24_576, recurrent=kind, **RECALL)
    assert run.evaluate(episodes=100)["return_mean"] >= 0.95


def test_without_memory_it_is_guessed(tmp_path: Path) -> None:
    flags = {name: value for name, value in RECALL.items() if name != "recurrent_size"}
    run = mg.train("toys:Recall", runs_dir=str(tmp_path), timesteps=12_288, **flags)
    assert run.evaluate(episodes=100)["return_mean"] <= 0.7


def test_predict_passes_the_memory_on_and_resets_it(tmp_path: Path) -> None:
    run = train(tmp_path, "toys:Recall", recurrent="lstm", recurrent_size=8, **NO_EVALS)
    policy, env = mg.load(run.path), Recall()
    obs, _ = env.reset(seed=1)
    observations = [obs, *(env.step(0)[0] for _ in range(4))]
    state: Any = None
    single = []
    for number, obs in enumerate(observations):
        _, state = policy.predict(obs, state, episode_start=[number == 0])
        single.append(state)
    assert [each.shape for each in state] == [(1, 8), (1, 8)]
    assert not np.allclose(single[0][0], single[1][0])
    # A batch: its first row continues, its second row starts again with the third observation.
    state = None
    for number, obs in enumerate(observations[:4]):
        _, state = policy.predict(np.stack([obs, obs]), state, episode_start=[False, number == 2])
    _, begun = policy.predict(observations[2])
    _, begun = policy.predict(observations[3], begun)
    for found, straight, again in zip(state, single[3], begun, strict=True):
        np.testing.assert_allclose(found[0], straight[0], atol=1e-6)
        np.testing.assert_allclose(found[1], again[0], atol=1e-6)


def test_a_branch_keeps_the_memory_and_refuses_another(tmp_path: Path) -> None:
    parent = mg.Run(train(tmp_path, "CartPole-v1", **GRU, **NO_EVALS).path)
    wrong = (
        r"the weights do not fit the branch:\n.*policy.recurrent: gru -> lstm\n"
        r"(.|\n)*memory.hidden.weight: \[24, 8\] in the checkpoint, \[32, 8\] now"
    )
    with pytest.raises(ConfigError, match=wrong):
        mg.branch(parent, recurrent="lstm", timesteps=512)
    child = mg.branch(parent, timesteps=512)
    stored = read_stored(Path(child.path) / "config.yaml")
    assert [stored[f"ppo.{name}"].value for name in ("bptt_steps", "batch_size")] == [4, 16]
    assert child.status()["step"] == 512


def test_the_plan_shows_the_chunks(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1", **GRU, **NO_EVALS) as session:
        facts = json.loads(session.run.plan_json.read_text())["facts"]
    shown = {"name": "memory", "value": "gru of 8", "reason": "learned in chunks of 4 steps, 4 per minibatch"}
    assert shown in facts


def test_an_environment_that_fails_begins_again_with_empty_memory(tmp_path: Path) -> None:
    """The step that failed counts nowhere, and the next episode does not know of it: the learner's memory is
    that of the actor at the start of every rollout."""
    run = train(tmp_path, "collector_toys:Failing", max_restarts=1000, **GRU, **NO_EVALS)
    drifts = [row["train/memory_drift"] for row in rows(run, "progress")]
    assert len(drifts) == 6
    assert max(drifts) < 1e-6
