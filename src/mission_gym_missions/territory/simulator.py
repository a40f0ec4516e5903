"""The simulator as Python sees it: rows of games, their arrays, and threads that share the rows.

Numbers of a row depend on its seed and actions alone: not on the number of rows, the threads or the
neighbours. Every call gives fresh arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.team import Team
from mission_gym_missions.sharing import open_rows
from mission_gym_missions.territory.rules import SQUARES, VIEW, Mission, load_mission
from mission_gym_missions.territory.sim.layout import (
    AGENT,
    CHARACTERS,
    NUM_ACTIONS,
    NUM_NUMBERS,
    NUM_PLANES,
    OUTCOMES,
    RULES,
    RUNNING,
    TERMS,
    World,
    make_state,
)
from mission_gym_missions.territory.sim.rows import begin_rows, read_ranks, step_rows

Obs = dict[str, Array]  # map uint8 [N, NUM_PLANES, VIEW, VIEW], numbers float32 [N, NUM_NUMBERS]

_SHARES_PER_THREAD = 4  # the end of a step waits for no more than one of them
_KEPT = ("games", "nations", "cells", "fronts")  # the rest holds nothing between two steps


class Shown(NamedTuple):
    """What the rows show after a step."""

    obs: Obs
    mask: Array  # int8 [N, NUM_ACTIONS]
    terms: dict[str, Array]  # float64 [N] each, weighted
    rewards: Array  # float64 [N], the sums of the terms
    ended: Array  # bool [N]


class Simulator:
    """N games of one mission. A row that ended must be begun again before the next step."""

    def __init__(self, mission: Mission, num_rows: int, *, threads: int = 1) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads}; at least one is needed [threads]")
        self.mission = mission
        self.num_rows = num_rows
        self.world = make_world(mission)
        self.state = make_state(num_rows, mission.size, mission.num_bots, SQUARES)
        self._actions = np.empty(num_rows, np.int64)
        self._obs, self._mask = self.make_outputs()
        self._terms, self._rewards = np.empty((num_rows, len(TERMS))), np.empty(num_rows)
        outputs = (self._obs["map"], self._obs["numbers"], self._mask, self._terms, self._rewards)
        num_threads = min(threads, num_rows)
        self._taken = np.zeros(1, np.int64)  # rows of this step
        share = -(-num_rows // (_SHARES_PER_THREAD * num_threads if num_threads > 1 else 1))
        work = partial(step_rows, self.world, self.state, self._actions, *outputs, self._taken, share)
        self._team, self._tasks = Team(num_threads - 1, "territory"), [work] * num_threads

    def seed(self, rows: Array, seeds: Array) -> None:
        """Give rows int64 [R] new seeds int64 [R]; their next episode is number 0."""
        self.state.games["seed"][rows] = seeds
        self.state.games["episode"][rows] = -1

    def begin(self, rows: Array, obs: Obs, mask: Array) -> None:
        """Begin the next episode of the rows int64 [R] and write what they show into obs and mask."""
        self.state.games["episode"][rows] += 1
        begin_rows(self.world, self.state, rows, obs["map"], obs["numbers"], mask)

    def make_outputs(self) -> tuple[Obs, Array]:
        """Allocate an observation and a mask for each row."""
        views = np.empty((self.num_rows, NUM_PLANES, VIEW, VIEW), np.uint8)
        numbers = np.empty((self.num_rows, NUM_NUMBERS), np.float32)
        return {"map": views, "numbers": numbers}, np.empty((self.num_rows, NUM_ACTIONS), np.int8)

    def step(self, actions: Array) -> Shown:
        """Play one action in every row; actions int64 [N]."""
        self._actions[:] = actions
        open_rows(self._taken)
        self._team.run(self._tasks)
        return Shown(
            obs={name: array.copy() for name, array in self._obs.items()},
            mask=self._mask.copy(),
            terms=dict(zip(TERMS, self._terms.T.copy(), strict=True)),
            rewards=self._rewards.copy(),
            ended=self.state.games["outcome"] != RUNNING,
        )

    def read_outcomes(self) -> Array:
        """The outcome of each row, None while it runs: object [N]."""
        names: Array = np.array([*OUTCOMES, None], object)
        outcomes: Array = names[self.state.games["outcome"]]
        return outcomes

    def read_ranks(self, rows: Array) -> Array:
        """The agent's place by land in the rows int64 [R], from 1 on: int64 [R]."""
        ranks = np.empty(len(rows), np.int64)
        read_ranks(self.state, rows, ranks)
        return ranks

    def read_metrics(self, rows: Array) -> dict[str, Array]:
        """What happened so far in the episodes of the rows int64 [R]: name -> float64 [R]."""
        games, nations = self.state.games[rows], self.state.nations[rows]
        metrics = {
            "rank": self.read_ranks(rows),
            "land_share": nations["land"][:, AGENT] / games["total"],
            "troops": nations["troops"][:, AGENT],
            "bots_alive": (nations["land"][:, AGENT + 1 :] > 0).sum(axis=1),
        }
        metrics |= {name: games[name] for name in ("eliminations", "conquered", "lost", "attacks")}
        return {name: values.astype(np.float64) for name, values in metrics.items()}

    def get_state(self) -> dict[str, Any]:
        """Everything that changes, as plain values."""
        state: dict[str, Any] = {name: _bytes(getattr(self.state, name)).copy() for name in _KEPT}
        return state | {"mission": self._describe()}

    def set_state(self, saved: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        if saved["mission"] != self._describe():
            raise UsageError(
                "the saved state is of a mission with other sizes or rules, or of another number of "
                "environments; use those it was saved with"
            )
        for name in _KEPT:
            _bytes(getattr(self.state, name))[:] = saved[name]

    def close(self) -> None:
        """End the threads."""
        self._team.close()

    def _describe(self) -> str:
        """What a saved state must fit."""
        return f"{self.num_rows} x {self.mission!r}"


def make_world(mission: Mission) -> World:
    """A mission as arrays."""
    rules = mission.rules
    record = np.zeros(1, RULES)
    values = rules.model_dump() | mission._asdict() | {"max_steps": mission.max_steps}
    for name in RULES.names or ():
        record[name] = values.get(name, 0)  # the hash of the sources has no value
    kinds = [getattr(rules.characters, name) for name in CHARACTERS]
    return World(
        rules=record,
        characters=np.array([list(kind.model_dump().values()) for kind in kinds], np.int64),
        weights=np.array([getattr(rules.terms, name) for name in TERMS], np.float64),
    )


def compile_kernels() -> None:
    """Compile the simulator, or load it from numba's cache on disk."""
    simulator = Simulator(load_mission(64, 1, None), 1)
    simulator.begin(np.zeros(1, np.int64), *simulator.make_outputs())
    simulator.step(np.zeros(1, np.int64))


def is_compiling() -> bool:
    """Whether `compile_kernels` found no cache on disk that it could load."""
    return bool(begin_rows.stats.cache_misses or step_rows.stats.cache_misses)  # type: ignore[attr-defined]


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
