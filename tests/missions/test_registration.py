"""The missions are registered, whichever import comes first, and importing their package is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIST = "; print(*(name for name in gymnasium.registry if name.startswith('mission_gym/')))"
HEAVY = "; print([name for name in ('numba', 'torch', 'pygame', 'pydantic') if name in sys.modules])"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


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
    names = ["Capture-v0", "Placement-v0", "Territory-v0", "Explore-v0"]
    assert run(code + LIST).split() == [f"mission_gym/{name}" for name in names]


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert run("import sys, mission_gym_missions" + HEAVY).strip() == "[]"


def test_explore_needs_no_numba() -> None:
    assert "numba" not in run("import sys, mission_gym_missions.explore.env" + HEAVY)
