"""Many territory missions as one `gymnasium.vector.VectorEnv`, without Python per row. Same-step auto-reset.

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
from mission_gym.missions.territory.baselines import BatchPolicy, make_batch_policies
from mission_gym.missions.territory.env import TerritoryEnv, check_actions, make_spaces
from mission_gym.missions.territory.rules import load_mission
from mission_gym.missions.territory.simulator import Obs, Simulator
from mission_gym.procs import usable_cores

_ROWS_PER_THREAD = 4  # a row takes some 50 us, longer than to wake a thread


class TerritoryVectorEnv(VectorEnv[Obs, Array, Array]):
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
        if render_mode is not None:
            raise UsageError(
                f"render_mode={render_mode!r}: the batched mission draws nothing; build a single environment"
            )
        self.num_envs = num_envs
        if threads is None:
            threads = max(1, min(usable_cores(), num_envs // _ROWS_PER_THREAD))
        self.simulator = Simulator(load_mission(size, num_bots, rules_file), num_envs, threads=threads)
        self.single_observation_space, self.single_action_space = make_spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.baselines: dict[str, BatchPolicy] = make_batch_policies()
        self._rows = np.arange(num_envs)
        self._seeded = self._running = False

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode in every row. seed: one for each row, or one number s for s, s + 1, ..."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is not None:
            self.simulator.seed(self._rows, to_seeds(seed, self.num_envs))
        elif not self._seeded:  # else every row goes on to the next episode of its seed
            self.simulator.seed(self._rows, self.np_random.integers(1 << 62, size=self.num_envs))
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(self._rows, obs, mask)
        self._seeded = self._running = True
        return obs, {"outcome": np.full(self.num_envs, None, object), "action_mask": mask}

    def step(self, actions: Array) -> tuple[Obs, Array, Array, Array, dict[str, Any]]:
        """Play one action in every row; a row that ended shows its next episode already.

        What it showed last is in infos["final_obs"], its last info in infos["final_info"].
        """
        if not self._running:
            raise UsageError("step() before reset(); reset first")
        shown = self.simulator.step(check_actions(np.asarray(actions), self.num_envs))
        infos: dict[str, Any] = {
            "outcome": np.full(self.num_envs, None, object),
            "reward_terms": shown.terms,
            "action_mask": shown.mask,
        }
        rows = np.flatnonzero(shown.ended)
        if rows.size:
            infos["final_obs"] = {name: array.copy() for name, array in shown.obs.items()}
            infos["_final_obs"] = shown.ended.copy()
            infos["final_info"] = give(
                shown.ended,
                outcome=self.simulator.read_outcomes(),
                reward_terms=give(shown.ended, **shown.terms),
                episode_metrics=spread(shown.ended, self.simulator.read_metrics(rows)),
                action_mask=shown.mask.copy(),
            )
            infos["_final_info"] = shown.ended.copy()
            self.simulator.begin(rows, shown.obs, shown.mask)
        return shown.obs, shown.rewards, shown.ended, np.zeros(self.num_envs, np.bool_), infos

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return self.simulator.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.simulator.set_state(state)
        self._seeded = self._running = True

    def close_extras(self, **kwargs: Any) -> None:
        self.simulator.close()
