"""How bots decide: by their character, their fronts and a little chance."""

from __future__ import annotations

from mission_gym.compiled import kernel
from mission_gym_missions.territory.sim.chance import WHIMS, draw
from mission_gym_missions.territory.sim.layout import (
    C_ENEMY_FIRST,
    C_ENEMY_INTENSITY,
    C_ENEMY_RESERVE,
    C_MARGIN,
    C_NEUTRAL_INTENSITY,
    C_NEUTRAL_RESERVE,
    C_PACE,
    F_ENEMY_COST,
    F_NEUTRAL_COST,
    F_NEUTRALS,
    F_TARGETS,
    NUM_DIRECTIONS,
    State,
    World,
)
from mission_gym_missions.territory.sim.war import find_cap, find_share, order


@kernel
def choose(world: World, state: State, i: int, p: int, turn: int, enemies: bool) -> int:
    """The direction with the most cells of a kind of which the cheapest can be paid; -1 if none."""
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
def decide(world: World, state: State, i: int, p: int) -> None:
    """Let a bot give its order."""
    game, nation = state.games[i], state.nations[i, p]
    traits = world.characters[nation.character]
    chance = draw(game.stream, WHIMS, game.step * 256 + p)
    direction, intensity = -1, 0
    if nation.land > 0 and (chance >> 2) % 8 < traits[C_PACE]:
        enemies = traits[C_ENEMY_FIRST] == 1
        for _ in range(2):
            if direction < 0:
                direction = choose(world, state, i, p, chance % 4, enemies)
                intensity = traits[C_ENEMY_INTENSITY] if enemies else traits[C_NEUTRAL_INTENSITY]
                enemies = not enemies
    order(state, i, p, direction, intensity)
