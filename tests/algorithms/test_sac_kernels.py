"""The compiled kernel of SAC against autograd: every switch, threads, steps that are not finite, edits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.sac import learner as build
from mission_gym.algorithms.sac import torch_kernel
from mission_gym.algorithms.sac.kernel import GRAD_NORM, SacKernel
from mission_gym.algorithms.sac.learner import make_kernel, make_settings
from mission_gym.algorithms.sac.section import SacSection
from mission_gym.config.rules import apply_rules
from mission_gym.data import LeafSpec
from mission_gym.learner.off_policy_learner import Transitions
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import settle

F, K, SIZE, STEPS = 5, 2, 12, 5
LEAVES = (LeafSpec("seen", (F - 1,), "float32", "vector"), LeafSpec("hidden", (1,), "float32", "vector"))
BOX = ActionSpec("box", (K,), "float32", low=(-1.0,) * K, high=(1.0,) * K)


def make_pair(
    arch: tuple[int, ...] = (16, 8), activation: str = "relu", threads: int = 1, **changes: Any
) -> tuple[SacKernel, SacKernel]:
    """A torch kernel and a compiled one with equal weights; the targets differ from the critics."""
    spec = PolicySpec(
        LEAVES, BOX, arch, activation, form="squashed", outputs_per_real=2, critic_leaves=("hidden",)
    )
    settings = make_settings(SacSection(**({"batch_size": SIZE} | changes)), K)
    pair = (
        make_kernel(spec, 3, settings, "torch"),
        make_kernel(spec, 3, settings, "compiled", threads=threads),
    )
    rng, reference = np.random.default_rng(0), pair[0]
    arrays = {
        name: array + rng.normal(0.0, 0.2, array.shape).astype(np.float32)
        for name, array in (reference.acting() | reference.training()).items()
    }
    for kernel in pair:
        kernel.load_parameters(arrays)
    return pair


def make_batches(*, weighted: bool = False, scale: float = 3.0) -> tuple[Transitions, np.ndarray]:
    rng, num = np.random.default_rng(0), SIZE * STEPS
    inputs, next_inputs = (Encoded(rng.normal(size=(num, F)).astype(np.float32), ()) for _ in range(2))
    batch = Transitions(
        inputs=inputs,
        action=rng.uniform(-1.0, 1.0, (num, K)).astype(np.float32),
        reward=(scale * rng.normal(size=num)).astype(np.float32),
        discount=np.where(rng.random(num) < 0.2, 0.0, 0.9).astype(np.float32),
        next_inputs=next_inputs,
        next_mask=None,
        weight=rng.random(num).astype(np.float32) if weighted else None,
    )
    return batch, rng.standard_normal((STEPS, 2, SIZE, K), np.float32)


def assert_equal(one: SacKernel, other: SacKernel, atol: float = 1e-5) -> None:
    for name in ("acting", "training", "optimizer"):
        ours, theirs = getattr(one, name)(), getattr(other, name)()
        assert ours.keys() == theirs.keys()
        for key in ours:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-4, atol=atol, err_msg=f"{name} {key}")


@pytest.mark.parametrize(
    ("changes", "weighted"),
    [
        ({}, False),
        ({"arch": (16,), "activation": "tanh", "threads": 2}, True),
        ({"arch": (16, 8, 8), "activation": "elu", "critic_layer_norm": True}, False),
        ({"critic_layer_norm": True, "num_quantiles": 7, "policy_delay": 2, "threads": 3}, True),
        ({"num_quantiles": 5, "drop_quantiles": 0, "tau": 1.0, "target_entropy": 1.0}, False),
        ({"learn_temperature": False, "activation": "tanh", "critic_layer_norm": True}, False),
    ],
)
def test_the_analytic_kernel_equals_autograd(changes: dict[str, Any], weighted: bool) -> None:
    reference, kernel = make_pair(**changes)
    batch, noise = make_batches(weighted=weighted)
    for first in (0, STEPS):
        expected, got = (each.learn(batch, noise, 1e-3, first) for each in (reference, kernel))
        np.testing.assert_allclose(got.table, expected.table, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(got.errors, expected.errors, rtol=1e-4, atol=1e-4)
        assert_equal(kernel, reference)
    for each in (reference, kernel):
        each.rescale_values(0.25)
    assert_equal(kernel, reference)


@pytest.mark.parametrize("num_quantiles", [1, 5])
def test_a_step_that_is_not_finite_is_skipped_by_both(num_quantiles: int) -> None:
    """The others of the same call are made."""
    reference, kernel = make_pair(num_quantiles=num_quantiles, threads=2)
    batch, noise = make_batches()
    batch.reward[SIZE + 1] = np.nan
    for each in (reference, kernel):
        stats = each.learn(batch, noise, 1e-3, 0)
        assert stats.num_skipped == 1
        assert np.isnan(stats.table[1, GRAD_NORM])
    assert_equal(kernel, reference)


def test_a_snapshot_restores_everything() -> None:
    _, kernel = make_pair()
    batch, noise = make_batches()
    kernel.learn(batch, noise, 1e-3, 0)
    before, snapshot = kernel.acting() | kernel.training() | kernel.optimizer(), kernel.snapshot()
    kernel.learn(batch, noise, 1e-3, 0)
    now = kernel.acting() | kernel.training() | kernel.optimizer()
    assert not any(np.array_equal(now[name], before[name]) for name in before)
    acting = kernel.snapshot_acting(snapshot)
    kernel.restore(snapshot)
    for name, array in (kernel.acting() | kernel.training() | kernel.optimizer()).items():
        np.testing.assert_array_equal(array, before[name])
    assert all(np.array_equal(acting[name], before[name]) for name in kernel.acting())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_verifies_itself(threads: int) -> None:
    flags = {"algo": "sac", "n_envs": 2, "timesteps": 512, "network_arch": "16,8", "threads": threads}
    resolved, _ = apply_rules(resolve("Pendulum-v1", flags))
    plan, notes = settle(resolved, open_environment(resolved.config, {}))
    assert plan.settled.compute.kernel == "compiled"
    assert not any("kernel" in note for note in notes)


def clamp_targets(*args: Any) -> Any:
    return targets(*args).clamp(-50.0, 50.0)


def add_entropy(values: torch.Tensor, log_prob: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return losses(values, log_prob, 1.1 * alpha)


targets, losses = torch_kernel.compute_targets, torch_kernel.actor_loss


@pytest.mark.parametrize(("name", "edit"), [("compute_targets", clamp_targets), ("actor_loss", add_entropy)])
def test_an_edited_loss_is_what_trains(name: str, edit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build.verify_kernel.cache_clear()
    monkeypatch.setattr(torch_kernel, name, edit)
    resolved, _ = apply_rules(resolve("Pendulum-v1", {"algo": "sac", "network_arch": "16,8"}))
    plan, notes = settle(resolved, open_environment(resolved.config, {}))
    build.verify_kernel.cache_clear()
    assert plan.settled.compute.kernel == "torch"
    assert "the compiled kernel is left out" in notes[0]
