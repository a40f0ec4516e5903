"""The form `squashed`: both forms act alike, actions stay within the bounds, warm-up actions are uniform."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.data import LeafSpec, Weights
from mission_gym.policy import PolicySpec, make_numpy_policy, make_torch_policy
from mission_gym.policy.sampling import LOG_STD_RANGE, draw_noise, sample_squashed
from mission_gym.policy.torch_forms import ActorNetwork, model_arrays
from mission_gym.streams import generator

ACTION = ActionSpec("box", (2,), "float32", low=(-2.0, 0.0), high=(2.0, 1.0))
SPEC = PolicySpec(
    (LeafSpec("", (3,), "float32", "vector"),), ACTION, (16, 8), normalize_obs=False,
    form="squashed", outputs_per_real=2,
)  # fmt: skip


def test_the_network_has_a_mean_and_a_standard_deviation_per_real_number() -> None:
    arrays = model_arrays(ActorNetwork(SPEC, seed=7))
    assert arrays["actor.4.bias"].shape == (4,)
    assert "log_std" not in arrays
    shapes = make_numpy_policy(SPEC).shapes()
    assert {name: array.shape for name, array in arrays.items()} == {
        name: shape for name, (shape, _) in shapes.items()
    }


@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_numpy_form_acts_like_the_torch_form(exploration: float) -> None:
    weights = Weights(3, model_arrays(ActorNetwork(SPEC, seed=7)), exploration)
    obs = (np.random.default_rng(0).normal(0.0, 3.0, (32, 3)).astype(np.float32),)
    noise = draw_noise(ACTION, generator("test"), 1, 32)[0]
    forms = make_numpy_policy(SPEC), make_torch_policy(SPEC, "cpu")
    for form in forms:
        form.load(weights)
    for given in (noise, None):
        ours, theirs = (form.act(obs, None, given) for form in forms)
        np.testing.assert_allclose(ours.action, theirs.action, atol=1e-5)
        assert ours.action.dtype == theirs.action.dtype == np.float32
        assert np.abs(ours.action).max() <= 1.0


def test_actions_are_squashed_gaussians() -> None:
    low, high = LOG_STD_RANGE
    outputs, noise = np.array([[0.5, 0.0]], np.float32), np.array([[2.0]], np.float32)
    std = np.exp((low + high) / 2)
    np.testing.assert_allclose(sample_squashed(outputs, noise, 0.0).action, np.tanh([[0.5 + 2.0 * std]]))
    np.testing.assert_allclose(sample_squashed(outputs, None, 1.0).action, np.tanh([[0.5]]))
    for raw, log_std in ((-50.0, low), (50.0, high)):
        action = sample_squashed(np.array([[0.0, raw]]), np.array([[0.1]]), 0.0).action
        np.testing.assert_allclose(action, np.tanh([[0.1 * np.exp(log_std)]]), rtol=1e-5)


def test_random_actions_are_uniform() -> None:
    noise = np.random.default_rng(0).standard_normal((20_000, 1))
    action = sample_squashed(np.full((20_000, 2), 9.0), noise, 1.0).action[:, 0]
    shares, _ = np.histogram(action, bins=10, range=(-1.0, 1.0))
    assert shares.sum() == 20_000
    assert np.abs(shares / 2000 - 1.0).max() < 0.1
