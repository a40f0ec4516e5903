"""Action distributions with hand-written gradients, for the NumPy kernel.

`load` computes the log-probability of stored actions; `backward` turns d loss / d log pi into
d loss / d actor outputs, with the entropy bonus added. One class per kind of action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from mission_gym.data import ActionSpec, Array
from mission_gym.policy.sampling import FILLER, HALF_LOG_2PI, part_columns, split_parts


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
        self.nvec = action.nvec
        self.columns = part_columns(action.nvec)
        # Where each flat logit lies among the padded parts.
        self.places = None if self.columns is None else np.flatnonzero(self.columns.ravel() >= 0)

    def load(self, params: Array, log_std: Array | None, action: Array, mask: Array | None) -> None:
        if mask is not None:
            params = np.where(mask, params, np.float32(FILLER))
        z = split_parts(params, self.nvec, self.columns, FILLER)
        z = z - z.max(axis=-1, keepdims=True)
        p = np.exp(z)
        total = np.add.reduce(p, axis=-1, keepdims=True)
        p /= total
        z -= np.log(total)
        # Places of the chosen entries in the flat array.
        num, parts, width = z.shape
        self.chosen = action + (np.arange(num * parts) * width).reshape(num, parts)
        self.p, self.log_p = p, z
        picked = z.ravel().take(self.chosen)
        self.log_prob = picked[:, 0] if parts == 1 else np.add.reduce(picked, axis=-1)

    def backward(self, slope: Array, bonus: Array) -> Array:
        p, num = self.p, len(slope)
        # 0 log 0 = 0: a masked entry holds a log-probability near the dtype's minimum, or -inf.
        p_log_p = p * np.maximum(self.log_p, np.float32(FILLER))
        entropy = -np.add.reduce(p_log_p, axis=-1, keepdims=True)
        d = p * -slope.reshape(num, 1, 1)
        d.ravel()[self.chosen] += slope.reshape(num, 1)
        if bonus.any():
            d += bonus.reshape(num, 1, 1) * (p_log_p + p * entropy)
        flat = d.reshape(num, -1)
        self.d_params = flat if self.places is None else flat[:, self.places]
        return entropy.reshape(num) if p.shape[1] == 1 else np.add.reduce(entropy[..., 0], axis=-1)


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
