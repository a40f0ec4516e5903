"""Fronts, attacks and growth: what a step does to the map and to the nations."""

from __future__ import annotations

from mission_gym.compiled import kernel
from mission_gym.data import Array
from mission_gym_missions.territory.sim.layout import (
    AGENT,
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
    RUNNING,
    SOUTH,
    TIMEOUT,
    VICTORY,
    WATER,
    Record,
    State,
    World,
)


@kernel
def offset(direction: int, width: int) -> int:
    """From a cell to its neighbour."""
    if direction == NORTH:
        return -width
    if direction == SOUTH:
        return width
    return 1 if direction == EAST else -1


@kernel
def find_attacker(cells: Array, target: int, step: int, ferry_cells: int) -> tuple[int, int]:
    """Who stands before a cell, coming with `step`, and how much water lies between; nobody is 0."""
    source, crossed = target - step, 0
    while cells[source] == WATER and crossed < ferry_cells:
        source -= step
        crossed += 1
    owner = int(cells[source])
    if owner >= WATER or owner == cells[target]:
        owner = NEUTRAL
    return owner, crossed


@kernel
def find_cost(rules: Record, state: State, i: int, owner: int, crossed: int) -> int:
    """Troops that a cell of an owner costs."""
    cost = rules.ferry_cost * crossed
    if owner == NEUTRAL:
        return int(cost + rules.neutral_cost)
    return int(cost + rules.enemy_cost + rules.density_cost * state.nations[i, owner].density)


@kernel
def find_cap(rules: Record, land: int) -> int:
    """Troops that a nation can hold."""
    return int(rules.cap + rules.land_cap * land)


@kernel
def survey(world: World, state: State, i: int) -> None:
    """Write the densities of all nations and what each would meet in every direction."""
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
def find_share(state: State, i: int, p: int, direction: int, intensity: int) -> int:
    """Troops for each cell, if a nation attacks; 0 where nothing is to be attacked."""
    targets = state.fronts[i, p, direction, F_TARGETS]
    if targets == 0:
        return 0
    return int(state.nations[i, p].troops * INTENSITIES[intensity] // 8 // targets)


@kernel
def order(state: State, i: int, p: int, direction: int, intensity: int) -> None:
    """Let a nation attack; direction -1 is to wait."""
    nation = state.nations[i, p]
    nation.direction, nation.share = direction, 0
    if direction >= 0:
        nation.share = find_share(state, i, p, direction, intensity)


@kernel
def fight(world: World, state: State, i: int) -> None:
    """Give every attacked cell to the strongest who can pay for it; all attacks are at once.

    Half of the troops that were not needed are lost: of all that were sent where they do not suffice, and of
    what is beyond the cost where they take the cell.
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
def grow(world: World, state: State, i: int) -> None:
    """Pay for attacks, bury those who stood on lost cells, and let troops grow with the land."""
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
def find_rank(state: State, i: int) -> int:
    """The agent's place among all nations by land; 1 is the largest."""
    rank = 1
    for p in range(AGENT + 1, state.nations.shape[1]):
        rank += state.nations[i, p].land > state.nations[i, AGENT].land
    return rank


@kernel
def count_alive(state: State, i: int) -> int:
    """Bots that have land."""
    alive = 0
    for p in range(AGENT + 1, state.nations.shape[1]):
        alive += state.nations[i, p].land > 0
    return alive


@kernel
def judge(world: World, state: State, i: int) -> int:
    """The outcome of a row."""
    rules, game, land = world.rules[0], state.games[i], state.nations[i, AGENT].land
    if land == 0:
        return ELIMINATED
    if 100 * land >= rules.victory_percent * game.total or count_alive(state, i) == 0:
        return VICTORY
    return TIMEOUT if game.step >= rules.max_steps else RUNNING
