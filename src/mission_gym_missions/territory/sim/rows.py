"""The entries of the simulator: begin episodes, and step rows.

Rows share nothing. So a row's numbers depend on its seed and actions alone, whatever the number of rows and
whichever thread steps it.
"""

from __future__ import annotations

from mission_gym.compiled import entry, kernel
from mission_gym.data import Array
from mission_gym_missions.rng import begin_stream32, draw32
from mission_gym_missions.simulator import RUNNING, take_rows
from mission_gym_missions.territory.sim.land import lay_terrain, place_agent, settle_nations
from mission_gym_missions.territory.sim.layout import (
    AGENT,
    ELIMINATED,
    NATURES,
    NUM_INTENSITIES,
    T_CONQUEST,
    T_ELIMINATED,
    T_LAND,
    T_RANK,
    T_TIME,
    T_VICTORY,
    TIMEOUT,
    VICTORY,
    WAIT,
    TerritoryState,
    TerritoryWorld,
)
from mission_gym_missions.territory.sim.observation import write_map, write_mask, write_numbers
from mission_gym_missions.territory.sim.war import (
    decide,
    fight,
    find_rank,
    grow,
    judge,
    order,
    survey,
)


@kernel
def begin(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Draw a new episode from the row's seed and episode number."""
    rules, game = world.rules[0], state.games[i]
    game.stream = begin_stream32(game.seed, game.episode)
    game.step = game.conquered = game.lost = game.eliminations = game.attacks = 0
    game.outcome = RUNNING
    lay_terrain(world, state, i)
    settle_nations(world, state, i)
    place_agent(world, state, i)
    for p in range(1, state.nations.shape[1]):
        nation = state.nations[i, p]
        nation.land, nation.troops = 9, rules.start_troops
        nation.character = draw32(game.stream, NATURES, p) % len(world.characters)
        nation.direction = -1
        nation.share = nation.paid = nation.taken = nation.lost = 0
    survey(world, state, i)


@kernel
def step(world: TerritoryWorld, state: TerritoryState, i: int, action: int, terms: Array) -> float:
    """Execute one action in a row and return the reward."""
    rules, game, weights = world.rules[0], state.games[i], world.weights
    land, conquered = state.nations[i, AGENT].land, game.conquered
    attack = action - 1
    if action == WAIT:
        order(state, i, AGENT, -1, 0)
    else:
        order(state, i, AGENT, attack // NUM_INTENSITIES, attack % NUM_INTENSITIES)
    for p in range(AGENT + 1, state.nations.shape[1]):
        decide(world, state, i, p)
    fight(world, state, i)
    grow(world, state, i)
    game.step += 1
    game.outcome = judge(world, state, i)
    survey(world, state, i)
    terms[:] = 0.0
    terms[T_LAND] = weights[T_LAND] * ((state.nations[i, AGENT].land - land) / game.total)
    terms[T_CONQUEST] = weights[T_CONQUEST] * ((game.conquered - conquered) / game.total)
    if game.outcome == VICTORY:
        terms[T_VICTORY] = weights[T_VICTORY]
    elif game.outcome == ELIMINATED:
        terms[T_ELIMINATED] = weights[T_ELIMINATED]
    elif game.outcome == TIMEOUT:
        behind = (rules.num_bots + 1 - find_rank(state, i)) / rules.num_bots
        terms[T_RANK] = weights[T_RANK] * behind
    terms[T_TIME] = weights[T_TIME]
    reward = 0.0
    for k in range(len(terms)):
        reward += terms[k]
    return reward


@kernel
def show(
    world: TerritoryWorld, state: TerritoryState, i: int, view: Array, numbers: Array, mask: Array
) -> None:
    """Write the observation and mask of a row."""
    write_map(world, state, i, view)
    write_numbers(world, state, i, numbers)
    write_mask(state, i, mask)


@entry
def begin_rows(
    world: TerritoryWorld, state: TerritoryState, rows: Array, views: Array, numbers: Array, masks: Array
) -> None:
    """Begin an episode in rows int64 [R]; write their observations and masks into the arrays of all rows."""
    for i in rows:
        begin(world, state, i)
        show(world, state, i, views[i], numbers[i], masks[i])


@entry
def step_rows(
    world: TerritoryWorld,
    state: TerritoryState,
    actions: Array,
    views: Array,
    numbers: Array,
    masks: Array,
    terms: Array,
    rewards: Array,
    taken: Array,
    share: int,
) -> None:
    """Step the rows this thread takes: actions int64 [N] in; views, numbers, masks, terms, rewards out.

    A row whose episode has ended must not be stepped.
    """
    num_rows = actions.shape[0]
    first = take_rows(taken, num_rows, share)
    while first < num_rows:
        for i in range(first, min(first + share, num_rows)):
            rewards[i] = step(world, state, i, actions[i], terms[i])
            show(world, state, i, views[i], numbers[i], masks[i])
        first = take_rows(taken, num_rows, share)


@entry
def read_ranks(state: TerritoryState, rows: Array, ranks: Array) -> None:
    """Write the agent's rank in rows int64 [R] into ranks [R]."""
    for k in range(len(rows)):
        ranks[k] = find_rank(state, rows[k])
