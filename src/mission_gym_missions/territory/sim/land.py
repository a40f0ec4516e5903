"""Maps: terrain from noise, and the starting positions of the nations."""

from __future__ import annotations

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.rng import draw32
from mission_gym_missions.territory.sim.layout import (
    AGENT,
    BLOCKS,
    COARSE,
    FINE,
    NEUTRAL,
    NUM_DIRECTIONS,
    PLACES,
    ROCK,
    WATER,
    TerritoryState,
    TerritoryWorld,
)
from mission_gym_missions.territory.sim.war import find_attacker, offset

COARSE_CELLS, FINE_CELLS = 16, 8  # between the grid points of the noise
TRIES = 8  # candidate positions per nation
SIGHT = 4  # cells around a position


@kernel
def noise(stream: int, purpose: int, x: int, y: int, spacing: int) -> int:
    """Return noise from 0 to 255: four grid points, weighted by their distances."""
    column, row, right, down = x // spacing, y // spacing, x % spacing, y % spacing
    total = 0
    for corner in range(4):
        dx, dy = corner % 2, corner // 2
        weight = (right if dx == 1 else spacing - right) * (down if dy == 1 else spacing - down)
        total += weight * (draw32(stream, purpose, (row + dy) * 64 + column + dx) & 255)
    return total // (spacing * spacing)


@kernel
def lay_terrain(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Fill the map of a row with land, water and rock."""
    rules, cells, stream = world.rules[0], state.cells[i], state.games[i].stream
    cells[:] = ROCK
    for y in range(rules.size):
        for x in range(rules.size):
            kind = NEUTRAL
            if noise(stream, COARSE, x, y, COARSE_CELLS) < rules.water_below:
                kind = WATER
            elif noise(stream, FINE, x, y, FINE_CELLS) > rules.rock_above:
                kind = ROCK
            cells[(y + 1) * (rules.size + 2) + x + 1] = kind


@kernel
def count_land(cells: Array, size: int, x: int, y: int, reach: int) -> int:
    """Count the ownable cells up to `reach` from a position, inside the map."""
    count = 0
    for row in range(max(y - reach, 0), min(y + reach, size - 1) + 1):
        for column in range(max(x - reach, 0), min(x + reach, size - 1) + 1):
            count += cells[(row + 1) * (size + 2) + column + 1] < WATER
    return count


@kernel
def settle_nations(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Give every nation 3 x 3 cells in its own block of the map.

    The blocks are drawn without replacement; `after` stores their numbers meanwhile.
    """
    rules, cells, blocks, stream = world.rules[0], state.cells[i], state.after[i], state.games[i].stream
    size, across = rules.size, 1
    while across * across < rules.num_bots + 1:
        across += 1
    for k in range(across * across):
        blocks[k] = k
    for nation in range(1, rules.num_bots + 2):
        first = nation - 1
        chosen = first + draw32(stream, BLOCKS, nation) % (across * across - first)
        blocks[first], blocks[chosen] = blocks[chosen], blocks[first]
        column, row = blocks[first] % across, blocks[first] // across
        left, top = column * size // across, row * size // across
        width, height = (column + 1) * size // across - left, (row + 1) * size // across - top
        best = best_x = best_y = -1
        for k in range(TRIES):
            chance = draw32(stream, PLACES, nation * TRIES + k)
            x = left + 1 + (chance & 0xFFFF) % (width - 2)
            y = top + 1 + (chance >> 16) % (height - 2)
            count = count_land(cells, size, x, y, SIGHT)
            if count > best:
                best, best_x, best_y = count, x, y
        for y in range(best_y - 1, best_y + 2):
            for x in range(best_x - 1, best_x + 2):
                cells[(y + 1) * (size + 2) + x + 1] = nation


@kernel
def place_agent(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Swap the agent with the first nation that can reach the most land; that land is the total.

    `after` marks the reached land meanwhile. Nations that cannot meet reach disjoint land: one map is enough.
    """
    cells, reached, best, chosen = state.cells[i], state.after[i], 0, AGENT
    for cell in range(len(cells)):
        reached[cell] = cells[cell] if cells[cell] >= WATER else NEUTRAL
    for nation in range(1, world.rules[0].num_bots + 2):
        count = reach(world, cells, reached, nation)
        if count > best:
            best, chosen = count, nation
    state.games[i].total = best
    for cell in range(len(cells)):
        if cells[cell] == AGENT:
            cells[cell] = chosen
        elif cells[cell] == chosen:
            cells[cell] = AGENT


@kernel
def reach(world: TerritoryWorld, cells: Array, reached: Array, nation: int) -> int:
    """Mark the land that a nation can reach if nobody stops it; return how much was not marked before.

    Passes over the map alternate their direction."""
    rules, last = world.rules[0], len(cells) - 1
    count, is_forward = 0, False
    for cell in range(last + 1):
        if cells[cell] == nation and reached[cell] == NEUTRAL:
            reached[cell] = AGENT
            count += 1
    was_found = count > 0
    while was_found:
        was_found, is_forward = False, not is_forward
        for k in range(last + 1):
            target = k if is_forward else last - k
            if reached[target] != NEUTRAL:
                continue
            for direction in range(NUM_DIRECTIONS):
                step = offset(direction, rules.size + 2)
                owner, _ = find_attacker(reached, target, step, rules.ferry_cells)
                if owner == AGENT:
                    reached[target] = AGENT
                    count += 1
                    was_found = True
                    break
    return count
