"""Many placement missions as one `gymnasium.vector.VectorEnv`, without Python per row. Same-step auto-reset.

Row i with seed s plays, bit for bit, what a single environment with seed s plays, episode after episode.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from mission_gym.data import Array
from mission_gym_missions.batches import BatchedMission, refuse_drawing
from mission_gym_missions.placement.baselines import Baselines, BatchPolicy
from mission_gym_missions.placement.env import PlacementEnv, check_actions, make_spaces
from mission_gym_missions.placement.rules import load_mission
from mission_gym_missions.placement.simulator import TERMS, Simulator


class PlacementVectorEnv(BatchedMission):
    """N cities at once; the arguments are those of the single form."""

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        **PlacementEnv.metadata,
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

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
        refuse_drawing(render_mode)
        mission = load_mission(num_sites, num_stations, num_demand, instance, rules_file)
        super().__init__(Simulator(mission, num_envs), num_envs, make_spaces(mission))
        self.baselines: dict[str, BatchPolicy] = Baselines(mission).batch

    def _begin_all(self) -> tuple[Array, Array]:
        self.simulator.begin(self._rows)
        obs, mask = self.simulator.show()
        return obs, mask

    def _begin(self, rows: Array, obs: Array, mask: Array) -> None:
        self.simulator.begin(rows)
        self.simulator.update(rows, obs, mask)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Place one station in every row."""
        self._check_running()
        columns, rewards = self.simulator.step(check_actions(np.asarray(actions), self.simulator))
        obs, mask = self.simulator.show()
        terms = dict(zip(TERMS, columns.T.copy(), strict=True))
        return self._give(obs, rewards, mask, self.simulator.read_ended(), terms)
