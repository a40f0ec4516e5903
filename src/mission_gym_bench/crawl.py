"""A crawler that follows links of a site over HTTP, for `bench waiting`: as it is usually written, with
requests and BeautifulSoup, and as coroutines with aiohttp and selectolax. A step is a page.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_NUM_STEPS = 50  # of an episode
_MOST_LINKS = 8


class Crawler(gym.Env[Any, Any]):
    """Follows the link that it is told to. home: the address of a site's first page."""

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
        return self._show(self._read(self._get()))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _follow(self, action: int) -> None:
        self._steps += 1
        self._at = urljoin(self._at, self._links[action % len(self._links)]) if self._links else self._home

    def _show(self, obs: Any) -> Any:
        return obs, 0.0, False, self._steps >= _NUM_STEPS, {}

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
    """The same with coroutines."""

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        gym.Env.reset(self, seed=seed)
        self._at, self._steps = self._home, 0
        return self._read(await self._fetch()), {}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        self._follow(int(action))
        return self._show(self._read(await self._fetch()))

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
