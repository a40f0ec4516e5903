"""Scripted policies: batches of observations and masks in, actions out.

They read only the numbers and the mask. Both attack in the direction with the most affordable cells.
expander gives enemy cells half the weight and sends half of its troops. conqueror gives them full weight,
sends no more than it needs, and attacks only enemies it outnumbers two to one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym_missions.env import BatchPolicy
from mission_gym_missions.territory.sim.layout import (
    D_ENEMY_ODDS,
    D_NEUTRAL_ODDS,
    D_NEUTRALS,
    D_TARGETS,
    INTENSITIES,
    N_DIRECTIONS,
    NUM_DIRECTION_NUMBERS,
    NUM_DIRECTIONS,
    NUM_INTENSITIES,
    WAIT,
)


def expand(obs: Any, mask: Array) -> Array:
    """Attack the widest front, preferring neutral land, with half of the troops."""
    fronts = _read_fronts(obs)
    direction, _ = _find_widest(fronts, enemy_weight=0.5, margin=1.0)
    return _choose(direction, np.full(len(direction), NUM_INTENSITIES - 1), mask)


def conquer(obs: Any, mask: Array) -> Array:
    """Attack the widest front with as few troops as it takes."""
    fronts = _read_fronts(obs)
    direction, need = _find_widest(fronts, enemy_weight=1.0, margin=2.0)
    intensity = np.searchsorted(INTENSITIES / INTENSITIES[-1], need.clip(0.0, 1.0))
    return _choose(direction, intensity, mask)


def _read_fronts(obs: Any) -> Array:
    """Return the numbers of the directions [N, 4, K] from a dict of observations or its leaves."""
    numbers = obs["numbers"] if isinstance(obs, dict) else obs[1]  # leaves are sorted by name
    fronts: Array = numbers[:, N_DIRECTIONS:].reshape(-1, NUM_DIRECTIONS, NUM_DIRECTION_NUMBERS)
    return fronts


def _find_widest(fronts: Array, enemy_weight: float, margin: float) -> tuple[Array, Array]:
    """Return the direction with the most affordable cells [N], and the share of half the troops it needs."""
    neutrals = fronts[..., D_TARGETS] * fronts[..., D_NEUTRALS]
    enemies = fronts[..., D_TARGETS] - neutrals
    neutral_need = _find_need(fronts[..., D_NEUTRAL_ODDS])
    enemy_need = margin * _find_need(fronts[..., D_ENEMY_ODDS])
    takes_neutrals, takes_enemies = neutral_need <= 1.0, enemy_need <= 1.0
    direction = (neutrals * takes_neutrals + enemy_weight * enemies * takes_enemies).argmax(axis=1)
    need = np.maximum(np.where(takes_neutrals, neutral_need, 0.0), np.where(takes_enemies, enemy_need, 0.0))
    return direction, need[np.arange(len(need)), direction]


def _find_need(odds: Array) -> Array:
    """Return cost / s of the cheapest cell from odds = s / (s + cost); s: troops per cell if half attack."""
    return np.where(odds > 0.0, (1.0 - odds) / np.maximum(odds, 1e-9), np.inf)


def _choose(direction: Array, intensity: Array, mask: Array) -> Array:
    """Return the action of each row: wait if the attack would take nothing."""
    attacks = 1 + NUM_INTENSITIES * direction + intensity
    actions: Array = np.where(mask[np.arange(len(mask)), attacks] == 1, attacks, WAIT)
    return actions


BASELINES: dict[str, BatchPolicy] = {"expander": expand, "conqueror": conquer}
