"""What every vector is: the order of its calls, the messages when it is broken, the context manager, `step`.

`reset` comes before `send`, `send` before `recv`; nothing else is asked for between those two. What a vector
does inside each call is its own (`_reset`, `_send`, `_recv`, ...): SerialVec is the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium import Wrapper
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from mission_gym.data import Array, EnvSpec, StepBatch
from mission_gym.env.factory import Env
from mission_gym.env.resume import REPLAY_BUDGET_S, SlotState
from mission_gym.errors import UsageError, WrongType, WrongValue
from mission_gym.vector.gauges import Waiting

SeedOf = Callable[[int, int], int | None]  # environment, episode -> seed
Options = dict[str, Any] | list[dict[str, Any] | None] | None  # of a reset: for all, or one for each row


class VectorClosed(UsageError, ClosedEnvironmentError):
    """A call to a vector that was closed. This and the next three are also Gymnasium's own errors, by which
    code that was written for its vectors knows them."""


class ResetFirst(UsageError, ResetNeeded):
    """Steps before a first reset, or after a failure."""


class StepsUnderWay(UsageError, AlreadyPendingCallError):
    """A call between sending steps and receiving them."""

    def __init__(self, text: str) -> None:
        AlreadyPendingCallError.__init__(self, text, "step")


class NothingSent(UsageError, NoAsyncCallError):
    """Steps are to be received, and none was sent."""

    def __init__(self, text: str) -> None:
        NoAsyncCallError.__init__(self, text, "step")


class Vector(ABC):
    """Environments that are stepped together. They are named by their numbers; actions and batches have a row
    for each, or for each of its agents. `_sent` is what a send left for the next recv, else empty."""

    rows_step_alone = True  # some of the rows can be stepped, reset and restarted without the others

    def __init__(self, spec: EnvSpec, num_envs: int, seed_of: SeedOf) -> None:
        self.spec = spec
        self.num_envs = num_envs
        self.per_env = spec.num_agents
        self.num_rows = num_envs * self.per_env
        self._seed_of = seed_of
        self._all = list(range(num_envs))  # passed on as it is where all rows are meant
        self._now = np.zeros(1, np.int64)  # the stage of a curriculum
        self._sent: Any = None
        self._ready = False  # there are episodes to step, and no call failed half-way
        self._closed = False
        self._num_episodes = 0
        self._close_errors: list[str] = []
        self.abandoned: dict[int, str] = {}  # environments that nobody can wait for, and why

    def reset(
        self,
        env_ids: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Options = None,
    ) -> StepBatch:
        """Begin episode 0 of all environments, or the next episode of those named.

        seeds: one for each environment reset, instead of those of `seed_of`.
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
        """Give actions [B, *shape] in the environment's units to all environments, or to those named."""
        if self._closed or not self._ready:  # one look where all is well: this is called for every step
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
        self._ready = False  # until every row is done; an error leaves it so
        batch = self._recv()
        self._ready = True
        return batch

    def step(self, actions: Array) -> StepBatch:
        """Send to all environments and receive."""
        self.send(actions)
        return self.recv()

    def state(self, env_ids: Sequence[int] | None = None) -> list[SlotState]:
        """Return what `restore` needs, one entry for each environment or for those named; those that were
        given up begin their next episodes."""
        ids = self._all if env_ids is None else list(env_ids)
        asked = [env_id for env_id in ids if env_id not in self.abandoned]
        if asked and (not self._ready or (self._sent and self._is_under_way(asked))):
            raise UsageError("state() before reset() or between send() and recv(); take it between steps")
        return self._state(asked)

    def restore(
        self, states: Sequence[SlotState], budget_s: float = REPLAY_BUDGET_S
    ) -> tuple[StepBatch, list[str]]:
        """Go on from `states`; return what every row shows now, and how it came back.

        budget_s: predicted seconds for all replays that run one after the other.
        """
        self._check_open()
        if len(states) != self.num_envs:
            raise UsageError(
                f"{len(states)} saved environments can't go on in {self.num_envs}; use the same number"
            )
        self._ready = False
        shown = self._restore(states, budget_s)
        self._ready = True
        return shown

    def enter_stage(self, stage: int) -> None:
        """Let the episodes that begin from now on be of this stage of the curriculum, where there is one."""
        self._now[0] = stage

    def rebuild(self) -> None:
        """Build every environment anew, as in a new vector, and forget what failed. Reset it next."""
        self._check_open()
        self._ready = False
        self._rebuild()

    @abstractmethod
    def episode_numbers(self) -> list[int]:
        """Return the number of each environment's running episode, also after a failure."""

    def pids(self) -> list[int]:
        """The processes beside this one that step the environments."""
        return []

    def measure_waiting(self, seconds: float) -> Waiting | None:
        """What was seen since the last call of steps that are made side by side, in so many seconds of them;
        None where there are none."""
        return None

    def statistics(self) -> dict[str, Any]:
        """Return counts, and what `close` met."""
        return {
            "num_envs": self.num_envs,
            "episodes": self._num_episodes,
            **self._statistics(),
            "close_errors": list(self._close_errors),
        }

    def close(self) -> None:
        """Close every environment; what raises or hangs meanwhile is noted in the statistics."""
        if not self._closed:
            self._closed = True
            self._close_errors += self._close()

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
        """Whether steps of these rows were sent and not received, where something was sent."""
        return True

    @abstractmethod
    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: Options
    ) -> StepBatch: ...

    @abstractmethod
    def _send(self, actions: Array, ids: list[int]) -> None:
        """Note or hand over actions of the right shape; leaves something in `_sent`."""

    @abstractmethod
    def _recv(self) -> StepBatch:
        """Make or await the steps of `_sent`, which it empties."""

    @abstractmethod
    def _state(self, ids: list[int]) -> list[SlotState]:
        """Of these, and of those that were given up."""

    @abstractmethod
    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]: ...

    def _rebuild(self) -> None:
        raise UsageError("this vector's environments can't be built anew; make another vector")

    @abstractmethod
    def _statistics(self) -> dict[str, Any]:
        """What this kind of vector counts."""

    @abstractmethod
    def _close(self) -> list[str]:
        """Close the environments; returns what went wrong."""


class RowVector(Vector):
    """A vector of single environments, each of which can be reached between steps."""

    def is_ready(self, timeout_s: float) -> bool:
        """Whether all that was sent can be received at once, after waiting for so long at most. True where
        the steps are only made then."""
        return True

    @abstractmethod
    def visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        """Return `function(env, *arguments)` of these environments, with the arguments of each. The function
        must be importable."""

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> list[Any]:
        """Call a method, or read an attribute, of every environment or of those named."""
        ids = self._all if env_ids is None else list(env_ids)
        return self._visit(_call, ids, [(name, args, kwargs or {})] * len(ids))

    def set_attr(self, name: str, values: Sequence[Any], env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute of every environment or of those named, one value each."""
        ids = self._all if env_ids is None else list(env_ids)
        self._visit(_set_attr, ids, [(name, value) for value in values])

    def layers(self) -> list[list[str]]:
        """Return the names of the classes of each environment, the outermost wrapper first."""
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
