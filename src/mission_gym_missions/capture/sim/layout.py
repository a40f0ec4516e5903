"""The arrays of the simulator. N = rows, A = attackers, D = defenders, U = A + D (attackers first).

Clocks are integers in physics ticks, so they are exact and do not depend on the action repeat.
Lengths are in metres; x points east and y north from the centre of the arena.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym_missions.simulator import make_record

Record = Any  # one element of a structured array; numba passes it by reference

OUTCOMES = ("captured", "all_disabled", "stalled", "timeout")
CAPTURED, ALL_DISABLED, STALLED, TIMEOUT = range(4)

MODES = ("patrol", "guard", "intercept")
PATROL, GUARD, INTERCEPT = range(3)
PATROL_POINTS = 4

TERMS = (
    "capture", "win", "survivors", "first_entry", "approach", "defender_tagged", "defender_disabled",
    "unit_lost", "integrity", "time", "all_disabled", "stalled", "timeout",
)  # fmt: skip
T_CAPTURE, T_WIN, T_SURVIVORS, T_ENTRY, T_APPROACH, T_TAGGED, T_DISABLED, T_LOST = range(8)
T_INTEGRITY, T_TIME, T_ALL_DISABLED, T_STALLED, T_TIMEOUT = range(8, 13)

# Actions of an attacker: 0 holds, 1 to 8 are the compass headings from east over north, 9 tags.
HOLD, FIRST_HEADING, NUM_HEADINGS, TAG, NUM_ACTIONS = 0, 1, 8, 9, 10
_DIAGONAL = float(np.sqrt(0.5))
HEADING_COS = np.array([1.0, _DIAGONAL, 0.0, -_DIAGONAL, -1.0, -_DIAGONAL, 0.0, _DIAGONAL])
HEADING_SIN = np.array([0.0, _DIAGONAL, 1.0, _DIAGONAL, 0.0, -_DIAGONAL, -1.0, -_DIAGONAL])

# Features of an attacker, in order, then FOE_FEATURES per defender; the globals follow after all attackers.
O_X, O_Y, O_COS, O_SIN, O_SPEED, O_INTEGRITY, O_COOLDOWN, O_ALTITUDE, O_DISABLED, O_INSIDE = range(10)
O_GOAL, O_GOAL_NEAR, O_GOAL_DISTANCE, O_RAYS = 10, 12, 14, 15
OWN_FEATURES = 23
F_POSITION, F_NEAR, F_COS, F_SIN, F_INTEGRITY, F_AGE = 0, 2, 4, 5, 6, 7
FOE_FEATURES = 8
G_TIME, G_CAPTURE, G_CONTESTED, G_STALL = range(4)
GLOBAL_FEATURES = 4
NEAR_M = 15.0  # the near scale of a vector v of length d is v / (d + 15 m)
RAY_M = 40.0  # how far the clearance rays reach
AGE_S = 20.0  # the age of a track at which its feature saturates


def num_features(num_attackers: int, num_defenders: int) -> int:
    """Return the length of an observation."""
    return num_attackers * (OWN_FEATURES + FOE_FEATURES * num_defenders) + GLOBAL_FEATURES


UNIT = make_record("cooldown touching", "x y cos sin speed integrity want_cos want_sin throttle distance_m")
# A defender's mind: memory and reaction are clocks, target is an attacker or -1.
MIND = make_record(
    "mode target memory reaction delay leg detour detour_side", "post_x post_y seen_x seen_y seen_vx seen_vy"
)
POINT = make_record(reals="x y")
# A defender as the fleet last sensed it; age -1: never.
TRACK = make_record("age", "x y cos sin integrity")
GAME = make_record(
    "seed episode random tick capture zone stall entered contested outcome collisions detections"
    " attacker_tags attacker_hits defender_tags defender_hits",
    "objective_x objective_y best_m potential integrity_lost",
)

# Constants of a scenario.
KIND = make_record(
    "air cooldown",
    "altitude max_speed speed_step turn_cos turn_sin radius integrity damage sensor_m sensor_cos",
)
OBSTACLE = make_record(reals="x y bound radius half_w half_h cos sin")  # a rectangle has radius 0


RULES = make_record(
    "num_attackers command_ticks sense_ticks limit_ticks stall_ticks capture_ticks contested"
    " memory_ticks reaction_ticks blind",
    "hz dt half_m stall_m objective_x objective_y objective_jitter radius"
    " spawn_m spawn_fan spawn_jitter post_m post_turn post_spread post_jitter patrol_m patrol_jitter"
    " leash_m standoff_m random_share aim_spread tag_m tag_full_m tag_far_share tag_cos",
    Path(__file__).parent,
)


class CaptureWorld(NamedTuple):
    """A scenario as arrays: the constants."""

    rules: Array  # RULES [1]
    kinds: Array  # KIND [U]
    obstacles: Array  # OBSTACLE [O]
    sides: Array  # float64 [S], radians: the sides that attackers may come from
    modes: Array  # int64 [M]; each defender draws one
    weights: Array  # float64 [T], 0 for a term that is off


class CaptureState(NamedTuple):
    """Everything that changes, per row."""

    games: Array  # GAME [N]
    units: Array  # UNIT [N, U]
    minds: Array  # MIND [N, D]
    patrols: Array  # POINT [N, D, PATROL_POINTS]
    tracks: Array  # TRACK [N, D]
    sight: Array  # uint8 [N, A, D]: whether the line of sight is clear


def make_state(num_rows: int, num_attackers: int, num_defenders: int) -> CaptureState:
    """Allocate the state of `num_rows` games."""
    shape = (num_rows, num_defenders)
    return CaptureState(
        games=np.zeros(num_rows, GAME),
        units=np.zeros((num_rows, num_attackers + num_defenders), UNIT),
        minds=np.zeros(shape, MIND),
        patrols=np.zeros((*shape, PATROL_POINTS), POINT),
        tracks=np.zeros(shape, TRACK),
        sight=np.zeros((num_rows, num_attackers, num_defenders), np.uint8),
    )
