"""The two kernels of DQN: targets by hand, and the analytic one against autograd for every switch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.dqn.compiled_kernel import CompiledQKernel
from mission_gym.algorithms.dqn.kernel import QSettings
from mission_gym.algorithms.dqn.torch_kernel import TorchQKernel
from mission_gym.data import LeafSpec
from mission_gym.learner.blocks import with_prefix
from mission_gym.learner.off_policy_learner import Transitions
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.streams import generator

F, A, SIZE, STEPS = 5, 4, 16, 3
LEAF = LeafSpec("", (F,), "float32", "vector")
CHOICE = ActionSpec("categories", (), "int64", nvec=(A,), start=(0,))


def noise_of(place: int) -> np.random.Generator:
    return generator("noise", place)


def make_spec(activation: str = "relu", *, dueling: bool = False, noisy: bool = False) -> PolicySpec:
    sigma = 0.5 if noisy else None
    return PolicySpec((LEAF,), CHOICE, (16, 8), activation, form="values", dueling=dueling, noisy_sigma=sigma)


def target_of(kernel: TorchQKernel | CompiledQKernel) -> dict[str, np.ndarray]:
    return with_prefix(kernel.training(), "target.")


def make_batches(
    *, masked: bool = False, weighted: bool = False, scale: float = 1.0, num_steps: int = STEPS
) -> Transitions:
    rng, num = np.random.default_rng(0), SIZE * num_steps
    mask = rng.random((num, A)) < 0.5
    mask[:, 1] = True
    return Transitions(
        inputs=Encoded(rng.normal(size=(num, F)).astype(np.float32), ()),
        action=rng.integers(0, A, (num, 1)),
        reward=(scale * rng.normal(size=num)).astype(np.float32),
        discount=np.where(rng.random(num) < 0.2, 0.0, 0.9).astype(np.float32),
        next_inputs=Encoded(rng.normal(size=(num, F)).astype(np.float32), ()),
        next_mask=mask if masked else None,
        weight=rng.random(num).astype(np.float32) if weighted else None,
    )


def cut_batches(batches: Transitions, rows: slice) -> Transitions:
    """Some rows of plain ones."""
    ends = [Encoded(each.flat[rows], ()) for each in (batches.inputs, batches.next_inputs)]
    columns = (batches.action[rows], batches.reward[rows], batches.discount[rows])
    return Transitions(ends[0], *columns, ends[1], None, None)


def make_pair(spec: PolicySpec) -> tuple[TorchQKernel, CompiledQKernel]:
    """Two kernels whose target differs from their online network."""
    reference = TorchQKernel(spec, seed=3)
    target = TorchQKernel(spec, seed=4).acting()
    target |= {name: array * 20 for name, array in target.items() if name.startswith(("q.2", "value.2"))}
    reference.load_parameters(
        reference.acting() | {f"target.{name}": array for name, array in target.items()}
    )
    kernel = CompiledQKernel(spec, reference.acting())
    kernel.load_parameters(reference.parameters())
    return reference, kernel


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("masked", "weighted"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    ("double", "huber", "tau"), [(True, True, 1.0), (False, False, 1.0), (True, False, 0.1)]
)
def test_the_analytic_kernel_equals_autograd(
    activation: str, dueling: bool, masked: bool, weighted: bool, double: bool, huber: bool, tau: float
) -> None:
    reference, kernel = make_pair(make_spec(activation, dueling=dueling))
    batches = make_batches(masked=masked, weighted=weighted, scale=3.0)
    settings = QSettings(SIZE, 1e-3, 1.0, double, huber, tau)
    expected, got = (each.learn(batches, settings, noise_of) for each in (reference, kernel))
    np.testing.assert_allclose(got.table, expected.table, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(got.errors, expected.errors, rtol=1e-4, atol=1e-4)
    for name in ("parameters", "optimizer"):
        ours, theirs = getattr(kernel, name)(), getattr(reference, name)()
        assert ours.keys() == theirs.keys()
        for key in ours:
            np.testing.assert_allclose(ours[key], theirs[key], atol=3e-5, err_msg=f"{name} {key}")


def q_values(kernel: TorchQKernel, which: str, inputs: np.ndarray) -> np.ndarray:
    """The network by plain matrix products."""
    arrays = kernel.acting() if which == "online" else target_of(kernel)
    x = np.maximum(inputs @ arrays["body.0.weight"].T + arrays["body.0.bias"], 0)
    x = np.maximum(x @ arrays["q.0.weight"].T + arrays["q.0.bias"], 0)
    values: np.ndarray = x @ arrays["q.2.weight"].T + arrays["q.2.bias"]
    return values


@pytest.mark.parametrize("double", [False, True])
def test_targets_follow_the_equations(double: bool) -> None:
    """Double: the online network chooses under the next mask; else the target itself does."""
    reference, _ = make_pair(make_spec())
    batches = make_batches(masked=True)
    value = q_values(reference, "online", batches.inputs.flat)[np.arange(48), batches.action[:, 0]]
    ahead = q_values(reference, "target", batches.next_inputs.flat)
    judge = q_values(reference, "online", batches.next_inputs.flat) if double else ahead
    assert batches.next_mask is not None
    best = np.where(batches.next_mask, judge, -np.inf).argmax(axis=1)
    expected = value - (batches.reward + batches.discount * ahead[np.arange(48), best])
    stats = reference.learn(batches, QSettings(48, 1e-3, 10.0, double, True, 1.0), noise_of)
    np.testing.assert_allclose(stats.errors, expected, atol=1e-5)
    huber = np.where(np.abs(expected) < 1, 0.5 * expected**2, np.abs(expected) - 0.5).mean()
    np.testing.assert_allclose(stats.table[0, :3], [huber, value.mean(), np.abs(expected).mean()], rtol=1e-4)


def test_the_target_stays_until_it_is_copied_and_moves_by_tau() -> None:
    for kernel in make_pair(make_spec()):
        before = target_of(kernel)
        kernel.learn(make_batches(), QSettings(SIZE, 1e-2, 1.0, True, True, 1.0), noise_of)
        assert all(np.array_equal(before[name], array) for name, array in target_of(kernel).items())
        kernel.copy_to_target()
        for name, array in target_of(kernel).items():
            np.testing.assert_array_equal(array, kernel.parameters()[name])
        online = kernel.parameters()
        kernel.learn(make_batches(), QSettings(48, 1e-2, 1.0, True, True, 0.25), noise_of)
        for name, array in target_of(kernel).items():
            expected = online[name] + 0.25 * (kernel.parameters()[name] - online[name])
            np.testing.assert_allclose(array, expected, atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_steps_of_one_call_are_those_made_one_by_one(double: bool, tau: float) -> None:
    """Also where the target network passes rows of several steps, with fewer left for its last pass."""
    (_, kernel), (_, single), num_steps = make_pair(make_spec()), make_pair(make_spec()), 20
    batches, settings = make_batches(num_steps=num_steps), QSettings(SIZE, 1e-3, 1.0, double, True, tau)
    got = kernel.learn(batches, settings, noise_of)
    for step in range(num_steps):
        rows = slice(step * SIZE, (step + 1) * SIZE)
        expected = single.learn(cut_batches(batches, rows), settings, noise_of)
        np.testing.assert_allclose(got.table[step], expected.table[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got.errors[rows], expected.errors, atol=1e-4)


def test_noise_is_fresh_in_every_step_and_learned() -> None:
    kernel = TorchQKernel(make_spec(noisy=True, dueling=True), seed=1)
    before = kernel.parameters()
    assert {"q.0.weight_sigma", "q.2.bias_sigma", "value.2.weight_sigma"} <= before.keys()
    assert "body.0.weight_sigma" not in before
    np.testing.assert_allclose(before["q.0.weight_sigma"], 0.5 / 16**0.5)
    batches = make_batches()
    one, other = (
        kernel.learn(batches, QSettings(48, 0.0, 1.0, True, True, 1.0), lambda _, n=n: generator(n))
        for n in (1, 2)
    )
    assert np.abs(one.errors - other.errors).max() > 1e-3
    kernel.learn(batches, QSettings(SIZE, 1e-2, 1.0, True, True, 1.0), noise_of)
    assert np.abs(kernel.parameters()["q.0.weight_sigma"] - before["q.0.weight_sigma"]).max() > 1e-3


def test_a_gradient_that_is_not_finite_makes_no_step_and_the_next_ones_do() -> None:
    """The second of three minibatches is poisoned: both kernels end as if it had not been there. Rounding
    differs, since one product computes the targets of all minibatches of a call."""
    settings = QSettings(SIZE, 1e-2, 1.0, True, False, 1.0)
    for kernel, clean in zip(make_pair(make_spec()), make_pair(make_spec()), strict=True):
        batches = make_batches()
        batches.reward[SIZE] = np.inf
        stats = kernel.learn(batches, settings, noise_of)
        assert np.isfinite(stats.table[:, 3]).tolist() == [True, False, True]
        for rows in (slice(0, SIZE), slice(2 * SIZE, None)):
            clean.learn(cut_batches(batches, rows), settings, noise_of)
        expected = clean.parameters() | clean.optimizer()
        for name, array in (kernel.parameters() | kernel.optimizer()).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_checkpoints_know_no_kernel() -> None:
    reference, kernel = make_pair(make_spec(dueling=True))
    settings, batches = QSettings(SIZE, 1e-3, 1.0, True, True, 1.0), make_batches()
    kernel.learn(batches, settings, noise_of)
    reference.load_parameters(kernel.parameters())
    reference.load_optimizer(kernel.optimizer())
    for each in (reference, kernel):
        each.learn(batches, settings, noise_of)
    for key, array in reference.parameters().items():
        np.testing.assert_allclose(kernel.parameters()[key], array, atol=2e-5, err_msg=key)


class Halves(torch.nn.Module):
    """A user's network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(F, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def make_halves(spec: PolicySpec) -> torch.nn.Module:
    return Halves()


@pytest.mark.parametrize("network", [None, "test_dqn_kernels:make_halves"])
@pytest.mark.parametrize("dueling", [False, True])
def test_values_are_rescaled_with_every_network(network: str | None, dueling: bool) -> None:
    """Values of both networks and the moments of Adam follow a factor, also below a user's network."""
    spec = replace(make_spec(dueling=dueling), network=network)
    kernel = TorchQKernel(spec, seed=3)
    kernel.learn(make_batches(), QSettings(SIZE, 1e-2, 1.0, True, True, 0.5), noise_of)
    inputs = (torch.randn(7, F), ())
    before = [net(inputs).detach() for net in (kernel.online, kernel.target)]
    moments = kernel.optimizer()
    kernel.rescale_values(4.0)
    for net, values in zip((kernel.online, kernel.target), before, strict=True):
        torch.testing.assert_close(net(inputs), 4.0 * values)
    head = "q.2.weight" if network is None else "q.0.weight"
    below = "q.0.weight" if network is None else "trunk.net.layer.weight"
    after = kernel.optimizer()
    for name, factor in ((head, 4.0), (below, 16.0)):
        np.testing.assert_allclose(after[f"mean.{name}"], factor * moments[f"mean.{name}"], rtol=1e-5)
        np.testing.assert_allclose(after[f"square.{name}"], factor**2 * moments[f"square.{name}"], rtol=1e-5)
