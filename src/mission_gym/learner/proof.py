"""How another form of a loss proves itself: from equal weights, on fixed minibatches, it must agree with
the reference on the loss, its statistics and the gradient. What disagrees is left out, with the cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from mission_gym.data import Array, EnvSpec, Leaves


class Tolerance(NamedTuple):
    """How far another form may be off, as a share."""

    numbers: float  # the loss and its statistics
    gradient: float  # by parameter
    least: float = 0.01  # of the whole gradient: the part of one parameter is judged as if it were no smaller


# float32 leaves up to 1e-3 of a ratio in doubt where a deviation is small; a changed equation far more.
TWIN_TOLERANCE = Tolerance(5e-3, 5e-3)
# The same on accelerators, by precision. On the CPU, with the products of TF32 (10 bits of mantissa) and of
# bf16, 40 seeds of each case (`tests/learner/test_tolerances.py`), numbers were off by up to 3e-4 and 3e-3,
# gradients, where a ReLU near 0 is on here and off there, by up to 0.08 and 0.2 of a parameter's.
DEVICE_TOLERANCES = {"float32": Tolerance(5e-3, 0.2, 0.1), "bf16": Tolerance(2e-2, 0.4, 0.1)}
# Of the step that a captured one may differ from. Sums have no fixed order: in another one they moved a
# parameter by up to 6e-5 of its way otherwise.
_CAPTURED_TOLERANCE = 1e-2


class Evidence(NamedTuple):
    """What one form made of a minibatch."""

    numbers: Mapping[str, float]  # the loss and its statistics
    gradient: Mapping[str, Array]  # by parameter, before clipping


class DeviceKernel(Protocol):
    """What a proof of a device asks of a torch kernel."""

    record: Any  # how steps are captured, None where they are not

    def keep(self) -> Any: ...

    def put_back(self, kept: Any) -> None: ...

    def parameters(self) -> dict[str, Array]: ...


def find_device_disagreement(
    found: Evidence, expected: Evidence, precision: str, kernel: DeviceKernel, step: Callable[[], object]
) -> str:
    """What a device computes otherwise than the CPU, from equal weights, or a captured step otherwise than
    the same step by itself; empty if it is nothing. step: makes one with the kernel, captured if it may."""
    if cause := find_disagreement(found, expected, DEVICE_TOLERANCES[precision]):
        return cause
    if kernel.record is None:
        return ""
    before, kept = kernel.parameters(), kernel.keep()
    step()
    captured = kernel.parameters()
    kernel.put_back(kept)
    record, kernel.record = kernel.record, None
    step()
    kernel.record = record
    eager = kernel.parameters()
    for name, array in eager.items():
        error, size = (float(np.linalg.norm(array - other[name])) for other in (captured, before))
        if not error <= _CAPTURED_TOLERANCE * max(size, 1e-9):
            return f"a captured step moves {name} by {error / max(size, 1e-9):.2g} of its way otherwise"
    return ""


def draw_inputs(spec: EnvSpec, num_rows: int, rng: np.random.Generator) -> Leaves:
    """Observations [N, ...] for a proof: random numbers and pictures, zeros of the rest."""
    leaves = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in spec.leaves]
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            leaf[:] = rng.standard_normal(leaf.shape)
        elif leaf.dtype == np.uint8 and leaf.ndim > 2:
            leaf[:] = rng.integers(0, 256, leaf.shape)
    return tuple(leaves)


def find_disagreement(twin: Evidence, reference: Evidence, tolerance: Tolerance = TWIN_TOLERANCE) -> str:
    """The first thing on which the twin differs from the reference, empty if there is none."""
    for name, expected in reference.numbers.items():
        found = twin.numbers[name]
        if not abs(found - expected) <= tolerance.numbers * max(abs(expected), 1e-2):
            return f"its {name} is {found:.6g} where the loss gives {expected:.6g}"
    scale = np.sqrt(sum(float(np.square(array).sum()) for array in reference.gradient.values()))
    for name, array in reference.gradient.items():
        error = float(np.linalg.norm(twin.gradient[name] - array))
        size = max(float(np.linalg.norm(array)), tolerance.least * scale, 1e-12)
        if not error <= tolerance.gradient * size:
            return f"its gradient of {name} is off by {error / size:.2g} of its size"
    return ""
