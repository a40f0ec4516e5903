"""How another form of a loss proves itself: from equal weights, on fixed minibatches, it must agree with
the reference on the loss, its statistics and the gradient. What disagrees is left out, with the cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mission_gym.data import Array

# float32 leaves up to 1e-3 of a ratio in doubt where a deviation is small; a changed equation far more.
_TOLERANCE = 5e-3
_LEAST = 0.01  # of the whole gradient: the part of one parameter is judged as if it were no smaller


class Evidence(NamedTuple):
    """What one form made of a minibatch."""

    numbers: Mapping[str, float]  # the loss and its statistics
    gradient: Mapping[str, Array]  # by parameter, before clipping


def find_disagreement(twin: Evidence, reference: Evidence) -> str:
    """The first thing on which the twin differs from the reference, empty if there is none."""
    for name, expected in reference.numbers.items():
        found = twin.numbers[name]
        if not abs(found - expected) <= _TOLERANCE * max(abs(expected), 1e-2):
            return f"its {name} is {found:.6g} where the loss gives {expected:.6g}"
    scale = np.sqrt(sum(float(np.square(array).sum()) for array in reference.gradient.values()))
    for name, array in reference.gradient.items():
        error = float(np.linalg.norm(twin.gradient[name] - array))
        size = max(float(np.linalg.norm(array)), _LEAST * scale, 1e-12)
        if not error <= _TOLERANCE * size:
            return f"its gradient of {name} is off by {error / size:.2g} of its size"
    return ""
