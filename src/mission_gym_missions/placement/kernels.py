"""The compiled part of the mission: drawing cities, placing stations and rating plans.

It is one file because numba invalidates its cache by the file of an entry alone. N = rows, n = sites,
k = stations, m = demand points. Lengths are in sides of the city; the demand sums to 1. Rows share nothing,
so a row's numbers depend on its seed and actions alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mission_gym.compiled import entry, kernel
from mission_gym.data import Array

COVERAGE, RIDERSHIP, WAITING = range(3)
NUM_TERMS = 3

# Features of a site, in order; after all sites the demand of each point, then the globals.
S_X, S_Y, S_COVERAGE, S_RIDERSHIP, S_WAITING, S_NOW, S_AHEAD, S_LOAD, S_NEAREST = range(9)
SITE_FEATURES = 9
FINE = 0.1  # S_NOW and S_AHEAD resolve the sites whose worth is within this of the best
GLOBAL_FEATURES = 4  # stations left, then the three values of the plan so far

# An instance draws these numbers in [0, 1): the number of centres; the position, spread and size of each; a
# position in each site's cell; the noise of each demand point.
FEWEST_CENTRES, MOST_CENTRES = 2, 4
CENTRE_DRAWS = 4
BACKGROUND = 0.25  # demand everywhere, in addition to centres that peak at 0.5 to 1.5
LEAST_SPREAD, MOST_SPREAD = 0.08, 0.2
NOISE = 0.85  # demand points differ by factors of up to e**0.85


class City(NamedTuple):
    """The constants of a mission."""

    points: Array  # float64 [m, 2], of the demand
    cells: Array  # float64 [n, 4]: left, right, bottom and top of each site's cell
    weights: Array  # float64 [3], of the terms
    scales: Array  # float64 [3]: walk squared, ride squared, minutes of the queue


class CityState(NamedTuple):
    """Everything that changes, per row.

    Levels above the number of stations, `now`, `ahead` and `spare_load` have no meaning between calls.
    """

    sites: Array  # float64 [N, n, 2]
    demand: Array  # float64 [N, m]
    squares: Array  # float64 [N, n, m]: squared distances
    riders: Array  # float64 [N, n, m]: demand of a point that would ride from a site
    order: Array  # int64 [N, k]: sites of the stations in the order they were placed, then -1
    num_placed: Array  # int64 [N]: stations so far
    placed: Array  # bool [N, n]
    nearest: Array  # int64 [N, k + 1, m]: the site that each point uses, by number of stations
    least: Array  # float64 [N, k + 1, m]: its squared distance
    riding: Array  # float64 [N, k + 1, m]: the riders from there
    load: Array  # float64 [N, n]: riders of each station
    values: Array  # float64 [N, 3]: coverage, ridership, minutes of waiting
    now: Array  # float64 [N, n], see rate_sites
    ahead: Array  # float64 [N, n], see look_ahead
    spare_load: Array  # float64 [N, n]


def make_state(num_rows: int, num_sites: int, num_stations: int, num_demand: int) -> CityState:
    """Allocate the state of `num_rows` cities."""
    levels = (num_rows, num_stations + 1, num_demand)
    return CityState(
        sites=np.zeros((num_rows, num_sites, 2)),
        demand=np.zeros((num_rows, num_demand)),
        squares=np.zeros((num_rows, num_sites, num_demand)),
        riders=np.zeros((num_rows, num_sites, num_demand)),
        order=np.zeros((num_rows, num_stations), np.int64),
        num_placed=np.zeros(num_rows, np.int64),
        placed=np.zeros((num_rows, num_sites), np.bool_),
        nearest=np.zeros(levels, np.int64),
        least=np.full(levels, np.inf),
        riding=np.zeros(levels),
        load=np.zeros((num_rows, num_sites)),
        values=np.zeros((num_rows, NUM_TERMS)),
        now=np.zeros((num_rows, num_sites)),
        ahead=np.zeros((num_rows, num_sites)),
        spare_load=np.zeros((num_rows, num_sites)),
    )


@entry
def draw_rows(city: City, state: CityState, rows: Array, draws: Array) -> None:
    """Draw the sites and the demand of rows int64 [R] from draws float64 [R, C] in [0, 1)."""
    num_sites, num_demand = state.sites.shape[1], state.demand.shape[1]
    first_site = 1 + CENTRE_DRAWS * MOST_CENTRES
    for r in range(len(rows)):
        i, drawn = rows[r], draws[r]
        num_centres = FEWEST_CENTRES + int(drawn[0] * (MOST_CENTRES - FEWEST_CENTRES + 1))
        for j in range(num_sites):
            left, right, bottom, top = city.cells[j]
            state.sites[i, j, 0] = left + drawn[first_site + 2 * j] * (right - left)
            state.sites[i, j, 1] = bottom + drawn[first_site + 2 * j + 1] * (top - bottom)
        total = 0.0
        for p in range(num_demand):
            demand = BACKGROUND
            for c in range(num_centres):
                at = 1 + CENTRE_DRAWS * c
                dx, dy = city.points[p, 0] - drawn[at], city.points[p, 1] - drawn[at + 1]
                spread = LEAST_SPREAD + drawn[at + 2] * (MOST_SPREAD - LEAST_SPREAD)
                demand += (0.5 + drawn[at + 3]) * math.exp(-(dx * dx + dy * dy) / (2.0 * spread * spread))
            noise = 2.0 * drawn[first_site + 2 * num_sites + p] - 1.0
            state.demand[i, p] = demand * math.exp(NOISE * noise)
            total += state.demand[i, p]
        for p in range(num_demand):
            state.demand[i, p] /= total


@entry
def clear_rows(city: City, state: CityState, rows: Array) -> None:
    """Compute distances and riders of rows int64 [R] from their sites and demand, and remove all stations."""
    for i in rows:
        for j in range(state.sites.shape[1]):
            for p in range(state.demand.shape[1]):
                dx = state.sites[i, j, 0] - city.points[p, 0]
                dy = state.sites[i, j, 1] - city.points[p, 1]
                square = dx * dx + dy * dy
                state.squares[i, j, p] = square
                state.riders[i, j, p] = state.demand[i, p] * math.exp(-square / city.scales[1])
        state.order[i] = -1
        state.num_placed[i] = 0
        state.placed[i] = False
        state.load[i] = 0.0
        state.values[i] = 0.0


@kernel
def measure(
    city: City, state: CityState, i: int, depth: int, site: int, load: Array
) -> tuple[float, float, float]:
    """Return coverage, ridership and waiting of the first `depth` stations and one more; write the load [n].

    The sums run over points and sites, so they do not depend on the order of the stations.
    """
    coverage = ridership = queue = 0.0
    load[:] = 0.0
    for p in range(state.demand.shape[1]):
        square, least = state.squares[i, site, p], state.least[i, depth, p]
        moves = square < least
        riders = state.riders[i, site, p] if moves else state.riding[i, depth, p]
        load[site if moves else state.nearest[i, depth, p]] += riders
        ridership += riders
        coverage += state.demand[i, p] if min(square, least) <= city.scales[0] else 0.0
    for j in range(len(load)):
        queue += load[j] * load[j]
    return coverage, ridership, city.scales[2] * queue


@kernel
def send(state: CityState, i: int, depth: int, site: int) -> None:
    """Assign each point to its nearest of the first `depth` stations and one more, at level `depth` + 1."""
    for p in range(state.demand.shape[1]):
        moves = state.squares[i, site, p] < state.least[i, depth, p]
        state.least[i, depth + 1, p] = state.squares[i, site, p] if moves else state.least[i, depth, p]
        state.riding[i, depth + 1, p] = state.riders[i, site, p] if moves else state.riding[i, depth, p]
        state.nearest[i, depth + 1, p] = site if moves else state.nearest[i, depth, p]


@kernel
def place(city: City, state: CityState, i: int, site: int) -> None:
    """Place a station on a free site."""
    count = state.num_placed[i]
    values = measure(city, state, i, count, site, state.load[i])
    send(state, i, count, site)
    for t in range(NUM_TERMS):
        state.values[i, t] = values[t]
    state.order[i, count] = site
    state.placed[i, site] = True
    state.num_placed[i] = count + 1


@kernel
def weigh(city: City, values: tuple[float, float, float]) -> float:
    """Return the worth of a plan."""
    worth = 0.0
    for t in range(NUM_TERMS):
        worth += city.weights[t] * values[t]
    return worth


@kernel
def rate_sites(city: City, state: CityState, i: int) -> None:
    """Write the worth of the plan with a station on each site into `now`; -inf if the site is taken."""
    for j in range(state.sites.shape[1]):
        state.now[i, j] = -math.inf
        if not state.placed[i, j]:
            state.now[i, j] = weigh(
                city, measure(city, state, i, state.num_placed[i], j, state.spare_load[i])
            )


@kernel
def look_ahead(city: City, state: CityState, i: int) -> None:
    """Write the best worth with a station on each free site and another one anywhere into `ahead`."""
    num_sites, count = state.sites.shape[1], state.num_placed[i]
    state.ahead[i] = -math.inf
    for first in range(num_sites):
        if state.placed[i, first]:
            continue
        send(state, i, count, first)
        for second in range(first + 1, num_sites):
            if not state.placed[i, second]:
                worth = weigh(city, measure(city, state, i, count + 1, second, state.spare_load[i]))
                state.ahead[i, first] = max(state.ahead[i, first], worth)
                state.ahead[i, second] = max(state.ahead[i, second], worth)


@entry
def place_rows(city: City, state: CityState, sites: Array, terms: Array, rewards: Array) -> None:
    """Place a station in every row, on free sites int64 [N]; write the weighted terms [N, 3] and rewards."""
    for i in range(len(sites)):
        for t in range(NUM_TERMS):
            terms[i, t] = state.values[i, t]
        place(city, state, i, sites[i])
        rewards[i] = 0.0
        for t in range(NUM_TERMS):
            terms[i, t] = city.weights[t] * (state.values[i, t] - terms[i, t])
            rewards[i] += terms[i, t]


@entry
def replay_rows(city: City, state: CityState, order: Array) -> None:
    """Place the stations of order int64 [N, k], up to the first -1 of each row."""
    for i in range(len(order)):
        for site in order[i]:
            if site >= 0:
                place(city, state, i, site)


@entry
def show_rows(city: City, state: CityState, rows: Array, obs: Array, mask: Array) -> None:
    """Write the observations and masks of rows int64 [R] into obs float32 [N, F] and mask int8 [N, n]."""
    num_sites, num_demand = state.sites.shape[1], state.demand.shape[1]
    num_stations = state.order.shape[1]
    for i in rows:
        rate_sites(city, state, i)
        is_last = state.num_placed[i] + 1 >= num_stations
        if not is_last:
            look_ahead(city, state, i)
        best_now = best_ahead = -math.inf
        for j in range(num_sites):
            if is_last:  # no station follows
                state.ahead[i, j] = state.now[i, j]
            best_now, best_ahead = max(best_now, state.now[i, j]), max(best_ahead, state.ahead[i, j])
        for j in range(num_sites):
            at = SITE_FEATURES * j
            obs[i, at : at + SITE_FEATURES] = 0.0
            obs[i, at + S_X] = 2.0 * state.sites[i, j, 0] - 1.0
            obs[i, at + S_Y] = 2.0 * state.sites[i, j, 1] - 1.0
            obs[i, at + S_NEAREST] = _distance_to_station(state, i, j)
            mask[i, j] = not state.placed[i, j]
            if state.placed[i, j]:
                obs[i, at + S_LOAD] = state.load[i, j]
                continue
            values = measure(city, state, i, state.num_placed[i], j, state.spare_load[i])
            for t in range(NUM_TERMS):
                pays = city.weights[t] * (values[t] - state.values[i, t])
                obs[i, at + S_COVERAGE + t] = min(max(pays, -1.0), 1.0)
            obs[i, at + S_NOW] = max(1.0 - (best_now - state.now[i, j]) / FINE, 0.0)
            obs[i, at + S_AHEAD] = max(1.0 - (best_ahead - state.ahead[i, j]) / FINE, 0.0)
            obs[i, at + S_LOAD] = state.spare_load[i, j]
        at = SITE_FEATURES * num_sites
        most = 0.0
        for p in range(num_demand):
            most = max(most, state.demand[i, p])
        for p in range(num_demand):
            obs[i, at + p] = state.demand[i, p] / most
        at += num_demand
        obs[i, at] = (num_stations - state.num_placed[i]) / num_stations
        obs[i, at + 1] = state.values[i, COVERAGE]
        obs[i, at + 2] = state.values[i, RIDERSHIP]
        obs[i, at + 3] = state.values[i, WAITING] / city.scales[2]


@kernel
def _distance_to_station(state: CityState, i: int, site: int) -> float:
    """Return a site's distance from the nearest station, in diagonals of the city; 1 without a station."""
    least = 2.0
    for t in range(state.num_placed[i]):
        j = state.order[i, t]
        dx = state.sites[i, site, 0] - state.sites[i, j, 0]
        dy = state.sites[i, site, 1] - state.sites[i, j, 1]
        least = min(least, dx * dx + dy * dy)
    return math.sqrt(0.5 * least)


@entry
def rate_rows(city: City, state: CityState) -> None:
    """Write the worth of each site of every row into `now`."""
    for i in range(len(state.now)):
        rate_sites(city, state, i)


@entry
def search_rows(city: City, state: CityState, best: Array) -> None:
    """Try every completion of each row's plan; write the best one, sites ascending, to best [N, k]."""
    num_sites, num_stations = state.sites.shape[1], state.order.shape[1]
    for i in range(len(best)):
        most, first = -math.inf, state.num_placed[i]
        picks = state.order[i]  # the tail is free: -1
        depth = first
        while depth >= first:
            picks[depth] += 1
            if picks[depth] == num_sites:
                picks[depth] = -1
                depth -= 1
                continue
            if state.placed[i, picks[depth]]:
                continue
            if depth + 1 < num_stations:
                send(state, i, depth, picks[depth])
                depth += 1
                picks[depth] = picks[depth - 1]
                continue
            worth = weigh(city, measure(city, state, i, depth, picks[depth], state.spare_load[i]))
            if worth > most:
                most = worth
                for d in range(num_stations):
                    best[i, d] = picks[d]
