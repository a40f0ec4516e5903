"""What the simulators share: N games ("rows") in arrays, and threads that step them.

The numbers of a row depend on its seed and actions alone, not on the number of rows, the threads or the
other rows. Every call returns fresh arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from mission_gym.compiled import atomic_add, atomic_read, atomic_write, entry, kernel, name_sources
from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.procs import usable_cores
from mission_gym.team import Team
from mission_gym_missions import rng
from mission_gym_missions.env import copy_obs

RUNNING = -1  # the outcome of a game that has not ended


class SimStep(NamedTuple):
    """The result of a step of all rows."""

    obs: Any  # one array [N, ...], or several by name
    mask: Array  # int8 [N, M]
    terms: dict[str, Array]  # float64 [N] each, weighted
    rewards: Array  # float64 [N], the sums of the terms
    ended: Array  # bool [N]


class RowSimulator(ABC):
    """N games of one mission. A row whose episode has ended must begin again before the next step.

    identity: the settings that a saved state must match.
    """

    def __init__(
        self, num_rows: int, obs_space: spaces.Space[Any], action_space: spaces.Space[Any], identity: str
    ) -> None:
        self.num_rows, self._identity = num_rows, identity
        self.obs_space, self.action_space = obs_space, action_space  # of a single game
        self._mask_size = spaces.flatdim(action_space)

    def make_outputs(self) -> tuple[Any, Array]:
        """Allocate an observation and a mask for each row."""
        mask = np.empty((self.num_rows, self._mask_size), np.int8)
        return create_empty_array(self.obs_space, self.num_rows, np.empty), mask

    @abstractmethod
    def seed(self, rows: Array, seeds: Array) -> None:
        """Give rows int64 [R] new seeds int64 [R]; their next episode is number 0."""

    @abstractmethod
    def begin(self, rows: Array, obs: Any, mask: Array) -> None:
        """Begin the next episode of rows int64 [R]; write their observations and masks into obs and mask."""

    @abstractmethod
    def check_actions(self, actions: Array) -> Array:
        """Return the actions as int64; UsageError if one does not exist or is illegal."""

    @abstractmethod
    def step(self, actions: Array) -> SimStep:
        """Step every row with checked actions."""

    @abstractmethod
    def read_outcomes(self) -> Array:
        """Return the outcome of each row, None while its episode runs: object [N]."""

    @abstractmethod
    def read_metrics(self, rows: Array) -> dict[str, Array]:
        """Return the metrics so far of the episodes of rows int64 [R]: name -> float64 [R]."""

    def warm_up(self) -> None:
        """Compile the kernels, or load them from numba's cache on disk."""
        self.begin(np.zeros(1, np.int64), *self.make_outputs())
        self.step(np.zeros((1, *(self.action_space.shape or ())), np.int64))

    def get_state(self) -> dict[str, Any]:
        """Return everything that an exact continuation needs, as plain values."""
        return self._save() | {"mission": self._identity}

    def set_state(self, saved: dict[str, Any]) -> None:
        """Continue exactly from a state of `get_state`."""
        if saved["mission"] != self._identity:
            raise UsageError(
                "the saved state belongs to other settings, another version of the mission or another number "
                "of environments; use those it was saved with"
            )
        self._restore(saved)

    def close(self) -> None:  # noqa: B027  not every simulator has threads
        """End the threads."""

    @abstractmethod
    def _save(self) -> dict[str, Any]: ...

    @abstractmethod
    def _restore(self, saved: dict[str, Any]) -> None: ...


class ThreadedSimulator(RowSimulator):
    """A simulator whose state is structured arrays, stepped by one compiled entry that threads share.

    A subclass ends its constructor with `_start`. world, state: the first arguments of both entries;
    `state.games` has the fields seed, episode and outcome. threads: None for one per usable core, as long as
    each has enough rows. It changes the speed, never a number.
    """

    begin_rows: ClassVar[Callable[..., None]]
    step_rows: ClassVar[Callable[..., None]]
    outcomes: ClassVar[tuple[str, ...]]
    terms: ClassVar[tuple[str, ...]]
    kept: ClassVar[tuple[str, ...]]  # fields of the state that are saved
    rows_per_thread: ClassVar[int]  # with fewer, waking a thread costs more than it saves
    shares_per_thread: ClassVar[int]  # at its end a step waits for at most one share

    def _start(self, world: Any, state: Any, threads: int | None, hidden_terms: Collection[str] = ()) -> None:
        """Allocate the buffers of a step, and start the threads."""
        num_rows = self.num_rows
        if threads is None:
            threads = max(1, min(usable_cores(), num_rows // self.rows_per_thread))
        if threads < 1:
            raise UsageError(f"threads={threads} is too low; use 1 or more [threads]")
        self.world, self.state = world, state
        self._shown = [(name, k) for k, name in enumerate(self.terms) if name not in hidden_terms]
        self._actions = np.empty((num_rows, *(self.action_space.shape or ())), np.int64)
        self._obs, self._mask = self.make_outputs()
        self._terms, self._rewards = np.empty((num_rows, len(self.terms))), np.empty(num_rows)
        outputs = (*list_leaves(self._obs), self._mask, self._terms, self._rewards)
        threads = min(threads, num_rows)
        share = -(-num_rows // (self.shares_per_thread * threads if threads > 1 else 1))
        self._taken = np.zeros(1, np.int64)  # rows of this step
        work = partial(self.step_rows, world, state, self._actions, *outputs, self._taken, share)
        self._team, self._tasks = Team(threads - 1, type(self).__name__), [work] * threads

    def seed(self, rows: Array, seeds: Array) -> None:
        self.state.games["seed"][rows] = seeds
        self.state.games["episode"][rows] = -1

    def begin(self, rows: Array, obs: Any, mask: Array) -> None:
        self.state.games["episode"][rows] += 1
        self.begin_rows(self.world, self.state, rows, *list_leaves(obs), mask)

    def step(self, actions: Array) -> SimStep:
        self._actions[:] = actions
        open_rows(self._taken)
        self._team.run(self._tasks)
        terms = self._terms.T.copy()
        named = {name: terms[k] for name, k in self._shown}
        ended = self.state.games["outcome"] != RUNNING
        return SimStep(copy_obs(self._obs), self._mask.copy(), named, self._rewards.copy(), ended)

    def read_outcomes(self) -> Array:
        names: Array = np.array([*self.outcomes, None], object)
        outcomes: Array = names[self.state.games["outcome"]]
        return outcomes

    def close(self) -> None:
        self._team.close()

    @classmethod
    def is_compiling(cls) -> bool:
        """Whether numba found no cache on disk that it could load."""
        entries: tuple[Any, ...] = (cls.begin_rows, cls.step_rows)
        return any(entry.stats.cache_misses for entry in entries)

    def _save(self) -> dict[str, Any]:
        return {name: _bytes(getattr(self.state, name)).copy() for name in self.kept}

    def _restore(self, saved: dict[str, Any]) -> None:
        for name in self.kept:
            _bytes(getattr(self.state, name))[:] = saved[name]


@entry
def open_rows(taken: Array) -> None:
    """Offer all rows. A thread that takes one sees everything written before this call."""
    atomic_write(taken, 0, 0)


@kernel
def take_rows(taken: Array, num_rows: int, share: int) -> int:
    """Return the first of `share` rows for the caller alone; `num_rows` or more if none is left."""
    first = atomic_read(taken, 0)
    return int(first if first >= num_rows else atomic_add(taken, 0, share))


def check_range(actions: Array, shape: tuple[int, ...], num_actions: int, meaning: str) -> Array:
    """Return actions as int64 of this shape. An action out of range would read beyond the tables."""
    if actions.shape != shape or actions.dtype.kind not in "iu":
        raise UsageError(
            f"actions of shape {actions.shape} and dtype {actions.dtype} do not fit; the mission takes "
            f"integers from 0 to {num_actions - 1} of shape {shape}, environments first"
        )
    if actions.min() < 0 or actions.max() >= num_actions:
        wrong = actions[(actions < 0) | (actions >= num_actions)][0]
        raise UsageError(f"action {wrong} does not exist; use {meaning}")
    return np.ascontiguousarray(actions, np.int64)


def list_leaves(obs: Any) -> tuple[Array, ...]:
    """Return the arrays of an observation: one, or several by name."""
    return tuple(obs.values()) if isinstance(obs, dict) else (obs,)


def make_record(integers: str = "", reals: str = "", sources: Path | None = None) -> np.dtype[Any]:
    """Return a structured dtype of int64 and float64 fields.

    sources: a folder of compiled code; a change there makes another dtype, which invalidates numba's cache.
    """
    fields = [(name, "i8") for name in integers.split()] + [(name, "f8") for name in reals.split()]
    if sources is not None:
        shared = (Path(__file__), Path(rng.__file__))
        fields.append((name_sources([*sources.glob("*.py"), *shared]), "i8"))
    return np.dtype(fields)


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
