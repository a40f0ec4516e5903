"""Many territory missions as one `gymnasium.vector.VectorEnv`, without Python per row. Same-step auto-reset.

Row i with seed s plays, bit for bit, what a single environment with seed s plays, episode after episode.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from mission_gym.data import Array
from mission_gym.procs import usable_cores
from mission_gym_missions.batches import ThreadedMission, refuse_drawing
from mission_gym_missions.territory.baselines import BatchPolicy, make_batch_policies
from mission_gym_missions.territory.env import TerritoryEnv, check_actions, make_spaces
from mission_gym_missions.territory.rules import load_mission
from mission_gym_missions.territory.simulator import Obs, Simulator

_ROWS_PER_THREAD = 4  # a row takes some 50 us, longer than to wake a thread


class TerritoryVectorEnv(ThreadedMission):
    """N games at once.

    threads: how many share the rows; by default one for each usable core, while each has enough to do. It
    changes the speed, never a number.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        **TerritoryEnv.metadata,
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 64,
        num_bots: int = 5,
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
        threads: int | None = None,
    ) -> None:
        refuse_drawing(render_mode)
        if threads is None:
            threads = max(1, min(usable_cores(), num_envs // _ROWS_PER_THREAD))
        simulator = Simulator(load_mission(size, num_bots, rules_file), num_envs, threads=threads)
        super().__init__(simulator, num_envs, make_spaces())
        self.baselines: dict[str, BatchPolicy] = make_batch_policies()

    def step(self, actions: Array) -> tuple[Obs, Array, Array, Array, dict[str, Any]]:
        """Play one action in every row."""
        self._check_running()
        shown = self.simulator.step(check_actions(np.asarray(actions), self.num_envs))
        return self._give(shown.obs, shown.rewards, shown.mask, shown.ended, shown.terms)
