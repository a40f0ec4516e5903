"""Scripted policies: batches of observations and masks in, actions out.

noop, random, and three that read only the observation. rush goes straight to the zone and stays. careful is
pushed aside by the defenders it senses. holder stands in the zone on the side away from them and tags what
seems to be in reach.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mission_gym.data import Array
from mission_gym.streams import generator
from mission_gym_missions.capture.scenario import Scenario
from mission_gym_missions.capture.sim.layout import (
    F_AGE,
    F_INTEGRITY,
    F_POSITION,
    FIRST_HEADING,
    FOE_FEATURES,
    GLOBAL_FEATURES,
    HEADING_COS,
    HEADING_SIN,
    HOLD,
    NUM_ACTIONS,
    NUM_HEADINGS,
    O_COOLDOWN,
    O_COS,
    O_GOAL,
    O_RAYS,
    O_SIN,
    OWN_FEATURES,
    RAY_M,
    TAG,
)
from mission_gym_missions.env import BatchPolicy

STEER_M = 8.0  # units steer around obstacles nearer than this
FRESH = 0.5  # tracks whose age feature is above this are ignored
KEEP_AWAY_M = 28.0
HOLD_M = 11.0  # the holder's distance from the centre of the zone, whose radius is 15 m


def make_baselines(scenario: Scenario) -> dict[str, BatchPolicy]:
    """Return the scripted policies of a scenario: obs [N, F], mask [N, M] -> actions int64 [N, A]."""
    scripts = _Scripts(scenario)
    return {
        "noop": scripts.noop,
        "random": scripts.draw,
        "rush": partial(scripts.play, scripts.rush),
        "careful": partial(scripts.play, scripts.careful),
        "holder": partial(scripts.play, scripts.holder, tag=True),
    }


class _Scripts:
    """The scripts, with the facts of a scenario that they need."""

    def __init__(self, scenario: Scenario) -> None:
        level = scenario.level
        self._num_attackers = len(level.attackers.units)
        self._num_defenders = len(level.defenders.units)
        self._size_m = level.arena_m
        self._tag_m = level.tag.range_m
        self._tag_cos = float(np.cos(np.radians(level.tag.half_angle_deg)))
        self._random = generator("capture", "random")

    def noop(self, obs: Array, mask: Array) -> Array:
        return np.full((len(obs), self._num_attackers), HOLD, np.int64)

    def draw(self, obs: Array, mask: Array) -> Array:
        """Draw legal actions uniformly."""
        legal = mask.reshape(len(mask), self._num_attackers, NUM_ACTIONS)
        actions: Array = (self._random.random(legal.shape) * legal).argmax(axis=2)
        return actions

    def play(
        self, aim: Callable[[Array, Array, Array], Array], obs: Array, mask: Array, tag: bool = False
    ) -> Array:
        """Move along the vectors of `aim`, around obstacles. tag: tag what seems to be in reach."""
        own, foes = self._split(obs)
        goal = own[..., O_GOAL : O_GOAL + 2] * self._size_m
        away = -foes[..., F_POSITION : F_POSITION + 2] * self._size_m  # [N, A, D, 2], from defender to unit
        known = (foes[..., F_AGE] < FRESH) & (foes[..., F_INTEGRITY] > 0)
        wanted = aim(goal, away, known)
        score = wanted @ np.stack([HEADING_COS, HEADING_SIN])
        clearance = own[..., O_RAYS : O_RAYS + NUM_HEADINGS] * RAY_M
        length = np.linalg.norm(wanted, axis=-1, keepdims=True)
        score = score - np.where(clearance < np.minimum(length, STEER_M), 3.0 * length, 0.0)
        actions = np.where(length[..., 0] < 1.0, HOLD, FIRST_HEADING + score.argmax(axis=2))
        if tag:
            actions = np.where(self._sees_target(own, foes, away), TAG, actions)
        return actions.astype(np.int64)

    def _split(self, obs: Array) -> tuple[Array, Array]:
        """Return own features [N, A, OWN_FEATURES] and those of the defenders [N, A, D, FOE_FEATURES]."""
        rows = obs[:, :-GLOBAL_FEATURES].astype(np.float64).reshape(len(obs), self._num_attackers, -1)
        foes = rows[..., OWN_FEATURES:].reshape(*rows.shape[:2], self._num_defenders, FOE_FEATURES)
        return rows[..., :OWN_FEATURES], foes

    def _sees_target(self, own: Array, foes: Array, away: Array) -> Array:
        distance = np.linalg.norm(away, axis=-1)
        ahead = -(away[..., 0] * own[..., None, O_COS] + away[..., 1] * own[..., None, O_SIN])
        fresh = (foes[..., F_AGE] == 0) & (foes[..., F_INTEGRITY] > 0)
        in_reach = fresh & (distance < self._tag_m) & (ahead > self._tag_cos * distance)
        seen: Array = in_reach.any(axis=2) & (own[..., O_COOLDOWN] == 0)
        return seen

    def rush(self, goal: Array, away: Array, known: Array) -> Array:
        """Go straight to the centre of the zone and stay there."""
        distance = np.linalg.norm(goal, axis=-1, keepdims=True)
        wanted: Array = np.where(distance > 3.0, goal, 0.0)
        return wanted

    def careful(self, goal: Array, away: Array, known: Array) -> Array:
        """Go to the zone, pushed aside by sensed defenders that are near."""
        distance = np.linalg.norm(away, axis=-1, keepdims=True) + 1e-9
        push = np.where(known[..., None], away / distance * np.maximum(KEEP_AWAY_M - distance, 0.0), 0.0)
        pull = goal / np.maximum(np.linalg.norm(goal, axis=-1, keepdims=True), KEEP_AWAY_M / 2)
        wanted: Array = pull * KEEP_AWAY_M / 2 + push.sum(axis=2)
        return wanted

    def holder(self, goal: Array, away: Array, known: Array) -> Array:
        """Go to a point of the zone that is off centre, away from the sensed defenders."""
        from_centre = away + goal[:, :, None, :]  # from a defender to the centre
        distance = np.linalg.norm(from_centre, axis=-1, keepdims=True) + 1e-9
        flee = np.where(known[..., None], from_centre / distance / (distance + 10.0), 0.0).sum(axis=2)
        length = np.linalg.norm(flee, axis=-1, keepdims=True)
        spot = goal + np.where(length > 1e-6, flee / np.maximum(length, 1e-9) * HOLD_M, 0.0)
        near = np.linalg.norm(spot, axis=-1, keepdims=True) < 2.0
        wanted: Array = np.where(near, 0.0, spot)
        return wanted
