"""Acting on action values: epsilon, masks, noise, and equal actions from both forms."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.data import LeafSpec, Weights
from mission_gym.policy import NumpyQPolicy, PolicySpec
from mission_gym.policy.sampling import choose_by_value
from mission_gym.policy.torch_forms import QNetwork, TorchQPolicy, model_arrays

CHOICE = ActionSpec("categories", (), "int64", nvec=(4,), start=(0,))
VALUES = np.array([[0.1, 0.9, 0.3, -1.0]], np.float32).repeat(40_000, axis=0)
NOISE = np.random.default_rng(0).random((40_000, 1), np.float32)


def test_epsilon_is_the_share_of_random_actions_each_equally_likely() -> None:
    action = choose_by_value(VALUES, None, NOISE, 0.4).action[:, 0]
    shares = np.bincount(action, minlength=4) / len(action)
    np.testing.assert_allclose(shares, [0.1, 0.7, 0.1, 0.1], atol=0.01)
    assert (choose_by_value(VALUES, None, NOISE, 0.0).action == 1).all()
    assert (choose_by_value(VALUES, None, None, 1.0).action == 1).all()


def test_masked_actions_are_never_chosen() -> None:
    mask = np.array([[True, False, False, True]]).repeat(len(VALUES), axis=0)
    out = choose_by_value(VALUES, mask, NOISE, 0.5)
    shares = np.bincount(out.action[:, 0], minlength=4) / len(VALUES)
    np.testing.assert_allclose(shares, [0.75, 0, 0, 0.25], atol=0.01)
    assert out.action.shape == (len(VALUES), 1)
    assert out.log_prob.shape == (len(VALUES),)
    rng = np.random.default_rng(1)
    masks = rng.random((len(VALUES), 4)) < 0.3
    masks[np.arange(len(VALUES)), rng.integers(0, 4, len(VALUES))] = True
    for epsilon in (0.0, 0.3, 1.0):
        chosen = choose_by_value(VALUES, masks, NOISE, epsilon).action[:, 0]
        assert masks[np.arange(len(VALUES)), chosen].all()


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("sigma", [None, 2.0])
def test_both_forms_act_alike(dueling: bool, sigma: float | None) -> None:
    leaf = LeafSpec("", (3,), "float32", "vector")
    form = {"form": "values", "dueling": dueling, "noisy_sigma": sigma}
    spec = PolicySpec((leaf,), CHOICE, (16, 8), "relu", normalize_obs=False, **form)
    arrays = model_arrays(QNetwork(spec, seed=1))
    forms = NumpyQPolicy(spec), TorchQPolicy(spec)
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == forms[0].shapes()
    for policy in forms:
        policy.load(Weights(7, arrays, exploration=0.0 if sigma else 0.3))
        assert policy.version == 7
    obs = (np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32),)
    for noise in (None, NOISE[:200], NOISE[200:400]):
        one, other = (policy.act(obs, None, noise).action for policy in forms)
        np.testing.assert_array_equal(one, other)
    calm, first, second = (
        forms[0].act(obs, None, noise).action for noise in (None, NOISE[:200], NOISE[200:400])
    )
    assert (calm != first).any()
    assert (first != second).any()


def test_an_advantage_is_taken_from_the_mean_over_all_actions_and_masked_afterwards() -> None:
    leaf = LeafSpec("", (1,), "float32", "vector")
    spec = PolicySpec((leaf,), CHOICE, (2,), "relu", normalize_obs=False, form="values", dueling=True)
    arrays = {name: np.zeros_like(array) for name, array in model_arrays(QNetwork(spec, seed=1)).items()}
    arrays["q.2.bias"], arrays["value.2.bias"] = (
        np.array([1, 2, 3, 6], np.float32),
        np.array([10], np.float32),
    )
    import torch

    model = QNetwork(spec, seed=1)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    values = model((torch.zeros(1, 1), ())).detach().numpy()
    np.testing.assert_allclose(values, [[8, 9, 10, 13]])  # 10 + A - 3
    policy = NumpyQPolicy(spec)
    policy.load(Weights(0, arrays))
    mask = np.array([[True, True, False, False]])
    assert policy.act((np.zeros((1, 1), np.float32),), mask, None).action.tolist() == [[1]]
