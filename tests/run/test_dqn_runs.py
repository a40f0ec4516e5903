"""DQN as a run: known optima, one replay on disk, branches, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.errors import ConfigError
from mission_gym.rollout.blocks import clear_block
from mission_gym.run.branch import branch_run
from mission_gym.run.config import resolve
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint, load_replay
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from runs import DQN, NO_EVALS, drain, last_checkpoint, last_replay, resume, silent, start, train

TOY = {
    "algo": "dqn", "seed": 1, "n_envs": 4, "n_steps_per_env": 4, "replay_ratio": 0.5, "learning_starts": 200,
    "learning_rate": 2e-3, "gamma": 0.9, "network_arch": "32,32", "target_update_interval": 100,
    "exploration_fraction": 0.5, "tensorboard": False, "progress": False, "eval_freq": 0,
    "timesteps": 3000,
}  # fmt: skip


def replays(run: RunDir) -> list[int]:
    """The steps of the checkpoints that hold a replay."""
    return [
        info.step for info in list_checkpoints(run.checkpoints) if (info.path / "replay.safetensors").exists()
    ]


def test_the_replay_is_saved_once_and_only_if_it_is_wanted(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", algo="dqn")
    steps = [info.step for info in list_checkpoints(run.checkpoints)]
    assert len(steps) > 2
    assert replays(run) == steps[-1:]
    run = train(tmp_path, "CartPole-v1", algo="dqn", save_replay=False, stop_at=90)
    assert replays(run) == []
    notes = resume(run)
    assert "the replay was not saved and is lost; learning continues after 32 steps" in notes
    assert "the resume is not exact: not all state could be restored" in notes


def test_a_replay_beyond_the_budget_is_not_saved(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1", algo="dqn", checkpoint_budget_mb=1, replay_size=40_000) as session:
        session.learner.replay.total = session.learner.replay.length  # as if it were full
        assert session._save()
        assert replays(session.run) == []


def test_a_damaged_replay_is_named(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", algo="dqn")
    path = list_checkpoints(run.checkpoints)[-1].path
    data = bytearray((path / "replay.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "replay.safetensors").write_bytes(bytes(data))
    checkpoint = load_checkpoint(path)  # evaluation does not read it
    with pytest.raises(mg.errors.RunStateError, match=r"replay.safetensors is truncated or altered"):
        load_replay(checkpoint)


def test_a_branch_continues_with_the_weights_and_an_empty_replay(tmp_path: Path) -> None:
    run = train(tmp_path, "CartPole-v1", algo="dqn", stop_at=61)  # inside an update
    said: list[dict[str, Any]] = []
    flags = {"timesteps": 320, "learning_rate": 1e-4, "gamma": 0.9}
    with branch_run(RunRef(run, "last"), flags, said.append) as child:
        assert child.learner.replay.total == 0
        assert child.config.algorithm.gamma == 0.9
        drain(child)
    notes = next(event for event in said if event["event"] == "plan")["time/plan"]["notes"]
    assert "the replay is not carried over; learning continues after 32 steps" in notes
    assert any("dqn.gamma: 0.99 -> 0.9 (values were learned under another discount" in note for note in notes)
    assert child.run.read_status()["state"] == "done"


def test_a_run_is_evaluated_loaded_and_extended(tmp_path: Path) -> None:
    run = train(tmp_path, "toys:Corridor", algo="dqn")
    document = mg.Run(run.path).evaluate(episodes=3)
    assert document["episodes"] == 3
    policy = mg.load(run.path)
    action, _ = policy.predict(np.array([0, 5]), mask=[[0, 0, 1], [1, 0, 0]])
    assert action.tolist() == [2, 0]
    resume(run, timesteps=256)
    assert run.read_status()["step"] == 256


@pytest.mark.parametrize(
    ("toy", "flags"),
    [
        ("Identity", {}),
        ("Corridor", {"prioritized": True, "n_step": 3}),
        ("Corridor", {"exploration": "noisy", "exploration_fraction": None, "timesteps": 2000}),
    ],
    ids=["epsilon", "prioritised", "noisy"],
)
def test_known_optimum_is_found(toy: str, flags: dict[str, Any], tmp_path: Path) -> None:
    """Corridor raises at an illegal action, which would be counted as a failure."""
    wanted = {name: value for name, value in (TOY | flags).items() if value is not None}
    run = mg.train(f"toys:{toy}", runs_dir=str(tmp_path), **wanted)
    result = run.evaluate(episodes=20)
    assert result["return_mean"] >= (19.0 if toy == "Identity" else 1.0)
    assert toy != "Corridor" or result["length_mean"] == 5.0
    assert all(row["rollout/env_failures"] == 0 for row in run.metrics() if row["event"] == "progress")


NOISY = {"exploration": "noisy", "exploration_fraction": None}
REFUSED = [
    ({"n_epochs": 3}, r"n_epochs=3 is not used: it is a field of ppo, and the algorithm is dqn \[flag"),
    ({"exploration": "noisy"}, "exploration_fraction=0.5 is not used: --exploration noisy has no epsilon"),
    ({"noisy_sigma": 0.3}, "noisy_sigma=0.3 is not used: there are no noisy layers"),
    ({"prioritized_alpha": 0.5}, "prioritized_alpha=0.5 is not used: transitions are sampled uniformly"),
    ({"tau": 0.1}, "target_update_interval=40 is not used: with tau below 1 the target moves"),
    ({"frame_stack": 4}, "'frame_stack' is not a known field"),
    ({"replay_size": 20}, r"replay_size=20 is too small: it must hold .*; use replay_size=32 or more"),
    ({"exploration_initial_eps": 0.01}, "exploration_final_eps=0.04 is above exploration_initial_eps=0.01"),
    (
        {"replay_size": "1e12"},
        r"a replay of 10+ transitions needs .* GB and .* free for it; use replay_size=",
    ),
    (NOISY | {"kernel": "compiled"}, "kernel=compiled is not possible: it has no noisy layers"),
    ({"env": "Pendulum-v1"}, r"algo=dqn needs one choice .*, and Pendulum-v1 acts with Box; use ppo"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_refusals(flags: dict[str, Any], message: str, tmp_path: Path) -> None:
    env = flags.get("env", "CartPole-v1")
    flags = {name: value for name, value in flags.items() if name != "env"}
    wanted = {name: value for name, value in (DQN | flags).items() if value is not None}
    with (
        pytest.raises(ConfigError, match=message),
        start_run(resolve(env, wanted | {"runs_dir": str(tmp_path)}), silent),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_ppo_refuses_the_fields_of_dqn() -> None:
    match = "replay_ratio=0.5 is not used: it is a field of dqn, and the algorithm is ppo"
    with pytest.raises(ConfigError, match=match):
        resolve("CartPole-v1", {"replay_ratio": 0.5})


def test_an_unknown_environment_gets_the_profile(tmp_path: Path) -> None:
    flags = {"algo": "dqn", "runs_dir": str(tmp_path), "batch_size": 16, "tensorboard": False, "tune": False}
    with start_run(resolve("toys:Identity", flags), silent) as session:
        config, sources = session.config, resolved_sources(session)
    assert (config.vector.n_envs, config.algorithm.replay_size, config.policy.network_arch) == (
        8,
        100_000,
        (128, 128),
    )
    assert config.algorithm.batch_size == 16
    assert sources["policy.network_arch"] == "profile of dqn: measured, see its page"
    assert sources["dqn.batch_size"] == "flag --batch-size"


def resolved_sources(session: Session) -> dict[str, str]:
    from mission_gym.run.config import read_config

    return read_config(session.run.config_yaml).sources


@pytest.mark.parametrize("env", ["CartPole-v1", "toys:Corridor"])
def test_overlap_learns_from_whole_blocks_one_update_behind(env: str, tmp_path: Path) -> None:
    """As a loop written by hand: collect with weights k, store and learn from block k."""
    run = train(tmp_path, env, algo="dqn", overlap="on", **NO_EVALS)
    with start(tmp_path, env, algo="dqn", overlap="off", **NO_EVALS) as session:
        learner, collector, (block,) = session.learner, session.collector, session.blocks
        behind = learner.weights()
        while learner.step < 192:
            now = learner.weights()
            collector.load(behind)
            assert collector.fill(block, learner.version, lambda: False)
            assert learner.update(block) is not None
            clear_block(block)
            behind = now
        expected = learner.arrays() | learner.extras()
    last = last_checkpoint(run)
    found = last.state | {f"policy/{name}": array for name, array in last.policy.items()} | last_replay(run)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
