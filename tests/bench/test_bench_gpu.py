"""`bench gpu`: what is counted without a card, and the words where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from mission_gym.bench.gpu import GpuCase, count_gpu, measure_gpu
from mission_gym.bench.main import run_bench
from mission_gym.errors import UsageError

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
    """With a target_kl the host reads the statistics of each epoch: it decides whether there is a next."""
    kernels, waits = count_gpu((GpuCase("case", "CartPole-v1", flags),))
    assert kernels["case"].endswith("a captured step")
    assert kernels["ours"] <= most_kernels
    assert waits["ours"] <= most_waits


def test_without_a_card_the_way_to_count_is_named() -> None:
    with pytest.raises(UsageError, match=r"sees no GPU.*--pretend counts without one"):
        measure_gpu(False)
    with pytest.raises(UsageError, match="--pretend is for `bench gpu`"):
        run_bench("ppo", full=False, pretend=True)
