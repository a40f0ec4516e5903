"""Environments whose steps are coroutines: plain ones behind coroutines, and one that fails in every way."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.env.factory import EnvRequest, make_factory


class Awaited:
    """A plain environment, by name or as a callable, behind coroutines that give others `turns` turns."""

    def __init__(self, plain: str | Callable[[], Any], turns: int = 2) -> None:
        self.plain = make_factory(EnvRequest(plain) if isinstance(plain, str) else plain)()
        self.observation_space, self.action_space = self.plain.observation_space, self.plain.action_space
        self.metadata = self.plain.metadata
        self.turns, self.tasks, self.is_closed = turns, set[Any](), False

    def __getattr__(self, name: str) -> Any:
        if name in ("plain", "spec", "get_state", "set_state", "coroutine_form"):
            raise AttributeError(name)
        return self.plain.get_wrapper_attr(name)

    async def wait(self) -> None:
        self.tasks.add(asyncio.current_task())
        for _ in range(self.turns):
            await asyncio.sleep(0)

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        await self.wait()
        return self.plain.reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:
        await self.wait()
        return self.plain.step(action)

    async def close(self) -> None:
        await self.wait()
        self.is_closed = True
        self.plain.close()


class AsyncHazard:
    """Episodes of 20 steps that show (steps, action). At step `at` of an episode it does what `kind` says;
    with `once`, a path, only the first time over all processes."""

    def __init__(self, kind: str = "", at: int = 3, once: str = "") -> None:
        self.kind, self.at, self.once = kind, at, once
        self.observation_space = spaces.Box(-1.0, 1000.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def is_due(self) -> bool:
        if self.steps != self.at or not self.kind:
            return False
        if self.once:
            with suppress(FileExistsError):
                Path(self.once).touch(exist_ok=False)
                return True
            return False
        return True

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        if self.kind == "reset hangs" and self.is_due():
            await asyncio.Event().wait()
        return np.zeros(2, np.float32), {}

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0.001)
        self.steps += 1
        if self.kind != "reset hangs" and self.is_due():
            await self.fail()
        return np.array([self.steps, action], np.float32), 1.0, False, self.steps >= 20, {}

    async def fail(self) -> None:
        match self.kind:
            case "raise":
                raise RuntimeError("the site fell over")
            case "hang":
                await asyncio.Event().wait()
            case "stubborn":
                await self.refuse_to_end()
            case "block":
                while True:
                    time.sleep(60)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                sys.exit(5)
            case "odd":
                raise Odd
            case "cancelled":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            case "cancel all":
                for task in asyncio.all_tasks():
                    task.cancel()
                await asyncio.sleep(0)
            case "stop":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(0)
            case "child exits":
                asyncio.get_running_loop().create_task(leave())
                await asyncio.sleep(0.01)

    async def refuse_to_end(self) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    def close(self) -> None:
        if self.kind == "close raises":
            raise RuntimeError("the session is gone")


class Odd(BaseException):
    """Of the kind that `except Exception` lets pass."""


async def leave() -> None:
    sys.exit(6)


class Napping:
    """Sleeps in every step without letting go of the event loop."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    async def step(self, action: Any) -> Any:
        time.sleep(0.01)
        return 0, 0.0, False, False, {}


class Both(gym.Env[Any, Any]):
    """A plain environment that offers a coroutine form, which shows 1 instead of 0."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, shown: int = 0) -> None:
        self.shown = shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.shown, {}

    def step(self, action: Any) -> Any:
        return self.shown, 0.0, False, False, {}

    def coroutine_form(self) -> Any:
        return Awaited(lambda: Both(1))
