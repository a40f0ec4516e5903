"""Scripted policies: batches of observations and masks in, actions out.

They read the numbers and the mask alone. Both attack where most cells can be taken. expander counts cells of
enemies half and sends half of its troops; conqueror counts them alike, sends no more than it needs, and only
against those it outnumbers two to one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mission_gym.data import Array
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

BatchPolicy = Callable[
    [Any, Array], Array
]  # leaves or dict of observations, mask [N, A] -> actions int64 [N]
Policy = Callable[[dict[str, Array], dict[str, Any]], int]  # obs, info -> action


def make_batch_policies() -> dict[str, BatchPolicy]:
    """The scripted policies of a batch."""
    return {"expander": expand, "conqueror": conquer}


def make_policies() -> dict[str, Policy]:
    """Those of a single game."""
    return {name: partial(_one, policy) for name, policy in make_batch_policies().items()}


def expand(obs: Any, mask: Array) -> Array:
    """Take the widest front, neutral land first, with half of the troops."""
    fronts = _read_fronts(obs)
    direction, _ = _find_widest(fronts, enemy_weight=0.5, margin=1.0)
    return _choose(direction, np.full(len(direction), NUM_INTENSITIES - 1), mask)


def conquer(obs: Any, mask: Array) -> Array:
    """Take the widest front with as few troops as take it."""
    fronts = _read_fronts(obs)
    direction, need = _find_widest(fronts, enemy_weight=1.0, margin=2.0)
    intensity = np.searchsorted(INTENSITIES / INTENSITIES[-1], need.clip(0.0, 1.0))
    return _choose(direction, intensity, mask)


def _read_fronts(obs: Any) -> Array:
    """The numbers of the directions [N, 4, K]."""
    numbers = obs["numbers"] if isinstance(obs, dict) else obs[1]  # leaves are in the order of their names
    fronts: Array = numbers[:, N_DIRECTIONS:].reshape(-1, NUM_DIRECTIONS, NUM_DIRECTION_NUMBERS)
    return fronts


def _find_widest(fronts: Array, enemy_weight: float, margin: float) -> tuple[Array, Array]:
    """Where most cells can be paid: direction [N], and the share of half of the troops that it needs [N]."""
    neutrals = fronts[..., D_TARGETS] * fronts[..., D_NEUTRALS]
    enemies = fronts[..., D_TARGETS] - neutrals
    neutral_need, enemy_need = (
        _find_need(fronts[..., D_NEUTRAL_ODDS]),
        margin * _find_need(fronts[..., D_ENEMY_ODDS]),
    )
    takes_neutrals, takes_enemies = neutral_need <= 1.0, enemy_need <= 1.0
    direction = (neutrals * takes_neutrals + enemy_weight * enemies * takes_enemies).argmax(axis=1)
    need = np.maximum(np.where(takes_neutrals, neutral_need, 0.0), np.where(takes_enemies, enemy_need, 0.0))
    return direction, need[np.arange(len(need)), direction]


def _find_need(odds: Array) -> Array:
    """The cost of the cheapest cell over the share s with half of the troops; odds are s / (s + cost)."""
    return np.where(odds > 0.0, (1.0 - odds) / np.maximum(odds, 1e-9), np.inf)


def _choose(direction: Array, intensity: Array, mask: Array) -> Array:
    """The action of each row: wait where the attack would take nothing."""
    attacks = 1 + NUM_INTENSITIES * direction + intensity
    actions: Array = np.where(mask[np.arange(len(mask)), attacks] == 1, attacks, WAIT)
    return actions


def _one(policy: BatchPolicy, obs: dict[str, Array], info: dict[str, Any]) -> int:
    """Play a batch policy in a single environment."""
    batch = {name: np.asarray(array)[None] for name, array in obs.items()}
    return int(policy(batch, np.asarray(info["action_mask"])[None])[0])
