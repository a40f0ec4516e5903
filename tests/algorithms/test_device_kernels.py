"""Torch kernels on a fake_gpu card learn what they learn on the CPU, and hold one graph."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.dqn import torch_kernel
from mission_gym.algorithms.dqn.kernel import QSettings
from mission_gym.algorithms.dqn.torch_kernel import TorchQKernel
from mission_gym.algorithms.ppo.kernel import Samples
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.algorithms.sac import torch_kernel as sac_torch_kernel
from mission_gym.algorithms.sac.kernel import SacSettings
from mission_gym.algorithms.sac.torch_kernel import TorchSacKernel
from mission_gym.data import Array, LeafSpec
from mission_gym.learner.off_policy_learner import Transitions
from mission_gym.policy import Encoded, PolicySpec
from mission_gym_bench.fake_gpu import pretend

ACTIONS = {
    "discrete": ActionSpec("categories", (), "int64", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("categories", (2,), "int64", nvec=(3, 2), start=(0, 0)),
    "multi_binary": ActionSpec("binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0)),
}
VECTOR = LeafSpec("body", (3,), "float32", "vector")
IMAGE = LeafSpec("eye", (12, 12, 2), "uint8", "image", channels_last=True)
N, BATCH = 32, 16


def draw_inputs(leaves: tuple[LeafSpec, ...], rng: np.random.Generator) -> Encoded:
    images = tuple(
        np.moveaxis(rng.integers(0, 256, (N, *leaf.shape), np.uint8), -1, 1)
        for leaf in leaves
        if leaf.kind == "image"
    )
    return Encoded(rng.standard_normal((N, 3), np.float32), images)


def learn_ppo(device: str, name: str, leaves: tuple[LeafSpec, ...]) -> dict[str, Array]:
    kernel, rng = TorchKernel(PolicySpec(leaves, ACTIONS[name], (8, 8)), 1, device), np.random.default_rng(0)
    inputs, action = draw_inputs(leaves, rng), np.zeros((N, ACTIONS[name].num_stored), np.float32)
    log_prob, value = kernel.evaluate(inputs, action, None)
    advantage, returns = rng.standard_normal((2, N), np.float32)
    kernel.load_samples(Samples(inputs, None, action, log_prob, advantage, returns, value, None))
    settings = StepSettings(1e-3, 0.2, 0.1, 0.5, 0.5, True)
    for _ in range(2):
        kernel.epoch(rng.permutation(N).reshape(-1, BATCH), settings, lambda: False)
    return kernel.parameters() | kernel.optimizer()


def learn_dqn(device: str, sigma: float | None, leaves: tuple[LeafSpec, ...]) -> dict[str, Array]:
    spec = PolicySpec(leaves, ACTIONS["discrete"], (8, 8), form="values", noisy_sigma=sigma)
    kernel, rng = TorchQKernel(spec, 1, device), np.random.default_rng(0)
    ends = [draw_inputs(leaves, rng) for _ in range(2)]
    reward = rng.standard_normal(N, np.float32)
    reward[BATCH] = np.inf  # the second step is not finite, and so not made
    half = np.full(N, 0.5, np.float32)
    batches = Transitions(ends[0], np.zeros((N, 1), np.int64), reward, half, ends[1], None, None)
    stats = kernel.learn(batches, QSettings(BATCH, 1e-3, 1.0, True, False, 0.5), np.random.default_rng)
    assert stats.num_skipped == 1
    return kernel.parameters() | kernel.optimizer()


def learn_sac(device: str, changes: dict[str, Any], leaves: tuple[LeafSpec, ...]) -> dict[str, Array]:
    spec = PolicySpec(leaves, ACTIONS["box"], (8, 8), "relu", form="squashed", outputs_per_real=2)
    settings = SacSettings(BATCH, 0.1, 1, -2.0, 0, 1, layer_norm=False, temperature=0.5)._replace(**changes)
    kernel, rng = TorchSacKernel(spec, 1, settings, device), np.random.default_rng(0)
    ends = [draw_inputs(leaves, rng) for _ in range(2)]
    reward = rng.standard_normal(N, np.float32)
    reward[BATCH] = np.inf  # the second step is not finite, and so not made
    action, half = rng.uniform(-1.0, 1.0, (N, 2)).astype(np.float32), np.full(N, 0.5, np.float32)
    batches = Transitions(ends[0], action, reward, half, ends[1], None, None)
    stats = kernel.learn(batches, rng.standard_normal((2, 2, BATCH, 2), np.float32), 1e-3, 0)
    assert stats.num_skipped == 1
    return kernel.parameters() | kernel.optimizer()


def compare(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("leaves", [(VECTOR,), (VECTOR, IMAGE)], ids=["mlp", "picture"])
@pytest.mark.parametrize("name", ACTIONS)
def test_ppo_learns_on_a_card_what_it_learns_on_the_cpu(name: str, leaves: Any) -> None:
    with pretend("cuda") as device:
        found = learn_ppo("cuda", name, leaves)
    assert device.counts["replays"] == 4
    compare(found, learn_ppo("cpu", name, leaves))


@pytest.mark.parametrize("leaves", [(VECTOR,), (VECTOR, IMAGE)], ids=["mlp", "picture"])
@pytest.mark.parametrize("sigma", [None, 0.5], ids=["plain", "noisy"])
def test_dqn_learns_on_a_card_what_it_learns_on_the_cpu(
    sigma: float | None, leaves: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PPO's epsilon: Adam divides a gradient near DQN's 1e-8 by its own size, rounding included."""
    monkeypatch.setattr(torch_kernel, "ADAM_EPSILON", 1e-5)
    with pretend("cuda") as device:
        found = learn_dqn("cuda", sigma, leaves)
    assert device.counts["replays"] == 2
    compare(found, learn_dqn("cpu", sigma, leaves))


@pytest.mark.parametrize("leaves", [(VECTOR,), (VECTOR, IMAGE)], ids=["mlp", "picture"])
@pytest.mark.parametrize(
    ("changes", "replays"),
    [({}, 2), ({"num_quantiles": 5, "num_dropped": 1, "layer_norm": True}, 2), ({"policy_delay": 2}, 0)],
    ids=["plain", "quantiles", "delay"],
)
def test_sac_learns_on_a_card_what_it_learns_on_the_cpu(
    changes: dict[str, Any], replays: int, leaves: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed actor is decided on the host, so its steps are not captured."""
    monkeypatch.setattr(sac_torch_kernel, "ADAM_EPSILON", 1e-5)
    with pretend("cuda") as device:
        found = learn_sac("cuda", changes, leaves)
    assert device.counts["replays"] == replays
    compare(found, learn_sac("cpu", changes, leaves))


@pytest.mark.parametrize("fails", [False, True], ids=["captured", "step by step"])
def test_the_optimizer_has_nothing_to_warn_about(fails: bool) -> None:
    """It is told to be capturable, also for the steps that are not captured."""
    with pretend("cuda", fails_to_capture=fails), warnings.catch_warnings():
        warnings.simplefilter("error")
        learn_ppo("cuda", "discrete", (VECTOR,))
        learn_dqn("cuda", None, (VECTOR,))


def test_a_graph_is_let_go_before_the_next_is_captured() -> None:
    with pretend("cuda") as device:
        kernel = TorchQKernel(PolicySpec((VECTOR,), ACTIONS["discrete"], (8,), form="values"), 1, "cuda")
        rng, zeros = np.random.default_rng(0), np.zeros(N, np.float32)
        ends = [draw_inputs((VECTOR,), rng) for _ in range(2)]
        batches = Transitions(ends[0], np.zeros((N, 1), np.int64), zeros, zeros, ends[1], None, None)
        for size in (8, 16, 32):
            kernel.learn(batches, QSettings(size, 1e-3, 1.0, True, False, 1.0), np.random.default_rng)
            assert len(device.graphs) == 1
