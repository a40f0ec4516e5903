"""The torch kernel on any device: bf16, captured steps, nothing float64, one transfer for a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.ppo.kernel import APPROX_KL, RATIO_ERROR, Samples
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.data import Array, LeafSpec, Weights
from mission_gym.policy import Encoded, Encoder, PolicySpec
from mission_gym.policy.torch_forms import TorchPolicy

ACTIONS = {
    "discrete": ActionSpec("categories", (), "int64", nvec=(4,), start=(0,)),
    "multi_discrete": ActionSpec("categories", (3,), "int64", nvec=(3, 2, 4), start=(0, 0, 0)),
    "multi_binary": ActionSpec("binary", (3,), "int8"),
    "box": ActionSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0)),
}
VECTOR = LeafSpec("body", (3,), "float32", "vector")
IMAGE = LeafSpec("eye", (12, 12, 2), "uint8", "image", channels_last=True)
N, EXTRA, BATCH = 96, 7, 32
SETTINGS = StepSettings(2.0**-7, 0.25, 0.5, 0.5, 0.5, True)


def make_spec(name: str = "discrete", *leaves: LeafSpec) -> PolicySpec:
    return PolicySpec(leaves or (VECTOR, IMAGE), ACTIONS[name], (16,))


def make_inputs(spec: PolicySpec, num: int) -> Encoded:
    rng = np.random.default_rng(0)
    images = tuple(
        np.moveaxis(rng.integers(0, 256, (num, *leaf.shape), np.uint8), -1, 1)
        for leaf in spec.leaves
        if leaf.kind == "image"
    )
    return Encoded(rng.normal(size=(num, 3)).astype(np.float32), images)


def make_samples(kernel: TorchKernel) -> Samples:
    """Samples as the learner makes them: more rows were evaluated than are learned from."""
    rng = np.random.default_rng(1)
    action_spec = kernel.spec.action
    mask = None
    if action_spec.kind == "categories":
        mask = rng.random((N, sum(action_spec.nvec))) < 0.5
        mask[:, np.cumsum((0, *action_spec.nvec[:-1]))] = True
        action: Array = np.zeros((N, action_spec.num_stored), np.int64)
    elif action_spec.kind == "binary":
        action = rng.integers(0, 2, (N, 3))
    else:
        action = rng.normal(size=(N, 2)).astype(np.float32)
    inputs = make_inputs(kernel.spec, N + EXTRA)
    log_prob, values = kernel.evaluate(inputs, action, mask)
    assert log_prob.shape == (N,)
    assert values.shape == (N + EXTRA,)
    advantage, returns = rng.normal(size=(2, N)).astype(np.float32)
    weight = (rng.random(N) < 0.9).astype(np.float32)
    return Samples(inputs, mask, action, log_prob, advantage, returns, values[:N], weight)


def learn(kernel: TorchKernel, settings: StepSettings = SETTINGS, seed: int = 0) -> None:
    order = np.random.default_rng(seed).permutation(N).reshape(-1, BATCH)
    assert kernel.epoch(order, settings, lambda: False) is not None


@pytest.mark.parametrize("name", ACTIONS)
def test_bf16_starts_with_ratio_one_and_keeps_float32_weights(name: str) -> None:
    spec = make_spec(name)
    kernel = TorchKernel(spec, seed=1, precision="bf16", batch_size=BATCH)
    plain = TorchKernel(spec, seed=1)
    samples = make_samples(kernel)
    assert 0 < np.abs(samples.log_prob - make_samples(plain).log_prob).max() < 0.05  # coarser, not other
    kernel.load_samples(samples)
    order = np.random.default_rng(0).permutation(N).reshape(-1, BATCH)
    stats = kernel.epoch(order, SETTINGS, lambda: False)
    assert stats is not None
    assert stats[0, RATIO_ERROR] < 1e-5
    assert abs(stats[0, APPROX_KL]) < 1e-6
    assert {array.dtype for array in kernel.parameters().values()} == {np.dtype(np.float32)}


def test_a_pass_over_a_block_has_the_shape_of_a_minibatch() -> None:
    """103 rows in passes of 32: the last one begins at row 71, and all of them are in their places."""
    shapes = []
    kernel = TorchKernel(make_spec(), seed=1, batch_size=BATCH)
    kernel.model.register_forward_pre_hook(lambda _, args: shapes.append(len(args[0][0])))
    passes, whole = make_samples(kernel), make_samples(TorchKernel(make_spec(), seed=1))
    assert shapes == [BATCH] * 4
    np.testing.assert_allclose(passes.log_prob, whole.log_prob, atol=1e-6)


def test_bf16_gives_exact_numbers_where_policies_are_compared() -> None:
    coarse, plain = (
        TorchKernel(make_spec(), seed=1, precision=precision, batch_size=BATCH)
        for precision in ("bf16", "float32")
    )
    samples = make_samples(plain)
    found, _ = coarse.evaluate(samples.inputs, samples.action, samples.mask, exact=True)
    np.testing.assert_array_equal(found, samples.log_prob)
    assert coarse.is_low_precision
    assert not plain.is_low_precision


class Tape(TorchDispatchMode):
    """What a CUDA graph is, on the CPU: every operation with its own tensors, to be repeated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, out in self.calls:
                for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def record_tape(step: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    step()
    with Tape() as tape:
        output = step()
    return tape.replay, output


@pytest.mark.parametrize("name", ACTIONS)
def test_a_captured_step_learns_what_an_eager_one_learns(name: str) -> None:
    """Minibatches, rate, clip range and weights change from replay to replay: nothing is baked in."""
    eager, captured = (TorchKernel(make_spec(name), seed=1) for _ in range(2))
    captured.record = record_tape
    samples = make_samples(eager)
    later = StepSettings(2.0**-9, 0.125, 0.0, 0.25, 0.25, False)
    for kernel in (eager, captured):
        kernel.load_samples(samples)
        learn(kernel, SETTINGS, seed=0)
        learn(kernel, later, seed=1)
        kernel.load_parameters(kernel.parameters())  # putting a state back must not move it away
        kernel.load_optimizer(kernel.optimizer())
        learn(kernel, later, seed=2)
    for key, array in (eager.parameters() | eager.optimizer()).items():
        np.testing.assert_array_equal((captured.parameters() | captured.optimizer())[key], array, err_msg=key)
    assert captured.optimizer()["step"] == 9


class Guard(TorchDispatchMode):
    """Fails on what MPS does not have, and on what would make the host wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket._qualified_op_name != "aten::_local_scalar_dense", "the host waits"
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            assert not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float64, f"{func} is float64"
        return out


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ACTIONS)
def test_nothing_on_the_device_is_float64_and_the_host_does_not_wait(name: str, precision: str) -> None:
    kernel = TorchKernel(make_spec(name), seed=1, precision=precision, batch_size=BATCH)
    with Guard():
        samples = make_samples(kernel)
        kernel.load_samples(samples)
        learn(kernel)
        kernel.load_parameters(kernel.parameters())


@pytest.mark.parametrize("name", ACTIONS)
def test_acting_asks_once_and_has_no_float64_on_the_device(name: str) -> None:
    spec = make_spec(name)
    policy = TorchPolicy(spec)
    normalizer = Encoder(spec.leaves, normalize=True).normalizer
    assert normalizer is not None
    policy.load(Weights(0, TorchKernel(spec, seed=1).parameters() | normalizer.arrays()))
    obs = tuple(np.zeros((4, *leaf.shape), leaf.dtype) for leaf in spec.leaves)
    with Guard():
        assert policy.act(obs, None, None).action.shape == (4, spec.action.num_stored)


def test_the_guard_sees_what_it_is_for() -> None:
    with Guard(), pytest.raises(AssertionError, match="is float64"):
        torch.zeros(2).double()
    with Guard(), pytest.raises(AssertionError, match="the host waits"):
        torch.zeros(1).item()


def test_inputs_of_the_pass_over_a_block_are_not_brought_to_the_device_again() -> None:
    kernel = TorchKernel(make_spec(), seed=1)
    samples = make_samples(kernel)
    addresses = [kernel._flat_rows.data_ptr(), *kernel._shaped[0].addresses()]
    samples.inputs.shaped[0][:] = 0  # would be seen if it were read again
    kernel.load_samples(samples)
    assert kernel._shaped[0].take(slice(None)).any()
    kernel.evaluate(make_inputs(kernel.spec, N + EXTRA + 3), samples.action, samples.mask)  # a few rows more
    assert addresses == [kernel._flat_rows.data_ptr(), *kernel._shaped[0].addresses()]


def test_the_layout_of_pictures_does_not_matter() -> None:
    last = make_spec("discrete", VECTOR, IMAGE)
    first = make_spec("discrete", VECTOR, LeafSpec("eye", (2, 12, 12), "uint8", "image"))
    inputs = make_inputs(last, N)
    contiguous = Encoded(inputs.flat, tuple(np.ascontiguousarray(image) for image in inputs.shaped))
    action = np.zeros((N, 1), np.int64)
    one = TorchKernel(last, seed=1).evaluate(inputs, action, None)
    other = TorchKernel(first, seed=1).evaluate(contiguous, action, None)
    np.testing.assert_array_equal(one, other)
