"""Environments whose `reset` and `step` are coroutines, as environments of Gymnasium's.

The protocol: `observation_space` and `action_space` as attributes, `async def reset(seed=, options=)`,
`async def step(action)` and, if there is something to close, `close()`; no base class. They are known by that
shape. A plain environment may offer such a form of itself: `coroutine_form()` gives it. Whatever steps one,
wrapper, slot or check, is plain code and waits through `event_loop`.
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
    from mission_gym.env.event_loop import CallLine

FORM = "coroutine_form"
_CALLS = ("reset", "step")
_CLOSE_S = 5.0
_is_wanted: ContextVar[bool] = ContextVar("coroutine form", default=False)


def is_coroutine(made: Any) -> bool:
    """Whether the steps of an environment, or of a class of them, are coroutines. EnvContractError where
    its resets differ in that from its steps."""
    kinds = {name: inspect.iscoroutinefunction(getattr(made, name, None)) for name in _CALLS}
    if len(set(kinds.values())) > 1 and not isinstance(made, type):
        one, other = sorted(kinds, key=lambda name: not kinds[name])
        raise EnvContractError(
            f"{type(made).__name__}.{one}() is a coroutine and {other}() is not; both must be, or neither"
        )
    return all(kinds.values())


class Waiting:
    """Waits for the coroutines of one environment."""

    def __init__(self, inner: Any) -> None:
        from mission_gym.env import event_loop  # asyncio takes 30 ms to load, and few need it

        self.inner = inner
        self._loops = event_loop
        self._line: CallLine | None = None

    def call(
        self, method: Callable[..., Any], *args: Any, limit_s: float | None = None, **kwargs: Any
    ) -> Any:
        """What a method gives, which may be a coroutine."""
        made = method(*args, **kwargs)
        return self.wait(made, limit_s) if inspect.iscoroutine(made) else made

    def wait(self, coroutine: Coroutine[Any, Any, Any], limit_s: float | None = None) -> Any:
        """What a coroutine gives. limit_s: see `event_loop.Call`."""
        if self._loops.waits_on_loop():
            return self._loops.wait_for(self._loops.Call(coroutine, limit_s))
        if self._line is None:
            self._line = self._loops.CallLine()
        return self._line.wait_for(coroutine)

    def close(self) -> None:
        """Close the environment, if it can be."""
        try:
            if (close := getattr(self.inner, "close", None)) is not None:
                self.call(close, limit_s=_CLOSE_S)
        finally:
            if self._line is not None:
                self._line.close()
                self._line = None


class CoroutineEnv(gym.Env[Any, Any]):
    """An environment of coroutines as one of Gymnasium's. Every other attribute is the environment's own,
    its coroutines as plain functions."""

    def __init__(self, inner: Any) -> None:
        self._waiting = Waiting(inner)
        self._seed = -1  # of the last reset that had one; unknown before
        self.spec = getattr(inner, "spec", None)

    @property
    def coroutines(self) -> Any:
        """The environment itself."""
        return self._waiting.inner

    def __str__(self) -> str:
        return f"<{type(self.coroutines).__name__} instance>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_waiting":  # not there yet: copies and pickles ask early
            raise AttributeError(name)
        value = getattr(self.coroutines, name)
        return partial(self._waiting.call, value) if inspect.iscoroutinefunction(value) else value

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment itself; without `force` only one that is there."""
        if force or hasattr(self.coroutines, name):
            setattr(self.coroutines, name, value)
            return True
        return False

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return self.coroutines.observation_space

    @property
    def action_space(self) -> Any:  # type: ignore[override]
        return self.coroutines.action_space

    @property
    def metadata(self) -> dict[str, Any]:  # type: ignore[override]
        return getattr(self.coroutines, "metadata", None) or {}

    @property
    def render_mode(self) -> str | None:  # type: ignore[override]
        return getattr(self.coroutines, "render_mode", None)

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
        return self._waiting.wait(self.coroutines.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return self._waiting.wait(self.coroutines.step(action))

    def render(self) -> Any:
        return self._waiting.call(self.coroutines.render)

    def close(self) -> None:
        self._waiting.close()


class CoroutineAgents(ParallelWrapper):
    """The same for a parallel environment of several agents."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.waiting = Waiting(env)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.waiting.wait(self.env.reset(seed=seed, options=options))

    def step(self, actions: dict[str, Any]) -> Any:
        return self.waiting.wait(self.env.step(actions))

    def render(self) -> Any:
        return self.waiting.call(self.env.render)

    def close(self) -> None:
        self.waiting.close()


def adapt(made: Any) -> Any:
    """What was built, with coroutines made plain; in its coroutine form where that is wanted and offered."""
    if _is_wanted.get() and not is_coroutine(made) and offers_form(made):
        with _wanting(False):  # what it builds inside is its own affair
            made = getattr(made, FORM)()
        if not is_coroutine(made):
            raise EnvContractError(
                f"{FORM}() gave a {type(made).__name__} whose reset() and step() are not coroutines"
            )
    if not is_coroutine(made):
        return made
    return CoroutineAgents(made) if is_parallel(made) else CoroutineEnv(made)


def offers_form(made: Any) -> bool:
    """Whether a plain environment has a form whose steps are coroutines."""
    return callable(getattr(made, FORM, None))


def has_coroutines(env: gym.Env[Any, Any]) -> bool:
    """Whether the steps of an environment that was built are coroutines inside."""
    inner = env.unwrapped
    agents = isinstance(inner, AgentsEnv) and isinstance(_innermost(inner.parallel), CoroutineAgents)
    return isinstance(inner, CoroutineEnv) or agents


def find_instance(env: gym.Env[Any, Any]) -> Any:
    """The object that was built for an environment, below what is put around it here."""
    inner = env.unwrapped
    if isinstance(inner, AgentsEnv):
        return inner.parallel
    return inner.coroutines if isinstance(inner, CoroutineEnv) else inner


def _innermost(parallel: Any) -> Any:
    """Below wrappers that go by the usual name for what they wrap."""
    while not isinstance(parallel, CoroutineAgents) and (inner := getattr(parallel, "env", None)) is not None:
        parallel = inner
    return parallel


def coroutines_wanted() -> AbstractContextManager[None]:
    """Environments that are built inside take their coroutine form where they offer one."""
    return _wanting(True)


@contextmanager
def _wanting(wanted: bool) -> Iterator[None]:
    token = _is_wanted.set(wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)
