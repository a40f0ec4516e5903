"""The placement simulator as Python sees it, and the constants it takes from the rules.

An instance is a function of (seed, episode), so a saved state is these two and the stations placed so far.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.placement.kernels import (
    CENTRE_DRAWS,
    GLOBAL_FEATURES,
    MOST_CENTRES,
    SITE_FEATURES,
    City,
    CityState,
    clear_rows,
    draw_rows,
    make_state,
    place_rows,
    replay_rows,
    show_rows,
)
from mission_gym_missions.placement.rules import PlacementMission, load_mission
from mission_gym_missions.rng import draw_uniform
from mission_gym_missions.simulator import RowSimulator, SimStep, check_range

TERMS = ("coverage", "ridership", "waiting")
METRICS = ("coverage", "ridership", "waiting_min")
OUTCOMES = ("covered", "uncovered")
_STREETS = 1  # the seed of the demand points' positions, which are the same in every city


class FreeSites(spaces.Discrete):
    """The sites. `sample()` draws among the sites that are free now, since others are illegal."""

    free: Array | None = None  # int8 [n]

    def sample(self, mask: Any = None, probability: Any = None) -> np.int64:
        """Draw a site; a mask or probabilities of the caller replace the free sites."""
        return super().sample(self.free if mask is None and probability is None else mask, probability)


class PlacementSimulator(RowSimulator):
    """N cities of one mission."""

    def __init__(self, mission: PlacementMission, num_rows: int) -> None:
        obs_space = spaces.Box(-1.0, 1.0, (num_features(mission),), np.float32)
        super().__init__(num_rows, obs_space, FreeSites(mission.num_sites), f"{num_rows} x {mission!r}")
        self.mission = mission
        self.city = make_city(mission)
        self.state = make_cities(mission, num_rows)
        self.seeds = np.zeros(num_rows, np.int64)
        self.episodes = np.full(num_rows, -1)
        self._rows = np.arange(num_rows)

    def seed(self, rows: Array, seeds: Array) -> None:
        self.seeds[rows], self.episodes[rows] = seeds, -1

    def begin(self, rows: Array, obs: Array, mask: Array) -> None:
        self.episodes[rows] += 1
        self._draw(rows)
        show_rows(self.city, self.state, rows, obs, mask)

    def check_actions(self, actions: Array) -> Array:
        num_sites = self.mission.num_sites
        actions = check_range(actions, (self.num_rows,), num_sites, f"a site from 0 to {num_sites - 1}")
        taken = self.state.placed[self._rows, actions]
        if taken.any():
            raise UsageError(
                f"action {actions[taken][0]} is illegal: the site already has a station; use a site whose "
                'info["action_mask"] is 1'
            )
        return actions

    def step(self, actions: Array) -> SimStep:
        """Place a station in every row, on free sites int64 [N]."""
        terms, rewards = np.empty((self.num_rows, len(TERMS))), np.empty(self.num_rows)
        place_rows(self.city, self.state, actions, terms, rewards)
        obs, mask = self.make_outputs()
        show_rows(self.city, self.state, self._rows, obs, mask)
        named = dict(zip(TERMS, terms.T.copy(), strict=True))
        return SimStep(obs, mask, named, rewards, self.read_ended())

    def read_ended(self) -> Array:
        """Return which rows have placed all stations: bool [N]."""
        ended: Array = self.state.num_placed == self.mission.num_stations
        return ended

    def read_outcomes(self) -> Array:
        covered = self.state.values[:, 0] >= self.mission.rules.covered_share
        outcomes: Array = np.where(covered, OUTCOMES[0], OUTCOMES[1]).astype(object)
        outcomes[~self.read_ended()] = None
        return outcomes

    def read_metrics(self, rows: Array) -> dict[str, Array]:
        return {name: self.state.values[rows, t] for t, name in enumerate(METRICS)}

    def _save(self) -> dict[str, Any]:
        values = {"seeds": self.seeds, "episodes": self.episodes, "order": self.state.order}
        return {name: array.copy() for name, array in values.items()}

    def _restore(self, saved: dict[str, Any]) -> None:
        self.seeds[:], self.episodes[:] = saved["seeds"], saved["episodes"]
        self._draw(self._rows)
        replay_rows(self.city, self.state, saved["order"])

    def _draw(self, rows: Array) -> None:
        seeds, episodes = self.seeds[rows], self.episodes[rows]
        if self.mission.fixed:
            seeds, episodes = np.zeros_like(seeds), np.zeros_like(episodes)
        count = 1 + CENTRE_DRAWS * MOST_CENTRES + 2 * self.mission.num_sites + self.mission.num_demand
        draw_rows(self.city, self.state, rows, draw_uniform(seeds, episodes, count))
        clear_rows(self.city, self.state, rows)


def make_cities(mission: PlacementMission, num_rows: int) -> CityState:
    """Allocate the arrays of `num_rows` cities."""
    return make_state(num_rows, mission.num_sites, mission.num_stations, mission.num_demand)


def make_city(mission: PlacementMission) -> City:
    """Build the constants of a mission."""
    rules, terms = mission.rules, mission.rules.terms
    left, right, bottom, top = make_cells(mission.num_demand).T
    drawn = draw_uniform(np.array([_STREETS]), np.array([0]), 2 * mission.num_demand)
    across, up = 0.15 + 0.7 * drawn.reshape(2, -1)  # away from the edges of their cells
    return City(
        points=np.stack([left + across * (right - left), bottom + up * (top - bottom)], axis=1),
        cells=make_cells(mission.num_sites),
        weights=np.array([terms.coverage, terms.ridership, terms.waiting]),
        scales=np.array(
            [(rules.walk_m / rules.city_m) ** 2, (rules.ride_m / rules.city_m) ** 2, rules.queue_min]
        ),
    )


def make_cells(count: int) -> Array:
    """Cut the city into `count` cells, in rows of nearly equal length: left, right, bottom, top [count, 4].

    Each site is drawn in its own cell, so that an action means the same part of the city in every instance.
    """
    num_rows = max(round(count**0.5), 1)
    cells = []
    for row, part in enumerate(np.array_split(np.arange(count), num_rows)):
        edges = np.linspace(0.0, 1.0, len(part) + 1)
        cells += [(left, right, row / num_rows, (row + 1) / num_rows) for left, right in pairwise(edges)]
    return np.array(cells)


def num_features(mission: PlacementMission) -> int:
    """Return the length of an observation."""
    return SITE_FEATURES * mission.num_sites + mission.num_demand + GLOBAL_FEATURES


def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache on disk."""
    PlacementSimulator(load_mission(4, 1, 4, "random", None), 1).warm_up()


def is_compiling() -> bool:
    """Whether numba found no cache on disk that it could load."""
    return bool(show_rows.stats.cache_misses)  # type: ignore[attr-defined]  # the largest
