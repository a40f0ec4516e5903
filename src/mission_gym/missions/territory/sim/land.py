"""Maps: terrain from noise, and where the nations begin."""

from __future__ import annotations

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym.missions.territory.sim.chance import BLOCKS, COARSE, FINE, PLACES, draw
from mission_gym.missions.territory.sim.layout import NEUTRAL, ROCK, WATER, State, World

COARSE_CELLS, FINE_CELLS = 16, 8  # between the knots of the noise
TRIES = 8  # places that are looked at for each nation
SIGHT = 4  # cells around a place


@kernel
def noise(stream: int, purpose: int, x: int, y: int, spacing: int) -> int:
    """Noise from 0 to 255: four knots, mixed by their distances."""
    column, row, right, down = x // spacing, y // spacing, x % spacing, y % spacing
    total = 0
    for corner in range(4):
        dx, dy = corner % 2, corner // 2
        weight = (right if dx == 1 else spacing - right) * (down if dy == 1 else spacing - down)
        total += weight * (draw(stream, purpose, (row + dy) * 64 + column + dx) & 255)
    return total // (spacing * spacing)


@kernel
def lay_terrain(world: World, state: State, i: int) -> None:
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
    """The cells that can be owned up to `reach` from a place, inside the map."""
    count = 0
    for row in range(max(y - reach, 0), min(y + reach, size - 1) + 1):
        for column in range(max(x - reach, 0), min(x + reach, size - 1) + 1):
            count += cells[(row + 1) * (size + 2) + column + 1] < WATER
    return count


@kernel
def settle_nations(world: World, state: State, i: int) -> None:
    """Give every nation 3 x 3 cells in a block of the map of its own.

    The blocks are drawn without repetition: `after` holds their numbers meanwhile.
    """
    rules, cells, blocks, stream = world.rules[0], state.cells[i], state.after[i], state.games[i].stream
    size, across = rules.size, 1
    while across * across < rules.num_bots + 1:
        across += 1
    for k in range(across * across):
        blocks[k] = k
    for nation in range(1, rules.num_bots + 2):
        first = nation - 1
        chosen = first + draw(stream, BLOCKS, nation) % (across * across - first)
        blocks[first], blocks[chosen] = blocks[chosen], blocks[first]
        column, row = blocks[first] % across, blocks[first] // across
        left, top = column * size // across, row * size // across
        width, height = (column + 1) * size // across - left, (row + 1) * size // across - top
        best = best_x = best_y = -1
        for k in range(TRIES):
            chance = draw(stream, PLACES, nation * TRIES + k)
            x = left + 1 + (chance & 0xFFFF) % (width - 2)
            y = top + 1 + (chance >> 16) % (height - 2)
            count = count_land(cells, size, x, y, SIGHT)
            if count > best:
                best, best_x, best_y = count, x, y
        for y in range(best_y - 1, best_y + 2):
            for x in range(best_x - 1, best_x + 2):
                cells[(y + 1) * (size + 2) + x + 1] = nation
