"""The explore mission as a `gymnasium.Env`. Every backend can step it; `threads` suits it best."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.procs.companions import Companion, RunningCompanion, start_companion
from mission_gym_missions.env import (
    Metadata,
    RulesFile,
    check_render_mode,
    make_metadata,
    require_render_mode,
)
from mission_gym_missions.explore.baselines import make_baselines
from mission_gym_missions.explore.client import HttpClient
from mission_gym_missions.explore.explorer import OUTCOMES, SHIPPED
from mission_gym_missions.explore.settings import Settings, make_companion, read_settings

METADATA = make_metadata(OUTCOMES, 3)


class ExploreForm(RulesFile):
    """What both forms of the mission share: an explorer, its spaces and state, and the server it needs."""

    shipped_rules = SHIPPED
    observation_space: Any
    action_space: Any

    def _open(self, given: dict[str, Any]) -> Settings:
        """Make the explorer, and start the server of generated sites unless `served_at` names one."""
        settings = read_settings(given)
        self._companion: RunningCompanion | None = None
        served_at = settings.served_at
        if settings.base_url is None and served_at is None:
            self._companion = start_companion(make_companion(settings))
            served_at = self._companion.kwargs["served_at"]
        self.explorer = settings.make_explorer(served_at or "")
        self.observation_space = spaces.Box(0.0, 1.0, (self.explorer.num_features,), np.float32)
        self.action_space = spaces.Discrete(self.explorer.num_actions)
        self.baselines = make_baselines(self.explorer)
        return settings

    @staticmethod
    def companion_process(**given: Any) -> Companion | None:
        """Return the server of generated sites, if they are used and `served_at` is not given."""
        settings = read_settings(given)
        needed = settings.base_url is None and settings.served_at is None
        return make_companion(settings) if needed else None

    def describe_target(self) -> tuple[str, str]:
        """Return the site of the requests and how it answers, for the plan of a run."""
        return self.explorer.describe_target()

    def get_state(self) -> dict[str, Any]:
        """Return everything that an exact continuation needs, as plain values."""
        return self.explorer.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue exactly from a state of `get_state`."""
        self.explorer.set_state(state)


class ExploreEnv(ExploreForm, gym.Env[Array, np.int64]):
    """Find a page of a web site by following links. Keyword arguments: the fields of `Settings`."""

    metadata: ClassVar[Metadata] = METADATA  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **settings: Any) -> None:
        check_render_mode(render_mode, METADATA["render_modes"])
        self.render_mode, self._settings = render_mode, settings
        read = self._open(settings)
        self._client = HttpClient(read.limits, read.may_use_loopback)

    if find_spec("aiohttp") is not None:  # part of the extra `web`

        def coroutine_form(self) -> Any:
            """Return the same mission as coroutines."""
            from mission_gym_missions.explore.aio_env import AsyncExploreEnv

            return AsyncExploreEnv(**self._settings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; its site and target are a function of the seed."""
        super().reset(seed=seed)
        return self._client.run(self.explorer.reset(draw_number(self.np_random)))

    def step(self, action: np.int64 | int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Stop, go back, or follow a link; following a missing link does nothing."""
        return self._client.run(self.explorer.step(read_action(action)))

    def render(self) -> Any:
        """Draw the part of the site that was seen: an array [H, W, 3]."""
        require_render_mode(self.render_mode)
        from mission_gym_missions.explore.render import draw_explorer

        return draw_explorer(self.explorer)

    def close(self) -> None:
        self._client.close()
        self._companion = None


def draw_number(rng: np.random.Generator) -> int:
    """Draw the number of an episode, which is also that of its site."""
    return int(rng.integers(1 << 62))


def read_action(action: Any) -> int:
    """Return an action as an int; UsageError if it is not an integer."""
    value = np.asarray(action)
    if value.shape != () or value.dtype.kind not in "iu":
        raise UsageError(f"action {action!r} is not an integer; the mission takes one integer per step")
    return int(value)
