"""From action values to actions, in NumPy, for every acting path: greedy, or random with probability epsilon.

One uniform number per row decides both whether and which action is random, so that the noise of a block is
drawn as for every other policy. Noisy layers take theirs from a stream that these numbers name.
"""

from __future__ import annotations

import numpy as np

from mission_gym.data import ActOut, Array
from mission_gym.policy.sampling import FILLER
from mission_gym.streams import generator

EPSILON = "exploration.epsilon"  # name of epsilon among the weights


def choose(values: Array, mask: Array | None, noise: Array | None, epsilon: float) -> ActOut:
    """Actions [B, 1] for values [B, A], mask bool [B, A], noise [B, 1] in [0, 1); no noise plays greedily."""
    legal = values if mask is None else np.where(mask, values, np.float32(FILLER))
    action = legal.argmax(axis=1)
    if noise is not None and epsilon > 0.0:
        drawn = noise[:, 0]
        rows = (drawn < epsilon).nonzero()[0]
        if len(rows):
            # Given that it is below epsilon, drawn / epsilon is uniform in [0, 1) again.
            share = drawn[rows].astype(np.float64) / epsilon
            if mask is None:
                action[rows] = (share * values.shape[1]).astype(np.int64)
            else:
                counted = mask[rows].cumsum(axis=1)
                rank = (share * counted[:, -1]).astype(np.int64)
                action[rows] = (counted <= rank[:, None]).sum(axis=1)
    return ActOut(action[:, None], np.zeros(len(values), np.float32))


def draw_layer_noise(rng: np.random.Generator, num_in: int, num_out: int) -> tuple[Array, Array]:
    """Factorised noise of one layer: f(e) of normal numbers for inputs and outputs, f(x) = sgn(x) sqrt|x|."""
    drawn = rng.standard_normal(num_in + num_out, np.float32)
    drawn = np.sign(drawn) * np.sqrt(np.abs(drawn))
    return drawn[:num_in], drawn[num_in:]


def noise_stream(noise: Array) -> np.random.Generator:
    """The stream of an acting call, a function of the numbers that were drawn for it."""
    return generator("noisy", noise.tobytes().hex())
