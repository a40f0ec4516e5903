"""Where an MLP acts while a card learns: measured, on a pretended card, which is used for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg
from mission_gym.config.rules import apply_rules
from mission_gym.plan import tuner
from mission_gym.plan.costs import Collecting, measure_collect
from mission_gym.plan.tuner import Tuner
from mission_gym.policy.torch_forms import TorchPolicy
from mission_gym.run.config import read_config, resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import make_builder
from mission_gym_bench.fake_gpu import pretend

FLAGS: dict[str, Any] = {
    "device": "cuda", "precision": "float32", "vector": "serial", "n_envs": 4, "n_steps_per_env": 16,
    "batch_size": 16, "n_epochs": 1, "network_arch": "8,8",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a test's own, which end when everything was tried and rehearse nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Tuner, "_left_s", lambda self: 0.1)


def plan(flags: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a measurement."""
    resolved = resolve("toys:Identity", FLAGS | flags)
    environment = open_environment(apply_rules(resolved)[0].config, {})
    return Tuner(make_builder(environment, resolved), resolved, 0.0, lambda message: None).run()


def take(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Let collecting take so long by the form that acts; it is made all the same."""

    def measure(collector: Any, *args: Any) -> Collecting:
        form = "torch" if isinstance(collector.policy, TorchPolicy) else "numpy"
        return measure_collect(collector, *args)._replace(step_s=seconds[form])

    monkeypatch.setattr(tuner, "measure_collect", measure)


def test_both_forms_act_for_real() -> None:
    with pretend("cuda") as device:
        entry = plan({})
    assert entry["values"]["compute.acting"] in ("numpy", "torch")
    assert entry["reasons"][-1].endswith(" on cuda")
    assert device.counts["uploads"]


@pytest.mark.parametrize(
    ("numpy_s", "torch_s", "chosen"),
    [(50e-6, 20e-6, "torch"), (20e-6, 50e-6, "numpy"), (20e-6, 19e-6, "numpy")],
    ids=["device", "processor", "about equal"],
)
def test_the_faster_form_is_chosen(
    numpy_s: float, torch_s: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, numpy=numpy_s, torch=torch_s)
    with pretend("cuda"):
        entry = plan({})
    assert entry["values"]["compute.acting"] == chosen
    times = f"{1e6 * numpy_s:g} us per step with NumPy, {1e6 * torch_s:g} us on cuda"
    assert entry["reasons"][-1] == f"acting with {chosen}: collecting takes {times}"


def test_a_form_that_is_asked_for_is_not_tried() -> None:
    with pretend("cuda"):
        entry = plan({"acting": "torch"})
    assert "compute.acting" not in entry["values"]
    assert not any("acting" in reason for reason in entry["reasons"])


def test_a_card_that_cannot_act_is_told_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretend("cuda") as device:

        def act(self: TorchPolicy, *args: Any) -> Any:
            device.largest_bytes = 0
            try:
                return self._compute(self._model.actor_outputs, args[0])
            finally:
                device.largest_bytes = 1 << 40

        monkeypatch.setattr(TorchPolicy, "act", act)
        entry = plan({})
    assert entry["values"]["compute.acting"] == "numpy"
    assert entry["reasons"][-1].startswith("acting with numpy: cuda failed: cuda is out of memory")


def train(folder: Path, **flags: Any) -> tuple[str, str]:
    """The form that acted in a run on a card, and what chose it."""
    with pretend("cuda"):
        run = mg.train(
            "toys:Identity", runs_dir=str(folder), timesteps=128, eval_freq=64, eval_episodes=2,
            tensorboard=False, progress=False, **flags,
        )  # fmt: skip
    assert run.status()["state"] == "done"
    kept = read_config(run.path / "config.yaml")
    return kept.config.compute.acting, kept.sources["compute.acting"]


def test_a_run_acts_on_the_card_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, numpy=50e-6, torch=20e-6)
    monkeypatch.setattr(tuner, "RUN_MIN_S", 0.0)  # short as it is, it is measured for
    monkeypatch.setattr(tuner, "_guess_rate", lambda *args: 1e9)
    assert train(tmp_path, **FLAGS) == ("torch", "plan")


def test_dqn_acts_on_the_card_where_it_is_asked_to(tmp_path: Path) -> None:
    learning = {"batch_size": 16, "network_arch": "8,8", "learning_starts": 32, "replay_size": 128}
    chosen = train(tmp_path, algo="dqn", device="cuda", acting="torch", tune=False, n_envs=4, **learning)
    assert chosen == ("torch", "argument acting")
