"""The territory mission as a `gymnasium.Env` and as a `gymnasium.vector.VectorEnv`, and its replays.

A replay is the few values that a game follows from. Its page is one file that plays it with the rules in
JavaScript (`game.cjs`): the same seed and actions make the same states.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from mission_gym.data import Array
from mission_gym_missions.env import (
    BatchedMission,
    Metadata,
    RulesFile,
    SingleMission,
    make_batched_metadata,
    make_metadata,
)
from mission_gym_missions.territory.baselines import BASELINES
from mission_gym_missions.territory.rules import SHIPPED, load_mission
from mission_gym_missions.territory.sim.layout import OUTCOMES
from mission_gym_missions.territory.simulator import TerritorySimulator

_FOLDER = Path(__file__).parent
FORMAT = "mission-gym territory replay 1"


class TerritoryEnv(RulesFile, SingleMission):
    """Grow on a map against scripted nations.

    size: cells per side, 64 to 256 in steps of 32. num_bots: the other nations. rules_file: a file like the
    shipped `rules.yaml`. threads: unused; a run passes the same arguments to both forms.
    """

    metadata: ClassVar[Metadata] = make_metadata(OUTCOMES, 12)  # type: ignore[misc]
    shipped_rules = SHIPPED

    def __init__(
        self,
        size: int = 64,
        num_bots: int = 5,
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
        threads: int | None = None,
    ) -> None:
        simulator = TerritorySimulator(load_mission(size, num_bots, rules_file), 1)
        super().__init__(simulator, BASELINES, render_mode)
        self._actions: list[int] = []  # of this episode: with its seed a whole replay

    def make_replay(self) -> dict[str, Any]:
        """Return this episode so far as plain values for a JSON file."""
        mission, game = self.simulator.mission, self.simulator.state.games[0]
        return {
            "format": FORMAT,
            "size": mission.size,
            "num_bots": mission.num_bots,
            "rules": mission.rules.model_dump(),
            "seed": str(int(game["seed"])),  # has more bits than a JSON number
            "episode": int(game["episode"]),
            "actions": list(self._actions),
            "outcome": self.simulator.read_outcomes()[0],
            "checksum": compute_checksum(self.simulator),
        }

    def make_page(self) -> str:
        """Return a page that plays this episode in a browser, and other replays that are dropped on it.

        It is one file and makes no requests.
        """
        page = (_FOLDER / "viewer.html").read_text("utf-8")
        rules = (_FOLDER / "game.cjs").read_text("utf-8")
        data = json.dumps(self.make_replay(), separators=(",", ":")).replace("<", "\\u003c")
        return page.replace("/* RULES */", rules).replace("/* REPLAY */", data)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"actions": list(self._actions)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._actions = list(state["actions"])

    def _after(self, action: Array | None, info: dict[str, Any]) -> None:
        if action is None:
            self._actions = []
        else:
            self._actions.append(int(action))

    def _draw(self) -> Any:
        from mission_gym_missions.territory.render import draw_game

        return draw_game(self.simulator)


class TerritoryVectorEnv(BatchedMission):
    """N games at once.

    threads: the number of threads that share the rows; by default one per usable core, as long as each has
    enough rows. It changes the speed, never a number.
    """

    metadata: ClassVar[Metadata] = make_batched_metadata(TerritoryEnv.metadata)  # type: ignore[misc]

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 64,
        num_bots: int = 5,
        rules_file: str | Path | None = None,
        render_mode: str | None = None,
        threads: int | None = None,
    ) -> None:
        simulator = TerritorySimulator(load_mission(size, num_bots, rules_file), num_envs, threads=threads)
        super().__init__(simulator, BASELINES, render_mode)


def compute_checksum(simulator: TerritorySimulator) -> int:
    """Return a 32-bit checksum of the map and the nations; the page computes the same."""
    state, total = simulator.state, 0
    nations = state.nations[0][1:]
    for value in [*state.cells[0].tolist(), *nations["land"].tolist(), *nations["troops"].tolist()]:
        total = (total * 31 + value) & 0xFFFFFFFF
    return total
