"""Environments whose `reset` and `step` are coroutines, as Gymnasium environments.

The protocol needs no base class: attributes `observation_space` and `action_space`, `async def reset(seed=,
options=)`, `async def step(action)`, and optionally `close()`. A plain environment may offer such a form of
itself with `coroutine_form()`. Wrappers, slots and checks are plain code, which waits through `event_loop`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from mission_gym.env.agents import AgentsEnv, ParallelWrapper, is_parallel
from mission_gym.errors import EnvContractError

if TYPE_CHECKING:
    from mission_gym.env.event_loop import CallQueue

FORM = "coroutine_form"
_CALLS = ("reset", "step")
_CLOSE_S = 5.0
_is_wanted: ContextVar[bool] = ContextVar("coroutine form", default=False)


def is_coroutine(made: Any) -> bool:
    """Return whether the steps of an environment, or of a class, are coroutines; EnvContractError if only
    one of reset and step is."""
    kinds = {name: inspect.iscoroutinefunction(getattr(made, name, None)) for name in _CALLS}
    if len(set(kinds.values())) > 1 and not isinstance(made, type):
        one, other = sorted(kinds, key=lambda name: not kinds[name])
        raise EnvContractError(
            f"{type(made).__name__}.{one}() is a coroutine and {other}() is not; both must be, or neither"
        )
    return all(kinds.values())


class Waiter:
    """Waits for the coroutines of one environment."""

    def __init__(self, inner: Any) -> None:
        from mission_gym.env import event_loop  # asyncio takes 30 ms to load, and few need it

        self.inner = inner
        self._loops = event_loop
        self._queue: CallQueue | None = None

    def call(
        self, method: Callable[..., Any], *args: Any, limit_s: float | None = None, **kwargs: Any
    ) -> Any:
        """Call a method, which may be a coroutine, and return its result."""
        made = method(*args, **kwargs)
        return self.wait(made, limit_s) if inspect.iscoroutine(made) else made

    def wait(self, coroutine: Coroutine[Any, Any, Any], limit_s: float | None = None) -> Any:
        """Return the result of a coroutine. limit_s: see `event_loop.LimitedCall`."""
        if self._loops.waits_on_loop():
            return self._loops.wait_for(self._loops.LimitedCall(coroutine, limit_s))
        if self._queue is None:
            self._queue = self._loops.CallQueue()
        return self._queue.wait_for(coroutine)

    def close(self) -> None:
        """Close the environment if it has a `close` method."""
        try:
            if (close := getattr(self.inner, "close", None)) is not None:
                self.call(close, limit_s=_CLOSE_S)
        finally:
            if self._queue is not None:
                self._queue.close()
                self._queue = None


class CoroutineEnv(gym.Env[Any, Any]):
    """An environment of coroutines as a Gymnasium environment. All other attributes are the inner
    environment's, its coroutines as plain functions."""

    def __init__(self, inner: Any) -> None:
        self._waiter = Waiter(inner)
        self._seed = -1  # of the last reset with a seed
        self.spec = getattr(inner, "spec", None)
        self.metadata = getattr(inner, "metadata", None) or {}
        self.render_mode = getattr(inner, "render_mode", None)

    @property
    def coroutines(self) -> Any:
        """The inner environment."""
        return self._waiter.inner

    def __str__(self) -> str:
        return f"<{type(self.coroutines).__name__} instance>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_waiter":  # it may not exist yet: copy and pickle ask early
            raise AttributeError(name)
        value = getattr(self.coroutines, name)
        return partial(self._waiter.call, value) if inspect.iscoroutinefunction(value) else value

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the inner environment; without `force` only if it exists."""
        if force or hasattr(self.coroutines, name):
            setattr(self.coroutines, name, value)
            return True
        return False

    # Read at each use, so that a reset that changes a space is noticed.
    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return self.coroutines.observation_space

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        return self.coroutines.action_space

    @property  # type: ignore[misc]
    def np_random(self) -> np.random.Generator:
        generator: np.random.Generator = self.coroutines.np_random
        return generator

    @property
    def _np_random(self) -> np.random.Generator | None:  # type: ignore[override]
        return getattr(self.coroutines, "np_random", None)

    @property
    def np_random_seed(self) -> int:
        return self._seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed = self._seed if seed is None else seed
        return self._waiter.wait(self.coroutines.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return self._waiter.wait(self.coroutines.step(action))

    def render(self) -> Any:
        return self._waiter.call(self.coroutines.render)

    def close(self) -> None:
        self._waiter.close()


class CoroutineAgents(ParallelWrapper):
    """A parallel environment of coroutines as a plain parallel environment."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._waiter = Waiter(env)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._waiter.wait(self.env.reset(seed=seed, options=options))

    def step(self, actions: dict[str, Any]) -> Any:
        return self._waiter.wait(self.env.step(actions))

    def render(self) -> Any:
        return self._waiter.call(self.env.render)

    def close(self) -> None:
        self._waiter.close()


def adapt(made: Any) -> Any:
    """Make the coroutines of an environment plain; uses its coroutine form first, if one is wanted and
    offered."""
    if _is_wanted.get() and not is_coroutine(made) and offers_form(made):
        with _wanting(False):  # not for environments that it builds inside
            made = getattr(made, FORM)()
        if not is_coroutine(made):
            raise EnvContractError(
                f"{FORM}() returned a {type(made).__name__} whose reset() and step() are not coroutines"
            )
    if not is_coroutine(made):
        return made
    return CoroutineAgents(made) if is_parallel(made) else CoroutineEnv(made)


def offers_form(made: Any) -> bool:
    """Return whether a plain environment offers a form whose steps are coroutines."""
    return callable(getattr(made, FORM, None))


def has_coroutines(env: gym.Env[Any, Any]) -> bool:
    """Return whether the steps inside a built environment are coroutines."""
    inner = env.unwrapped
    if not isinstance(inner, AgentsEnv):
        return isinstance(inner, CoroutineEnv)
    parallel = inner.parallel  # below wrappers, which have their environment as `env`
    while not isinstance(parallel, CoroutineAgents) and getattr(parallel, "env", None) is not None:
        parallel = parallel.env
    return isinstance(parallel, CoroutineAgents)


def find_instance(env: gym.Env[Any, Any]) -> Any:
    """Return the user's object inside an environment, without our adapters."""
    inner = env.unwrapped
    if isinstance(inner, AgentsEnv):
        return inner.parallel
    return inner.coroutines if isinstance(inner, CoroutineEnv) else inner


def coroutines_wanted() -> AbstractContextManager[None]:
    """Environments that are built in this context use their coroutine form if they offer one."""
    return _wanting(True)


@contextmanager
def _wanting(wanted: bool) -> Iterator[None]:
    token = _is_wanted.set(wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)
