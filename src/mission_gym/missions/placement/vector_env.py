"""Many placement missions as one `gymnasium.vector.VectorEnv`, without Python per row. Same-step auto-reset.

Row i with seed s plays, bit for bit, what a single environment with seed s plays, episode after episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.missions.batches import give, spread, to_seeds
from mission_gym.missions.placement.baselines import Baselines, BatchPolicy
from mission_gym.missions.placement.env import PlacementEnv, check_actions, make_spaces
from mission_gym.missions.placement.rules import load_mission
from mission_gym.missions.placement.simulator import TERMS, Simulator


class PlacementVectorEnv(VectorEnv[Array, Array, Array]):
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
        if render_mode is not None:
            raise UsageError(
                f"render_mode={render_mode!r}: the batched mission draws nothing; build a single environment"
            )
        mission = load_mission(num_sites, num_stations, num_demand, instance, rules_file)
        self.num_envs = num_envs
        self.simulator = Simulator(mission, num_envs)
        self.single_observation_space, self.single_action_space = make_spaces(mission)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.baselines: dict[str, BatchPolicy] = Baselines(mission).batch
        self._rows = np.arange(num_envs)
        self._seeded = self._running = False

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode in every row. seed: one for each row, or one number s for s, s + 1, ..."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is not None:
            self.simulator.seed(self._rows, to_seeds(seed, self.num_envs))
        elif not self._seeded:  # else every row goes on to the next episode of its seed
            self.simulator.seed(self._rows, self.np_random.integers(1 << 62, size=self.num_envs))
        self._seeded = self._running = True
        self.simulator.begin(self._rows)
        obs, mask = self.simulator.show()
        return obs, {"outcome": np.full(self.num_envs, None, object), "action_mask": mask}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Place one station in every row; a row that ended shows its next episode already.

        What it showed last is in infos["final_obs"], its last info in infos["final_info"].
        """
        if not self._running:
            raise UsageError("step() before reset(); reset first")
        columns, rewards = self.simulator.step(check_actions(np.asarray(actions), self.simulator))
        obs, mask = self.simulator.show()
        ended = self.simulator.read_ended()
        terms = dict(zip(TERMS, columns.T.copy(), strict=True))
        infos: dict[str, Any] = {
            "outcome": np.full(self.num_envs, None, object),
            "reward_terms": terms,
            "action_mask": mask,
        }
        rows = np.flatnonzero(ended)
        if rows.size:
            infos["final_obs"], infos["_final_obs"] = obs.copy(), ended.copy()
            infos["final_info"] = give(
                ended,
                outcome=self.simulator.read_outcomes(),
                reward_terms=give(ended, **terms),
                episode_metrics=spread(ended, self.simulator.read_metrics(rows)),
                action_mask=mask.copy(),
            )
            infos["_final_info"] = ended.copy()
            self.simulator.begin(rows)
            self.simulator.update(rows, obs, mask)
        return obs, rewards, ended, np.zeros(self.num_envs, np.bool_), infos

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return self.simulator.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.simulator.set_state(state)
        self._seeded = self._running = True
