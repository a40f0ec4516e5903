"""Runs of games over a bridge: resumed exactly in the middle of episodes, by state and by replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.games import game, processes
from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.rundir import RunDir
from waits import wait_until

SMALL = {
    "n_envs": 3, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 144, "eval_freq": 0,
    "network_arch": "8", "seed": 3, "tensorboard": False, "tune": False,
}  # fmt: skip


def play(folder: Path, command: str, stop_after: int | None = None, **flags: Any) -> RunDir:
    wanted = SMALL | {"runs_dir": str(folder)} | flags
    with start_run(resolve(f"bridge:{command}", wanted), lambda event: None) as session:
        for number, _ in enumerate(session.updates(), 1):
            if number == stop_after:
                break
    return session.run


def last_arrays(run: RunDir) -> list[tuple[str, list[Any]]]:
    last = load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)
    arrays = last.policy | last.state
    return [(name, arrays[name].tolist()) for name in sorted(arrays)]


@pytest.mark.parametrize(("words", "how"), [((), "state"), (("stateless",), "replay")])
@pytest.mark.parametrize("vector", ["serial", "workers"])
def test_a_bridged_run_is_resumed_exactly(
    words: tuple[str, ...], how: str, vector: str, tmp_path: Path
) -> None:
    flags = {"vector": vector} | ({"num_workers": 2} if vector == "workers" else {})
    command = game("walk_game", *words)
    straight = play(tmp_path / "straight", command, **flags)
    stopped = play(tmp_path / "stopped", command, stop_after=1, **flags)
    said: list[dict[str, Any]] = []
    with resume_run(stopped, said.append) as session:
        for _ in session.updates():
            pass
    notes = next(event["notes"] for event in said if event["event"] == "resume")
    assert "the resume is exact" in notes
    assert any(f"restored by {how}" in note for note in notes), notes
    assert last_arrays(stopped) == last_arrays(straight)
    assert not processes()


def test_what_games_use_is_the_runs_own(tmp_path: Path) -> None:
    """Else a run that computes in its games would be told to end them."""
    wanted = SMALL | {"runs_dir": str(tmp_path), "vector": "serial"}
    with start_run(resolve(f"bridge:{game('walk_game')}", wanted), lambda event: None) as session:
        for _ in session.updates():
            break
        assert not session.telemetry.env_cpu_is_known
        readings = session.telemetry.sampler._readings
        wait_until(lambda: {each.pid for each in processes()} <= {each.pid for each in readings._below})
