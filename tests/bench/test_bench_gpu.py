"""`bench gpu`: counts on a fake GPU, and the message without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from mission_gym.errors import UsageError
from mission_gym_bench.fake_gpu import pretend
from mission_gym_bench.gpu import GpuCase, count_gpu, measure_gpu
from mission_gym_bench.main import run_bench

PPO: dict[str, Any] = {
    "n_envs": 2,
    "n_steps_per_env": 8,
    "batch_size": 8,
    "network_arch": "8,8",
    "n_epochs": 3,
}
DQN: dict[str, Any] = {"n_envs": 2, "batch_size": 8, "network_arch": "8,8", "algo": "dqn", "replay_size": 128}


@pytest.mark.parametrize(
    ("flags", "most_kernels", "most_waits"),
    [(PPO, 80, 3), (PPO | {"target_kl": 1e9}, 80, 5), (DQN | {"learning_starts": 0}, 70, 3)],
    ids=["ppo", "ppo with target_kl", "dqn"],
)
def test_kernels_of_a_step_and_waits_of_an_update_are_bounded(
    flags: dict[str, Any], most_kernels: int, most_waits: int
) -> None:
    """With a target_kl the host reads the statistics of each epoch to decide whether to continue."""
    kernels, waits = count_gpu((GpuCase("case", "CartPole-v1", flags),))
    assert kernels["case"].endswith("a captured step")
    assert kernels["ours"] <= most_kernels
    assert waits["ours"] <= most_waits


def test_a_gpu_is_timed_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake GPU, without torch.compile; the times mean nothing."""
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr("torch.compile", lambda step: step)
    small = GpuCase("small", "CartPole-v1", PPO | {"threads": 1})
    picture = GpuCase("picture", "toys:Glimpses", PPO | {"threads": 1})
    with pretend("cuda", peak_bytes=3_000_000):
        rows = measure_gpu(False, (small, picture))
    acting = {"small": "numpy", "picture": "torch"}
    assert [row["case"] for row in rows] == [
        f"{case}: {what}"
        for case in acting
        for what in (
            "learning on cuda",
            "learning on cuda, not captured",
            "learning on cuda, compiled",
            "acting with torch on cuda, 256 rows",
            "learning on cpu",
            f"acting with {acting[case]} on cpu, 256 rows",
        )
    ]
    assert all(row["ours"] > 0 for row in rows)
    assert (rows[0]["card"], rows[0]["peak_memory_mb"]) == ("Fake GPU", 3.0)


def test_a_failed_compiler_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*inputs: Any) -> None:
        raise RuntimeError("Triton has no compiler\nand more")

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr("torch.compile", lambda step: fail)
    with pretend("cuda"):
        rows = measure_gpu(False, (GpuCase("small", "CartPole-v1", PPO | {"threads": 1}),) * 2)
    assert not any("compiled" in row["case"] for row in rows)
    assert "torch.compile failed: Triton has no compiler\n" in capsys.readouterr().err


def test_without_a_gpu_the_message_names_pretend() -> None:
    with pytest.raises(UsageError, match=r"finds no GPU.*--pretend counts without one"):
        measure_gpu(False)
    with pytest.raises(UsageError, match="--pretend is only for `bench gpu`"):
        run_bench("ppo", full=False, pretend=True)
