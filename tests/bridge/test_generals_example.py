"""The example of docs/games.md keeps the protocol, where a Python with generals-bots is named."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import mission_gym.bridge.clients
from games import processes
from mission_gym.bridge import BridgeEnv
from mission_gym.check.bridge import check_bridge
from mission_gym.env.factory import EnvRequest

EXAMPLE = Path(__file__).parents[2] / "examples" / "generals_game.py"
PYTHON = os.environ.get("GENERALS_PYTHON")


@pytest.mark.skipif(PYTHON is None, reason="GENERALS_PYTHON names no Python that has generals-bots")
def test_generals(tmp_path: Path) -> None:
    client = Path(mission_gym.bridge.clients.__path__[0]) / "mission_gym_bridge.py"
    for file in (EXAMPLE, client):
        shutil.copy(file, tmp_path)
    command = shlex.join([PYTHON or "", str(tmp_path / EXAMPLE.name)])
    (found,) = check_bridge(EnvRequest(f"bridge:{command}", {"size": 5}))
    assert found.level == "ok", found
    env = BridgeEnv(command, size=5, opponent="expander", max_steps=20)
    rng = np.random.default_rng(0)
    _, info = env.reset(seed=3)
    for _ in range(20):
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    assert (terminated, truncated, info["outcome"]) == (False, True, "timeout")
    env.close()
    assert not processes()
