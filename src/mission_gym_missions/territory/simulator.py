"""The territory simulator as Python sees it, and the constants it takes from the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym_missions.simulator import ThreadedSimulator, check_range
from mission_gym_missions.territory.rules import SQUARES, VIEW, TerritoryMission, load_mission
from mission_gym_missions.territory.sim.layout import (
    AGENT,
    CHARACTERS,
    NUM_ACTIONS,
    NUM_NUMBERS,
    NUM_PLANES,
    OUTCOMES,
    RULES,
    TERMS,
    TerritoryWorld,
    make_state,
)
from mission_gym_missions.territory.sim.rows import begin_rows, read_ranks, step_rows

_MEANING = f"0 (wait) or 1 to {NUM_ACTIONS - 1} (direction and intensity of an attack)"


class TerritorySimulator(ThreadedSimulator):
    """N games of one mission."""

    begin_rows, step_rows = staticmethod(begin_rows), staticmethod(step_rows)
    outcomes, terms = OUTCOMES, TERMS
    kept = ("games", "nations", "cells", "fronts")  # the rest has no meaning between two steps
    rows_per_thread, shares_per_thread = 4, 4  # a row takes some 50 us

    def __init__(self, mission: TerritoryMission, num_rows: int, *, threads: int | None = None) -> None:
        self.mission = mission
        seen: dict[str, spaces.Space[Any]] = {  # equal for every size and number of bots
            "map": spaces.Box(0, 255, (NUM_PLANES, VIEW, VIEW), np.uint8),
            "numbers": spaces.Box(0.0, 1.0, (NUM_NUMBERS,), np.float32),
        }
        identity = f"{num_rows} x {mission!r}"
        super().__init__(num_rows, spaces.Dict(seen), spaces.Discrete(NUM_ACTIONS), identity)
        state = make_state(num_rows, mission.size, mission.num_bots, SQUARES)
        self._start(make_world(mission), state, threads)

    def check_actions(self, actions: Array) -> Array:
        return check_range(actions, (self.num_rows,), NUM_ACTIONS, _MEANING)

    def read_ranks(self, rows: Array) -> Array:
        """Return the agent's rank by land in rows int64 [R], from 1: int64 [R]."""
        ranks = np.empty(len(rows), np.int64)
        read_ranks(self.state, rows, ranks)
        return ranks

    def read_metrics(self, rows: Array) -> dict[str, Array]:
        games, nations = self.state.games[rows], self.state.nations[rows]
        metrics = {
            "rank": self.read_ranks(rows),
            "land_share": nations["land"][:, AGENT] / games["total"],
            "troops": nations["troops"][:, AGENT],
            "bots_alive": (nations["land"][:, AGENT + 1 :] > 0).sum(axis=1),
        }
        metrics |= {name: games[name] for name in ("eliminations", "conquered", "lost", "attacks")}
        return {name: values.astype(np.float64) for name, values in metrics.items()}


def make_world(mission: TerritoryMission) -> TerritoryWorld:
    """Build the constants of a mission."""
    rules = mission.rules
    record = np.zeros(1, RULES)
    values = rules.model_dump() | mission._asdict() | {"max_steps": mission.max_steps}
    for name in RULES.names or ():
        record[name] = values.get(name, 0)  # the hash of the sources has no value
    kinds = [getattr(rules.characters, name) for name in CHARACTERS]
    return TerritoryWorld(
        rules=record,
        characters=np.array([list(kind.model_dump().values()) for kind in kinds], np.int64),
        weights=np.array([getattr(rules.terms, name) for name in TERMS], np.float64),
    )


def compile_kernels() -> None:
    """Compile the simulator, or load it from numba's cache on disk."""
    TerritorySimulator(load_mission(64, 1, None), 1).warm_up()


is_compiling = TerritorySimulator.is_compiling
