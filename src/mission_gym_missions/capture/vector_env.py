"""Many capture missions as one `gymnasium.vector.VectorEnv`, without Python per row. Same-step auto-reset.

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
from mission_gym_missions.capture.baselines import Baselines, BatchPolicy
from mission_gym_missions.capture.env import CaptureEnv, check_actions, make_spaces
from mission_gym_missions.capture.scenario import load_scenario
from mission_gym_missions.capture.simulator import Simulator

_ROWS_PER_THREAD = 64  # with fewer, waking a thread takes longer than it saves


class CaptureVectorEnv(ThreadedMission):
    """N games at once.

    threads: how many share the rows; by default one for each usable core, while each has enough to do. It
    changes the speed, never a number.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        **CaptureEnv.metadata,
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        level: str = "normal",
        config_dir: str | Path | None = None,
        render_mode: str | None = None,
        blind: bool = False,
        threads: int | None = None,
    ) -> None:
        refuse_drawing(render_mode)
        if threads is None:
            threads = max(1, min(usable_cores(), num_envs // _ROWS_PER_THREAD))
        simulator = Simulator(load_scenario(level, config_dir), num_envs, threads=threads, blind=blind)
        super().__init__(simulator, num_envs, make_spaces(simulator))
        self.baselines: dict[str, BatchPolicy] = Baselines(simulator.scenario).batch

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Play one command in every row."""
        self._check_running()
        shape = (self.num_envs, self.simulator.num_attackers)
        shown = self.simulator.step(check_actions(np.asarray(actions), shape))
        terms = self.simulator.name_terms(shown.terms)
        return self._give(shown.obs, shown.rewards, shown.mask, shown.ended, terms)
