"""Fronts, decisions of the bots, attacks and growth: the effects of a step on map and nations."""

from __future__ import annotations

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.rng import draw32
from mission_gym_missions.simulator import RUNNING
from mission_gym_missions.territory.sim.layout import (
    AGENT,
    C_ENEMY_FIRST,
    C_ENEMY_INTENSITY,
    C_ENEMY_RESERVE,
    C_MARGIN,
    C_NEUTRAL_INTENSITY,
    C_NEUTRAL_RESERVE,
    C_PACE,
    EAST,
    ELIMINATED,
    F_ENEMY_COST,
    F_NEUTRAL_COST,
    F_NEUTRALS,
    F_TARGETS,
    INTENSITIES,
    NEUTRAL,
    NORTH,
    NUM_DIRECTIONS,
    SOUTH,
    TIMEOUT,
    VICTORY,
    WATER,
    WHIMS,
    Record,
    TerritoryState,
    TerritoryWorld,
)


@kernel
def offset(direction: int, width: int) -> int:
    """Return the index offset from a cell to its neighbour."""
    if direction == NORTH:
        return -width
    if direction == SOUTH:
        return width
    return 1 if direction == EAST else -1


@kernel
def find_attacker(cells: Array, target: int, step: int, ferry_cells: int) -> tuple[int, int]:
    """Return the nation that can attack a cell with `step` (0: none), and how much water lies between."""
    source, crossed = target - step, 0
    while cells[source] == WATER and crossed < ferry_cells:
        source -= step
        crossed += 1
    owner = int(cells[source])
    if owner >= WATER or owner == cells[target]:
        owner = NEUTRAL
    return owner, crossed


@kernel
def find_cost(rules: Record, state: TerritoryState, i: int, owner: int, crossed: int) -> int:
    """Return the troops that a cell of an owner costs."""
    cost = rules.ferry_cost * crossed
    if owner == NEUTRAL:
        return int(cost + rules.neutral_cost)
    return int(cost + rules.enemy_cost + rules.density_cost * state.nations[i, owner].density)


@kernel
def find_cap(rules: Record, land: int) -> int:
    """Return the troops that a nation can hold."""
    return int(rules.cap + rules.land_cap * land)


@kernel
def survey(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Write the densities of all nations and the fronts of each."""
    rules, cells, fronts = world.rules[0], state.cells[i], state.fronts[i]
    width = rules.size + 2
    for p in range(state.nations.shape[1]):
        nation = state.nations[i, p]
        nation.density = nation.troops // nation.land if nation.land > 0 else 0
    fronts[:] = 0
    for y in range(1, rules.size + 1):
        for target in range(y * width + 1, y * width + 1 + rules.size):
            owner = int(cells[target])
            if owner >= WATER:
                continue
            for direction in range(NUM_DIRECTIONS):
                p, crossed = find_attacker(cells, target, offset(direction, width), rules.ferry_cells)
                if p != NEUTRAL:
                    front = fronts[p, direction]
                    cost = find_cost(rules, state, i, owner, crossed)
                    front[F_TARGETS] += 1
                    front[F_NEUTRALS] += owner == NEUTRAL
                    kind = F_NEUTRAL_COST if owner == NEUTRAL else F_ENEMY_COST
                    if front[kind] == 0 or cost < front[kind]:
                        front[kind] = cost


@kernel
def find_share(state: TerritoryState, i: int, p: int, direction: int, intensity: int) -> int:
    """Return the troops per cell of an attack; 0 if there is nothing to attack."""
    targets = state.fronts[i, p, direction, F_TARGETS]
    if targets == 0:
        return 0
    return int(state.nations[i, p].troops * INTENSITIES[intensity] // 8 // targets)


@kernel
def order(state: TerritoryState, i: int, p: int, direction: int, intensity: int) -> None:
    """Set the attack of a nation; direction -1 waits."""
    nation = state.nations[i, p]
    nation.direction, nation.share = direction, 0
    if direction >= 0:
        nation.share = find_share(state, i, p, direction, intensity)


@kernel
def choose(world: TerritoryWorld, state: TerritoryState, i: int, p: int, turn: int, enemies: bool) -> int:
    """Return the direction with the most affordable cells of a kind, judged by the cheapest; -1 if none."""
    nation = state.nations[i, p]
    traits = world.characters[nation.character]
    reserve = traits[C_ENEMY_RESERVE] if enemies else traits[C_NEUTRAL_RESERVE]
    intensity = traits[C_ENEMY_INTENSITY] if enemies else traits[C_NEUTRAL_INTENSITY]
    margin = traits[C_MARGIN] if enemies else 16
    best, most = -1, 0
    if 16 * nation.troops < reserve * find_cap(world.rules[0], nation.land):
        return best
    for k in range(NUM_DIRECTIONS):
        direction = (turn + k) % NUM_DIRECTIONS
        front = state.fronts[i, p, direction]
        count = front[F_TARGETS] - front[F_NEUTRALS] if enemies else front[F_NEUTRALS]
        cost = front[F_ENEMY_COST] if enemies else front[F_NEUTRAL_COST]
        if count > most and 16 * find_share(state, i, p, direction, intensity) >= margin * cost:
            best, most = direction, count
    return best


@kernel
def decide(world: TerritoryWorld, state: TerritoryState, i: int, p: int) -> None:
    """Decide the attack of a bot: by its character, its fronts and a random number."""
    game, nation = state.games[i], state.nations[i, p]
    traits = world.characters[nation.character]
    chance = draw32(game.stream, WHIMS, game.step * 256 + p)
    direction, intensity = -1, 0
    if nation.land > 0 and (chance >> 2) % 8 < traits[C_PACE]:
        enemies = traits[C_ENEMY_FIRST] == 1
        for _ in range(2):
            if direction < 0:
                direction = choose(world, state, i, p, chance % 4, enemies)
                intensity = traits[C_ENEMY_INTENSITY] if enemies else traits[C_NEUTRAL_INTENSITY]
                enemies = not enemies
    order(state, i, p, direction, intensity)


@kernel
def fight(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Give every attacked cell to the strongest attacker that can pay for it. All attacks are simultaneous.

    Half of the wasted troops are lost: of all troops if they do not suffice, and of those beyond the cost if
    they take the cell.
    """
    rules, game, cells, after = world.rules[0], state.games[i], state.cells[i], state.after[i]
    width = rules.size + 2
    for p in range(state.nations.shape[1]):
        nation = state.nations[i, p]
        nation.paid = nation.taken = nation.lost = 0
    game.attacks += state.nations[i, AGENT].share > 0
    for k in range(len(cells)):
        after[k] = cells[k]
    for y in range(1, rules.size + 1):
        for target in range(y * width + 1, y * width + 1 + rules.size):
            owner = int(cells[target])
            if owner >= WATER:
                continue
            winner = price = strongest = 0
            for direction in range(NUM_DIRECTIONS):
                p, crossed = find_attacker(cells, target, offset(direction, width), rules.ferry_cells)
                attacker = state.nations[i, p]
                if p != NEUTRAL and attacker.direction == direction:
                    cost = find_cost(rules, state, i, owner, crossed)
                    if attacker.share < cost:
                        attacker.paid += attacker.share // 2
                    elif attacker.share > strongest:
                        winner, price, strongest = p, cost + (attacker.share - cost) // 2, attacker.share
            if winner != NEUTRAL:
                after[target] = winner
                state.nations[i, winner].paid += price
                state.nations[i, winner].taken += 1
                if owner != NEUTRAL:
                    state.nations[i, owner].lost += 1
                    if winner == AGENT:
                        game.conquered += 1
                if owner == AGENT:
                    game.lost += 1
    for k in range(len(cells)):
        cells[k] = after[k]


@kernel
def grow(world: TerritoryWorld, state: TerritoryState, i: int) -> None:
    """Pay for attacks, remove the troops of lost cells, and add the income."""
    rules = world.rules[0]
    for p in range(1, state.nations.shape[1]):
        nation = state.nations[i, p]
        if nation.land == 0:
            continue
        nation.land += nation.taken - nation.lost
        if nation.land == 0:
            nation.troops = 0
            if p != AGENT:
                state.games[i].eliminations += 1
            continue
        troops = max(nation.troops - nation.paid - nation.density * nation.lost, 0)
        most = find_cap(rules, nation.land)
        if troops < most:
            income = rules.income + rules.land_income * nation.land // 8
            troops += income * (most - troops) // most
        else:
            troops -= (troops - most) // 8
        nation.troops = troops


@kernel
def find_rank(state: TerritoryState, i: int) -> int:
    """Return the agent's rank among all nations by land; 1 is the largest."""
    rank = 1
    for p in range(AGENT + 1, state.nations.shape[1]):
        rank += state.nations[i, p].land > state.nations[i, AGENT].land
    return rank


@kernel
def count_alive(state: TerritoryState, i: int) -> int:
    """Count the bots that own land."""
    alive = 0
    for p in range(AGENT + 1, state.nations.shape[1]):
        alive += state.nations[i, p].land > 0
    return alive


@kernel
def judge(world: TerritoryWorld, state: TerritoryState, i: int) -> int:
    """Return the outcome of a row."""
    rules, game, land = world.rules[0], state.games[i], state.nations[i, AGENT].land
    if land == 0:
        return ELIMINATED
    if 100 * land >= rules.victory_percent * game.total or count_alive(state, i) == 0:
        return VICTORY
    return TIMEOUT if game.step >= rules.max_steps else RUNNING
