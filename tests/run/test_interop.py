"""Other people's tools read our runs: TensorBoard, SB3's monitor reader, SB3's evaluate_policy."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import mission_gym as mg


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> mg.Run:
    folder = str(tmp_path_factory.mktemp("runs"))
    flags = {"timesteps": 2048, "eval_freq": 1024, "eval_episodes": 2, "seed": 1, "progress": False}
    return mg.train("CartPole-v1", runs_dir=folder, **flags)


def test_tensorboard_reads_the_events(run: mg.Run) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    rows = [row for row in run.metrics() if row["event"] == "progress"]
    returns = events.Scalars("rollout/ep_rew_mean")
    assert [event.step for event in returns] == [row["step"] for row in rows if "rollout/ep_rew_mean" in row]
    assert {"train/approx_kl", "time/fps", "eval/mean_reward"} <= set(events.Tags()["scalars"])


def test_sb3_reads_the_monitor(run: mg.Run) -> None:
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    table = monitor.load_results(str(run.path))
    assert len(table) == run.status()["episodes"]
    assert {"r", "l", "t", "outcome"} <= set(table.columns)
    assert (table["r"] == table["l"]).all()  # CartPole pays 1 a step


def test_sb3_evaluates_a_loaded_policy(run: mg.Run) -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    policy = mg.load(run.path)
    with pytest.warns(UserWarning, match="Monitor"):
        mean, _ = evaluation.evaluate_policy(policy, gym.make("CartPole-v1"), n_eval_episodes=3)
    assert mean > 9


def test_predict_takes_one_observation_or_a_batch(run: mg.Run) -> None:
    policy = mg.load(run.path)
    obs = np.zeros((3, 4), np.float32)
    batch, state = policy.predict(obs)
    single, _ = policy.predict(obs[0])
    assert (batch.shape, single.shape, state) == ((3,), (), None)
    assert (batch == single).all()
    with pytest.raises(mg.errors.UsageError, match=r"has shape \(5,\); the policy was trained on \(4,\)"):
        policy.predict(np.zeros((3, 5), np.float32))


def test_a_checkpoint_path_and_a_name_load_the_same(run: mg.Run, tmp_path: Path) -> None:
    by_name = mg.load(run.path.name, runs_dir=str(run.path.parent))
    checkpoint = next(iter(sorted((run.path / "checkpoints").iterdir(), reverse=True)))
    assert mg.load(checkpoint).step == int(checkpoint.name.removeprefix("step_"))
    assert by_name.step in {int(p.name.removeprefix("step_")) for p in checkpoint.parent.iterdir()}
