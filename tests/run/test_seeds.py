"""Seeds of runs that are started next to each other."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mission_gym.run.config import read_config, resolve
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.files import user_folder

SMALL: dict[str, Any] = {
    "timesteps": 64, "n_envs": 2, "n_steps_per_env": 16, "batch_size": 16, "network_arch": "8",
    "vector": "serial", "eval_freq": 0, "tensorboard": False, "tune": False,
}  # fmt: skip


def start(stack: ExitStack, folder: Path, said: list[str], **flags: Any) -> Session:
    resolved = resolve("CartPole-v1", SMALL | {"runs_dir": str(folder)} | flags)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "plan":
            said.extend(event["time/plan"]["notes"])

    return stack.enter_context(start_run(resolved, listen))


def test_runs_side_by_side_have_different_seeds_unless_one_is_given(tmp_path: Path) -> None:
    said: list[str] = []
    folder = user_folder("state") / "seeds"
    before = set(folder.glob("*"))  # of runs that were killed
    with ExitStack() as stack:
        first, second, third = (start(stack, tmp_path, said) for _ in range(3))
        assert [session.config.run.seed for session in (first, second, third)] == [0, 1, 2]
        assert said[0].startswith("seed 1: a run of CartPole-v1 with seed 0 is running in ")
        assert said[0].endswith("--seed 0 repeats it, --seeds trains several")
        stored = read_config(third.run.config_yaml)
        assert stored.config.run.seed == 2
        assert stored.sources["run.seed"].startswith("plan: a run of CartPole-v1 with seed 0")
        assert start(stack, tmp_path, said, seed=0).config.run.seed == 0
        assert start(stack, tmp_path / "elsewhere", said).config.run.seed == 0
        assert start(stack, tmp_path, said, algo="dqn", batch_size=8).config.run.seed == 0
    with ExitStack() as stack:
        assert start(stack, tmp_path, said).config.run.seed == 0  # the others have ended
    assert set(folder.glob("*")) == before


def test_a_run_starts_without_a_folder_for_state(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with ExitStack() as stack:
        assert start(stack, tmp_path / "runs", []).config.run.seed == 0
