"""The base of all vectors: the order of calls and its errors, the context manager, `step`.

`reset` comes before `send`, and `send` before `recv`; no other call is allowed between these two. Each kind
of vector implements the calls (`_reset`, `_send`, `_recv`, ...); SerialVec is the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium import Wrapper
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from mission_gym.data import Array, EnvSpec, StepBatch
from mission_gym.env.factory import Env
from mission_gym.env.resume import REPLAY_BUDGET_S, SlotState
from mission_gym.errors import UsageError, WrongType, WrongValue

if TYPE_CHECKING:
    from mission_gym.vector.concurrent import StepLatency

SeedOf = Callable[[int, int], int | None]  # environment, episode -> seed
ResetOptions = dict[str, Any] | list[dict[str, Any] | None] | None  # for all environments, or one for each


class VectorClosed(UsageError, ClosedEnvironmentError):
    """A call to a vector that was closed. This and the next three are also Gymnasium's own errors, so code
    that was written for its vectors can catch them."""


class ResetFirst(UsageError, ResetNeeded):
    """Steps before the first reset, or after a failure."""


class StepsUnderWay(UsageError, AlreadyPendingCallError):
    """A call between `send` and `recv`."""

    def __init__(self, text: str) -> None:
        AlreadyPendingCallError.__init__(self, text, "step")


class NothingSent(UsageError, NoAsyncCallError):
    """`recv` without `send`."""

    def __init__(self, text: str) -> None:
        NoAsyncCallError.__init__(self, text, "step")


class Vector(ABC):
    """Environments that are stepped together, named by their numbers. Actions and batches have one row per
    environment, or one per agent. `_sent` holds what `send` left for the next `recv`, else it is empty."""

    rows_step_alone = True  # some rows can be stepped, reset and restarted without the others

    def __init__(self, spec: EnvSpec, num_envs: int, seed_of: SeedOf) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self.per_env = spec.num_agents
        self.num_columns = num_envs * self.per_env
        self._seed_of = seed_of
        self._all = list(range(num_envs))  # recognized by identity, for speed
        self._stage = np.zeros(1, np.int64)  # the current stage of a curriculum
        self._sent: Any = None
        self._ready = False  # episodes have begun, and no call failed half-way
        self._closed = False
        self.close_errors: list[str] = []  # errors and timeouts of `close`
        self.abandoned: dict[int, str] = {}  # environments whose running step is not waited for, and why

    def reset(
        self,
        env_ids: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: ResetOptions = None,
    ) -> StepBatch:
        """Begin episode 0 of all environments, or the next episode of some.

        seeds: one for each environment that is reset, instead of those of `seed_of`.
        """
        self._check_open()
        if self._sent:
            raise StepsUnderWay("reset() between send() and recv(); receive the steps under way first")
        if env_ids is not None and not self._ready:
            raise ResetFirst("reset() of single environments before a first reset() of all; reset all first")
        self._ready = False
        batch = self._reset(None if env_ids is None else list(env_ids), seeds, options)
        self._ready = True
        return batch

    def send(self, actions: Array, env_ids: Sequence[int] | None = None) -> None:
        """Send actions [B, *shape] in the environment's units to all environments, or to some."""
        if self._closed or not self._ready:  # one test in the usual case: this is called for every step
            self._check_open()
            raise ResetFirst("send() before reset(), or after a failure; reset or restore the vector first")
        ids = self._all if env_ids is None else list(env_ids)
        if self._sent and self._is_under_way(ids):
            raise StepsUnderWay("send() twice without recv(); receive the steps under way first")
        shape = actions.shape if type(actions) is np.ndarray else np.shape(actions)
        if shape != (len(ids) * self.per_env, *self.spec.action.shape):
            expected = (len(ids) * self.per_env, *self.spec.action.shape)
            refusal = WrongValue if shape else WrongType  # a single number is not a batch at all
            whose = "agent of each environment" if self.spec.agents else "environment"
            raise refusal(f"actions have shape {shape}, expected {expected}: one row for each {whose}")
        self._send(actions, ids)

    def recv(self) -> StepBatch:
        """Return the steps that were sent."""
        if self._closed or not self._sent:
            self._check_open()
            raise NothingSent("recv() without send(); send actions first")
        self._ready = False  # stays so if an error is raised
        batch = self._recv()
        self._ready = True
        return batch

    def step(self, actions: Array) -> StepBatch:
        """Send actions to all environments and receive their steps."""
        self.send(actions)
        return self.recv()

    def state(self, env_ids: Sequence[int] | None = None) -> list[SlotState]:
        """Return the states that `restore` needs, of all environments or of some. Abandoned environments
        will begin their next episodes."""
        ids = self._all if env_ids is None else list(env_ids)
        present = [env_id for env_id in ids if env_id not in self.abandoned]
        if present and (not self._ready or (self._sent and self._is_under_way(present))):
            raise UsageError("state() before reset() or between send() and recv(); take it between steps")
        return self._state(present)

    def restore(
        self, states: Sequence[SlotState], budget_s: float = REPLAY_BUDGET_S
    ) -> tuple[StepBatch, list[str]]:
        """Continue from `states`. Return the current observations, and how each environment was restored.

        budget_s: predicted seconds for all replays that run one after the other.
        """
        self._check_open()
        if len(states) != self.num_envs:
            raise UsageError(
                f"{len(states)} saved environments can't be restored in {self.num_envs}; use the same number"
            )
        self._ready = False
        restored = self._restore(states, budget_s)
        self._ready = True
        return restored

    def enter_stage(self, stage: int) -> None:
        """Set the stage of the curriculum, if there is one, for episodes that begin from now on."""
        self._stage[0] = stage

    def rebuild(self) -> None:
        """Build every environment again and clear the failure counts. Reset the vector next."""
        self._check_open()
        self._ready = False
        self._rebuild()

    @abstractmethod
    def episode_numbers(self) -> list[int]:
        """Return the number of each environment's running episode, also after a failure."""

    def pids(self) -> list[int]:
        """The other processes that step the environments."""
        return []

    def measure_latency(self, seconds: float) -> StepLatency | None:
        """The latency of concurrent steps since the last call, over this many seconds of stepping; None if
        there were none."""
        return None

    @property
    def num_restarts(self) -> int:
        """The number of worker processes that were replaced so far."""
        return 0

    def close(self) -> None:
        """Close every environment. Errors and timeouts are in `close_errors`."""
        if not self._closed:
            self._closed = True
            self.close_errors += self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise VectorClosed("the vector is closed; make a new one")

    def _is_under_way(self, ids: list[int]) -> bool:
        """Whether steps of these environments were sent and not received. Called if `_sent` is not empty."""
        return True

    @abstractmethod
    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: ResetOptions
    ) -> StepBatch: ...

    @abstractmethod
    def _send(self, actions: Array, ids: list[int]) -> None:
        """Store or hand over actions of the right shape; `_sent` is not empty afterwards."""

    @abstractmethod
    def _recv(self) -> StepBatch:
        """Make or await the steps of `_sent`, and empty it."""

    @abstractmethod
    def _state(self, ids: list[int]) -> list[SlotState]:
        """The states of these environments and of the abandoned ones."""

    @abstractmethod
    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]: ...

    def _rebuild(self) -> None:
        raise UsageError("this vector's environments can't be rebuilt; make another vector")

    @abstractmethod
    def _close(self) -> list[str]:
        """Close the environments; returns what went wrong."""


class RowVector(Vector):
    """A vector of single environments, each of which can be called between steps."""

    def is_ready(self, timeout_s: float) -> bool:
        """Wait until everything that was sent can be received without waiting; False after `timeout_s`.
        Vectors that step in `recv` are always ready."""
        return True

    @abstractmethod
    def visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        """Return `function(env, *arguments)` for some environments, with `each` environment's arguments. The
        function must be importable."""

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> list[Any]:
        """Call a method, or read an attribute, of every environment or of some."""
        ids = self._all if env_ids is None else list(env_ids)
        return self._visit(_call, ids, [(name, args, kwargs or {})] * len(ids))

    def set_attr(self, name: str, values: Sequence[Any], env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute of every environment or of some, one value each."""
        ids = self._all if env_ids is None else list(env_ids)
        self._visit(_set_attr, ids, [(name, value) for value in values])

    def layers(self) -> list[list[str]]:
        """Return the class names of each environment, the outermost wrapper first."""
        return self._visit(_layers, self._all, [()] * self.num_envs)

    def _visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        self._check_open()
        if self._sent:
            raise StepsUnderWay("the environments are being stepped; receive the steps under way first")
        return self.visit(function, ids, each)


def _call(env: Env, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    item = env.get_wrapper_attr(name)
    return item(*args, **kwargs) if callable(item) else item


def _set_attr(env: Env, name: str, value: Any) -> None:
    env.set_wrapper_attr(name, value)


def _layers(env: Env) -> list[str]:
    name = f"{type(env).__module__}.{type(env).__qualname__}"
    return [name, *_layers(env.env)] if isinstance(env, Wrapper) else [name]
