"""One territory mission as a `gymnasium.Env`: a single row of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.missions.batches import to_seed
from mission_gym.missions.territory.baselines import Policy, make_policies
from mission_gym.missions.territory.replay import make_page, make_replay
from mission_gym.missions.territory.rules import SHIPPED, VIEW, load_mission
from mission_gym.missions.territory.sim.layout import NUM_ACTIONS, NUM_NUMBERS, NUM_PLANES, OUTCOMES
from mission_gym.missions.territory.simulator import Obs, Simulator

_ROW = np.zeros(1, np.int64)


class TerritoryEnv(gym.Env[dict[str, Any], np.int64]):
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
        if render_mode not in (None, "rgb_array"):
            raise UsageError(f"render_mode={render_mode!r} is unknown; use rgb_array or none")
        self.simulator = Simulator(load_mission(size, num_bots, rules_file), 1)
        self.observation_space, self.action_space = make_spaces()
        self.baselines: dict[str, Policy] = make_policies()
        self.render_mode = render_mode
        self._actions: list[int] = []  # of this episode: with its seed a whole replay
        self._seeded = self._running = False

    @staticmethod
    def snapshot_kwargs(rules_file: str | Path | None = None, **others: Any) -> dict[str, Any]:
        """The file of rules in use, for a run to own."""
        return {"rules_file": str(SHIPPED if rules_file is None else rules_file)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode: number 0 of the seed, or the next one of the seed given last."""
        super().reset(seed=seed)
        if seed is not None:
            self.simulator.seed(_ROW, np.array([to_seed(seed)]))
        elif not self._seeded:
            self.simulator.seed(_ROW, self.np_random.integers(1 << 62, size=1))
        self._seeded = self._running = True
        self._actions = []
        obs, mask = self.simulator.make_outputs()
        self.simulator.begin(_ROW, obs, mask)
        return _first(obs), {"outcome": None, "reward_terms": {}, "action_mask": mask[0]}

    def step(self, action: np.int64 | int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Play one action. Every end is a rule of the mission: terminated, never truncated."""
        if not self._running:
            raise UsageError("step() before reset(), or after the end of the episode; reset first")
        actions = check_actions(np.asarray(action)[None], 1)
        shown = self.simulator.step(actions)
        self._actions.append(int(actions[0]))
        info: dict[str, Any] = {
            "outcome": self.simulator.read_outcomes()[0],
            "reward_terms": {name: float(values[0]) for name, values in shown.terms.items()},
            "action_mask": shown.mask[0],
        }
        ended = bool(shown.ended[0])
        if ended:
            self._running = False
            metrics = self.simulator.read_metrics(_ROW)
            info["episode_metrics"] = {name: float(values[0]) for name, values in metrics.items()}
        return _first(shown.obs), float(shown.rewards[0]), ended, False, info

    def render(self) -> Any:
        """Draw the map: an array [H, W, 3]."""
        if self.render_mode is None:
            raise UsageError(
                "render() without a render mode; build the environment with render_mode='rgb_array'"
            )
        from mission_gym.missions.territory.rendering import draw_game

        return draw_game(self.simulator)

    def make_replay(self) -> dict[str, Any]:
        """This episode so far, for a JSON file: the values that it follows from."""
        return make_replay(self.simulator, list(self._actions))

    def make_page(self) -> str:
        """A page of one file that plays this episode in a browser."""
        return make_page(self.make_replay())

    def get_state(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as plain values."""
        return self.simulator.get_state() | {"running": self._running, "actions": list(self._actions)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on exactly from what `get_state` gave."""
        self.simulator.set_state(state)
        self._seeded, self._running, self._actions = True, state["running"], list(state["actions"])

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
