"""How another form of a loss is verified: from equal weights, on fixed minibatches, it must agree with the
reference on the loss, its statistics and the gradient. A form that disagrees is not used, and the cause is
reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves

if TYPE_CHECKING:
    from mission_gym.learner.torch_network import TorchNetwork


class Tolerance(NamedTuple):
    """The largest relative error of another form."""

    numbers: float  # of the loss and its statistics
    gradient: float  # of the gradient, by parameter
    least: float = 0.01  # share of the whole gradient below which a parameter's gradient counts as no smaller


# float32 leaves errors up to 1e-3 in a ratio if a standard deviation is small; a changed equation far more.
KERNEL_TOLERANCE = Tolerance(5e-3, 5e-3)
# Accelerators, by precision. With the products of TF32 (10 bits of mantissa) and of bf16 on the CPU, 40 seeds
# of each case (`tests/learner/test_tolerances.py`): numbers were off by up to 3e-4 and 3e-3, gradients by up
# to 0.08 and 0.2 of a parameter's, because a ReLU near 0 is on in one form and off in the other.
DEVICE_TOLERANCES = {"float32": Tolerance(5e-3, 0.2, 0.1), "bf16": Tolerance(2e-2, 0.4, 0.1)}
# How far a captured step may differ, as a share of the step. Sums have no fixed order; another order changed
# the step of a parameter by up to 6e-5.
_CAPTURED_TOLERANCE = 1e-2


class Evidence(NamedTuple):
    """The results of one form for a minibatch."""

    numbers: Mapping[str, float]  # the loss and its statistics
    gradient: Mapping[str, Array]  # by parameter, before clipping


def find_device_disagreement(
    found: Evidence, expected: Evidence, precision: str, kernel: TorchNetwork, step: Callable[[], object]
) -> str:
    """Where a device disagrees with the CPU, or a captured step with the same step uncaptured; empty if
    nowhere.

    step: runs one gradient step with the kernel, captured if it can be.
    """
    if cause := find_disagreement(found, expected, DEVICE_TOLERANCES[precision]):
        return cause
    if kernel.record is None:
        return ""
    before, snapshot = kernel.parameters(), kernel.snapshot()
    step()
    captured = kernel.parameters()
    kernel.restore(snapshot)
    record, kernel.record = kernel.record, None
    step()
    kernel.record = record
    eager = kernel.parameters()
    for name, array in eager.items():
        error, size = (float(np.linalg.norm(array - other[name])) for other in (captured, before))
        if not error <= _CAPTURED_TOLERANCE * max(size, 1e-9):
            return f"a captured step changes {name} differently, by {error / max(size, 1e-9):.2g} of the step"
    return ""


def draw_inputs(spec: EnvSpec, num_rows: int, rng: np.random.Generator) -> Leaves:
    """Observations [N, ...] for a verification: random numbers and images, zeros otherwise."""
    leaves = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves]
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            leaf[:] = rng.standard_normal(leaf.shape)
        elif leaf.dtype == np.uint8 and leaf.ndim > 2:
            leaf[:] = rng.integers(0, 256, leaf.shape)
    return tuple(leaves)


def find_disagreement(found: Evidence, expected: Evidence, tolerance: Tolerance = KERNEL_TOLERANCE) -> str:
    """The first difference between a form and the reference, empty if there is none."""
    for name, number in expected.numbers.items():
        if name not in found.numbers:
            return f"it does not compute {name}"
        if not abs(found.numbers[name] - number) <= tolerance.numbers * max(abs(number), 1e-2):
            return f"its {name} is {found.numbers[name]:.6g}, the loss gives {number:.6g}"
    scale = np.sqrt(sum(float(np.square(array).sum()) for array in expected.gradient.values()))
    for name, array in expected.gradient.items():
        error = float(np.linalg.norm(found.gradient[name] - array))
        size = max(float(np.linalg.norm(array)), tolerance.least * scale, 1e-12)
        if not error <= tolerance.gradient * size:
            return f"its gradient of {name} is off by {error / size:.2g} of its size"
    return ""
