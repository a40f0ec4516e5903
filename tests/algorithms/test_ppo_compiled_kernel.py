"""The analytic kernel against autograd: equal gradients, steps and statistics for every action space."""

from __future__ import annotations

import numpy as np
import pytest

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.ppo.compiled_kernel import CompiledKernel
from mission_gym.algorithms.ppo.kernel import POLICY_LOSS, VALUE_LOSS, Samples
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.data import LeafSpec
from mission_gym.learner.loops import activate_tanh
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.sampling import draw_random

ACTIONS = {
    "discrete": ActionSpec("categories", (), "int64", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("categories", (3,), "int64", nvec=(3, 2, 4), start=(0, 0, 0)),
    "multi_discrete_equal": ActionSpec("categories", (2,), "int64", nvec=(3, 3), start=(0, 0)),
    "multi_binary": ActionSpec("binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0)),
}
ACTIONS["discrete_hybrid"] = ActionSpec.of_parts(
    tuple(ACTIONS[name] for name in ("box", "discrete", "multi_binary", "multi_discrete"))
)
ACTIONS["bits_and_box"] = ActionSpec.of_parts((ACTIONS["box"], ACTIONS["multi_binary"]))
MASKED = [(name, masked) for name in ACTIONS for masked in (False, True) if not masked or "discrete" in name]
F, N = 5, 64
SETTINGS = StepSettings(1e-2, 0.1, 0.02, 0.5, 0.5, True)


def make_pair(spec: PolicySpec) -> tuple[TorchKernel, CompiledKernel]:
    reference = TorchKernel(spec, seed=3)
    return reference, CompiledKernel(spec, reference.parameters())


def make_samples(
    spec: PolicySpec, reference: TorchKernel, *, masked: bool, weighted: bool = False, lagging: bool = False
) -> Samples:
    rng = np.random.default_rng(0)
    action_spec = spec.action
    mask = None
    if masked:
        mask = rng.random((N, sum(action_spec.nvec))) < 0.5
        mask[:, np.cumsum((0, *action_spec.nvec[:-1]))] = True
    action = draw_random(action_spec, mask, rng, N)
    if num_reals := action_spec.num_reals:
        action[:, -num_reals:] = rng.normal(size=(N, num_reals))
    inputs = Encoded(rng.normal(size=(N, F)).astype(np.float32), ())
    log_prob, _ = reference.evaluate(inputs, action, mask)
    return Samples(
        inputs=inputs,
        mask=mask,
        action=action,
        log_prob=(log_prob + rng.normal(0, 0.15, N)).astype(np.float32),  # ratios on both sides of the clip
        advantage=rng.normal(size=N).astype(np.float32),
        returns=rng.normal(size=N).astype(np.float32),
        value=rng.normal(size=N).astype(np.float32),
        weight=(rng.random(N) < 0.8).astype(np.float32) if weighted else None,
        importance=np.minimum(rng.uniform(0.2, 1.5, N), 1.0).astype(np.float32) if lagging else None,
    )


@pytest.mark.parametrize(("name", "masked"), MASKED)
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lagging", [False, True])
def test_gradients_and_statistics_equal_autograd(
    name: str, masked: bool, activation: str, weighted: bool, lagging: bool
) -> None:
    spec = PolicySpec((LeafSpec("", (F,), "float32", "vector"),), ACTIONS[name], (16, 8), activation)
    reference, kernel = make_pair(spec)
    samples = make_samples(spec, reference, masked=masked, weighted=weighted, lagging=lagging)
    for one, other in zip(
        reference.evaluate(samples.inputs, samples.action, samples.mask),
        kernel.evaluate(samples.inputs, samples.action, samples.mask),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=2e-6)
    order = np.arange(N)[None]
    for each in (reference, kernel):
        each.load_samples(samples)
    expected, got = (each.epoch(order, SETTINGS, lambda: False) for each in (reference, kernel))
    assert expected is not None
    assert got is not None
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
    # The first moment after one step is a tenth of the clipped gradient.
    gradients, analytic = reference.optimizer(), kernel.optimizer()
    assert gradients.keys() == analytic.keys()
    for key in gradients:
        np.testing.assert_allclose(analytic[key], gradients[key], atol=4e-8, rtol=1e-4, err_msg=key)


@pytest.mark.parametrize("weighted", [False, True])
def test_importance_multiplies_the_surrogate_and_nothing_else(weighted: bool) -> None:
    """The reference's loss, written out: importance times the smaller of the two surrogates."""
    spec = PolicySpec((LeafSpec("", (F,), "float32", "vector"),), ACTIONS["discrete"], (16, 8))
    reference, _ = make_pair(spec)
    samples = make_samples(spec, reference, masked=False, weighted=weighted, lagging=True)
    log_prob, value = reference.evaluate(samples.inputs, samples.action, None)
    weight = np.ones(N) if samples.weight is None else samples.weight.astype(np.float64)
    weight = weight / weight.sum()
    ratio = np.exp(log_prob.astype(np.float64) - samples.log_prob)
    centered = samples.advantage - weight @ samples.advantage
    advantage = centered / np.sqrt(weight @ centered**2)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.9, 1.1) * advantage)
    reference.load_samples(samples)
    stats = reference.epoch(np.arange(N)[None], SETTINGS, lambda: False)
    assert stats is not None
    np.testing.assert_allclose(stats[0, POLICY_LOSS], -(weight @ (samples.importance * surrogate)), rtol=1e-5)
    np.testing.assert_allclose(stats[0, VALUE_LOSS], weight @ (value - samples.returns) ** 2, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIONS)
def test_many_steps_stay_together(name: str) -> None:
    spec = PolicySpec((LeafSpec("", (F,), "float32", "vector"),), ACTIONS[name], (16,))
    reference, kernel = make_pair(spec)
    samples = make_samples(spec, reference, masked=False)
    settings = StepSettings(1e-3, 0.2, 0.01, 0.5, 0.5, True)
    rng = np.random.default_rng(1)
    for each in (reference, kernel):
        each.load_samples(samples)
    for _ in range(10):
        order = rng.permutation(N).reshape(-1, 16)
        for each in (reference, kernel):
            each.epoch(order, settings, lambda: False)
    for key, array in reference.parameters().items():
        np.testing.assert_allclose(kernel.parameters()[key], array, atol=2e-4, err_msg=key)


@pytest.mark.parametrize("name", ACTIONS)
def test_threads_learn_what_one_learns(name: str) -> None:
    """Three threads share minibatches of 16 rows: 5, 5 and 6 each; the sums differ by rounding only."""
    spec = PolicySpec((LeafSpec("", (F,), "float32", "vector"),), ACTIONS[name], (16, 8))
    reference = TorchKernel(spec, seed=3)
    samples = make_samples(spec, reference, masked="discrete" in name, weighted=True, lagging=True)
    rng = np.random.default_rng(1)
    orders = [rng.permutation(N).reshape(-1, 16) for _ in range(3)]
    moments = []
    for threads in (1, 3, 3):
        kernel = CompiledKernel(spec, reference.parameters(), threads)
        evaluated = kernel.evaluate(samples.inputs, samples.action, samples.mask)
        kernel.load_samples(samples)
        stats = [kernel.epoch(order, SETTINGS, lambda: False) for order in orders]
        moments.append([*kernel.optimizer().values(), *evaluated, np.array(stats)])
    for one, three, again in zip(*moments, strict=True):
        np.testing.assert_allclose(three, one, atol=2e-5, rtol=1e-3)
        np.testing.assert_array_equal(three, again)


def test_tanh_is_right_within_rounding() -> None:
    x = np.linspace(-20, 20, 400_001, dtype=np.float32).reshape(1, -1)
    y = x.copy()
    activate_tanh(y, np.zeros(x.shape[1], np.float32))
    assert np.abs(y - np.tanh(x.astype(np.float64))).max() < 4e-7
    assert np.abs(y).max() == 1.0


def test_optimizer_state_moves_between_kernels() -> None:
    spec = PolicySpec((LeafSpec("", (F,), "float32", "vector"),), ACTIONS["box"], (16, 8))
    reference, kernel = make_pair(spec)
    samples = make_samples(spec, reference, masked=False)
    order = np.arange(N).reshape(4, -1)
    kernel.load_samples(samples)
    kernel.epoch(order, SETTINGS, lambda: False)
    reference.load_parameters(kernel.parameters())
    reference.load_optimizer(kernel.optimizer())
    reference.load_samples(samples)
    for each in (reference, kernel):
        each.epoch(order, SETTINGS, lambda: False)
    for key, array in reference.parameters().items():
        np.testing.assert_allclose(kernel.parameters()[key], array, atol=2e-5, err_msg=key)
