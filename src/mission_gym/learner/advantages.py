"""Importance, generalised advantage estimation and the scale of values: one equation each, no network."""

from __future__ import annotations

import math

import numpy as np

from mission_gym.data import Array

_DECAY = 0.9  # of a block's weight in the scale of values, with each block that follows
_FLOOR = 1e-3  # under the deviation of value targets, as a share of their mean
_TINY = 1e-30  # a deviation below it counts as 0: its square leaves the range of float32


def compute_importance(log_prob: Array, behaviour: Array, lag: Array) -> Array | None:
    """rho = min(pi_prox / mu, 1), float32 [T, S], from log-probabilities [T, S]; exactly 1 in segments
    whose `lag` [S] is 0, None where no segment lags."""
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
    """Advantages and returns, float32 [T, S].

    delta_t = r_t + gamma V'_t - V_t,  A_t = delta_t + gamma lambda rho_{t+1} (1 - ended_t) A_{t+1},
    G_t = V_t + rho_t A_t, with rho = 1 where there is no `importance`.
    `next_value` V'_t is 0 where terminated, V(final_obs) where truncated, else V(o_{t+1}); the trace
    is cut at both kinds of end, the end of the block bootstraps without cutting.
    """
    delta = reward + gamma * next_value - value
    decay = (gamma * lam) * ~ended
    if importance is not None:
        # A_t judges the action at t, whichever policy took it; doubt begins with the one after.
        decay[:-1] *= importance[1:]
    advantage = np.empty_like(delta)
    running = np.zeros(delta.shape[1], delta.dtype)
    for t in range(len(delta) - 1, -1, -1):
        running = delta[t] + decay[t] * running
        advantage[t] = running
    gain = advantage if importance is None else advantage * importance
    return advantage.astype(np.float32), (gain + value).astype(np.float32)


class ValueScale:
    """The running mean and deviation of value targets: a critic's output v is read as V = mean + deviation v,
    and fitted to (G - mean) / deviation, so that no reward is too large or too small for it.

    An exponential moving average over blocks, debiased as Adam's moments are, so that the first block makes
    the whole of it. As long as every target was 0 the deviation is 0, and all values are.
    """

    def __init__(self, mean: float = 0.0, var: float = 0.0) -> None:
        """Those of a critic that was fitted without us; the first block replaces them."""
        self.weight, self.mean, self.var = 0.0, mean, var

    @property
    def deviation(self) -> float:
        """With a floor: targets that differ by less than a small share of their mean are equal ones."""
        deviation = max(math.sqrt(self.var), _FLOOR * abs(self.mean))
        return deviation if deviation > _TINY else 0.0

    @property
    def unit(self) -> float:
        """What differences of values are divided by; any number will do where all of them are 0."""
        return self.deviation or 1.0

    def expand(self, output: Array) -> Array:
        """Values in the reward's units, float64, of what the critic gives."""
        return self.mean + self.deviation * output.astype(np.float64)

    def shrink(self, value: Array) -> Array:
        """What a critic should give for these values, or targets, of the reward's units."""
        return (value - self.mean) / self.unit

    def merge(self, targets: Array) -> tuple[float, float]:
        """Take in the targets [N] of a block, before they are learned from: so their mean square after
        `shrink` is 1 / (1 - decay) at most, whatever came before.

        Returns factor and shift for a critic's output, by which the differences of its values stay, while
        their level moves with the mean: gradient steps alone would be long in coming to a far one.
        """
        mean, deviation, is_ours = self.mean, self.deviation, self.weight > 0.0
        if len(targets):
            self.weight = 1.0 - _DECAY * (1.0 - self.weight)
            share = (1.0 - _DECAY) / self.weight
            delta = float(targets.mean(dtype=np.float64)) - self.mean
            spread = float(targets.var(dtype=np.float64))
            self.var = (1.0 - share) * (self.var + share * delta**2) + share * spread
            self.mean += share * delta
        if not deviation or not self.deviation:  # the critic said nothing yet
            return 1.0, 0.0
        # The level of a critic that was fitted without us is its own: it stays.
        return deviation / self.deviation, 0.0 if is_ours else (mean - self.mean) / self.deviation

    def arrays(self) -> dict[str, Array]:
        return {"value_scale": np.array([self.weight, self.mean, self.var])}

    def load(self, arrays: dict[str, Array]) -> None:
        self.weight, self.mean, self.var = (float(x) for x in arrays["value_scale"])
