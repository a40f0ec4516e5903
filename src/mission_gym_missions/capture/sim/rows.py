"""The entries of the simulator: begin episodes, and step rows.

Rows share nothing and each has its own random stream. So a row's numbers depend on its seed and actions
alone, whatever the number of rows and whichever thread steps it.
"""

from __future__ import annotations

import math

from mission_gym.compiled import entry, kernel
from mission_gym.data import Array
from mission_gym_missions.capture.sim.defenders import run_clocks, think
from mission_gym_missions.capture.sim.layout import (
    FIRST_HEADING,
    HEADING_COS,
    HEADING_SIN,
    HOLD,
    PATROL_POINTS,
    TAG,
    CaptureState,
    CaptureWorld,
)
from mission_gym_missions.capture.sim.motion import can_touch, contact, move, stay_inside
from mission_gym_missions.capture.sim.objective import goal_distance, potential, run_objective, settle
from mission_gym_missions.capture.sim.observation import write_row
from mission_gym_missions.capture.sim.sensors import attack, defend, update_sight, update_tracks
from mission_gym_missions.rng import begin_stream, draw, draw_in_disc, draw_index, draw_span
from mission_gym_missions.simulator import RUNNING, take_rows


@kernel
def place(
    world: CaptureWorld, state: CaptureState, i: int, u: int, x: float, y: float, facing: float
) -> None:
    """Place a new unit, out of obstacles and inside the arena."""
    unit, kind = state.units[i, u], world.kinds[u]
    unit.x, unit.y = x, y
    for k in range(world.obstacles.shape[0]):
        depth, nx, ny = contact(world.obstacles[k], unit.x, unit.y, kind.radius)
        if depth > 0.0 and not kind.air:
            unit.x += depth * nx
            unit.y += depth * ny
    unit.speed = unit.throttle = unit.distance_m = 0.0
    stay_inside(unit, kind, world.rules[0].half_m)
    unit.cos, unit.sin = math.cos(facing), math.sin(facing)
    unit.want_cos, unit.want_sin = unit.cos, unit.sin
    unit.integrity = kind.integrity
    unit.cooldown = unit.touching = 0


@kernel
def spawn_attackers(world: CaptureWorld, state: CaptureState, i: int, side: float) -> None:
    """Place the attackers in a fan on the drawn side of the zone, facing it."""
    rules, game = world.rules[0], state.games[i]
    for a in range(rules.num_attackers):
        share = 2.0 * a / (rules.num_attackers - 1) - 1.0 if rules.num_attackers > 1 else 0.0
        angle = side + share * rules.spawn_fan
        dx, dy = draw_in_disc(game, rules.spawn_jitter)
        x = rules.objective_x + rules.spawn_m * math.cos(angle) + dx
        y = rules.objective_y + rules.spawn_m * math.sin(angle) + dy
        place(world, state, i, a, x, y, side + math.pi)


@kernel
def spawn_defenders(world: CaptureWorld, state: CaptureState, i: int, side: float) -> None:
    """Post the defenders around the zone and draw the behaviour of each."""
    rules, game = world.rules[0], state.games[i]
    front = side + draw_span(game, rules.post_turn)
    for d in range(state.minds.shape[1]):
        mind = state.minds[i, d]
        angle = front + draw_span(game, rules.post_spread)
        dx, dy = draw_in_disc(game, rules.post_jitter)
        x = game.objective_x + rules.post_m * math.cos(angle) + dx
        y = game.objective_y + rules.post_m * math.sin(angle) + dy
        place(world, state, i, rules.num_attackers + d, x, y, angle)
        unit = state.units[i, rules.num_attackers + d]
        mind.post_x, mind.post_y = unit.x, unit.y
        mind.mode = world.modes[draw_index(game, world.modes.shape[0])]
        mind.delay = int(draw(game) * (rules.reaction_ticks + 1))
        mind.target = -1
        mind.memory = mind.reaction = mind.leg = mind.detour = mind.detour_side = 0
        mind.seen_x = mind.seen_y = mind.seen_vx = mind.seen_vy = 0.0
        for k in range(PATROL_POINTS):
            turn = angle + 2.0 * math.pi * k / PATROL_POINTS
            dx, dy = draw_in_disc(game, rules.patrol_jitter)
            point = state.patrols[i, d, k]
            point.x = game.objective_x + rules.patrol_m * math.cos(turn) + dx
            point.y = game.objective_y + rules.patrol_m * math.sin(turn) + dy
        track = state.tracks[i, d]
        track.x = track.y = track.cos = track.sin = track.integrity = 0.0
        track.age = -1


@kernel
def begin(world: CaptureWorld, state: CaptureState, i: int) -> None:
    """Draw a new episode from the row's seed and episode number."""
    rules, game = world.rules[0], state.games[i]
    begin_stream(game)
    game.tick = game.capture = game.zone = game.stall = game.entered = game.contested = 0
    game.collisions = game.detections = 0
    game.attacker_tags = game.attacker_hits = game.defender_tags = game.defender_hits = 0
    game.integrity_lost = 0.0
    game.outcome = RUNNING
    dx, dy = draw_in_disc(game, rules.objective_jitter)
    game.objective_x, game.objective_y = rules.objective_x + dx, rules.objective_y + dy
    side = world.sides[draw_index(game, world.sides.shape[0])]
    spawn_attackers(world, state, i, side)
    spawn_defenders(world, state, i, side)
    game.best_m = math.inf
    for a in range(rules.num_attackers):
        game.best_m = min(game.best_m, goal_distance(game, state.units[i, a]))
    game.potential = potential(world, state, i)
    update_sight(world, state, i)
    update_tracks(world, state, i)
    for d in range(state.minds.shape[1]):
        think(world, state, i, d)


@kernel
def command(world: CaptureWorld, state: CaptureState, i: int, actions: Array, terms: Array) -> None:
    """Give the attackers their orders. A tag takes effect at once and leaves the motion unchanged."""
    for a in range(world.rules[0].num_attackers):
        unit, action = state.units[i, a], actions[a]
        if unit.integrity <= 0.0:
            continue
        if action == TAG:
            attack(world, state, i, a, terms)
        elif action == HOLD:
            unit.throttle = 0.0
        else:
            unit.throttle = 1.0
            unit.want_cos = HEADING_COS[action - FIRST_HEADING]
            unit.want_sin = HEADING_SIN[action - FIRST_HEADING]


@kernel
def tick(world: CaptureWorld, state: CaptureState, i: int, near: int, terms: Array) -> None:
    """Advance the physics by one tick. near: a bit for each unit that may touch an obstacle."""
    rules, game = world.rules[0], state.games[i]
    game.tick += 1
    for u in range(world.kinds.shape[0]):
        unit = state.units[i, u]
        unit.cooldown = max(unit.cooldown - 1, 0)
        if unit.integrity > 0.0:
            ran_into = move(
                unit, world.kinds[u], rules.dt, rules.half_m, world.obstacles, (near >> u) & 1 == 1
            )
            if ran_into and u < rules.num_attackers:
                game.collisions += 1
    looking = game.tick % rules.sense_ticks == 0
    if looking:
        update_sight(world, state, i)
    for d in range(state.minds.shape[1]):
        track = state.tracks[i, d]
        if track.age >= 0:
            track.age += 1
        run_clocks(state.minds[i, d])
        if looking:
            think(world, state, i, d)
        defend(world, state, i, d, terms)
    if looking:
        update_tracks(world, state, i)
    run_objective(world, state, i, terms)


@kernel
def find_near(world: CaptureWorld, state: CaptureState, i: int) -> int:
    """Return a bit for each ground unit that may touch an obstacle during this command."""
    rules = world.rules[0]
    near = 0
    for u in range(world.kinds.shape[0]):
        travel_m = world.kinds[u].max_speed * rules.command_ticks / rules.hz + 0.01
        if can_touch(state.units[i, u], world.kinds[u], world.obstacles, travel_m):
            near |= 1 << u
    return near


@entry
def begin_rows(world: CaptureWorld, state: CaptureState, rows: Array, obs: Array, mask: Array) -> None:
    """Begin an episode in rows int64 [R]; write their observations and masks into obs [N, F], mask [N, M]."""
    for k in range(rows.shape[0]):
        i = rows[k]
        begin(world, state, i)
        write_row(world, state, i, obs[i], mask[i])


@kernel
def step(world: CaptureWorld, state: CaptureState, i: int, actions: Array, terms: Array) -> float:
    """Execute one command in a row and return the reward. A decided episode stops at that tick."""
    game = state.games[i]
    terms[:] = 0.0
    start = game.tick
    command(world, state, i, actions, terms)
    near = find_near(world, state, i)
    for _ in range(world.rules[0].command_ticks):
        tick(world, state, i, near, terms)
        if game.outcome != RUNNING:
            break
    return float(settle(world, state, i, game.tick - start, terms))


@entry
def step_rows(
    world: CaptureWorld,
    state: CaptureState,
    actions: Array,
    obs: Array,
    mask: Array,
    terms: Array,
    rewards: Array,
    taken: Array,
    share: int,
) -> None:
    """Step the rows this thread takes: actions int64 [N, A] in; obs, mask, terms [N, T], rewards [N] out.

    A row whose episode has ended must not be stepped.
    """
    num_rows = actions.shape[0]
    first = take_rows(taken, num_rows, share)
    while first < num_rows:
        for i in range(first, min(first + share, num_rows)):
            rewards[i] = step(world, state, i, actions[i], terms[i])
            write_row(world, state, i, obs[i], mask[i])
        first = take_rows(taken, num_rows, share)
