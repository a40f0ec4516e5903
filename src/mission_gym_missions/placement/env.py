"""The placement mission as a `gymnasium.Env` and as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mission_gym.data import Array
from mission_gym_missions.env import (
    BatchedMission,
    Metadata,
    RulesFile,
    SingleMission,
    make_batched_metadata,
    make_metadata,
)
from mission_gym_missions.placement.baselines import make_baselines
from mission_gym_missions.placement.rules import SHIPPED, load_mission
from mission_gym_missions.placement.simulator import OUTCOMES, PlacementSimulator


class PlacementEnv(RulesFile, SingleMission):
    """Place stations on candidate sites, one per step, to serve the demand of a city.

    num_sites, num_stations, num_demand: the sizes. instance: random (a new city in every episode) or fixed.
    rules_file: a file like the shipped `rules.yaml`.
    """

    metadata: ClassVar[Metadata] = make_metadata(OUTCOMES, 1)  # type: ignore[misc]
    shipped_rules = SHIPPED
    action_space: Any

    def __init__(
        self,
        num_sites: int = 20,
        num_stations: int = 4,
        num_demand: int = 49,
        instance: str = "random",
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        mission = load_mission(num_sites, num_stations, num_demand, instance, rules_file)
        super().__init__(PlacementSimulator(mission, 1), make_baselines(mission), render_mode)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.action_space.free = (~self.simulator.state.placed[0]).astype(np.int8)

    def _after(self, action: Array | None, info: dict[str, Any]) -> None:
        self.action_space.free = info["action_mask"].copy()

    def _draw(self) -> Any:
        from mission_gym_missions.placement.render import draw_map

        return draw_map(self.simulator)


class PlacementVectorEnv(BatchedMission):
    """N cities at once; the arguments are those of the single form."""

    metadata: ClassVar[Metadata] = make_batched_metadata(PlacementEnv.metadata)  # type: ignore[misc]

    def __init__(
        self,
        num_envs: int = 1,
        num_sites: int = 20,
        num_stations: int = 4,
        num_demand: int = 49,
        instance: str = "random",
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        mission = load_mission(num_sites, num_stations, num_demand, instance, rules_file)
        super().__init__(PlacementSimulator(mission, num_envs), make_baselines(mission), render_mode)
