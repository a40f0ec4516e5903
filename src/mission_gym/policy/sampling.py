"""From actor outputs to stored actions and their log-probabilities, in NumPy, for every acting path.

Noise is drawn by the caller for a whole block (`draw_noise`), so an interrupted block goes on with
the same numbers. Masked entries are filled with the dtype's finite minimum and can't be drawn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mission_gym.data import ActionKind, ActionSpec, ActOut, Array

FILLER = float(np.finfo(np.float32).min)
HALF_LOG_2PI = 0.9189385332046727


def draw_noise(action: ActionSpec, rng: np.random.Generator, num_steps: int, num_rows: int) -> Array:
    """Noise [T, B, K] for one block: normal for real numbers, uniform in [0, 1) for categories and bits."""
    shape, num_reals = (num_steps, num_rows), action.num_reals
    parts = [
        draw((*shape, count), np.float32)
        for draw, count in ((rng.random, action.num_stored - num_reals), (rng.standard_normal, num_reals))
        if count
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


class Group(NamedTuple):
    """Numbers of an action that are drawn alike: their columns of the outputs and of what is stored."""

    kind: ActionKind
    params: slice
    stored: slice


def split_groups(action: ActionSpec) -> list[Group]:
    """The categories, bits and real numbers of an action, those that it has."""
    groups, wide, narrow = [], 0, 0
    sizes: tuple[tuple[ActionKind, int, int], ...] = (
        ("categories", sum(action.nvec), len(action.nvec)),
        ("binary", action.num_bits, action.num_bits),
        ("box", action.num_reals, action.num_reals),
    )
    for kind, num_params, num_stored in sizes:
        if num_stored:
            groups.append(Group(kind, slice(wide, wide + num_params), slice(narrow, narrow + num_stored)))
        wide, narrow = wide + num_params, narrow + num_stored
    return groups


def part_columns(nvec: tuple[int, ...]) -> Array | None:
    """Columns [K, W] that lay flat logits out as equal parts, -1 for padding; None if they are equal."""
    if len(set(nvec)) <= 1:
        return None
    columns = np.full((len(nvec), max(nvec)), -1, np.int64)
    start = 0
    for row, size in zip(columns, nvec, strict=True):
        row[:size] = np.arange(start, start + size)
        start += size
    return columns


def split_parts(flat: Array, nvec: tuple[int, ...], columns: Array | None, filler: float) -> Array:
    """Flat [B, sum(nvec)] as [B, K, W]; padding holds the filler."""
    if columns is None:
        return flat.reshape(len(flat), len(nvec), nvec[0])
    # Indexing with a table lays its result out in another order than C.
    return np.ascontiguousarray(np.where(columns < 0, np.asarray(filler, flat.dtype), flat[:, columns]))


class Sampler:
    """Draws actions from actor outputs; `noise=None` takes the mode."""

    def __init__(self, action: ActionSpec) -> None:
        self.action = action
        self._columns = part_columns(action.nvec)
        self._groups = split_groups(action)

    def __call__(
        self, params: Array, log_std: Array | None, mask: Array | None, noise: Array | None
    ) -> ActOut:
        """params [B, P], log_std of the real numbers, mask bool [B, M], noise [B, K]."""
        if self.action.kind != "composite":
            return self._draw(self.action.kind, params, log_std, mask, noise)
        drawn = [
            self._draw(kind, params[:, wide], log_std, mask, None if noise is None else noise[:, narrow])
            for kind, wide, narrow in self._groups
        ]
        # Parts are independent given the observation, so log-probabilities add.
        actions = np.concatenate([out.action for out in drawn], axis=1, dtype=np.float32)
        return ActOut(actions, np.sum([out.log_prob for out in drawn], axis=0))

    def _draw(
        self, kind: str, params: Array, log_std: Array | None, mask: Array | None, noise: Array | None
    ) -> ActOut:
        if kind == "box":
            assert log_std is not None
            return _gaussian(params, log_std, noise)
        if kind == "binary":
            return _bernoulli(params, noise)
        return self._categorical(params, mask, noise)

    def _categorical(self, params: Array, mask: Array | None, noise: Array | None) -> ActOut:
        if mask is not None:
            params = np.where(mask, params, np.float32(FILLER))
        num_parts = len(self.action.nvec)
        if num_parts > 1:
            logits = split_parts(params, self.action.nvec, self._columns, FILLER)
            params = logits.reshape(-1, logits.shape[-1])
        # Categories first, [W, B * K]: to reduce over the first axis is many times as fast as over the last.
        # float64: the cumulated probabilities of masked entries must not move by rounding.
        shifted = params.T.astype(np.float64, order="C")
        shifted -= np.maximum.reduce(shifted)
        cumulated = np.exp(shifted)
        np.add.accumulate(cumulated, 0, None, cumulated)
        total = cumulated[-1]
        if noise is None:
            action = shifted.argmax(0)
        else:
            # `<=` skips entries of probability 0 before the first legal one; noise < 1 those behind the last.
            action = np.add.reduce(cumulated <= noise.reshape(-1) * total)
        log_prob = shifted[action, np.arange(len(action))]
        log_prob -= np.log(total)
        if num_parts > 1:
            log_prob = log_prob.reshape(-1, num_parts).sum(axis=-1)
        return ActOut(action.reshape(-1, num_parts), log_prob.astype(np.float32))


def _bernoulli(logits: Array, noise: Array | None) -> ActOut:
    action = (logits > 0) if noise is None else (noise < 1.0 / (1.0 + np.exp(-logits.astype(np.float64))))
    signed = np.where(action, logits, -logits)
    log_prob = -np.logaddexp(0.0, -signed.astype(np.float64)).sum(axis=-1)
    return ActOut(action.astype(np.int64), log_prob.astype(np.float32))


def _gaussian(mean: Array, log_std: Array, noise: Array | None) -> ActOut:
    if noise is None:
        noise = np.zeros_like(mean)
    action = mean + np.exp(log_std) * noise
    log_prob = (-0.5 * noise**2 - log_std - HALF_LOG_2PI).sum(axis=-1)
    return ActOut(action.astype(np.float32), log_prob.astype(np.float32))


def draw_random(action: ActionSpec, mask: Array | None, rng: np.random.Generator, num_rows: int) -> Array:
    """Stored actions [B, K], uniform over the legal ones; standard normal where a Box bound is infinite."""
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
    """The position of the highest score [B, K] in each part of flat scores [B, M], ties to the first."""
    edges = pairwise(np.cumsum((0, *action.nvec)))
    return np.stack([scores[:, first:last].argmax(axis=1) for first, last in edges], axis=1)
