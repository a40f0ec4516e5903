"""Runs on accelerators, pretended ones: they train, and what they leave is used on machines without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mission_gym as mg
from device_runs import IMAGE_PROFILE, SMALL, read_plan, train
from mission_gym.algorithms.ppo.torch_kernel import StackedActorCritic
from mission_gym.cli.main import main
from mission_gym.errors import ConfigError, RunStateError
from mission_gym.learner.torch_network import Captured
from mission_gym.run import settle
from mission_gym.run.preview import check_devices
from mission_gym.run.resume import resume_run
from mission_gym.store.rundir import RunDir
from mission_gym_bench.fake_gpu import pretend

DQN = {name: value for name, value in SMALL.items() if name != "n_epochs"} | {
    "algo": "dqn", "replay_size": 64, "learning_starts": 16,
}  # fmt: skip


@pytest.mark.parametrize("flags", [SMALL, DQN], ids=["ppo", "dqn"])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_pictures_are_learned_on_every_device(kind: str, flags: dict[str, Any], tmp_path: Path) -> None:
    with pretend(kind) as device:
        run = mg.train(IMAGE_PROFILE, runs_dir=str(tmp_path), device=kind, **flags)
        run.evaluate(2)
    assert run.status()["state"] == "done"
    assert device.counts["uploads"]
    assert bool(device.counts["replays"]) == (kind == "cuda")


def test_sac_proves_itself_on_a_card_and_learns_there(tmp_path: Path) -> None:
    with pretend("cuda") as device:
        run = mg.train("Pendulum-v1", runs_dir=str(tmp_path), device="cuda", **DQN | {"algo": "sac"})
    assert run.status()["state"] == "done"
    assert device.counts["replays"]


@pytest.mark.parametrize("flags", [SMALL | {"overlap": "on"}, DQN], ids=["ppo", "dqn"])
def test_the_second_card_is_used_where_it_is_asked_for(flags: dict[str, Any], tmp_path: Path) -> None:
    """What would be asked of the first one instead, in any thread, is refused by the pretended second."""
    with pretend("cuda", index=1) as device:
        run = mg.train(IMAGE_PROFILE, runs_dir=str(tmp_path), device="cuda:1", **flags)
        run.evaluate(2)
    assert run.status()["state"] == "done"
    assert device.counts["replays"]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda:1", "device=cuda:1 is not available to torch; use cpu or auto"),
        ("cuda:x", "'cuda:x' is not a device; use auto, cpu, mps, cuda, or cuda:1 for the second GPU"),
    ],
)
def test_a_card_that_is_not_there_is_refused(device: str, said: str, tmp_path: Path) -> None:
    with pretend("cuda"), pytest.raises(ConfigError, match=said):
        train(tmp_path, device)


def test_pictures_are_learned_on_the_cpu_beside_an_mps_device(tmp_path: Path) -> None:
    with pretend("mps") as device:
        assert train(tmp_path, "cpu").status()["state"] == "done"
    assert not device.counts["uploads"]


def test_a_policy_acts_on_the_cpu_where_its_device_is_not(left_run: mg.Run) -> None:
    with pytest.warns(
        UserWarning, match="the run used cuda, which is not available; its policy acts on the CPU"
    ):
        policy = mg.load(left_run.path)
    action, _ = policy.predict(np.zeros(policy.observation_space.shape, np.uint8))
    assert policy.action_space.contains(action)


def test_an_evaluation_says_where_it_acts(left_run: mg.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(left_run.path), "--episodes", "2", "--json"]) == 0
    assert "the run used cuda, which is not available" in capsys.readouterr().err
    with pretend("cuda"):
        assert main(["eval", str(left_run.path), "--episodes", "2", "--json"]) == 0
    assert "not here" not in capsys.readouterr().err


def test_a_resume_without_the_device_names_the_branch(left_run: mg.Run, tmp_path: Path) -> None:
    run = RunDir(left_run.path)
    advice = rf"learns on cuda, which is not available.*`mission-gym branch {run.name} --device cpu`"
    with pytest.raises(RunStateError, match=advice), resume_run(run, lambda event: None, timesteps=128):
        pass
    branch = ["branch", str(run.path), "--device", "cpu", "--timesteps", "128", "--runs-dir", str(tmp_path)]
    assert main(branch) == 0


@pytest.mark.parametrize(
    ("card", "deterministic", "said"),
    [
        ("A", True, "the resume is exact"),
        ("A", False, "the resume is statistical, not exact: sums on cuda have no fixed order"),
        ("B", True, "the resume is statistical, not exact: card A -> B"),
    ],
)
def test_a_resume_is_exact_on_one_card_with_deterministic_algorithms(
    card: str, deterministic: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretend("cuda", name="A"):
        run = train(tmp_path)
    assert read_plan(run)["versions"]["card"] == "A"
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    heard: list[dict[str, Any]] = []
    with pretend("cuda", name=card), resume_run(RunDir(run.path), heard.append, timesteps=128):
        pass
    assert heard[0]["notes"][-1].startswith(said)


def test_a_run_on_the_cpu_knows_no_card(tmp_path: Path) -> None:
    with pretend("cuda"):
        run = train(tmp_path, "cpu", "CartPole-v1")
    assert "card" not in read_plan(run)["versions"]


def test_a_step_that_cannot_be_captured_is_made_without(tmp_path: Path) -> None:
    with pretend("cuda", fails_to_capture=True) as device:
        run = train(tmp_path)
    assert run.status()["state"] == "done"
    assert not device.counts["replays"]
    (note,) = [note for note in read_plan(run)["notes"] if "captured" in note]
    assert note.endswith("and take longer: CUDA error: operation not permitted when stream is capturing")


def test_a_resume_tells_of_steps_that_cannot_be_captured(tmp_path: Path) -> None:
    with pretend("cuda"):
        run = train(tmp_path)
    heard: list[dict[str, Any]] = []
    with (
        pretend("cuda", fails_to_capture=True),
        resume_run(RunDir(run.path), heard.append, timesteps=128) as session,
    ):
        assert len(list(session.updates())) == 2
    (warning,) = [event["message"] for event in heard if event["event"] == "warning"]
    assert warning.startswith("gradient steps are not captured as a graph, and take longer: CUDA error")


def test_a_card_that_disappears_fails_the_run_with_the_words_of_the_driver(tmp_path: Path) -> None:
    with pretend("cuda") as device:
        updates = mg.iterate(IMAGE_PROFILE, runs_dir=str(tmp_path), device="cuda", **SMALL)
        run = next(updates).run
        device.is_lost = True
        with pytest.raises(RuntimeError, match="unspecified launch failure"):
            next(updates)
    assert run.status()["state"] == "failed"


def test_a_device_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_verified", {})
    honest = StackedActorCritic.__call__

    def lie(self: Any, *args: Any) -> Any:
        params, value, state = honest(self, *args)
        return params, value + 1.0, state

    monkeypatch.setattr(StackedActorCritic, "__call__", lie)
    refused = "device=cuda is not possible: it does not compute the loss of ppo: its value loss is"
    with pretend("cuda"), pytest.raises(ConfigError, match=refused):
        train(tmp_path, env="CartPole-v1")


def test_a_captured_step_that_differs_from_the_step_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "_verified", {})
    monkeypatch.setattr(Captured, "__call__", lambda self, *inputs: self._output)  # nothing is made
    with pretend("cuda"), pytest.raises(ConfigError, match=r"a captured step changes .* differently"):
        train(tmp_path, env="CartPole-v1")


def test_the_doctor_lets_every_device_prove_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend("cuda", capability=(7, 5)):  # without bf16, which can't be pretended
        assert check_devices() == {"cuda float32": ""}
    monkeypatch.setattr(settle, "_verified", {})
    with pretend("cuda", index=1, capability=(7, 5)):  # of two GPUs, the first fails
        causes = check_devices()
    assert causes["cuda:1 float32"] == ""
    assert causes["cuda float32"].startswith("GPU 0 is used instead of cuda:1")
    assert check_devices() == {}
