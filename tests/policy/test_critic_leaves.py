"""What the critic alone sees: it moves values, and nothing that the actor says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.ppo.compiled_kernel import CompiledKernel
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.data import LeafSpec, Weights
from mission_gym.errors import ConfigError
from mission_gym.policy import Encoder, NumpyPolicy, PolicySpec
from mission_gym.policy.layout import name_leaves
from mission_gym.policy.torch_forms import ActorCritic, TorchPolicy, model_arrays

ACTION = ActionSpec("categories", (), "int64", nvec=(4,), start=(0,))
# The critic's own stand first, in the middle and last.
FLAT = (
    LeafSpec("truth.state", (5,), "float32", "vector"),
    LeafSpec("pose", (3,), "float32", "vector"),
    LeafSpec("truth.map", (), "int64", "categories", nvec=(3,), start=(1,)),
    LeafSpec("switches", (2,), "int8", "binary"),
)
IMAGES = (
    LeafSpec("god.eye", (12, 12, 3), "uint8", "image", channels_last=True),
    LeafSpec("eye", (9, 9), "uint8", "image"),
)
HIDDEN = ("truth.state", "truth.map", "god.eye")


def make_net(spec: PolicySpec) -> nn.Module:
    """An own network that takes whatever leaves it is given."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(spec.num_flat, 6)

        def forward(self, obs: Any) -> Any:
            flat = [obs[leaf.name] for leaf in spec.leaves if leaf.kind != "image"]
            return torch.tanh(self.body(torch.cat(flat, 1)))

    return Net()


def make_greedy_net(spec: PolicySpec) -> nn.Module:
    """One that wants the truth for the actor, too."""

    class Net(nn.Module):
        def forward(self, obs: Any) -> Any:
            return obs["truth.state"]

    return Net()


SPECS = {
    "mlp": PolicySpec(FLAT, ACTION, (16, 8), critic_leaves=HIDDEN),
    "images": PolicySpec((*IMAGES, *FLAT), ACTION, (8,), critic_leaves=HIDDEN),
    "hidden image": PolicySpec((IMAGES[0], *FLAT), ACTION, (8,), critic_leaves=HIDDEN),
    "image alone": PolicySpec(IMAGES, ACTION, (8,), critic_leaves=HIDDEN),
    "own": PolicySpec(
        (*IMAGES, *FLAT),
        ACTION,
        (),
        network=f"{__name__}:make_net",
        critic_leaves=HIDDEN,
        normalize_obs=False,
    ),
}


def draw_leaf(leaf: LeafSpec, num: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if leaf.kind == "vector":
        return rng.normal(5.0, 3.0, (num, *leaf.shape)).astype(np.float32)
    first, last = {"image": (0, 256), "categories": (1, 4), "binary": (0, 2)}[leaf.kind]
    return rng.integers(first, last, (num, *leaf.shape)).astype(leaf.dtype)


def draw(spec: PolicySpec, num: int = 16, *, seed: int = 0, hidden_seed: int = 0) -> tuple[np.ndarray, ...]:
    return tuple(draw_leaf(leaf, num, hidden_seed if leaf.name in HIDDEN else seed) for leaf in spec.leaves)


def make_weights(spec: PolicySpec) -> tuple[Encoder, Weights]:
    encoder = Encoder(spec.leaves, spec.normalize_obs, spec.critic_leaves)
    arrays = model_arrays(ActorCritic(spec, seed=7))
    for name, array in arrays.items():  # the actor's head is nearly 0 at first, which would hide what it sees
        arrays[name] = array * np.float32(
            100.0 if name == f"actor.{2 * len(spec.network_arch)}.weight" else 1.0
        )
    if encoder.normalizer is not None:
        encoder.normalizer.merge(encoder.flatten(draw(spec, 100, seed=3)))
        arrays |= encoder.normalizer.arrays()
    return encoder, Weights(0, arrays)


def evaluate(spec: PolicySpec, kernel: Any, obs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
    encoder, weights = make_weights(spec)
    kernel.load_parameters(weights.arrays)
    inputs = encoder.encode(obs)
    return kernel.evaluate(inputs, np.zeros((len(obs[0]), 1), np.int64), None)


@pytest.mark.parametrize("name", SPECS)
def test_values_depend_on_it_and_probabilities_do_not(name: str) -> None:
    spec = SPECS[name]
    kernels = [TorchKernel(spec, seed=1)]
    if spec.has_numpy_form:
        kernels.append(CompiledKernel(spec, kernels[0].parameters()))
    for kernel in kernels:
        (log_prob, value), (same, other) = (
            evaluate(spec, kernel, draw(spec, hidden_seed=seed)) for seed in (0, 5)
        )
        np.testing.assert_array_equal(log_prob, same)
        assert np.abs(value - other).max() > 1e-3
        changed, _ = evaluate(spec, kernel, draw(spec, seed=2))
        assert np.abs(log_prob - changed).max() > 1e-3


@pytest.mark.parametrize("name", SPECS)
def test_acting_needs_nothing_of_it_and_agrees_with_the_learner(name: str) -> None:
    spec = SPECS[name]
    obs = draw(spec)
    encoder, weights = make_weights(spec)
    lacking = tuple(
        np.empty((16, 0)) if leaf.name in HIDDEN else array
        for leaf, array in zip(spec.leaves, obs, strict=True)
    )
    noise = np.random.default_rng(0).random((16, 1), np.float32)
    kernel = TorchKernel(spec, seed=1)
    kernel.load_parameters(weights.arrays)
    for form in (TorchPolicy, NumpyPolicy) if spec.has_numpy_form else (TorchPolicy,):
        policy = form(spec)
        policy.load(weights)
        acted = policy.act(obs, None, noise)
        np.testing.assert_array_equal(acted.action, policy.act(lacking, None, noise).action)
        log_prob, _ = kernel.evaluate(encoder.encode(obs), acted.action, None)
        np.testing.assert_allclose(acted.log_prob, log_prob, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_the_policy_loss_has_no_gradient_towards_it(name: str) -> None:
    spec = SPECS[name]
    encoder, _ = make_weights(spec)
    encoded = encoder.encode(draw(spec))
    flat = torch.from_numpy(encoded.flat).requires_grad_()
    shaped = tuple(torch.from_numpy(each.copy()) for each in encoded.shaped)
    params, values, _ = ActorCritic(spec, seed=2)((flat, shaped))
    if not flat.shape[1]:
        return
    num_seen = spec.actor_inputs.num_flat
    actor, critic = (torch.autograd.grad(out.sum(), flat, retain_graph=True)[0] for out in (params, values))
    assert not actor[:, num_seen:].any()
    assert actor[:, :num_seen].any()
    assert critic[:, num_seen:].any()


def test_the_numpy_forms_arrays_are_those_of_the_checkpoint() -> None:
    spec = SPECS["mlp"]
    _, weights = make_weights(spec)
    shapes = NumpyPolicy(spec).shapes()
    for name, (shape, dtype) in shapes.items():
        assert (weights.arrays[name].shape, weights.arrays[name].dtype) == (shape, dtype)
    assert weights.arrays["actor.0.weight"].shape == (16, 5)
    assert weights.arrays["critic.0.weight"].shape == (16, 13)
    assert shapes["normalizer.mean"][0] == (13,)


def test_features_of_the_actor_come_first() -> None:
    encoder = Encoder(FLAT, True, HIDDEN)
    assert list(encoder.slices) == ["pose", "switches", "truth.state", "truth.map"]
    obs = draw(SPECS["mlp"])
    np.testing.assert_array_equal(encoder.flatten(obs)[:, :3], obs[1])
    np.testing.assert_array_equal(encoder.flatten(obs)[:, 5:10], obs[0])


def test_a_key_names_a_leaf_or_all_of_a_part() -> None:
    assert name_leaves(("truth",), FLAT) == ("truth.state", "truth.map")
    assert name_leaves(("truth.map", "pose"), FLAT) == ("pose", "truth.map")
    assert name_leaves(("tru", "pos"), FLAT) == ()


def test_an_own_network_that_wants_it_for_the_actor_is_refused() -> None:
    spec = PolicySpec(FLAT, ACTION, network=f"{__name__}:make_greedy_net", critic_leaves=HIDDEN)
    with pytest.raises(ConfigError, match="built twice, and the actor's does not get these keys"):
        ActorCritic(spec, seed=1)
