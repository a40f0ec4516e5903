"""Runs on stacks of frames: what is held once is learned from as if it were held whole, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_exact_resume import assert_equal_runs, drain, silent, stop_at_poll

from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.rundir import RunDir

OURS, THEIRS = "frame-stack:3", "gymnasium.wrappers:FrameStackObservation(stack_size=3)"
SHARED = {
    "n_envs": 2, "timesteps": 192, "eval_freq": 64, "eval_episodes": 2,
    "checkpoint_freq": 32, "network_arch": "16", "seed": 3, "tensorboard": False, "vector": "serial",
}  # fmt: skip
ALGORITHMS = {
    "ppo": {"n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2},
    "ppo, workers": {"n_steps_per_env": 16, "batch_size": 16, "vector": "workers", "num_workers": 2},
    "ppo, overlap": {"n_steps_per_env": 16, "batch_size": 16, "overlap": "on"},
    "dqn": {
        "algo": "dqn", "n_steps_per_env": 4, "replay_ratio": 0.5, "batch_size": 8, "replay_size": 64,
        "learning_starts": 32, "target_update_interval": 40, "dueling": True,
    },
}  # fmt: skip


IMAGE_PROFILE = {"env_kwargs": {"stack": 0}}


def start(tmp_path: Path, env: str = "toys:Glimpses", **flags: Any) -> Any:
    return start_run(resolve(env, SHARED | {"runs_dir": str(tmp_path)} | flags), silent)


def last_policy(run: RunDir) -> dict[str, np.ndarray]:
    return load_checkpoint(list_checkpoints(run.checkpoints)[-1].path).policy


@pytest.mark.parametrize(
    ("name", "stack", "env"),
    [*((name, OURS, "toys:Glimpses") for name in ALGORITHMS)]
    + [(name, THEIRS, env) for name in ("ppo", "dqn") for env in ("toys:Glimpses", "toys:Captioned")],
)
def test_frames_are_held_once_and_learned_from_as_stacks(
    name: str, stack: str, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other leaves beside them, stacks are numbers like any."""
    flags: dict[str, Any] = ALGORITHMS[name] | {"wrap": [stack, "time-limit:7"]}
    flags |= IMAGE_PROFILE if env == "toys:Glimpses" else {"normalize_obs": True}
    runs = []
    for held in (1, 3):
        with start(tmp_path, env, **flags) as session:
            assert session.config.compute.kernel == session.config.compute.acting == "torch"
            assert [leaf.frames for leaf in session.spec.leaves if not leaf.is_flat] == [4 - held]
            if "algo" in flags:
                assert session.learner.replay.obs[0][0, 0].size == held * 12 * 12
            runs.append(drain(session))
        monkeypatch.setattr("mission_gym.env.probe.count_frames", lambda env: 1)
    assert runs[0].read_status()["gradient_steps"] > 20
    for key, array in last_policy(runs[0]).items():
        np.testing.assert_array_equal(array, last_policy(runs[1])[key])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_of_stacked_frames_comes_back(name: str, tmp_path: Path) -> None:
    flags: dict[str, Any] = ALGORITHMS[name] | IMAGE_PROFILE | {"wrap": [OURS]}
    with start(tmp_path, **flags) as session:
        whole = drain(session)
    with start(tmp_path, **flags) as session:
        stop_at_poll(session, 60)
        run = drain(session)
    assert run.read_status()["state"] == "stopped"
    said: list[dict[str, Any]] = []
    with resume_run(run, said.append) as session:
        assert session.config.env.wrap == (OURS,)
        drain(session)
    assert "the resume is exact" in next(event["notes"] for event in said if event["event"] == "resume")
    assert_equal_runs(run, whole)
