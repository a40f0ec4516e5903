"""How another form of a loss proves itself: from equal weights, on one fixed minibatch, it must agree with
the reference on the loss, its statistics and the gradient. What disagrees is left out, with the cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mission_gym.data import Array

# float32 leaves 1e-6 of a gradient in doubt, more where many rows cancel; a changed equation far more.
_TOLERANCE = 1e-3


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
        if not error <= _TOLERANCE * max(scale, 1e-6):
            return f"its gradient of {name} is off by {error / max(scale, 1e-6):.2g} of the whole gradient"
    return ""
