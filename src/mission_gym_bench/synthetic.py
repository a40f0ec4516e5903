"""Environments of a known cost, for benchmarks: they burn CPU time, wait, show images or crawl a site.

`python -m mission_gym_bench.synthetic SPINS BYTES` serves the game of `bench bridge`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any
from urllib.parse import urljoin

import gymnasium as gym
import numpy as np
from gymnasium import spaces

IMAGE = (84, 84, 4)
_VECTOR = (16,)  # 64 bytes
_NUM_FRAMES = 16  # different images of an environment
_NUM_PAGES = 50  # steps of a crawler's episode
_MOST_LINKS = 8


class Burn(gym.Env[Any, Any]):
    """Steps of `spins` loop turns, times an exponential of mean 1 with `jitter`, and of `wait_s` seconds.

    Episodes have 200 steps, and a reset costs as much as `reset_steps` steps.
    """

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
        if self._wait_s:
            time.sleep(self._wait_s)
        return self._advance()

    def _advance(self) -> Any:
        self._steps += 1
        factor = self.np_random.exponential() if self._jitter else 1.0
        spin(int(self._spins * factor))
        return self._obs, 1.0, False, self._steps >= 200, {}


class AwaitedBurn(Burn):
    """The same as coroutines."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        return super().reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(self._wait_s)
        return self._advance()


class Frames(Burn):
    """Grey images of 84 x 84, a new one per step. channel: add the channel axis that SB3 needs."""

    def __init__(self, spins: int = 0, channel: bool = False) -> None:
        super().__init__(spins)
        shape = (84, 84, 1) if channel else (84, 84)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._shown = np.random.default_rng(0).integers(0, 256, (_NUM_FRAMES, *shape), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return self._shown[0], {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return self._shown[self._steps % _NUM_FRAMES], *rest


class MapOnly(gym.ObservationWrapper[Any, Any, Any]):
    """The map of the territory mission without its numbers, and without a mask: SB3's PPO supports none."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = env.observation_space["map"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0], {}

    def observation(self, observation: Any) -> Any:
        return observation["map"]


class Crawler(gym.Env[Any, Any]):
    """Follows links of a site over HTTP, one page per step, with requests and BeautifulSoup. home: its
    URL."""

    def __init__(self, home: str) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(_MOST_LINKS)
        self._home, self._at, self._steps = home, home, 0
        self._links: list[str] = []
        self._session: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._at, self._steps = self._home, 0
        return self._read(self._get()), {}

    def step(self, action: Any) -> Any:
        self._follow(int(action))
        return self._result(self._read(self._get()))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _follow(self, action: int) -> None:
        self._steps += 1
        self._at = urljoin(self._at, self._links[action % len(self._links)]) if self._links else self._home

    def _result(self, obs: Any) -> Any:
        return obs, 0.0, False, self._steps >= _NUM_PAGES, {}

    def _get(self) -> str:
        if self._session is None:
            import requests

            self._session = requests.Session()
        text: str = self._session.get(self._at).text
        return text

    def _read(self, text: str) -> Any:
        from bs4 import BeautifulSoup

        page = BeautifulSoup(text, "html.parser")
        self._links = [str(link["href"]) for link in page.find_all("a", href=True)][-_MOST_LINKS:]
        return np.array([len(self._links), len(page.get_text())], np.float32)


class AwaitedCrawler(Crawler):
    """The same as coroutines, with aiohttp and selectolax."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        gym.Env.reset(self, seed=seed)
        self._at, self._steps = self._home, 0
        return self._read(await self._fetch()), {}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self._follow(int(action))
        return self._result(self._read(await self._fetch()))

    async def close(self) -> None:  # type: ignore[override]
        if self._session is not None:
            await self._session.close()

    async def _fetch(self) -> str:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession()
        async with self._session.get(self._at) as reply:
            text: str = await reply.text()
            return text

    def _read(self, text: str) -> Any:
        from selectolax.lexbor import LexborHTMLParser

        page = LexborHTMLParser(text)
        self._links = [link.attributes["href"] or "" for link in page.css("a[href]")][-_MOST_LINKS:]
        return np.array([len(self._links), len(page.text())], np.float32)


class BurnGame:
    """The game of `bench bridge`: a Burn with observations of `size` bytes."""

    def __init__(self, spins: int, size: int) -> None:
        from mission_gym.bridge.clients.mission_gym_bridge import box, discrete

        self.observation_space, self.action_space = box((size,), "uint8", 0, 255), discrete(2)
        self._burn, self._obs = Burn(spins), np.zeros(size, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode. Option loop_s: report the steps per second of a plain loop of that length in this
        process, without a bridge."""
        info = {"own_rate": loop_steps(self._burn, options["loop_s"])} if options else {}
        self._burn.reset()
        return self._obs, info

    def step(self, action: int) -> Any:
        """Take a step."""
        _, *rest = self._burn.step(action)
        return self._obs, *rest


def spin(turns: int) -> float:
    """Keep one core busy."""
    x = 0.0
    for _ in range(turns):
        x = x * 0.5 + 1.0
    return x


def measure_spins_per_us() -> float:
    """Return the loop turns per microsecond of this machine: the best of several tries."""
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        spin(20_000)
        best = min(best, time.perf_counter() - start)
    return 20_000 / (best * 1e6)


def loop_steps(env: Any, seconds: float) -> float:
    """Return the steps per second of one environment in a plain loop."""
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for _ in range(8):
            *_, truncated, _ = env.step(0)
            if truncated:
                env.reset()
        steps += 8
    return steps / (time.perf_counter() - begun)


def loop_burn(kwargs: dict[str, Any], seconds: float, start_at: float) -> float:
    """Return the steps per second of a Burn in a plain loop that starts at a moment of time.time()."""
    env = Burn(**kwargs)
    env.reset(seed=0)
    time.sleep(max(0.0, start_at - time.time()))
    return loop_steps(env, seconds)


def loop_on_asyncio(num_envs: int, wait_s: float, seconds: float) -> float:
    """Return the steps per second of bare coroutines, each in a task that only awaits its steps."""

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


if __name__ == "__main__":
    from mission_gym.bridge.clients.mission_gym_bridge import serve

    serve(lambda: BurnGame(int(sys.argv[1]), int(sys.argv[2])))
