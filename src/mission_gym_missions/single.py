"""What the single forms of the missions share: one row of a simulator as a `gymnasium.Env`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.batches import to_seed

ROW = np.zeros(1, np.int64)


class Played(NamedTuple):
    """What a step of the row gave."""

    obs: Any
    reward: float
    ended: bool
    mask: Array
    terms: dict[str, float]


class SingleMission(gym.Env[Any, Any]):
    """One game, the only row of `simulator`. Every end is a rule of it: terminated, never truncated."""

    simulator: Any

    def __init__(self, render_mode: str | None) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise UsageError(f"render_mode={render_mode!r} is unknown; use {', '.join(modes)} or none")
        self.render_mode = render_mode
        self._seeded = self._running = False

    @abstractmethod
    def _begin(self) -> tuple[Any, Array]:
        """Begin an episode of the row: what it shows, and its mask."""

    @abstractmethod
    def _play(self, action: Any) -> Played:
        """Step the row."""

    @abstractmethod
    def _draw(self) -> Any:
        """The picture of the game."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: number 0 of the seed, or the next one of the seed given last."""
        super().reset(seed=seed)
        if seed is not None:
            self.simulator.seed(ROW, np.array([to_seed(seed)]))
        elif not self._seeded:
            self.simulator.seed(ROW, self.np_random.integers(1 << 62, size=1))
        self._seeded = self._running = True
        obs, mask = self._begin()
        return obs, {"outcome": None, "reward_terms": {}, "action_mask": mask}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise UsageError("step() before reset(), or after the end of the episode; reset first")
        played = self._play(action)
        info: dict[str, Any] = {
            "outcome": self.simulator.read_outcomes()[0],
            "reward_terms": played.terms,
            "action_mask": played.mask,
        }
        if played.ended:
            self._running = False
            metrics = self.simulator.read_metrics(ROW)
            info["episode_metrics"] = {name: float(values[0]) for name, values in metrics.items()}
        return played.obs, played.reward, played.ended, False, info

    def render(self) -> Any:
        """Draw the game: an array [H, W, 3]."""
        if self.render_mode is None:
            raise UsageError(
                "render() without a render mode; build the environment with render_mode='rgb_array'"
            )
        return self._draw()

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return {"running": self._running, **self.simulator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.simulator.set_state(state)
        self._seeded, self._running = True, state["running"]
