"""One capture mission as a `gymnasium.Env`: a single row of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.capture.baselines import Baselines, Policy
from mission_gym_missions.capture.keyboard import Keyboard
from mission_gym_missions.capture.scenario import SHIPPED, load_scenario
from mission_gym_missions.capture.sim.layout import NUM_ACTIONS, OUTCOMES
from mission_gym_missions.capture.simulator import Simulator
from mission_gym_missions.single import ROW, Played, SingleMission

FRAMES_PER_S = 12  # a picture for each command: three times as fast as the mission


class CaptureEnv(SingleMission):
    """Hold a zone with a small fleet.

    level, config_dir: which scenario. blind: the policy sees nothing of the defenders; its mask allows a
    tag whenever the tagger is charged, and one without a target does nothing. threads: taken for the sake of
    the batched form, whose arguments a run hands to both; one game needs no second.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array", "human"],
        "render_fps": FRAMES_PER_S,
        "outcomes": OUTCOMES,
        "main_outcome": OUTCOMES[0],
    }

    def __init__(
        self,
        level: str = "normal",
        config_dir: str | Path | None = None,
        render_mode: str | None = None,
        blind: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(render_mode)
        self.simulator: Simulator = Simulator(load_scenario(level, config_dir), 1, blind=blind)
        self.observation_space, self.action_space = make_spaces(self.simulator)
        self.baselines: dict[str, Policy] = Baselines(self.simulator.scenario).single
        self._terms: dict[str, float] = {}  # summed over the episode, for the renderer
        self._renderer: Any = None

    @staticmethod
    def snapshot_kwargs(config_dir: str | Path | None = None, **others: Any) -> dict[str, Any]:
        """The folder of scenario files in use, for a run to own."""
        return {"config_dir": str(SHIPPED if config_dir is None else config_dir)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        shown = super().reset(seed=seed, options=options)
        if self.render_mode == "human":
            self.render()
        return shown

    def _begin(self) -> tuple[Array, Array]:
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(ROW, obs, mask)
        self._terms = {}
        if self._renderer is not None:
            self._renderer.begin()
        return obs[0], mask[0]

    def _play(self, action: Array) -> Played:
        actions = check_actions(np.asarray(action)[None], (1, self.simulator.num_attackers))
        shown = self.simulator.step(actions)
        terms = {name: float(values[0]) for name, values in self.simulator.name_terms(shown.terms).items()}
        for name, value in terms.items():
            self._terms[name] = self._terms.get(name, 0.0) + value
        if self._renderer is not None:
            self._renderer.follow(self.simulator)
        if self.render_mode == "human":
            self.render()
        return Played(shown.obs[0], float(shown.rewards[0]), bool(shown.ended[0]), shown.mask[0], terms)

    def _draw(self) -> Any:
        """An array for rgb_array, a window for human."""
        if self._renderer is None:
            from mission_gym_missions.capture.rendering import Renderer

            self._renderer = Renderer(
                self.simulator.scenario, FRAMES_PER_S if self.render_mode == "human" else None
            )
        return self._renderer.draw(self.simulator, self._terms)

    def make_keyboard(self) -> Keyboard:
        """Keys for playing by hand."""
        return Keyboard(self.simulator.scenario.level.attackers.units)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"terms": dict(self._terms)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._terms = dict(state["terms"])

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self.simulator.close()


def make_spaces(simulator: Simulator) -> tuple[spaces.Box, spaces.MultiDiscrete]:
    """The spaces of a single game."""
    return (
        spaces.Box(-1.0, 1.0, (simulator.num_features,), np.float32),
        spaces.MultiDiscrete(np.full(simulator.num_attackers, NUM_ACTIONS)),
    )


def check_actions(actions: Array, shape: tuple[int, ...]) -> Array:
    """Return actions int64 [N, A]; an index outside the space would read beyond the simulator's tables."""
    if actions.shape != shape or actions.dtype.kind not in "iu":
        raise UsageError(
            f"actions of shape {actions.shape[1:]} and dtype {actions.dtype}; the mission takes {shape[1]} "
            f"whole numbers from 0 to {NUM_ACTIONS - 1}, one for each unit"
        )
    if actions.min() < 0 or actions.max() >= NUM_ACTIONS:
        wrong = actions[(actions < 0) | (actions >= NUM_ACTIONS)][0]
        raise UsageError(
            f"action {wrong} does not exist; the mission takes 0 (hold), 1 to 8 (headings) and "
            f"{NUM_ACTIONS - 1} (tag) for each unit"
        )
    return np.ascontiguousarray(actions, np.int64)
