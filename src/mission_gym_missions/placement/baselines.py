"""Plans that nobody learned: batches of observations and masks in, the next site of each row out.

greedy takes the site that is worth most now, lookahead the one that is worth most with another after it,
kmeans puts a station near the middle of each cluster of the demand, exact tries every plan. All read only the
observation, which holds the whole instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.streams import generator
from mission_gym_missions.placement.kernels import (
    S_AHEAD,
    S_X,
    S_Y,
    SITE_FEATURES,
    State,
    clear_rows,
    rate_rows,
    replay_rows,
    search_rows,
)
from mission_gym_missions.placement.rules import Mission
from mission_gym_missions.placement.simulator import make_cities, make_city

BatchPolicy = Callable[[Array, Array], Array]  # obs [N, F], mask [N, n] -> actions int64 [N]
Policy = Callable[[Array, dict[str, Any]], int]  # obs [F], info -> action

MAX_PLANS = 500_000  # about 100 ms an instance
_ROUNDS = 50  # of Lloyd's algorithm, which mostly rests after ten


class Baselines:
    """The scripted planners of one mission; exact is among them where it can be had in time."""

    def __init__(self, mission: Mission) -> None:
        self._mission = mission
        self._city = make_city(mission)
        self.batch: dict[str, BatchPolicy] = {
            "greedy": self._greedy,
            "lookahead": self._look_ahead,
            "kmeans": self._kmeans,
        }
        if count_plans(mission) <= MAX_PLANS:
            self.batch["exact"] = self.exact
        self.single: dict[str, Policy] = {name: partial(_one, policy) for name, policy in self.batch.items()}

    def exact(self, obs: Array, mask: Array) -> Array:
        """The next station of the best plan; UsageError where there are too many to try."""
        if count_plans(self._mission) > MAX_PLANS:
            raise UsageError(
                f"{count_plans(self._mission):,} plans of {self._mission.num_stations} stations on "
                f"{self._mission.num_sites} sites; exact tries at most {MAX_PLANS:,}: use fewer, or greedy"
            )
        state = self._read(obs, mask)
        best = np.empty((len(obs), self._mission.num_stations), np.int64)
        search_rows(self._city, state, best)
        actions: Array = best[np.arange(len(obs)), state.num_placed]
        return actions

    def _greedy(self, obs: Array, mask: Array) -> Array:
        state = self._read(obs, mask)
        rate_rows(self._city, state)
        actions: Array = state.now.argmax(axis=1)
        return actions

    def _look_ahead(self, obs: Array, mask: Array) -> Array:
        """What the observation says by itself: a trained policy has to find more than this."""
        ahead = self._split(obs)[..., S_AHEAD]
        actions: Array = np.where(mask == 1, ahead, -1.0).argmax(axis=1)
        return actions

    def _kmeans(self, obs: Array, mask: Array) -> Array:
        """The next station of the clusters' plan, the largest first."""
        state, actions = self._read(obs, mask), np.empty(len(obs), np.int64)
        for i in range(len(obs)):
            free = np.ones(self._mission.num_sites, np.bool_)
            for middle in find_clusters(self._city.points, state.demand[i], self._mission.num_stations):
                distances = np.linalg.norm(state.sites[i] - middle, axis=1)
                actions[i] = np.where(free, distances, np.inf).argmin()
                free[actions[i]] = False
                if mask[i, actions[i]]:  # not placed yet
                    break
            else:
                actions[i] = mask[i].argmax()  # another planner placed some of the stations
        return actions

    def _split(self, obs: Array) -> Array:
        """The features of each site: [N, n, SITE_FEATURES]."""
        features = obs[:, : SITE_FEATURES * self._mission.num_sites].astype(np.float64)
        return features.reshape(len(obs), self._mission.num_sites, SITE_FEATURES)

    def _read(self, obs: Array, mask: Array) -> State:
        """The cities that the observations show, with their stations."""
        state = make_cities(self._mission, len(obs))
        state.sites[:] = (self._split(obs)[:, :, [S_X, S_Y]] + 1.0) / 2.0
        first = SITE_FEATURES * self._mission.num_sites
        demand = obs[:, first : first + self._mission.num_demand].astype(np.float64)
        state.demand[:] = demand / demand.sum(axis=1, keepdims=True)
        clear_rows(self._city, state, np.arange(len(obs)))
        order = np.full(state.order.shape, -1)
        for i, placed in enumerate(mask == 0):
            stations = np.flatnonzero(placed)
            order[i, : len(stations)] = stations
        replay_rows(self._city, state, order)
        return state


def count_plans(mission: Mission) -> int:
    """How many plans there are."""
    return math.comb(mission.num_sites, mission.num_stations)


def find_clusters(points: Array, demand: Array, count: int) -> Array:
    """Lloyd's algorithm on points [m, 2] weighted by demand [m]: middles [count, 2], the largest first.

    It begins with points drawn by k-means++, always from the same stream: a function of its arguments.
    """
    rng = generator("placement", "kmeans")
    middles = points[[rng.choice(len(points), p=demand)]]
    while len(middles) < count:
        squares = ((points[:, None] - middles) ** 2).sum(axis=2).min(axis=1) * demand
        total = squares.sum()
        chosen = rng.choice(len(points), p=squares / total) if total > 0 else rng.choice(len(points))
        middles = np.append(middles, points[[chosen]], axis=0)
    for _ in range(_ROUNDS):
        owner = ((points[:, None] - middles) ** 2).sum(axis=2).argmin(axis=1)
        sizes = np.bincount(owner, demand, count)
        sums = np.stack([np.bincount(owner, demand * points[:, axis], count) for axis in (0, 1)], axis=1)
        moved = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1e-300)[:, None], middles)
        if np.array_equal(moved, middles):
            break
        middles = moved
    largest_first: Array = middles[np.argsort(-sizes, kind="stable")]
    return largest_first


def _one(policy: BatchPolicy, obs: Array, info: dict[str, Any]) -> int:
    """Play a batch policy in a single environment."""
    return int(policy(np.asarray(obs)[None], np.asarray(info["action_mask"])[None])[0])
