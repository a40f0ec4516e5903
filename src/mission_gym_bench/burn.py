"""Environments of a known cost, for `bench vector` and `bench waiting`: they burn the processor, or wait."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

IMAGE = (84, 84, 4)
_VECTOR = (16,)  # 64 bytes


class Burn(gym.Env[Any, Any]):
    """Steps of `spins` turns of a loop, times an exponential of mean 1 with `jitter`; episodes of 200 steps
    whose reset costs `reset_steps` steps."""

    def __init__(
        self,
        spins: int = 0,
        jitter: bool = False,
        reset_steps: int = 0,
        image: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        shape, dtype = (IMAGE, np.uint8) if image else (_VECTOR, np.float32)
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(2)
        self._obs = np.zeros(shape, dtype)
        self._spins, self._jitter, self._reset_steps, self._wait_s = spins, jitter, reset_steps, wait_s
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        spin(self._spins * self._reset_steps)
        return self._obs, {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._wait_s:
            time.sleep(self._wait_s)
        factor = self.np_random.exponential() if self._jitter else 1.0
        spin(int(self._spins * factor))
        return self._obs, 1.0, False, self._steps >= 200, {}


class AwaitedBurn(Burn):
    """The same with coroutines: it waits without holding anybody up."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        return super().reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(self._wait_s)
        self._steps += 1
        factor = self.np_random.exponential() if self._jitter else 1.0
        spin(int(self._spins * factor))
        return self._obs, 1.0, False, self._steps >= 200, {}


def loop_on_asyncio(num_envs: int, wait_s: float, seconds: float) -> float:
    """Steps per second of bare coroutines, each in a task that does nothing but await its steps."""

    async def play(env: AwaitedBurn, end: float) -> int:
        await env.reset(seed=0)
        steps = 0
        while time.perf_counter() < end:
            *_, truncated, _ = await env.step(0)
            if truncated:
                await env.reset()
            steps += 1
        return steps

    async def play_all() -> float:
        envs = [AwaitedBurn(wait_s=wait_s) for _ in range(num_envs)]
        begun = time.perf_counter()
        made = await asyncio.gather(*(play(env, begun + seconds) for env in envs))
        return sum(made) / (time.perf_counter() - begun)

    return asyncio.run(play_all())


def spin(turns: int) -> float:
    """Keep one core busy."""
    x = 0.0
    for _ in range(turns):
        x = x * 0.5 + 1.0
    return x


def measure_spins_per_us() -> float:
    """How many turns a microsecond takes here: the best of several tries."""
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        spin(20_000)
        best = min(best, time.perf_counter() - start)
    return 20_000 / (best * 1e6)


def loop_plainly(kwargs: dict[str, Any], seconds: float, start_at: float) -> float:
    """Steps per second of one environment in a plain loop, begun at a moment of time.time()."""
    env = Burn(**kwargs)
    env.reset(seed=0)
    time.sleep(max(0.0, start_at - time.time()))
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(8):
            *_, truncated, _ = env.step(0)
            if truncated:
                env.reset()
        steps += 8
    return steps / (time.perf_counter() - begun)
