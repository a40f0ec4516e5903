"""Action distributions with hand-written gradients, for the NumPy kernel.

`load` computes the log-probability of stored actions; `backward` turns d loss / d log pi into
d loss / d actor outputs, with the entropy bonus added. One class per kind of action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from mission_gym.data import ActionSpec, Array
from mission_gym.learner.loops import backward_categories, forward_categories
from mission_gym.policy.sampling import HALF_LOG_2PI

_NO_MASK = np.zeros((0, 0), np.bool_)


class Head(Protocol):
    """See the module."""

    log_prob: Array  # float32 [B]
    d_params: Array  # float32 [B, P]
    d_log_std: Array | None  # float32 [K]

    def load(self, params: Array, log_std: Array | None, action: Array, mask: Array | None) -> None: ...

    def backward(self, slope: Array, bonus: Array) -> Array:
        """`slope` = d loss / d log pi [B], `bonus` = entropy weight per row; returns the entropy [B]."""


class CategoricalHead:
    """Discrete and MultiDiscrete: a softmax for each part, with masks."""

    d_log_std: Array | None = None

    def __init__(self, action: ActionSpec) -> None:
        self.edges = np.cumsum([0, *action.nvec])  # part k holds the columns edges[k] to edges[k + 1]

    def load(self, params: Array, log_std: Array | None, action: Array, mask: Array | None) -> None:
        self.action = action
        self.p, self.log_p = np.empty_like(params), np.empty_like(params)
        self.log_prob = np.empty(len(params), np.float32)
        masks = _NO_MASK if mask is None else mask
        forward_categories(params, masks, self.edges, action, self.p, self.log_p, self.log_prob)

    def backward(self, slope: Array, bonus: Array) -> Array:
        self.d_params, entropy = np.empty_like(self.p), np.empty_like(slope)
        backward_categories(self.p, self.log_p, self.edges, self.action, slope, bonus, self.d_params, entropy)
        return entropy


class BinaryHead:
    """MultiBinary: independent bits."""

    d_log_std: Array | None = None

    def __init__(self, action: ActionSpec) -> None:
        pass

    def load(self, params: Array, log_std: Array | None, action: Array, mask: Array | None) -> None:
        self.logits = params
        self.sigma = 1.0 / (1.0 + np.exp(-params))
        self.softplus = np.logaddexp(np.float32(0.0), params)
        self.action = action.astype(np.float32)
        self.log_prob = (self.action * params - self.softplus).sum(axis=-1)

    def backward(self, slope: Array, bonus: Array) -> Array:
        flat = self.logits * self.sigma * (1.0 - self.sigma)
        self.d_params = slope[:, None] * (self.action - self.sigma) + bonus[:, None] * flat
        return np.asarray((self.softplus - self.logits * self.sigma).sum(axis=-1))


class GaussianHead:
    """Box: a mean per dimension and a log-deviation that does not depend on the state."""

    def __init__(self, action: ActionSpec) -> None:
        pass

    def load(self, params: Array, log_std: Array | None, action: Array, mask: Array | None) -> None:
        assert log_std is not None
        self.log_std, self.inverse = log_std, np.exp(-log_std)
        self.z = (action - params) * self.inverse
        self.log_prob = (-0.5 * self.z * self.z - log_std - np.float32(HALF_LOG_2PI)).sum(axis=-1)

    def backward(self, slope: Array, bonus: Array) -> Array:
        self.d_params = slope[:, None] * (self.z * self.inverse)
        self.d_log_std = slope @ (self.z * self.z - 1.0) - bonus.sum()
        entropy = float((self.log_std + 0.5 + HALF_LOG_2PI).sum())
        return np.full(len(slope), entropy, np.float32)


def make_head(action: ActionSpec) -> Head:
    """The head for one action space."""
    kinds: dict[str, Callable[[ActionSpec], Head]] = {
        "categories": CategoricalHead,
        "binary": BinaryHead,
        "box": GaussianHead,
    }
    return kinds[action.kind](action)
