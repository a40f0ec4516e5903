"""Scripted planners: batches of observations and masks in, the next site of each row out.

greedy takes the site with the highest worth now, lookahead the one with the highest worth together with a
second station. kmeans places a station near the centre of each cluster of the demand. exact tries every plan.
All read only the observation, which contains the whole instance.
"""

from __future__ import annotations

import math

import numpy as np

from mission_gym.data import Array
from mission_gym.streams import generator
from mission_gym_missions.env import BatchPolicy
from mission_gym_missions.placement.kernels import (
    S_AHEAD,
    S_X,
    S_Y,
    SITE_FEATURES,
    CityState,
    clear_rows,
    rate_rows,
    replay_rows,
    search_rows,
)
from mission_gym_missions.placement.rules import PlacementMission
from mission_gym_missions.placement.simulator import make_cities, make_city

MAX_PLANS = 500_000  # about 100 ms per instance
_ROUNDS = 50  # of Lloyd's algorithm, which mostly converges after ten


def make_baselines(mission: PlacementMission) -> dict[str, BatchPolicy]:
    """Return the planners of a mission: obs [N, F], mask [N, n] -> actions int64 [N]. exact is among them if
    it takes at most MAX_PLANS plans."""
    planners = _Planners(mission)
    policies: dict[str, BatchPolicy] = {
        "greedy": planners.greedy,
        "lookahead": planners.look_ahead,
        "kmeans": planners.kmeans,
    }
    if math.comb(mission.num_sites, mission.num_stations) <= MAX_PLANS:
        policies["exact"] = planners.exact
    return policies


class _Planners:
    """The planners, with the constants of a mission."""

    def __init__(self, mission: PlacementMission) -> None:
        self._mission = mission
        self._city = make_city(mission)

    def exact(self, obs: Array, mask: Array) -> Array:
        """Return the next station of the best plan."""
        state = self._read(obs, mask)
        best = np.empty((len(obs), self._mission.num_stations), np.int64)
        search_rows(self._city, state, best)
        actions: Array = best[np.arange(len(obs)), state.num_placed]
        return actions

    def greedy(self, obs: Array, mask: Array) -> Array:
        state = self._read(obs, mask)
        rate_rows(self._city, state)
        actions: Array = state.now.argmax(axis=1)
        return actions

    def look_ahead(self, obs: Array, mask: Array) -> Array:
        """Follow the observation's own rating; a trained policy has to do better."""
        ahead = self._split(obs)[..., S_AHEAD]
        actions: Array = np.where(mask == 1, ahead, -1.0).argmax(axis=1)
        return actions

    def kmeans(self, obs: Array, mask: Array) -> Array:
        """Return the next station of the clusters' plan, largest cluster first."""
        state, actions = self._read(obs, mask), np.empty(len(obs), np.int64)
        for i in range(len(obs)):
            free = np.ones(self._mission.num_sites, np.bool_)
            for centre in find_clusters(self._city.points, state.demand[i], self._mission.num_stations):
                distances = np.linalg.norm(state.sites[i] - centre, axis=1)
                actions[i] = np.where(free, distances, np.inf).argmin()
                free[actions[i]] = False
                if mask[i, actions[i]]:  # not placed yet
                    break
            else:
                actions[i] = mask[i].argmax()  # other sites than the clusters' have been used
        return actions

    def _split(self, obs: Array) -> Array:
        """Return the features of each site: [N, n, SITE_FEATURES]."""
        features = obs[:, : SITE_FEATURES * self._mission.num_sites].astype(np.float64)
        return features.reshape(len(obs), self._mission.num_sites, SITE_FEATURES)

    def _read(self, obs: Array, mask: Array) -> CityState:
        """Return the cities of the observations, with their stations."""
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


def find_clusters(points: Array, demand: Array, count: int) -> Array:
    """Run Lloyd's algorithm on points [m, 2] weighted by demand [m]: centres [count, 2], largest first.

    It starts from k-means++ with a fixed random stream, so the result is a function of the arguments.
    """
    rng = generator("placement", "kmeans")
    centres = points[[rng.choice(len(points), p=demand)]]
    while len(centres) < count:
        squares = ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1) * demand
        total = squares.sum()
        chosen = rng.choice(len(points), p=squares / total) if total > 0 else rng.choice(len(points))
        centres = np.append(centres, points[[chosen]], axis=0)
    for _ in range(_ROUNDS):
        owner = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        sizes = np.bincount(owner, demand, count)
        sums = np.stack([np.bincount(owner, demand * points[:, axis], count) for axis in (0, 1)], axis=1)
        moved = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1e-300)[:, None], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    largest_first: Array = centres[np.argsort(-sizes, kind="stable")]
    return largest_first
