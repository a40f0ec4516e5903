"""The capture mission as a `gymnasium.Env` and as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from mission_gym.data import Array
from mission_gym_missions.capture.baselines import make_baselines
from mission_gym_missions.capture.keyboard import Keyboard
from mission_gym_missions.capture.scenario import SHIPPED, load_scenario
from mission_gym_missions.capture.sim.layout import OUTCOMES
from mission_gym_missions.capture.simulator import CaptureSimulator
from mission_gym_missions.env import (
    BatchedMission,
    Metadata,
    SingleMission,
    make_batched_metadata,
    make_metadata,
)

FRAMES_PER_S = 12  # one frame per command: three times real time


class CaptureEnv(SingleMission):
    """Hold a zone with a small fleet.

    level, config_dir: the scenario. blind: the policy observes nothing of the defenders; its mask allows a
    tag whenever the tagger is charged, and a tag without a target does nothing. threads: unused; a run passes
    the same arguments to both forms.
    """

    metadata: ClassVar[Metadata] = make_metadata(OUTCOMES, FRAMES_PER_S, "human")  # type: ignore[misc]

    def __init__(
        self,
        level: str = "normal",
        config_dir: str | Path | None = None,
        render_mode: str | None = None,
        blind: bool = False,
        threads: int | None = None,
    ) -> None:
        scenario = load_scenario(level, config_dir)
        super().__init__(CaptureSimulator(scenario, 1, blind=blind), make_baselines(scenario), render_mode)
        self._terms: dict[str, float] = {}  # summed over the episode, for the renderer
        self._renderer: Any = None

    @staticmethod
    def snapshot_kwargs(config_dir: str | Path | None = None, **others: Any) -> dict[str, Any]:
        """Return the folder of scenario files in use; a run keeps a copy of it."""
        return {"config_dir": str(SHIPPED if config_dir is None else config_dir)}

    def make_keyboard(self) -> Keyboard:
        """Return the keys for playing by hand."""
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
        super().close()

    def _after(self, action: Array | None, info: dict[str, Any]) -> None:
        if action is None:
            self._terms = {}
        for name, value in info["reward_terms"].items():
            self._terms[name] = self._terms.get(name, 0.0) + value
        if self._renderer is not None:
            self._renderer.follow(self.simulator, begins=action is None)
        if self.render_mode == "human":
            self.render()

    def _draw(self) -> Any:
        """Return an array for rgb_array; update the window for human."""
        if self._renderer is None:
            from mission_gym_missions.capture.render import Renderer

            fps = FRAMES_PER_S if self.render_mode == "human" else None
            self._renderer = Renderer(self.simulator.scenario, fps)
        return self._renderer.draw(self.simulator, self._terms)


class CaptureVectorEnv(BatchedMission):
    """N games at once.

    threads: the number of threads that share the rows; by default one per usable core, as long as each has
    enough rows. It changes the speed, never a number.
    """

    metadata: ClassVar[Metadata] = make_batched_metadata(CaptureEnv.metadata)  # type: ignore[misc]

    def __init__(
        self,
        num_envs: int = 1,
        level: str = "normal",
        config_dir: str | Path | None = None,
        render_mode: str | None = None,
        blind: bool = False,
        threads: int | None = None,
    ) -> None:
        scenario = load_scenario(level, config_dir)
        simulator = CaptureSimulator(scenario, num_envs, threads=threads, blind=blind)
        super().__init__(simulator, make_baselines(scenario), render_mode)
