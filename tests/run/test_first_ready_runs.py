"""Runs with first-ready blocks: they learn, tell who gave the data, and say that a resume is statistical."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg
from mission_gym.errors import ConfigError
from mission_gym.run.environment import choose_acting_rows
from mission_gym.run.resume import resume_run
from mission_gym.vector.backends import load_backend
from runs import drain, rows, silent, start, stop_at_poll

FIRST_READY = {"vector": "workers", "num_workers": 2, "blocks": "first_ready"}
SHORT = FIRST_READY | {"eval_freq": 0, "eval_episodes": None}


def test_an_interrupted_run_goes_on_and_says_that_it_is_statistical(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1", **SHORT) as session:
        assert session.config.compute.acting_rows == 2  # those of a worker
        stop_at_poll(session, 4)
        run = drain(session)
    assert run.read_status()["state"] == "stopped"
    said: list[dict[str, Any]] = []
    with resume_run(run, said.append) as session:
        drain(session)
    notes = next(event["notes"] for event in said if event["event"] == "resume")
    assert any(note.startswith("4 of 4 environments restored by boundary: segments") for note in notes)
    assert notes[-1] == (
        "the resume is statistical, not exact: first-ready blocks depend on timing, and unfinished"
        " segments are dropped"
    )
    assert run.read_status()["state"] == "done"
    made = [row for row in rows(run) if row["event"] == "progress"]
    assert made[-1]["step"] == 384
    for row in made[1:]:  # the first one may be of a block that was full before
        assert 0.0 <= row["rollout/share_min"] <= 0.25 <= row["rollout/share_max"] <= 1.0
        assert row["rollout/share_min_env"] in range(4)
        assert row["train/lag"] >= 0.0


def test_a_full_block_that_was_not_learned_from_comes_back_with_its_environments(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1", **SHORT) as session:
        session.learner.update = lambda block, stop: setattr(session.stop, "reason", "SIGTERM")
        run = drain(session)
        block = session.blocks[0]
    with resume_run(run, silent) as session:
        assert session.blocks[0].filled.tolist() == [16] * 4
        assert session.blocks[0].env_ids.tolist() == block.env_ids.tolist()
        assert session.blocks[0].version.tolist() == block.version.tolist()
        drain(session)
    assert run.read_status()["state"] == "done"


@pytest.mark.parametrize(
    ("env", "flags", "reason"),
    [
        ("CartPole-v1", {"vector": "serial"}, "stepped together; use --vector workers or threads"),
        ("mission_gym/Capture-v0", {"vector": "batched"}, "stepped together; use --vector workers"),
        ("CartPole-v1", {"vector": "workers", "acting": "torch"}, "torch acts for all environments"),
        ("toys:DictMask", {"vector": "workers"}, "torch acts for all environments"),
    ],
)
def test_first_ready_is_refused_where_environments_do_not_step_on_their_own(
    env: str, flags: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(ConfigError, match=f"blocks=first_ready is not used: .*{reason}"),
        start(tmp_path, env, blocks="first_ready", **flags),
    ):
        pass


def test_with_threads_every_environment_is_a_group(tmp_path: Path) -> None:
    flags = SHORT | {"vector": "threads", "num_workers": None, "timesteps": 64}
    with start(tmp_path, "CartPole-v1", **flags) as session:
        assert session.config.compute.acting_rows == 1
        drain(session)


@pytest.mark.parametrize(
    ("num_envs", "rows"), [(8, 8), (63, 63), (64, 32), (100, 25), (256, 32), (1024, 128)]
)
def test_environments_that_wait_for_each_other_act_in_a_few_groups(num_envs: int, rows: int) -> None:
    assert choose_acting_rows(num_envs, load_backend("threads").count_groups(num_envs)) == rows


@pytest.mark.slow
def test_cartpole_is_solved_with_first_ready_blocks(tmp_path: Path) -> None:
    run = mg.train(  # what is ready first differs from run to run: long enough, and its best policy
        "CartPole-v1", timesteps=80_000, seed=1, runs_dir=str(tmp_path), tensorboard=False, progress=False,
        eval_freq=10_000, stop_when="return>=475", **FIRST_READY,
    )  # fmt: skip
    assert run.evaluate(episodes=20)["return_mean"] >= 475.0
