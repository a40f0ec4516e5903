"""The simulator as Python sees it: rows of games, their arrays, and threads that share the rows.

Numbers of a row depend on its seed and actions alone: not on the number of rows, the threads or the
neighbours. Every call gives fresh arrays.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.team import Team
from mission_gym_missions.capture.scenario import Scenario, load_scenario
from mission_gym_missions.capture.sim.layout import (
    NUM_ACTIONS,
    OUTCOMES,
    RUNNING,
    TERMS,
    make_state,
    num_features,
)
from mission_gym_missions.capture.sim.rows import begin_rows, step_rows
from mission_gym_missions.capture.world import make_world
from mission_gym_missions.sharing import open_rows

_SHARES_PER_THREAD = 16  # the end of a step waits for no more than one of them

_COUNTS = (
    "integrity_lost",
    "collisions",
    "detections",
    "attacker_tags",
    "attacker_hits",
    "defender_tags",
    "defender_hits",
)


class Shown(NamedTuple):
    """What the rows show after a step."""

    obs: Array  # float32 [N, F]
    mask: Array  # int8 [N, A * NUM_ACTIONS]
    terms: Array  # float64 [T, N], weighted
    rewards: Array  # float64 [N], the sums of the terms
    ended: Array  # bool [N]


class Simulator:
    """N games of one scenario. A row that ended must be begun again before the next step."""

    def __init__(self, scenario: Scenario, num_rows: int, *, threads: int = 1, blind: bool = False) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads}; at least one is needed [threads]")
        self.scenario = scenario
        self.num_rows = num_rows
        self.num_attackers = len(scenario.level.attackers.units)
        self.num_defenders = len(scenario.level.defenders.units)
        self.num_features = num_features(self.num_attackers, self.num_defenders)
        self.world = make_world(scenario, blind)
        self.state = make_state(num_rows, self.num_attackers, self.num_defenders)
        self._actions = np.empty((num_rows, self.num_attackers), np.int64)
        self._obs, self._mask = self.make_outputs()
        self._terms, self._rewards = np.empty((num_rows, len(TERMS))), np.empty(num_rows)
        outputs = (self._obs, self._mask, self._terms, self._rewards)
        num_threads = min(threads, num_rows)
        self._taken = np.zeros(1, np.int64)  # rows of this step
        share = -(-num_rows // (_SHARES_PER_THREAD * num_threads if num_threads > 1 else 1))
        work = partial(step_rows, self.world, self.state, self._actions, *outputs, self._taken, share)
        self._team, self._tasks = Team(num_threads - 1, "capture"), [work] * num_threads
        self._shown = [(name, k) for k, name in enumerate(TERMS) if scenario.reward[name].enabled]

    def seed(self, rows: Array, seeds: Array) -> None:
        """Give rows int64 [R] new seeds int64 [R]; their next episode is number 0."""
        self.state.games["seed"][rows] = seeds
        self.state.games["episode"][rows] = -1

    def begin(self, rows: Array, obs: Array, mask: Array) -> None:
        """Begin the next episode of the rows int64 [R] and write what they show into obs and mask."""
        self.state.games["episode"][rows] += 1
        begin_rows(self.world, self.state, rows, obs, mask)

    def make_outputs(self) -> tuple[Array, Array]:
        """Allocate an observation and a mask for each row."""
        mask = np.empty((self.num_rows, self.num_attackers * NUM_ACTIONS), np.int8)
        return np.empty((self.num_rows, self.num_features), np.float32), mask

    def step(self, actions: Array) -> Shown:
        """Play one command in every row; actions int64 [N, A]."""
        self._actions[:] = actions
        open_rows(self._taken)
        self._team.run(self._tasks)
        ended = self.state.games["outcome"] != RUNNING
        return Shown(self._obs.copy(), self._mask.copy(), self._terms.T.copy(), self._rewards.copy(), ended)

    def name_terms(self, terms: Array) -> dict[str, Array]:
        """Split terms [T, N] by name, without those that are off."""
        return {name: terms[k] for name, k in self._shown}

    def read_outcomes(self) -> Array:
        """The outcome of each row, None while it runs: object [N]."""
        names: Array = np.array([*OUTCOMES, None], object)
        outcomes: Array = names[self.state.games["outcome"]]
        return outcomes

    def read_metrics(self, rows: Array) -> dict[str, Array]:
        """What happened so far in the episodes of the rows int64 [R]: name -> float64 [R]."""
        games, units = self.state.games[rows], self.state.units[rows, : self.num_attackers]
        hz = float(self.world.rules["hz"][0])
        metrics = {
            "capture_s": games["capture"] / hz,
            "zone_s": games["zone"] / hz,
            "units_alive": (units["integrity"] > 0).sum(axis=1),
        }
        metrics |= {name: games[name] for name in _COUNTS}
        for a, name in enumerate(self.scenario.level.attackers.units):
            metrics[f"distance_m_{a}_{name}"] = units["distance_m"][:, a]
        return {name: values.astype(np.float64) for name, values in metrics.items()}

    def get_state(self) -> dict[str, Any]:
        """Everything that changes, as plain values."""
        state: dict[str, Any] = {name: _bytes(array).copy() for name, array in self.state._asdict().items()}
        return state | {"layout": self._layout()}

    def set_state(self, saved: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        if saved["layout"] != self._layout():
            raise UsageError(
                "the saved state is of another version of the mission, another level or another number of "
                "environments; use those it was saved with"
            )
        for name, array in self.state._asdict().items():
            _bytes(array)[:] = saved[name]

    def close(self) -> None:
        """End the threads."""
        self._team.close()

    def _layout(self) -> str:
        """What a saved state must fit."""
        shapes = [(name, array.shape, str(array.dtype)) for name, array in self.state._asdict().items()]
        return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def compile_kernels() -> None:
    """Compile the simulator, or load it from numba's cache on disk.

    The first environment would do it; a program calls this in a thread beside its other start-up work. It
    takes about 15 s once per installation and machine, then half a second.
    """
    simulator = Simulator(load_scenario(), 1)
    simulator.begin(np.zeros(1, np.int64), *simulator.make_outputs())
    simulator.step(np.zeros((1, simulator.num_attackers), np.int64))


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(begin_rows.stats.cache_misses or step_rows.stats.cache_misses)  # type: ignore[attr-defined]


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
