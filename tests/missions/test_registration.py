"""The missions are registered, whichever import comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIST = "; print(*(name for name in gymnasium.registry if name.startswith('mission_gym/')))"


@pytest.mark.parametrize(
    "code",
    [
        "import mission_gym, sys; assert 'numpy' not in sys.modules; import gymnasium",
        "import gymnasium, mission_gym",
        "import mission_gym_missions, gymnasium",
        "import mission_gym; from gymnasium.envs import registration; import gymnasium",
        "import mission_gym, importlib.util; importlib.util.find_spec('gymnasium'); import gymnasium",
    ],
)
def test_gymnasium_knows_the_missions(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code + LIST], capture_output=True, text=True, check=True)
    names = ["Capture-v0", "Placement-v0", "Territory-v0", "Explore-v0"]
    assert done.stdout.split() == [f"mission_gym/{name}" for name in names]
