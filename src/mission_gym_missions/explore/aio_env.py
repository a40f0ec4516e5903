"""The explore mission as coroutines: hundreds of them wait for the site on one event loop.

Any object with `observation_space`, `action_space` and these coroutines is such an environment; what it
gives is what the plain form gives.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gymnasium.utils import seeding

from mission_gym.data import Array
from mission_gym_missions.explore.aio_client import AioClient
from mission_gym_missions.explore.baselines import Policy, make_baselines
from mission_gym_missions.explore.env import METADATA, draw_number, make_spaces, open_explorer, read_action
from mission_gym_missions.explore.settings import Declared, read_settings


class AsyncExploreEnv(Declared):
    """Find a page of a web site by following links. Keyword arguments: those of `Settings`."""

    metadata: ClassVar[dict[str, Any]] = METADATA | {"render_modes": []}

    def __init__(self, **settings: Any) -> None:
        read = read_settings(settings)
        self.explorer, self._companion = open_explorer(read)
        self.observation_space, self.action_space = make_spaces(self.explorer)
        self.baselines: dict[str, Policy] = make_baselines(self.explorer)
        self._client = AioClient(read.limits, read.may_use_loopback)
        self._np_random: Any = None

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: its site and target are a function of the seed."""
        if seed is not None or self._np_random is None:
            self._np_random, _ = seeding.np_random(seed)
        return await self._client.fulfil(self.explorer.reset(draw_number(self._np_random)))

    async def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Stop, go back, or follow a link; one that is not there does nothing."""
        return await self._client.fulfil(self.explorer.step(read_action(action)))

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return self.explorer.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.explorer.set_state(state)

    async def close(self) -> None:
        await self._client.close()
        self._companion = None
