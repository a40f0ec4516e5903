"""The explore mission as a `gymnasium.Env`: every backend can step it, `threads` above all."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.procs.companions import RunningCompanion, start_companion
from mission_gym_missions.explore.baselines import Policy, make_baselines
from mission_gym_missions.explore.client import Client
from mission_gym_missions.explore.explorer import OUTCOMES, Explorer
from mission_gym_missions.explore.settings import Declared, Settings, make_companion, read_settings

METADATA: dict[str, Any] = {
    "render_modes": ["rgb_array"],
    "render_fps": 3,
    "outcomes": OUTCOMES,
    "main_outcome": OUTCOMES[0],
}


class ExploreEnv(Declared, gym.Env[Array, np.int64]):
    """Find a page of a web site by following links. Keyword arguments: those of `Settings`."""

    metadata: ClassVar[dict[str, Any]] = METADATA  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"render_mode={render_mode!r} is unknown; use rgb_array or none")
        self._settings = settings
        read = read_settings(settings)
        self.explorer, self._companion = open_explorer(read)
        self.observation_space, self.action_space = make_spaces(self.explorer)
        self.baselines: dict[str, Policy] = make_baselines(self.explorer)
        self.render_mode = render_mode
        self._client = Client(read.limits, read.may_use_loopback)

    if find_spec("aiohttp") is not None:  # of the extra `web`

        def coroutine_form(self) -> Any:
            """The same mission as coroutines."""
            from mission_gym_missions.explore.aio_env import AsyncExploreEnv

            return AsyncExploreEnv(**self._settings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: its site and target are a function of the seed."""
        super().reset(seed=seed)
        return self._client.fulfil(self.explorer.reset(draw_number(self.np_random)))

    def step(self, action: np.int64 | int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Stop, go back, or follow a link; one that is not there does nothing."""
        return self._client.fulfil(self.explorer.step(read_action(action)))

    def render(self) -> Any:
        """Draw what was seen of the site: an array [H, W, 3]."""
        if self.render_mode is None:
            raise UsageError(
                "render() without a render mode; build the environment with render_mode='rgb_array'"
            )
        from mission_gym_missions.explore.rendering import draw_explorer

        return draw_explorer(self.explorer)

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return self.explorer.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.explorer.set_state(state)

    def close(self) -> None:
        self._client.close()
        self._companion = None


def open_explorer(settings: Settings) -> tuple[Explorer, RunningCompanion | None]:
    """What plays the mission, and the server, where nobody else has started it. Hold both."""
    companion = None
    served_at = settings.served_at
    if settings.base_url is None and served_at is None:
        companion = start_companion(make_companion(settings))
        served_at = companion.kwargs["served_at"]
    return settings.make_explorer(served_at or ""), companion


def make_spaces(explorer: Explorer) -> tuple[spaces.Box, spaces.Discrete]:
    """The spaces of both forms."""
    return (
        spaces.Box(0.0, 1.0, (explorer.num_features,), np.float32),
        spaces.Discrete(explorer.num_actions),
    )


def draw_number(rng: np.random.Generator) -> int:
    """The number of an episode, and of its site."""
    return int(rng.integers(1 << 62))


def read_action(action: Any) -> int:
    """An action as a whole number."""
    value = np.asarray(action)
    if value.shape != () or value.dtype.kind not in "iu":
        raise UsageError(f"action {action!r} is not a whole number; the mission takes one")
    return int(value)
