"""Replays: a game as the few values that it follows from, and a page of one file that plays it.

The page holds the rules in JavaScript (`game.cjs`): the same seed and actions make the same states.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mission_gym_missions.territory.simulator import Simulator

_FOLDER = Path(__file__).parent
FORMAT = "mission-gym territory replay 1"


def make_replay(simulator: Simulator, actions: list[int]) -> dict[str, Any]:
    """The game in the first row of a simulator, as plain values for a JSON file."""
    mission, game = simulator.mission, simulator.state.games[0]
    return {
        "format": FORMAT,
        "size": mission.size,
        "num_bots": mission.num_bots,
        "rules": mission.rules.model_dump(),
        "seed": str(int(game["seed"])),  # JSON's numbers are too short for all of its bits
        "episode": int(game["episode"]),
        "actions": actions,
        "outcome": simulator.read_outcomes()[0],
        "checksum": checksum(simulator),
    }


def make_page(replay: dict[str, Any]) -> str:
    """A page that plays the replay, and others that are dropped on it; it needs no server and asks nobody."""
    page = (_FOLDER / "viewer.html").read_text("utf-8")
    rules = (_FOLDER / "game.cjs").read_text("utf-8")
    data = json.dumps(replay, separators=(",", ":")).replace("<", "\\u003c")
    return page.replace("/* RULES */", rules).replace("/* REPLAY */", data)


def checksum(simulator: Simulator) -> int:
    """A number of 32 bits of the map and the nations, which the page computes too."""
    state, total = simulator.state, 0
    nations = state.nations[0][1:]
    for value in [*state.cells[0].tolist(), *nations["land"].tolist(), *nations["troops"].tolist()]:
        total = (total * 31 + value) & 0xFFFFFFFF
    return total
