"""Runs on stacks of frames: frames that are held once are learned from as whole stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import assert_equal_arrays, drain, last_policy, start

OURS, THEIRS = "frame-stack:3", "gymnasium.wrappers:FrameStackObservation(stack_size=3)"
SHARED = {"n_envs": 2, "timesteps": 192, "eval_freq": 64, "checkpoint_freq": 32, "n_epochs": None}
ALGORITHMS = {
    "ppo": {"n_epochs": 2},
    "ppo, workers": {"vector": "workers", "num_workers": 2},
    "ppo, overlap": {"overlap": "on"},
    "dqn": {"algo": "dqn", "replay_size": 64, "dueling": True},
}

IMAGE_PROFILE = {"env_kwargs": {"stack": 0}}


@pytest.mark.parametrize(
    ("name", "stack", "env"),
    [*((name, OURS, "toys:Glimpses") for name in ALGORITHMS)]
    + [(name, THEIRS, env) for name in ("ppo", "dqn") for env in ("toys:Glimpses", "toys:Captioned")],
)
def test_frames_are_held_once_and_learned_from_as_stacks(
    name: str, stack: str, env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other leaves beside them, stacks are numbers like any."""
    flags: dict[str, Any] = SHARED | ALGORITHMS[name] | {"wrap": [stack, "time-limit:7"]}
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
    assert_equal_arrays(last_policy(runs[0]), last_policy(runs[1]))
