"""From network outputs to stored actions, in NumPy, for every acting path.

The caller draws the noise of a whole block (`draw_noise`), so an interrupted block continues with the same
numbers. Illegal entries are filled with the finite minimum of float32 and can't be drawn.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mission_gym.actions import ActionKind, ActionSpec
from mission_gym.data import ActOut, Array
from mission_gym.streams import generator

FILLER = float(np.finfo(np.float32).min)
HALF_LOG_2PI = 0.9189385332046727
LOG_STD_RANGE = (-5.0, 2.0)  # of squashed Gaussians
_erf = np.vectorize(math.erf, otypes=[np.float32])


def draw_noise(action: ActionSpec, rng: np.random.Generator, num_steps: int, num_rows: int) -> Array:
    """Noise [T, B, K] for one block: uniform in [0, 1) for categories and bits, normal for real numbers."""
    shape, num_reals = (num_steps, num_rows), action.num_reals
    parts = [
        draw((*shape, count), np.float32)
        for draw, count in ((rng.random, action.num_stored - num_reals), (rng.standard_normal, num_reals))
        if count
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


class ActionGroup(NamedTuple):
    """Numbers of an action with the same distribution: their columns in the outputs and in stored actions."""

    kind: ActionKind
    outputs: slice
    stored: slice


def split_groups(action: ActionSpec) -> list[ActionGroup]:
    """The groups of an action: categories, bits and real numbers, in this order, without empty ones."""
    groups, first_output, first_stored = [], 0, 0
    sizes: tuple[tuple[ActionKind, int, int], ...] = (
        ("categories", sum(action.nvec), len(action.nvec)),
        ("binary", action.num_bits, action.num_bits),
        ("box", action.num_reals, action.num_reals),
    )
    for kind, num_outputs, num_stored in sizes:
        outputs, stored = first_output + num_outputs, first_stored + num_stored
        if num_stored:
            groups.append(ActionGroup(kind, slice(first_output, outputs), slice(first_stored, stored)))
        first_output, first_stored = outputs, stored
    return groups


def part_columns(nvec: tuple[int, ...]) -> Array | None:
    """Columns [K, W] that arrange flat logits in parts of equal width, -1 for padding. None if the parts have
    equal widths already."""
    if len(set(nvec)) <= 1:
        return None
    columns = np.full((len(nvec), max(nvec)), -1, np.int64)
    start = 0
    for row, size in zip(columns, nvec, strict=True):
        row[:size] = np.arange(start, start + size)
        start += size
    return columns


def _split_parts(flat: Array, nvec: tuple[int, ...], columns: Array | None, filler: float) -> Array:
    """Flat logits [B, sum(nvec)] as [B, K, W]; padding holds the filler."""
    if columns is None:
        return flat.reshape(len(flat), len(nvec), nvec[0])
    # Fancy indexing returns another memory order than C.
    return np.ascontiguousarray(np.where(columns < 0, np.asarray(filler, flat.dtype), flat[:, columns]))


class Sampler:
    """Draws actions from actor outputs, or with `noise=None` returns the mode."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action
        self._columns = part_columns(action.nvec)
        self._groups = split_groups(action)

    def __call__(
        self, outputs: Array, log_std: Array | None, mask: Array | None, noise: Array | None
    ) -> ActOut:
        """outputs [B, P], log_std [num_reals], mask bool [B, M], noise [B, K]."""
        if self.action.kind != "composite":
            return self._draw(self.action.kind, outputs, log_std, mask, noise)
        drawn = [
            self._draw(
                group.kind,
                outputs[:, group.outputs],
                log_std,
                mask,
                None if noise is None else noise[:, group.stored],
            )
            for group in self._groups
        ]
        # Groups are independent given the observation, so log-probabilities add.
        actions = np.concatenate([out.action for out in drawn], axis=1, dtype=np.float32)
        return ActOut(actions, np.sum([out.log_prob for out in drawn], axis=0))

    def _draw(
        self, kind: str, outputs: Array, log_std: Array | None, mask: Array | None, noise: Array | None
    ) -> ActOut:
        if kind == "box":
            assert log_std is not None
            return _draw_gaussian(outputs, log_std, noise)
        if kind == "binary":
            return _draw_bernoulli(outputs, noise)
        return self._draw_categorical(outputs, mask, noise)

    def _draw_categorical(self, logits: Array, mask: Array | None, noise: Array | None) -> ActOut:
        if mask is not None:
            logits = np.where(mask, logits, np.float32(FILLER))
        num_parts = len(self.action.nvec)
        if num_parts > 1:
            parts = _split_parts(logits, self.action.nvec, self._columns, FILLER)
            logits = parts.reshape(-1, parts.shape[-1])
        # Categories first, [W, B * K]: reducing over the first axis is many times faster than over the last.
        # float64: rounding must not move the cumulative probabilities of illegal entries.
        shifted = logits.T.astype(np.float64, order="C")
        shifted -= np.maximum.reduce(shifted)
        cumulative = np.exp(shifted)
        np.add.accumulate(cumulative, 0, None, cumulative)
        total = cumulative[-1]
        if noise is None:
            action = shifted.argmax(0)
        else:
            # `<=` skips illegal entries before the first legal one, noise < 1 those after the last.
            action = np.add.reduce(cumulative <= noise.reshape(-1) * total)
        log_prob = shifted[action, np.arange(len(action))]
        log_prob -= np.log(total)
        if num_parts > 1:
            log_prob = log_prob.reshape(-1, num_parts).sum(axis=-1)
        return ActOut(action.reshape(-1, num_parts), log_prob.astype(np.float32))


def _draw_bernoulli(logits: Array, noise: Array | None) -> ActOut:
    action = (logits > 0) if noise is None else (noise < 1.0 / (1.0 + np.exp(-logits.astype(np.float64))))
    signed = np.where(action, logits, -logits)
    log_prob = -np.logaddexp(0.0, -signed.astype(np.float64)).sum(axis=-1)
    return ActOut(action.astype(np.int64), log_prob.astype(np.float32))


def _draw_gaussian(mean: Array, log_std: Array, noise: Array | None) -> ActOut:
    if noise is None:
        noise = np.zeros_like(mean)
    action = mean + np.exp(log_std) * noise
    log_prob = (-0.5 * noise**2 - log_std - HALF_LOG_2PI).sum(axis=-1)
    return ActOut(action.astype(np.float32), log_prob.astype(np.float32))


def draw_random(action: ActionSpec, mask: Array | None, rng: np.random.Generator, num_rows: int) -> Array:
    """Stored actions [B, K], uniform over the legal ones; standard normal if a Box bound is infinite."""
    drawn = []
    if action.nvec:
        scores = rng.random((num_rows, sum(action.nvec)))
        drawn.append(best_of_parts(scores if mask is None else np.where(mask, scores, -1.0), action))
    if action.num_bits:
        drawn.append(rng.integers(0, 2, (num_rows, action.num_bits)))
    if action.num_reals:
        finite = np.isfinite(action.low) & np.isfinite(action.high)
        uniform = rng.uniform(-1.0, 1.0, (num_rows, action.num_reals))
        drawn.append(np.where(finite, uniform, rng.standard_normal(uniform.shape)))
    return np.concatenate(drawn, axis=1).astype(action.stored_dtype, copy=False)


def best_of_parts(scores: Array, action: ActionSpec) -> Array:
    """The index of the highest score [B, K] in each part of flat scores [B, M]; the first one of equals."""
    edges = pairwise(np.cumsum((0, *action.nvec)))
    return np.stack([scores[:, first:last].argmax(axis=1) for first, last in edges], axis=1)


def choose_by_value(values: Array, mask: Array | None, noise: Array | None, epsilon: float) -> ActOut:
    """Actions [B, 1] for action values [B, A]: the best legal one, or a random one with probability epsilon.

    mask: bool [B, A]. noise: [B, 1] in [0, 1); None never explores. One uniform number per row decides
    whether the action is random and which one it is, so blocks of noise look alike for all policies.
    """
    legal = values if mask is None else np.where(mask, values, np.float32(FILLER))
    action = legal.argmax(axis=1)
    if noise is not None and epsilon > 0.0:
        drawn = noise[:, 0]
        rows = (drawn < epsilon).nonzero()[0]
        if len(rows):
            # Given drawn < epsilon, drawn / epsilon is uniform in [0, 1) again.
            share = drawn[rows].astype(np.float64) / epsilon
            if mask is None:
                action[rows] = (share * values.shape[1]).astype(np.int64)
            else:
                counted = mask[rows].cumsum(axis=1)
                rank = (share * counted[:, -1]).astype(np.int64)
                action[rows] = (counted <= rank[:, None]).sum(axis=1)
    return ActOut(action[:, None], np.zeros(len(values), np.float32))


def sample_squashed(outputs: Array, noise: Array | None, exploration: float) -> ActOut:
    """Actions tanh(mean + std * noise) [B, K] for outputs [B, 2 K]: the means, then raw log standard
    deviations.

    log std = low + (high - low) (1 + tanh(raw)) / 2, within LOG_STD_RANGE.
    noise: [B, K], standard normal; None for tanh(mean). exploration: 1 for uniform actions in [-1, 1].
    Their log-probabilities are not computed.
    """
    mean, raw = np.split(outputs, 2, axis=1)
    if noise is None:
        action = np.tanh(mean)
    elif exploration < 1.0:
        low, high = LOG_STD_RANGE
        log_std = low + 0.5 * (high - low) * (1.0 + np.tanh(raw))
        action = np.tanh(mean + np.exp(log_std) * noise)
    else:  # erf(x / sqrt 2) of a standard normal x is uniform
        action = _erf(noise * 0.5**0.5)
    return ActOut(action.astype(np.float32, copy=False), np.zeros(len(outputs), np.float32))


def draw_layer_noise(rng: np.random.Generator, num_in: int, num_out: int) -> tuple[Array, Array]:
    """Factorised noise of one noisy layer: f(e) for inputs and outputs, e normal, f(x) = sgn(x) sqrt|x|."""
    drawn = rng.standard_normal(num_in + num_out, np.float32)
    drawn = np.sign(drawn) * np.sqrt(np.abs(drawn))
    return drawn[:num_in], drawn[num_in:]


def make_noise_generator(noise: Array) -> np.random.Generator:
    """The generator for the noisy layers of an acting call: a function of the call's own noise."""
    return generator("noisy", noise.tobytes().hex())
