"""Observation and mask: the whole map pooled to squares, numbers, and the attacks that can take a cell."""

from __future__ import annotations

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.territory.sim.layout import (
    AGENT,
    D_ENEMY_ODDS,
    D_NEUTRAL_ODDS,
    D_NEUTRALS,
    D_TARGETS,
    F_ENEMY_COST,
    F_NEUTRAL_COST,
    F_NEUTRALS,
    F_TARGETS,
    M_ENEMIES,
    M_MINE,
    M_NEUTRAL,
    M_TERRAIN,
    M_TROOPS,
    N_ALIVE,
    N_DIRECTIONS,
    N_LAND,
    N_LARGEST,
    N_RANK,
    N_TIME,
    N_TROOPS,
    NEUTRAL,
    NUM_DIRECTION_NUMBERS,
    NUM_DIRECTIONS,
    NUM_INTENSITIES,
    NUM_PLANES,
    ROCK,
    WAIT,
    WATER,
    TerritoryState,
    TerritoryWorld,
)
from mission_gym_missions.territory.sim.war import count_alive, find_cap, find_rank, find_share

WATER_SHADE, TROOPS_SHADE = 128, 8


@kernel
def find_threat(mine: int, theirs: int) -> int:
    """Return an enemy's strength relative to the agent, by density: 1 to 255."""
    return 1 + 254 * (theirs + 1) // (theirs + mine + 2)


@kernel
def write_map(world: TerritoryWorld, state: TerritoryState, i: int, view: Array) -> None:
    """Write the mean of every square of cells, rounded down, into view uint8 [NUM_PLANES, VIEW, VIEW].

    A frame of rock surrounds the squares.
    """
    size, cells, sums = world.rules[0].size, state.cells[i], state.pooled[i]
    num_squares = sums.shape[1]
    side, frame = size // num_squares, (view.shape[1] - num_squares) // 2
    view[:] = 0
    view[M_TERRAIN] = 255
    mine = state.nations[i, AGENT].density
    for row in range(num_squares):
        sums[:] = 0
        for y in range(row * side, (row + 1) * side):
            at = (y + 1) * (size + 2) + 1
            for column in range(num_squares):
                for _ in range(side):
                    cell = int(cells[at])
                    at += 1
                    if cell == NEUTRAL:
                        sums[M_NEUTRAL, column] += 255
                    elif cell == WATER:
                        sums[M_TERRAIN, column] += WATER_SHADE
                    elif cell == ROCK:
                        sums[M_TERRAIN, column] += 255
                    else:
                        density = state.nations[i, cell].density
                        sums[M_TROOPS, column] += min(TROOPS_SHADE * density, 255)
                        if cell == AGENT:
                            sums[M_MINE, column] += 255
                        else:
                            sums[M_ENEMIES, column] += find_threat(mine, density)
        for plane in range(NUM_PLANES):
            for column in range(num_squares):
                view[plane, frame + row, frame + column] = sums[plane, column] // (side * side)


@kernel
def write_numbers(world: TerritoryWorld, state: TerritoryState, i: int, numbers: Array) -> None:
    """Write numbers float32 [NUM_NUMBERS] from 0 to 1."""
    rules, game, nation = world.rules[0], state.games[i], state.nations[i, AGENT]
    largest = 0
    for p in range(AGENT + 1, state.nations.shape[1]):
        largest = max(largest, state.nations[i, p].land)
    numbers[N_LAND] = nation.land / game.total
    numbers[N_TROOPS] = min(nation.troops / find_cap(rules, nation.land), 1.0)
    numbers[N_RANK] = (find_rank(state, i) - 1) / rules.num_bots
    numbers[N_TIME] = game.step / rules.max_steps
    numbers[N_ALIVE] = count_alive(state, i) / rules.num_bots
    numbers[N_LARGEST] = min(largest / game.total, 1.0)
    for direction in range(NUM_DIRECTIONS):
        at, front = N_DIRECTIONS + direction * NUM_DIRECTION_NUMBERS, state.fronts[i, AGENT, direction]
        share = find_share(state, i, AGENT, direction, NUM_INTENSITIES - 1)
        numbers[at + D_TARGETS] = min(front[F_TARGETS] / rules.size, 1.0)
        numbers[at + D_NEUTRALS] = front[F_NEUTRALS] / max(front[F_TARGETS], 1)
        for kind, index in ((F_NEUTRAL_COST, D_NEUTRAL_ODDS), (F_ENEMY_COST, D_ENEMY_ODDS)):
            numbers[at + index] = share / (share + front[kind]) if front[kind] > 0 else 0.0


@kernel
def write_mask(state: TerritoryState, i: int, mask: Array) -> None:
    """Write mask int8 [NUM_ACTIONS]: waiting is always legal, an attack if its troops pay for a cell."""
    mask[WAIT] = 1
    for direction in range(NUM_DIRECTIONS):
        front = state.fronts[i, AGENT, direction]
        cheapest = front[F_NEUTRAL_COST]
        if front[F_ENEMY_COST] > 0 and (cheapest == 0 or front[F_ENEMY_COST] < cheapest):
            cheapest = front[F_ENEMY_COST]
        for intensity in range(NUM_INTENSITIES):
            share = find_share(state, i, AGENT, direction, intensity)
            mask[1 + NUM_INTENSITIES * direction + intensity] = cheapest > 0 and share >= cheapest
