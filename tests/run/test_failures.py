"""What goes wrong while training: the cause is recorded, nothing learned is lost, nothing is left behind."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mission_gym.errors import (
    ConfigError,
    DiskError,
    EnvContractError,
    RunGoneError,
    UsageError,
)
from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_last_good
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir
from runs import drain
from toys import Identity

SMALL = {
    "n_envs": 2, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 320, "eval_freq": 0,
    "checkpoint_freq": 64, "network_arch": "8", "tensorboard": False, "vector": "serial",
}  # fmt: skip
FAULTY = "toys:Faulty"


def run_to_the_end(tmp_path: Path, env: str, **flags: Any) -> RunDir:
    with start_run(resolve(env, SMALL | {"runs_dir": str(tmp_path)} | flags), lambda event: None) as session:
        drain(session)
    return session.run


class Once(Identity):
    """Goes wrong at the third step of its first episode in this process, and never again."""

    faults: ClassVar[list[str]] = []

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        fault = self.faults.pop() if self.faults and self.steps == 3 else ""
        if fault == "raise":
            raise RuntimeError("the simulator fell over")
        return obs, math.nan if fault == "reward" else reward, *rest


def test_what_is_not_finite_before_the_first_update_is_refused(tmp_path: Path) -> None:
    Once.faults = ["reward"]
    match = "environment 0, seed .* step 3: the reward is nan; look for divisions by zero"
    resolved = resolve("<once>", SMALL | {"runs_dir": str(tmp_path)})
    with pytest.raises(EnvContractError, match=match), start_run(resolved, lambda event: None, Once):
        pass
    assert list(only_run(tmp_path).path.glob("repro-*.json"))


def test_failures_before_the_first_update_are_counted_and_told(tmp_path: Path) -> None:
    Once.faults = ["raise"]
    events: list[dict[str, Any]] = []
    resolved = resolve("<once>", SMALL | {"runs_dir": str(tmp_path)})
    with start_run(resolved, events.append, Once) as session:
        drain(session)
    (plan,) = [event["time/plan"] for event in events if event["event"] == "plan"]
    assert "1 episodes failed while the statistics were primed; they are counted" in plan["notes"]
    rows = [event for event in events if event["event"] == "progress"]
    assert rows[0]["rollout/env_failures"] == rows[-1]["rollout/env_failures"] == 1
    assert session.run.read_status()["env_failures"] == 1


def only_run(tmp_path: Path) -> RunDir:
    (run,) = list_runs(tmp_path)
    return run


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"fail": "nan", "after": 7}, EnvContractError, r"the observation has nan at index"),
        ({"fail": "shape", "after": 7}, EnvContractError, "shape"),
        ({"fail": "no_action", "after": 7}, EnvContractError, "no legal action"),
    ],
    ids=lambda value: value["fail"] if isinstance(value, dict) else "",
)
def test_a_broken_step_fails_the_run_and_keeps_what_was_learned(
    kwargs: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        run_to_the_end(tmp_path, FAULTY, env_kwargs=kwargs)
    run = only_run(tmp_path)
    status = run.read_status()
    assert status["state"] == "failed"
    assert error.__name__ in status["cause"]
    checkpoint, notes = load_last_good(run.checkpoints)
    assert not notes
    assert checkpoint.step >= 64
    assert not list(run.path.glob("**/.tmp*"))


def test_a_mended_environment_goes_on_from_the_failed_run(tmp_path: Path) -> None:
    with pytest.raises(EnvContractError):
        run_to_the_end(tmp_path, FAULTY, env_kwargs={"fail": "nan", "after": 7})
    run = only_run(tmp_path)
    config = run.config_yaml.read_text()
    run.config_yaml.write_text(config.replace("after: 7", "after: 100000"))
    with resume_run(run, lambda event: None) as session:
        drain(session)
    assert run.read_status()["state"] == "done"


@pytest.mark.parametrize(
    ("env", "kwargs", "match"),
    [
        ("NoSuch-v0", {}, "NoSuch-v0"),
        ("no_such_module:Env", {}, "no_such_module"),
        (FAULTY, {"fail": "constructor"}, "RuntimeError: no licence"),
        (FAULTY, {"fail": "reset", "at": 0}, "reset"),
    ],
)
def test_what_can_be_refused_at_the_start_leaves_no_folder(
    env: str, kwargs: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=match):
        run_to_the_end(tmp_path, env, env_kwargs=kwargs)
    assert not list_runs(tmp_path)


def test_an_unused_explicit_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log_std_init=-1\.0 is not used: the actions are not continuous"):
        run_to_the_end(tmp_path, "CartPole-v1", log_std_init=-1.0)
    assert not list_runs(tmp_path)


def test_stop_when_names_a_declared_outcome(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not declare the outcome 'captured'"):
        run_to_the_end(tmp_path, "CartPole-v1", stop_when="captured>=0.8", eval_freq=64)


def test_a_plan_that_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs .* GB and .* GB are free .* use n_envs="):
        run_to_the_end(
            tmp_path,
            "CartPole-v1",
            n_envs=400_000,
            n_steps_per_env=10_000,
            timesteps="4000M",
            batch_size="auto",
        )


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system that can be filled."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", None])
def test_pins_that_are_damaged_in_training_are_told_once(content: bytes | None, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    with start_run(resolve("CartPole-v1", SMALL | {"runs_dir": str(tmp_path)}), said.append) as session:
        for progress in session.updates():
            if progress.update == 2:
                pins = session.run.pins_json
                pins.mkdir() if content is None else pins.write_bytes(content)
    warnings = [event["message"] for event in said if event["event"] == "warning"]
    assert len(warnings) == 1
    assert warnings[0].startswith("old checkpoints are kept: ")
    assert "pins.json" in warnings[0]
    assert session.run.read_status()["state"] == "done"
    assert [info.step for info in list_checkpoints(session.run.checkpoints)] == [*range(0, 321, 64)]


@pytest.mark.parametrize("freed", [True, False])
def test_a_full_disk_does_not_end_the_training(freed: bool, tmp_path: Path) -> None:
    """It goes on with the last checkpoint kept; only a last checkpoint that can't be written is a failure."""
    said: list[dict[str, Any]] = []
    with small_disk(tmp_path / "disk", "2m") as disk:
        ballast = disk / "ballast"
        end = (
            contextlib.nullcontext() if freed else pytest.raises(DiskError, match="the last checkpoint could")
        )
        with end, start_run(resolve("CartPole-v1", SMALL | {"runs_dir": str(disk)}), said.append) as session:
            for progress in session.updates():
                if progress.update == 5:  # after the checkpoint of update 4
                    free = os.statvfs(disk)
                    ballast.write_bytes(b"x" * (free.f_bavail * free.f_bsize))
                if progress.update == 9 and freed:
                    ballast.unlink()
        warnings = [event["message"] for event in said if event["event"] == "warning"]
        assert session.learner.step == 320
        assert len([text for text in warnings if "checkpoint not saved, the last one is kept" in text]) == 1
        assert ("the checkpoint can be written again" in warnings) == freed
        status = session.run.read_status()
        assert status["state"] == ("done" if freed else "failed")
        assert freed or status["cause"].startswith("DiskError: the last checkpoint could not be written")
        assert not (session.run.path / ".reserve").exists()
        checkpoint, _ = load_last_good(session.run.checkpoints)
        assert checkpoint.step == (320 if freed else 128)


def test_a_disk_that_takes_no_checkpoint_is_refused_at_the_start(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "60k") as disk,
        pytest.raises(DiskError, match="free disk space and start again"),
    ):
        run_to_the_end(disk, "CartPole-v1", network_arch="128,128")


@pytest.mark.parametrize("moved", [True, False])
def test_a_folder_that_is_moved_or_removed_ends_the_run(moved: bool, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    wanted = resolve("CartPole-v1", SMALL | {"runs_dir": str(tmp_path / "runs"), "tensorboard": True})

    def train() -> None:
        with start_run(wanted, said.append) as session:
            for progress in session.updates():
                if progress.update == 3 and moved:
                    shutil.move(session.run.path, tmp_path / "moved")
                elif progress.update == 3:
                    shutil.rmtree(session.run.path)

    with pytest.raises(RunGoneError, match="was moved or removed during the run") as failure:
        train()
    assert failure.value.exit_code == 3
    assert not list((tmp_path / "runs").iterdir())
    (end,) = [event for event in said if event["event"] == "end"]
    assert end["state"] == "failed"
    assert not [event for event in said if event["event"] == "warning"]
    if moved:
        run = RunDir(tmp_path / "moved")
        assert run.read_status()["state"] == "failed"
        with resume_run(run, lambda event: None) as session:
            drain(session)
        assert run.read_status()["state"] == "done"


@pytest.mark.parametrize("where", ["mission_gym.store.rundir.write_json", "mission_gym.run.start._prime"])
def test_ctrl_c_while_the_folder_is_made_leaves_none(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **fields: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_to_the_end(tmp_path, "CartPole-v1")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_before_the_first_update_leaves_no_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        start_run(resolve("CartPole-v1", SMALL | {"runs_dir": str(tmp_path)}), lambda event: None),
    ):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError, match="--runs-dir"):
        run_to_the_end(tmp_path / "file", "CartPole-v1")
