"""The mission as Python sees it: rows of cities, and what they show.

Numbers of a row depend on its seed and actions alone, not on the number of rows. Every call gives fresh
arrays. An instance is a function of (seed, episode), so a state is these two and the stations placed so far.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.placement.kernels import (
    CENTRE_CHANCES,
    GLOBAL_FEATURES,
    MOST_CENTRES,
    SITE_FEATURES,
    City,
    State,
    clear_rows,
    draw_rows,
    make_state,
    place_rows,
    replay_rows,
    show_rows,
)
from mission_gym_missions.placement.rules import Mission, load_mission

TERMS = ("coverage", "ridership", "waiting")
METRICS = ("coverage", "ridership", "waiting_min")
OUTCOMES = ("covered", "uncovered")

_STEP, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_STREETS = 1  # the seed of the places of the demand points, which are the same in every city


class Simulator:
    """N cities of one mission. A row that ended must be begun again before the next step."""

    def __init__(self, mission: Mission, num_rows: int) -> None:
        self.mission = mission
        self.num_rows = num_rows
        self.city = make_city(mission)
        self.state = make_cities(mission, num_rows)
        self.seeds = np.zeros(num_rows, np.int64)
        self.episodes = np.full(num_rows, -1)
        self._rows = np.arange(num_rows)

    def seed(self, rows: Array, seeds: Array) -> None:
        """Give rows int64 [R] new seeds int64 [R]; their next episode is number 0."""
        self.seeds[rows], self.episodes[rows] = seeds, -1

    def begin(self, rows: Array) -> None:
        """Begin the next episode of rows int64 [R]."""
        self.episodes[rows] += 1
        self._draw(rows)

    def step(self, actions: Array) -> tuple[Array, Array]:
        """Place a station in every row, on free sites int64 [N]; terms [N, 3], weighted, and rewards [N]."""
        terms, rewards = np.empty((self.num_rows, len(TERMS))), np.empty(self.num_rows)
        place_rows(self.city, self.state, actions, terms, rewards)
        return terms, rewards

    def show(self) -> tuple[Array, Array]:
        """What the policy sees of every row: observations float32 [N, F] and masks int8 [N, n]."""
        obs = np.empty((self.num_rows, num_features(self.mission)), np.float32)
        mask = np.empty((self.num_rows, self.mission.num_sites), np.int8)
        self.update(self._rows, obs, mask)
        return obs, mask

    def update(self, rows: Array, obs: Array, mask: Array) -> None:
        """Write what rows int64 [R] show now into obs and mask of all rows."""
        show_rows(self.city, self.state, rows, obs, mask)

    def read_ended(self) -> Array:
        """Which rows have placed all their stations: bool [N]."""
        ended: Array = self.state.num_placed == self.mission.num_stations
        return ended

    def read_outcomes(self) -> Array:
        """The outcome of each row, None while it runs: object [N]."""
        covered = self.state.values[:, 0] >= self.mission.rules.covered_share
        outcomes: Array = np.where(covered, OUTCOMES[0], OUTCOMES[1]).astype(object)
        outcomes[~self.read_ended()] = None
        return outcomes

    def read_metrics(self, rows: Array) -> dict[str, Array]:
        """The values so far of the plans of the rows int64 [R]: name -> float64 [R]."""
        return {name: self.state.values[rows, t] for t, name in enumerate(METRICS)}

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return {
            "mission": repr(self.mission),
            "seeds": self.seeds.copy(),
            "episodes": self.episodes.copy(),
            "order": self.state.order.copy(),
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        if saved["mission"] != repr(self.mission) or saved["order"].shape != self.state.order.shape:
            raise UsageError(
                "the saved state is of a mission with other sizes or rules, or of another number of "
                "environments; use those it was saved with"
            )
        self.seeds[:], self.episodes[:] = saved["seeds"], saved["episodes"]
        self._draw(self._rows)
        replay_rows(self.city, self.state, saved["order"])

    def _draw(self, rows: Array) -> None:
        seeds, episodes = self.seeds[rows], self.episodes[rows]
        if self.mission.fixed:
            seeds, episodes = np.zeros_like(seeds), np.zeros_like(episodes)
        count = 1 + CENTRE_CHANCES * MOST_CENTRES + 2 * self.mission.num_sites + self.mission.num_demand
        draw_rows(self.city, self.state, rows, draw_chances(seeds, episodes, count))
        clear_rows(self.city, self.state, rows)


def make_cities(mission: Mission, num_rows: int) -> State:
    """Allocate the arrays of `num_rows` cities."""
    return make_state(num_rows, mission.num_sites, mission.num_stations, mission.num_demand)


def make_city(mission: Mission) -> City:
    """A mission as arrays: what never changes."""
    rules, terms = mission.rules, mission.rules.terms
    left, right, bottom, top = make_cells(mission.num_demand).T
    chances = draw_chances(np.array([_STREETS]), np.array([0]), 2 * mission.num_demand)
    across, up = 0.15 + 0.7 * chances.reshape(2, -1)  # off the edges of their cells
    return City(
        points=np.stack([left + across * (right - left), bottom + up * (top - bottom)], axis=1),
        cells=make_cells(mission.num_sites),
        weights=np.array([terms.coverage, terms.ridership, terms.waiting]),
        scales=np.array(
            [(rules.walk_m / rules.city_m) ** 2, (rules.ride_m / rules.city_m) ** 2, rules.queue_min]
        ),
    )


def make_cells(count: int) -> Array:
    """Cut the city into `count` cells in rows of nearly equal numbers: left, right, bottom, top [count, 4].

    Each site is drawn in a cell of its own, so that an action means a part of the city in every instance.
    """
    num_rows = max(round(count**0.5), 1)
    cells = []
    for row, part in enumerate(np.array_split(np.arange(count), num_rows)):
        edges = np.linspace(0.0, 1.0, len(part) + 1)
        cells += [(left, right, row / num_rows, (row + 1) / num_rows) for left, right in pairwise(edges)]
    return np.array(cells)


def num_features(mission: Mission) -> int:
    """The length of an observation."""
    return SITE_FEATURES * mission.num_sites + mission.num_demand + GLOBAL_FEATURES


def draw_chances(seeds: Array, episodes: Array, count: int) -> Array:
    """Numbers in [0, 1) as a function of (seed, episode, index) alone: [R], [R] -> [R, count]."""
    stream = _scramble(
        _scramble(seeds.astype(np.uint64) + _STEP) ^ (episodes.astype(np.uint64) * _STEP + _FIRST)
    )
    counters = stream[:, None] + _STEP * np.arange(1, count + 1, dtype=np.uint64)
    return (_scramble(counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scramble(value: Array) -> Array:
    """Mix 64 bits so that neighbouring counters give unrelated numbers: splitmix64's finaliser."""
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    mixed: Array = value ^ (value >> np.uint64(31))
    return mixed


def compile_kernels() -> None:
    """Compile the kernels, or load them from numba's cache on disk."""
    simulator = Simulator(load_mission(4, 1, 4, "random", None), 1)
    simulator.begin(np.zeros(1, np.int64))
    simulator.show()
    simulator.step(np.zeros(1, np.int64))


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(show_rows.stats.cache_misses)  # type: ignore[attr-defined]  # the largest
