"""The arrays of the simulator. N = rows, P = nations (number 1 is the agent's), S = cells per side.

A map is stored row by row with a border of rock, so that every cell has neighbours: cell (x, y), from 0, is
at (y + 1) * (S + 2) + x + 1. All rules use integers; only rewards and observations do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym_missions.simulator import make_record

Record = Any  # one element of a structured array; numba passes it by reference

OUTCOMES = ("victory", "eliminated", "timeout")
VICTORY, ELIMINATED, TIMEOUT = range(3)

# A cell is the number of the nation that owns it, or NEUTRAL, WATER or ROCK.
NEUTRAL, AGENT, WATER, ROCK = 0, 1, 254, 255

# y grows to the south.
NORTH, EAST, SOUTH, WEST = range(4)
NUM_DIRECTIONS = 4
# An attack takes INTENSITIES / 8 of all troops.
INTENSITIES = np.array([1, 2, 4])
NUM_INTENSITIES = 3
WAIT = 0  # else 1 + NUM_INTENSITIES * direction + intensity
NUM_ACTIONS = 1 + NUM_DIRECTIONS * NUM_INTENSITIES

TERMS = ("land", "conquest", "victory", "eliminated", "rank", "time")
T_LAND, T_CONQUEST, T_VICTORY, T_ELIMINATED, T_RANK, T_TIME = range(6)

CHARACTERS = ("settler", "raider", "turtle", "opportunist")
C_PACE, C_ENEMY_FIRST, C_NEUTRAL_RESERVE, C_NEUTRAL_INTENSITY = range(4)
C_ENEMY_RESERVE, C_ENEMY_INTENSITY, C_MARGIN, NUM_TRAITS = range(4, 8)

# A nation's front in a direction: cells it can attack, how many of them are neutral, and the cost of the
# cheapest neutral and enemy cell (0: there is none).
F_TARGETS, F_NEUTRALS, F_NEUTRAL_COST, F_ENEMY_COST, NUM_FRONT = range(5)

# Planes of the observed map.
M_MINE, M_ENEMIES, M_NEUTRAL, M_TROOPS, M_TERRAIN, NUM_PLANES = range(6)
# Observed numbers: these, then NUM_DIRECTION_NUMBERS per direction.
N_LAND, N_TROOPS, N_RANK, N_TIME, N_ALIVE, N_LARGEST, N_DIRECTIONS = range(7)
D_TARGETS, D_NEUTRALS, D_NEUTRAL_ODDS, D_ENEMY_ODDS, NUM_DIRECTION_NUMBERS = range(5)
NUM_NUMBERS = N_DIRECTIONS + NUM_DIRECTIONS * NUM_DIRECTION_NUMBERS

COARSE, FINE, BLOCKS, PLACES, NATURES, WHIMS = range(6)  # purposes of random numbers


GAME = make_record("seed episode stream step outcome total conquered lost eliminations attacks")
NATION = make_record("land troops density character direction share paid taken lost")

RULES = make_record(
    "size num_bots start_troops max_steps victory_percent water_below rock_above neutral_cost"
    " enemy_cost density_cost ferry_cells ferry_cost income land_income cap land_cap",
    sources=Path(__file__).parent,
)


class TerritoryWorld(NamedTuple):
    """A mission as arrays: the constants."""

    rules: Array  # RULES [1]
    characters: Array  # int64 [len(CHARACTERS), NUM_TRAITS]
    weights: Array  # float64 [T]


class TerritoryState(NamedTuple):
    """Everything that changes, per row. Nation 0 is neutral."""

    games: Array  # GAME [N]
    nations: Array  # NATION [N, 1 + P]
    cells: Array  # uint8 [N, (S + 2) ** 2]
    after: Array  # uint8, like cells: the map after the step
    fronts: Array  # int64 [N, 1 + P, NUM_DIRECTIONS, NUM_FRONT]
    pooled: Array  # int64 [N, NUM_PLANES, V]: sums of one row of V squares


def make_state(num_rows: int, size: int, num_bots: int, num_squares: int) -> TerritoryState:
    """Allocate the state of `num_rows` games."""
    cells = (num_rows, (size + 2) ** 2)
    nations = (num_rows, num_bots + 2)
    return TerritoryState(
        games=np.zeros(num_rows, GAME),
        nations=np.zeros(nations, NATION),
        cells=np.zeros(cells, np.uint8),
        after=np.zeros(cells, np.uint8),
        fronts=np.zeros((*nations, NUM_DIRECTIONS, NUM_FRONT), np.int64),
        pooled=np.zeros((num_rows, NUM_PLANES, num_squares), np.int64),
    )
