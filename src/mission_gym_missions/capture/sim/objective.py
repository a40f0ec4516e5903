"""The zone and the rules of the mission: clocks, outcomes and the reward."""

from __future__ import annotations

import math

import numpy as np

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.layout import (
    ALL_DISABLED,
    CAPTURED,
    STALLED,
    T_ALL_DISABLED,
    T_APPROACH,
    T_CAPTURE,
    T_ENTRY,
    T_STALLED,
    T_SURVIVORS,
    T_TIME,
    T_TIMEOUT,
    T_WIN,
    TIMEOUT,
    CaptureState,
    CaptureWorld,
    Record,
)
from mission_gym_missions.simulator import RUNNING

GRAIN = 2.0**24  # terms are multiples of 1 / GRAIN, so that their sum is exact in any order


@kernel
def goal_distance(game: Record, unit: Record) -> float:
    """Return the distance of a unit from the centre of the zone."""
    dx, dy = game.objective_x - unit.x, game.objective_y - unit.y
    return math.sqrt(dx * dx + dy * dy)


@kernel
def potential(world: CaptureWorld, state: CaptureState, i: int) -> float:
    """Return minus the sum of the attackers' distances from the zone's edge, in metres.

    Disabled units count too, so that losing one does not make the reward jump.
    """
    rules = world.rules[0]
    total = 0.0
    for a in range(rules.num_attackers):
        total -= max(goal_distance(state.games[i], state.units[i, a]) - rules.radius, 0.0)
    return total


@kernel
def run_objective(world: CaptureWorld, state: CaptureState, i: int, terms: Array) -> None:
    """Advance the capture and stall clocks by one tick, and decide the outcome."""
    rules, game = world.rules[0], state.games[i]
    num_attackers = rules.num_attackers
    active, nearest = 0, math.inf
    for a in range(num_attackers):
        if state.units[i, a].integrity > 0.0:
            active += 1
            nearest = min(nearest, goal_distance(game, state.units[i, a]))
    game.contested = 0
    if rules.contested:
        for d in range(state.minds.shape[1]):
            foe = state.units[i, num_attackers + d]
            if foe.integrity > 0.0 and goal_distance(game, foe) <= rules.radius:
                game.contested = 1
    game.stall += 1
    if nearest <= game.best_m - rules.stall_m:
        game.best_m = nearest
        game.stall = 0
    if nearest <= rules.radius:
        game.stall = 0
        game.zone += 1
        if not game.entered:
            game.entered = 1
            terms[T_ENTRY] += 1.0
        if not game.contested:
            game.capture += 1
            terms[T_CAPTURE] += 1.0 / rules.hz
    if game.capture >= rules.capture_ticks:
        game.outcome = CAPTURED
        terms[T_WIN] = 1.0
        terms[T_SURVIVORS] = active / num_attackers
    elif active == 0:
        game.outcome = ALL_DISABLED
        terms[T_ALL_DISABLED] = 1.0
    elif game.stall >= rules.stall_ticks:
        game.outcome = STALLED
        terms[T_STALLED] = 1.0
    elif game.tick >= rules.limit_ticks:
        game.outcome = TIMEOUT
        terms[T_TIMEOUT] = 1.0
    else:
        game.outcome = RUNNING


@kernel
def settle(world: CaptureWorld, state: CaptureState, i: int, ticks: int, terms: Array) -> float:
    """Turn the events of a command into weighted terms and return their sum. Weights apply only here."""
    game = state.games[i]
    after = potential(world, state, i)
    terms[T_APPROACH] = (after - game.potential) / 100.0
    game.potential = after
    terms[T_TIME] = ticks / world.rules[0].hz
    total = 0.0
    for k in range(terms.shape[0]):
        terms[k] = np.rint(terms[k] * world.weights[k] * GRAIN) / GRAIN
        total += terms[k]
    return total
