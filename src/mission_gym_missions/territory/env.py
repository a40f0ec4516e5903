"""One territory mission as a `gymnasium.Env`: a single row of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym_missions.single import ROW, Played, SingleMission
from mission_gym_missions.territory.baselines import Policy, make_policies
from mission_gym_missions.territory.replay import make_page, make_replay
from mission_gym_missions.territory.rules import SHIPPED, VIEW, load_mission
from mission_gym_missions.territory.sim.layout import NUM_ACTIONS, NUM_NUMBERS, NUM_PLANES, OUTCOMES
from mission_gym_missions.territory.simulator import Obs, Simulator


class TerritoryEnv(SingleMission):
    """Grow on a map against scripted nations.

    size: cells of a side, 64 to 256 by 32. num_bots: the other nations. rules_file: a file like the shipped
    `rules.yaml`. threads: taken for the sake of the batched form, whose arguments a run hands to both.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array"],
        "render_fps": 12,
        "outcomes": OUTCOMES,
        "main_outcome": OUTCOMES[0],
    }

    def __init__(
        self,
        size: int = 64,
        num_bots: int = 5,
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(render_mode)
        self.simulator: Simulator = Simulator(load_mission(size, num_bots, rules_file), 1)
        self.observation_space, self.action_space = make_spaces()
        self.baselines: dict[str, Policy] = make_policies()
        self._actions: list[int] = []  # of this episode: with its seed a whole replay

    @staticmethod
    def snapshot_kwargs(rules_file: str | Path | None = None, **others: Any) -> dict[str, Any]:
        """The file of rules in use, for a run to own."""
        return {"rules_file": str(SHIPPED if rules_file is None else rules_file)}

    def _begin(self) -> tuple[Obs, Array]:
        self._actions = []
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(ROW, obs, mask)
        return _first(obs), mask[0]

    def _play(self, action: np.int64 | int) -> Played:
        actions = check_actions(np.asarray(action)[None], 1)
        shown = self.simulator.step(actions)
        self._actions.append(int(actions[0]))
        terms = {name: float(values[0]) for name, values in shown.terms.items()}
        return Played(_first(shown.obs), float(shown.rewards[0]), bool(shown.ended[0]), shown.mask[0], terms)

    def _draw(self) -> Any:
        from mission_gym_missions.territory.rendering import draw_game

        return draw_game(self.simulator)

    def make_replay(self) -> dict[str, Any]:
        """This episode so far, for a JSON file: the values that it follows from."""
        return make_replay(self.simulator, list(self._actions))

    def make_page(self) -> str:
        """A page of one file that plays this episode in a browser."""
        return make_page(self.make_replay())

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"actions": list(self._actions)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._actions = list(state["actions"])

    def close(self) -> None:
        self.simulator.close()


def make_spaces() -> tuple[spaces.Dict, spaces.Discrete]:
    """The spaces of a single game, the same for every size and number of bots."""
    seen: dict[str, spaces.Space[Any]] = {
        "map": spaces.Box(0, 255, (NUM_PLANES, VIEW, VIEW), np.uint8),
        "numbers": spaces.Box(0.0, 1.0, (NUM_NUMBERS,), np.float32),
    }
    return spaces.Dict(seen), spaces.Discrete(NUM_ACTIONS)


def check_actions(actions: Array, num_rows: int) -> Array:
    """Return actions int64 [N]; an index outside the space would read beyond the simulator's tables."""
    if actions.shape != (num_rows,) or actions.dtype.kind not in "iu":
        raise UsageError(
            f"actions of shape {actions.shape} and dtype {actions.dtype}; the mission takes one whole number "
            f"from 0 to {NUM_ACTIONS - 1} for each environment"
        )
    if actions.min() < 0 or actions.max() >= NUM_ACTIONS:
        wrong = actions[(actions < 0) | (actions >= NUM_ACTIONS)][0]
        raise UsageError(
            f"action {wrong} does not exist; the mission takes 0 (wait) and 1 to {NUM_ACTIONS - 1} "
            "(direction and intensity of an attack)"
        )
    return np.ascontiguousarray(actions, np.int64)


def _first(obs: Obs) -> Obs:
    return {name: array[0] for name, array in obs.items()}
