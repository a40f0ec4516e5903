"""N + resume + M = N + M: bit for bit, wherever the run was interrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mission_gym.errors import RunStateError
from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.metrics import TIMED
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

# 4 environments x 16 steps: a run is 6 updates of 8 gradient steps, with evaluations and checkpoints between.
SMALL = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 384, "eval_freq": 128,
    "eval_episodes": 2, "checkpoint_freq": 64, "network_arch": "16", "seed": 3, "tensorboard": False,
    "vector": "serial",
}  # fmt: skip
ENVS = {
    "CartPole-v1": "replay",
    "Pendulum-v1": "replay",
    "LunarLander-v3": "replay",
    "toys:DictMask": "replay",
    "toys:Stateful": "state",
}


def silent(event: dict[str, Any]) -> None:
    pass


def start(tmp_path: Path, env: str, **flags: Any) -> Any:
    wanted = SMALL | {"runs_dir": str(tmp_path)} | flags
    return start_run(resolve(env, {key: value for key, value in wanted.items() if value is not None}), silent)


def drain(session: Session) -> RunDir:
    for _ in session.updates():
        pass
    return session.run


def stop_at_poll(session: Session, number: int) -> None:
    """Ask for a stop when the run looks for the n-th time: in collecting, learning or evaluating."""
    polls = iter(range(10**9))
    original = session.stop

    class CountingStop(type(original)):  # type: ignore[misc]
        def __call__(self) -> bool:
            if next(polls) >= number:
                self.reason = "SIGTERM"
            return super().__call__()

    session.stop.__class__ = CountingStop


def final_state(run: RunDir) -> tuple[str, dict[str, Any]]:
    """A hash of every array of the last checkpoint, and its counters."""
    last = load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    digest = hashlib.sha256()
    for arrays in (last.policy, last.state):
        for name in sorted(arrays):
            digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    recorder = last.state_json["counters"]["recorder"]
    counters = {"session": last.state_json["counters"]["session"], "window": recorder["window"]}
    return digest.hexdigest(), counters | {"episodes": recorder["num_episodes"], "step": last.step}


def rows(run: RunDir) -> list[dict[str, Any]]:
    """The metrics rows but for times, plans and the marks of a resume."""
    return [
        {key: value for key, value in row.items() if not key.startswith(TIMED)}
        for row in MetricsLog.read(run.metrics_jsonl)
        if row["event"] in ("progress", "eval")
    ]


def monitor_rows(run: RunDir) -> list[str]:
    lines = run.monitor_csv.read_text().splitlines()[2:]
    return [",".join(cell for i, cell in enumerate(line.split(",")) if i != 2) for line in lines]


def assert_equal_runs(one: RunDir, other: RunDir) -> None:
    assert final_state(one) == final_state(other)
    assert rows(one) == rows(other)
    assert monitor_rows(one) == monitor_rows(other)
    assert one.progress_csv.read_text().count("\n") == other.progress_csv.read_text().count("\n")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDir]:
    made: dict[str, RunDir] = {}

    def get(env: str) -> RunDir:
        if env not in made:
            with start(tmp_path_factory.mktemp("straight"), env) as session:
                made[env] = drain(session)
        return made[env]

    return get


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("poll", [10, 30, 75, 140])
def test_interrupted_anywhere_and_resumed_equals_a_straight_run(
    env: str, poll: int, tmp_path: Path, straight: Callable[[str], RunDir]
) -> None:
    with start(tmp_path, env) as session:
        stop_at_poll(session, poll)
        run = drain(session)
    assert run.read_status()["state"] == "stopped"
    said: list[dict[str, Any]] = []
    with resume_run(run, said.append) as session:
        drain(session)
    notes = next(event["notes"] for event in said if event["event"] == "resume")
    assert "the resume is exact" in notes
    assert any(f"restored by {ENVS[env]}" in note for note in notes)
    assert_equal_runs(run, straight(env))


@pytest.mark.parametrize("vector", ["serial", "batched"])
@pytest.mark.parametrize("mission", ["mission_gym/Capture-v0", "mission_gym/Placement-v0"])
def test_a_mission_comes_back_by_its_own_state(mission: str, vector: str, tmp_path: Path) -> None:
    runs = []
    for poll in (10**9, 40):
        with start(tmp_path, mission, vector=vector) as session:
            stop_at_poll(session, poll)
            run = drain(session)
        runs.append(run)
    said: list[dict[str, Any]] = []
    with resume_run(runs[1], said.append) as session:
        drain(session)
    notes = next(event["notes"] for event in said if event["event"] == "resume")
    assert "4 of 4 environments restored by state" in notes
    assert "the resume is exact" in notes
    assert_equal_runs(*runs)


@pytest.mark.parametrize(
    ("env", "keys"), [("toys:Blindfold", "hidden"), ("toys:DictMask", "camera,body.pose")]
)
def test_a_critic_that_sees_more_comes_back(env: str, keys: str, tmp_path: Path) -> None:
    runs = []
    for poll in (10**9, 75):
        with start(tmp_path, env, critic_keys=keys) as session:
            stop_at_poll(session, poll)
            runs.append(drain(session))
    assert runs[1].read_status()["state"] == "stopped"
    said: list[dict[str, Any]] = []
    with resume_run(runs[1], said.append) as session:
        drain(session)
    assert "the resume is exact" in next(event["notes"] for event in said if event["event"] == "resume")
    assert_equal_runs(*runs)


def test_interrupted_at_every_poll_of_the_first_two_updates(
    tmp_path: Path, straight: Callable[[str], RunDir]
) -> None:
    for poll in range(0, 60, 4):
        with start(tmp_path, "CartPole-v1") as session:
            stop_at_poll(session, poll)
            run = drain(session)
        with resume_run(run, silent) as session:
            drain(session)
        assert final_state(run) == final_state(straight("CartPole-v1")), f"interrupted at poll {poll}"


def test_rows_written_after_the_last_checkpoint_are_made_again_not_doubled(
    tmp_path: Path, straight: Callable[[str], RunDir]
) -> None:
    """What a kill leaves: newer rows than the newest checkpoint."""
    with start(tmp_path, "CartPole-v1", checkpoint_freq=10_000, eval_freq=0, eval_episodes=None) as session:
        run = drain(session)
    with start(tmp_path, "CartPole-v1", checkpoint_freq=10_000, eval_freq=0, eval_episodes=None) as session:
        for progress in session.updates():
            if progress.update == 2:
                session._save()
            if progress.update == 5:
                session.run.write_status(state="running")
                session._save_and_end = lambda state, cause: None  # type: ignore[method-assign]
                break
        killed = session.run
    assert len(rows(killed)) == 5
    with resume_run(killed, silent) as session:
        drain(session)
    assert rows(killed) == rows(run)
    assert final_state(killed)[0] == final_state(run)[0]


def test_an_environment_that_ignores_its_seed_starts_a_new_episode_and_says_so(tmp_path: Path) -> None:
    with start(tmp_path, "toys:Unseeded") as session:
        stop_at_poll(session, 30)
        run = drain(session)
    said: list[dict[str, Any]] = []
    with resume_run(run, said.append) as session:
        drain(session)
    notes = next(event["notes"] for event in said if event["event"] == "resume")
    assert any("boundary" in note for note in notes)
    assert any("not exact" in note for note in notes)
    assert run.read_status()["state"] == "done"


def test_same_seed_same_hash_other_seed_other_hash(tmp_path: Path, straight: Callable[[str], RunDir]) -> None:
    with start(tmp_path, "CartPole-v1") as session:
        again = drain(session)
    with start(tmp_path, "CartPole-v1", seed=4) as session:
        other = drain(session)
    assert_equal_runs(again, straight("CartPole-v1"))
    assert final_state(other)[0] != final_state(again)[0]


def test_a_finished_run_is_extended_only_when_asked(tmp_path: Path) -> None:
    constant = {"learning_rate_final": "none", "clip_range_final": "none"}
    with start(tmp_path, "CartPole-v1", **constant) as session:
        run = drain(session)
    finished = r"is finished \(all steps made, 384 steps\); .* --timesteps N` extends it"
    with pytest.raises(RunStateError, match=finished), resume_run(run, silent):
        pass
    below = "timesteps=300 is not above the 384 steps"
    with pytest.raises(RunStateError, match=below), resume_run(run, silent, timesteps=300):
        pass
    with resume_run(run, silent, timesteps=512) as session:
        drain(session)
    assert run.read_status()["step"] == 512
    with start(tmp_path, "CartPole-v1", timesteps=512, **constant) as session:
        longer = drain(session)
    assert final_state(run)[0] == final_state(longer)[0]


def test_a_damaged_checkpoint_is_passed_over_aloud(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1") as session:
        stop_at_poll(session, 100)
        run = drain(session)
    newest = list_checkpoints(run.checkpoints)[-1]
    damaged = newest.path / "policy.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    said: list[dict[str, Any]] = []
    with resume_run(run, said.append) as session:
        drain(session)
    notes = next(event["notes"] for event in said if event["event"] == "resume")
    assert any("truncated or altered" in note for note in notes)
    assert any("using checkpoint" in note for note in notes)
    assert run.read_status()["state"] == "done"


def test_a_locked_run_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "CartPole-v1") as session:
        run = session.run
        with pytest.raises(RunStateError, match="process"), resume_run(run, silent):
            pass
