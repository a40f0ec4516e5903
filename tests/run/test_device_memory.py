"""A device without memory, at every place where a run, an evaluation or a plan asks it for some: one message
with what to try and exit code 3, or it is left out with its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mission_gym as mg
from device_runs import IMAGE_PROFILE, SMALL, read_plan, train
from mission_gym.algorithms.ppo.learner import PpoLearner
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.cli.main import main
from mission_gym.env.factory import make_factory
from mission_gym.errors import DeviceMemoryError
from mission_gym.learner.torch_network import Captured
from mission_gym.plan import setups, tuner
from mission_gym.policy.torch_forms import TorchActing
from mission_gym.run import settle
from mission_gym.run.open import open_run
from mission_gym.run.resume import resume_run
from mission_gym.run.selection import Selection
from mission_gym.store.resolve import find_run
from mission_gym.store.rundir import RunDir
from mission_gym.video import record
from mission_gym_bench.fake_gpu import FakeDevice, pretend

PLENTY = 1 << 40
LEARNING: dict[str, tuple[Any, str]] = {
    "the learner": (TorchKernel, "__init__"),
    "the first update": (PpoLearner, "update"),
}


def run_dry(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, owner: Any, name: str) -> None:
    """Let the device have no memory while this function runs."""
    real = getattr(owner, name)

    def dry(*args: Any, **kwargs: Any) -> Any:
        device.largest_bytes = 0
        try:
            return real(*args, **kwargs)
        finally:
            device.largest_bytes = PLENTY

    monkeypatch.setattr(owner, name, dry)


def raise_out_of_memory(*args: Any, **kwargs: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


TRIES = "try --batch-size 8, --network-arch 4, --n-envs 2, --device cpu, in a new run or a branch"


@pytest.mark.parametrize("place", LEARNING)
@pytest.mark.parametrize(
    ("device_name", "precision"),
    [("cuda", "auto"), ("cuda", "float32"), ("cuda", "bf16"), ("mps", "auto"), ("mps", "float32")],
)
def test_before_the_start_the_run_is_refused_and_leaves_no_folder(
    device_name: str,
    precision: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(settle, "_verified", {})
    monkeypatch.setattr(setups, "_measured", {})
    given = SMALL | {"device": device_name, "precision": precision}
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
        if name not in ("tensorboard", "tune", "progress")
    ]
    runs = tmp_path / "runs"
    with pretend(device_name) as device:
        if place == "the first update" and (device_name, precision) in (("cuda", "auto"), ("cuda", "bf16")):
            monkeypatch.setattr(settle, "verify_device", lambda config, spec: "")  # bf16 can't be simulated
            monkeypatch.setattr(PpoLearner, "update", raise_out_of_memory)
        else:
            run_dry(monkeypatch, device, *LEARNING[place])
        assert main(["train", IMAGE_PROFILE, "--no-tune", f"--runs-dir={runs}", *flags]) == 3
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert said.endswith(TRIES)
    assert not runs.exists() or not list(runs.iterdir())


@pytest.mark.parametrize("place", LEARNING)
def test_a_device_that_was_not_asked_for_is_left_out_with_its_cause(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(settle, "_verified", {})
    monkeypatch.setattr(setups, "_measured", {})
    monkeypatch.setattr(setups, "_MIN_STEPS_FOR_GPU", 0)
    owner, name = LEARNING[place]
    with pretend("cuda") as device:
        run_dry(monkeypatch, device, owner, name)
        run = train(tmp_path / "runs", "auto")
    assert run.status()["state"] == "done"
    cause = read_plan(run)["measured"]["setups"]["cuda torch float32"]
    assert "out of memory" in cause


def test_a_capture_without_memory_is_left_out_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_verified", {})
    with pretend("cuda") as device:
        run_dry(monkeypatch, device, Captured, "__init__")
        run = train(tmp_path)
    assert run.status()["state"] == "done"
    assert not device.counts["replays"]
    (note,) = [note for note in read_plan(run)["notes"] if "captured" in note]
    assert note.startswith("gradient steps are not captured as a graph, and take longer: CUDA out of memory")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(TorchActing, "_compute"), (TorchKernel, "epoch"), (TorchKernel, "evaluate"), (Selection, "play")],
    ids=["acting", "an epoch", "values of a block", "an evaluation"],
)
def test_in_training_the_run_ends_with_its_cause(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = SMALL | {"timesteps": 128, "eval_freq": 64, "eval_episodes": 2}
    with pretend("cuda") as device:
        updates = mg.iterate(IMAGE_PROFILE, runs_dir=str(tmp_path), device="cuda", **flags)
        run = next(updates).run
        run_dry(monkeypatch, device, owner, name)
        with pytest.raises(DeviceMemoryError, match="cuda is out of memory"):
            list(updates)
    status = run.status()
    assert (status["state"], status["cause"].endswith(TRIES)) == ("failed", True)


def test_a_resume_without_memory_is_one_message(left_run: mg.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend("cuda") as device:
        run_dry(monkeypatch, device, TorchKernel, "__init__")
        with (
            pytest.raises(DeviceMemoryError, match="cuda is out of memory"),
            resume_run(RunDir(left_run.path), lambda event: None, timesteps=128),
        ):
            pass


def test_a_plan_is_made_without_what_has_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuner, "RUN_MIN_S", 0.0)  # short as it is, it is measured for
    monkeypatch.setattr(tuner, "_guess_rate", lambda *args: 1e9)
    with pretend("cuda") as device:
        run_dry(monkeypatch, device, tuner, "measure_act")
        run = train(tmp_path / "runs", tune=True)
    assert run.status()["state"] == "done"
    assert any(note.startswith("not tuned: cuda is out of memory") for note in read_plan(run)["notes"])


ACTING_TRIES = r"cuda is out of memory.*; try fewer observations at once, .* acts on the CPU$"


def test_memory_that_ends_in_an_evaluation_is_one_message(left_run: mg.Run) -> None:
    with pretend("cuda", largest_bytes=1 << 16), pytest.raises(DeviceMemoryError, match=ACTING_TRIES):
        left_run.evaluate(2)


def test_memory_that_ends_in_a_prediction_is_one_message(left_run: mg.Run) -> None:
    with pretend("cuda") as device:
        policy = mg.load(left_run.path)
        device.largest_bytes = 16
        with pytest.raises(DeviceMemoryError, match=ACTING_TRIES):
            policy.predict(policy.observation_space.sample())


def test_memory_that_ends_in_a_recording_is_one_message(
    left_run: mg.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record.EnvProcess, "render", lambda self: np.zeros((2, 2, 3), np.uint8))
    monkeypatch.setattr(record, "make_factory", lambda request, render_mode: make_factory(request))
    with pretend("cuda") as device:
        opened = open_run(find_run(str(left_run.path), left_run.path.parent))
        frames = record.play_frames(opened, seed=1)
        next(frames)
        device.largest_bytes = 16
        with pytest.raises(DeviceMemoryError, match=ACTING_TRIES):
            next(frames)
