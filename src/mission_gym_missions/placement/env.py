"""One placement mission as a `gymnasium.Env`: a single row of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.placement.baselines import Baselines, Policy
from mission_gym_missions.placement.rules import SHIPPED, Mission, load_mission
from mission_gym_missions.placement.simulator import OUTCOMES, TERMS, Simulator, num_features
from mission_gym_missions.single import ROW, Played, SingleMission


class FreeSites(spaces.Discrete):
    """The sites. `sample()` draws among those that are free now, as the mission takes no others."""

    free: Array | None = None  # int8 [n]

    def sample(self, mask: Any = None, probability: Any = None) -> np.int64:
        """Draw a site; a mask or probabilities of the caller's count instead of what is free."""
        return super().sample(self.free if mask is None and probability is None else mask, probability)


class PlacementEnv(SingleMission):
    """Place stations on candidate sites, one in each step, to serve the demand of a city.

    num_sites, num_stations, num_demand: the sizes. instance: random (a new city in every episode) or fixed.
    rules_file: a file like the shipped `rules.yaml`.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array"],
        "render_fps": 1,
        "outcomes": OUTCOMES,
        "main_outcome": OUTCOMES[0],
    }

    def __init__(
        self,
        num_sites: int = 20,
        num_stations: int = 4,
        num_demand: int = 49,
        instance: str = "random",
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        mission = load_mission(num_sites, num_stations, num_demand, instance, rules_file)
        self.simulator: Simulator = Simulator(mission, 1)
        self.observation_space, self._sites = make_spaces(mission)
        self.action_space = self._sites
        self.baselines: dict[str, Policy] = Baselines(mission).single

    @staticmethod
    def snapshot_kwargs(rules_file: str | Path | None = None, **others: Any) -> dict[str, Any]:
        """The file of rules in use, for a run to own."""
        return {"rules_file": str(SHIPPED if rules_file is None else rules_file)}

    def _begin(self) -> tuple[Array, Array]:
        self.simulator.begin(ROW)
        return self._show()

    def _play(self, action: np.int64 | int) -> Played:
        terms, rewards = self.simulator.step(check_actions(np.asarray(action)[None], self.simulator))
        obs, mask = self._show()
        ended = bool(self.simulator.read_ended()[0])
        return Played(obs, float(rewards[0]), ended, mask, dict(zip(TERMS, terms[0].tolist(), strict=True)))

    def _show(self) -> tuple[Array, Array]:
        obs, mask = self.simulator.show()
        self._sites.free = mask[0].copy()
        return obs[0], mask[0]

    def _draw(self) -> Any:
        from mission_gym_missions.placement.rendering import draw_map

        return draw_map(self.simulator)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._sites.free = (~self.simulator.state.placed[0]).astype(np.int8)


def make_spaces(mission: Mission) -> tuple[spaces.Box, FreeSites]:
    """The spaces of a single city."""
    return (
        spaces.Box(-1.0, 1.0, (num_features(mission),), np.float32),
        FreeSites(mission.num_sites),
    )


def check_actions(actions: Array, simulator: Simulator) -> Array:
    """Return actions int64 [N], each a free site; the mask is a hard rule, so one that breaks it is a bug."""
    num_sites = simulator.mission.num_sites
    if actions.shape != (simulator.num_rows,) or actions.dtype.kind not in "iu":
        raise UsageError(
            f"actions of shape {actions.shape} and dtype {actions.dtype}; the mission takes one whole number "
            f"from 0 to {num_sites - 1} for each environment"
        )
    if actions.min() < 0 or actions.max() >= num_sites:
        wrong = actions[(actions < 0) | (actions >= num_sites)][0]
        raise UsageError(f"action {wrong} does not exist; the sites are 0 to {num_sites - 1}")
    taken = simulator.state.placed[np.arange(len(actions)), actions]
    if taken.any():
        raise UsageError(
            f"action {actions[taken][0]} is illegal: the site has a station already, and takes one only; "
            'choose one where info["action_mask"] is 1'
        )
    return np.ascontiguousarray(actions, np.int64)
