"""The simulator as Python sees it: rows of games, their arrays, and threads that share the rows.

Numbers of a row depend on its seed and actions alone: not on the number of rows, the threads or the
neighbours. Every call gives fresh arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.missions.capture.scenario import Scenario, load_scenario
from mission_gym.missions.capture.sim.layout import (
    NUM_ACTIONS,
    OUTCOMES,
    RUNNING,
    TERMS,
    make_state,
    num_features,
)
from mission_gym.missions.capture.sim.rows import begin_rows, step_rows
from mission_gym.missions.capture.world import make_world

_PARTS_PER_THREAD = 4  # a thread that wakes late, or meets slow games, leaves the rest to the others


class Shown(NamedTuple):
    """What the rows show after a step."""

    obs: Array  # float32 [N, F]
    mask: Array  # int8 [N, A * NUM_ACTIONS]
    terms: Array  # float64 [N, T], weighted
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
        self._num_helpers = min(threads, num_rows) - 1
        self._pool = ThreadPoolExecutor(threads - 1, "capture") if self._num_helpers else None
        parts = min(num_rows, _PARTS_PER_THREAD * threads)
        cuts = np.linspace(0, num_rows, parts + 1).astype(int).tolist()
        self._ranges = list(pairwise(cuts))
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
        obs, mask = self.make_outputs()
        terms, rewards = np.empty((self.num_rows, len(TERMS))), np.empty(self.num_rows)
        outputs = (actions, obs, mask, terms, rewards)
        if self._pool is None:
            step_rows(self.world, self.state, 0, self.num_rows, *outputs)
        else:
            ranges = iter(self._ranges)
            helpers = [
                self._pool.submit(self._step_ranges, ranges, *outputs) for _ in range(self._num_helpers)
            ]
            self._step_ranges(ranges, *outputs)
            for helper in helpers:
                helper.result()
        return Shown(obs, mask, terms, rewards, self.state.games["outcome"] != RUNNING)

    def _step_ranges(self, ranges: Iterator[tuple[int, int]], *outputs: Array) -> None:
        """Step ranges of rows until none is left; the threads take them from one iterator."""
        for first, last in ranges:
            step_rows(self.world, self.state, first, last, *outputs)

    def name_terms(self, terms: Array) -> dict[str, Array]:
        """Split terms [N, T] by name, without those that are off."""
        columns = terms.T.copy()
        return {name: columns[k] for name, k in self._shown}

    def read_outcomes(self) -> Array:
        """The outcome of each row, None while it runs: object [N]."""
        names: Array = np.array([*OUTCOMES, None], object)
        outcomes: Array = names[self.state.games["outcome"]]
        return outcomes

    def read_metrics(self) -> dict[str, Array]:
        """What happened in the episode of each row so far: name -> float64 [N]."""
        games, units = self.state.games, self.state.units[:, : self.num_attackers]
        hz = float(self.world.rules["hz"][0])
        metrics = {
            "capture_s": games["capture"] / hz,
            "zone_s": games["zone"] / hz,
            "units_alive": (units["integrity"] > 0).sum(axis=1).astype(np.float64),
            "integrity_lost": games["integrity_lost"].copy(),
        }
        for name in (
            "collisions",
            "detections",
            "attacker_tags",
            "attacker_hits",
            "defender_tags",
            "defender_hits",
        ):
            metrics[name] = games[name].astype(np.float64)
        for a, name in enumerate(self.scenario.level.attackers.units):
            metrics[f"distance_m_{a}_{name}"] = units["distance_m"][:, a].copy()
        return metrics

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
        if self._pool is not None:
            self._pool.shutdown()

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
