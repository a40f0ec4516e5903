"""Broken installations: stand-ins that raise, crash or hang lie first on the real command's search path."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mission_gym.check.packages import PACKAGES, judge_package
from mission_gym.check.trials import Attempt, run_trial
from waits import patience

RAISES = "raise ImportError('no such symbol')"
CRASHES = "import os; os.abort()"
HANGS = "import time; time.sleep(3600)"
PYPROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def put(folder: Path, **codes: str) -> Path:
    """Stand-ins, by module."""
    for module, code in codes.items():
        (folder / module).mkdir()
        (folder / module / "__init__.py").write_text(code)
    return folder


def run_doctor(stand_ins: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{stand_ins}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(
        [sys.executable, "-m", "mission_gym", "doctor", *args],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_table_holds_every_dependency() -> None:
    wanted = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    assert {package.requirement for package in PACKAGES} == set(wanted)


def test_every_fault_is_told_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    put(tmp_path, numba=RAISES, scipy=HANGS, torch=CRASHES, rich=RAISES, tyro=CRASHES, psutil=RAISES)
    done = run_doctor(tmp_path, "--json", "--deadline", f"{patience(8):.0f}")
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    found = {each["name"]: each for each in document["findings"]}
    broken = {
        "numba": "numba does not work: ImportError: no such symbol",
        "scipy": "scipy does not work: it did not end within",
        "torch": "torch does not work: it was killed by SIGABRT",
        "rich": "rich does not work: ImportError: no such symbol",
        "tyro": "tyro does not work: it was killed by SIGABRT",
        "psutil": "psutil does not work: ImportError",
    }
    for name, what in broken.items():
        assert found[name]["level"] == "error"
        assert found[name]["what"].startswith(what)
        assert found[name]["fix"].startswith(f'pip install --force-reinstall "{name}>=')
        assert found[name]["why"]
    for name in ("numpy", "safetensors", "cores", "memory", "disk"):
        assert found[name]["level"] in ("ok", "info", "warning"), found[name]
    assert document["torch"]["version"] is None
    assert document["machine"]["memory_bytes"] > 0  # without psutil


@pytest.mark.parametrize("code", [RAISES, CRASHES, HANGS])
def test_numpy_may_be_what_is_broken(code: str, tmp_path: Path) -> None:
    done = run_doctor(put(tmp_path, numpy=code), "--deadline", f"{patience(8):.0f}")
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    mend = lines.index('        fix: pip install --force-reinstall "numpy>=1.26"')
    assert lines[mend - 2].startswith("error   numpy: numpy does not work: ")
    gymnasium = next(number for number, line in enumerate(lines) if line.startswith("error   gymnasium: "))
    assert lines[gymnasium + 2] == "        fix: mend numpy first"
    assert any(line.startswith("ok      disk: ") for line in lines)


def test_gymnasium_may_be_missing() -> None:
    package = next(package for package in PACKAGES if package.name == "gymnasium")
    found = judge_package(package, Attempt(error="ModuleNotFoundError: No module named 'gymnasium'"))
    assert found.what == "gymnasium is not installed"
    assert found.fix == 'pip install --force-reinstall "gymnasium>=1.1"'
    found = judge_package(package, Attempt(error="ModuleNotFoundError: No module named 'numpy.core'"))
    assert found.fix == "mend numpy first"


@pytest.mark.parametrize(
    ("code", "trial"),
    [
        ("print('noise'); print(7)", Attempt("7")),
        ("import sys; sys.exit(3)", Attempt(error="it ended with code 3")),
        ("import os; os.kill(os.getpid(), 9)", Attempt(error="it was killed by SIGKILL")),
    ],
)
def test_how_a_trial_ends(code: str, trial: Attempt) -> None:
    assert run_trial(code) == trial
