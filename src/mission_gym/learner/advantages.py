"""Importance weights, generalised advantage estimation and the scale of values: one equation each, no
network."""

from __future__ import annotations

import math

import numpy as np

from mission_gym.data import Array

_DECAY = 0.9  # of a block's weight in the scale of values, per later block
_FLOOR = 1e-3  # of the standard deviation of value targets, as a share of their mean
_TINY = 1e-30  # a smaller standard deviation counts as 0: its square underflows in float32


def compute_importance(log_prob: Array, behaviour: Array, lag: Array) -> Array | None:
    """rho = min(pi_prox / mu, 1), float32 [T, N], from log-probabilities [T, N]; exactly 1 in columns whose
    `lag` [N] is 0, None if no column lags."""
    if not lag.any():
        return None
    importance: Array = np.exp(np.minimum(log_prob - behaviour, np.float32(0.0)))
    importance[:, lag == 0] = 1.0
    return importance


def compute_gae(
    reward: Array,
    value: Array,
    next_value: Array,
    ended: Array,
    gamma: float,
    lam: float,
    importance: Array | None = None,
) -> tuple[Array, Array]:
    """Advantages and returns, float32 [T, N].

    delta_t = r_t + gamma V'_t - V_t,  A_t = delta_t + gamma lambda rho_{t+1} (1 - ended_t) A_{t+1},
    G_t = V_t + rho_t A_t, with rho = 1 without `importance`.
    `next_value` V'_t is 0 if terminated, V(final_obs) if truncated, else V(o_{t+1}). Both kinds of end cut
    the trace; the end of the block bootstraps without cutting.
    """
    delta = reward + gamma * next_value - value
    decay = (gamma * lam) * ~ended
    if importance is not None:
        # A_t evaluates the action at t, whichever policy took it; importance applies from the next action on.
        decay[:-1] *= importance[1:]
    advantage = np.empty_like(delta)
    running = np.zeros(delta.shape[1], delta.dtype)
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + decay[t] * running
        advantage[t] = running
    gain = advantage if importance is None else advantage * importance
    return advantage.astype(np.float32), (gain + value).astype(np.float32)


class ValueScale:
    """The running mean and standard deviation of value targets. The critic's output v means V = mean + std v,
    and it is fitted to (G - mean) / std, so rewards of any size suit it.

    An exponential moving average over blocks, bias-corrected as Adam's moments are, so the first block sets
    it fully. While every target is 0, the standard deviation is 0 and so are all values.
    """

    def __init__(self, mean: float = 0.0, var: float = 0.0) -> None:
        """mean, var: those of a critic that was fitted without a scale; the first block replaces them."""
        self.weight, self.mean, self.var = 0.0, mean, var

    @property
    def std(self) -> float:
        """The standard deviation, with a floor: targets that differ by a tiny share of their mean are
        equal."""
        std = max(math.sqrt(self.var), _FLOOR * abs(self.mean))
        return std if std > _TINY else 0.0

    @property
    def unit(self) -> float:
        """The divisor of value differences; 1 if all of them are 0."""
        return self.std or 1.0

    def denormalize(self, output: Array) -> Array:
        """Values in the reward's units, float64, from the critic's outputs."""
        return self.mean + self.std * output.astype(np.float64)

    def normalize(self, value: Array) -> Array:
        """The critic's outputs for values, or targets, in the reward's units."""
        return (value - self.mean) / self.unit

    def merge(self, targets: Array) -> tuple[float, float]:
        """Add the targets [N] of a block before they are learned from, so that their mean square after
        `normalize` is at most 1 / (1 - decay).

        Returns a factor and a shift for the critic's output. They keep the differences of its values, while
        their level follows the mean, which gradient steps alone would reach slowly.
        """
        mean, std, has_scale = self.mean, self.std, self.weight > 0.0
        if len(targets):
            self.weight = 1.0 - _DECAY * (1.0 - self.weight)
            share = (1.0 - _DECAY) / self.weight
            delta = float(targets.mean(dtype=np.float64)) - self.mean
            spread = float(targets.var(dtype=np.float64))
            self.var = (1.0 - share) * (self.var + share * delta**2) + share * spread
            self.mean += share * delta
        if not std or not self.std:  # the critic's outputs meant nothing yet
            return 1.0, 0.0
        # A critic that was fitted without a scale keeps its level.
        return std / self.std, 0.0 if has_scale else (mean - self.mean) / self.std

    def arrays(self) -> dict[str, Array]:
        return {"value_scale": np.array([self.weight, self.mean, self.var])}

    def load(self, arrays: dict[str, Array]) -> None:
        self.weight, self.mean, self.var = (float(x) for x in arrays["value_scale"])
