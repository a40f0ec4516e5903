"""Importance, generalised advantage estimation and the return scale: one equation each, no network."""

from __future__ import annotations

import numpy as np

from mission_gym.data import Array

_CLIP = 10.0


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


def _split_repeats(env_ids: Array) -> list[Array]:
    """Rows of a block in passes, in each of which no environment occurs twice: its first ones, its second."""
    order = np.argsort(env_ids, kind="stable")
    ordered = env_ids[order]
    rank = np.empty(len(order), np.int64)  # how often the environment occurs before
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return [np.flatnonzero(rank == turn) for turn in range(int(rank.max()) + 1)]


class ReturnScale:
    """Divides rewards by the standard deviation of discounted sums per environment; no mean is taken.

    The sums are carried across blocks and start anew where an episode ends. Logged returns stay raw.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.sums = np.zeros(num_envs)
        self.count, self.mean, self.var = 0.0, 0.0, 1.0

    def scale(self, reward: Array, ended: Array, valid: Array, env_ids: Array) -> Array:
        """Take the block's rewards [T, S] into the statistics and return them scaled.

        Several segments of one environment follow one another in time, in the order of the block.
        """
        seen = np.empty(reward.shape)
        for rows in _split_repeats(env_ids):
            sums = self.sums[env_ids[rows]]
            running = reward[:, rows]
            for now, over in zip(running, ended[:, rows], strict=True):
                now += sums * self.gamma
                sums = np.where(over, 0.0, now)
            seen[:, rows] = running
            self.sums[env_ids[rows]] = sums
        self._merge(seen[valid])
        scaled: Array = np.clip(reward / np.sqrt(self.var + 1e-8), -_CLIP, _CLIP)
        return scaled

    def _merge(self, seen: Array) -> None:
        count, total = len(seen), self.count + len(seen)
        if not count:
            return
        delta = float(seen.mean()) - self.mean
        old = self.var * self.count if self.count else 0.0
        self.var = (old + float(seen.var()) * count + delta**2 * self.count * count / total) / total
        self.mean += delta * count / total
        self.count = total

    def arrays(self) -> dict[str, Array]:
        return {
            "return_scale.sums": self.sums.copy(),
            "return_scale.moments": np.array([self.count, self.mean, self.var]),
        }

    def load(self, arrays: dict[str, Array]) -> None:
        self.sums = np.array(arrays["return_scale.sums"])
        self.count, self.mean, self.var = (float(x) for x in arrays["return_scale.moments"])
