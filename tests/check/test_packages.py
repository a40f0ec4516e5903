"""Broken installations: stand-ins that raise, crash or hang lie first on the real command's search path."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mission_gym.check.packages import PACKAGES, Attempt, judge_package, try_code
from timeouts import scale_timeout

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


OLD_GYMNASIUM = "class vector: VectorEnv = None"


def put_old_gymnasium(folder: Path) -> Path:
    """What a package that pins an old version leaves behind."""
    (folder / "gymnasium-0.29.1.dist-info").mkdir()
    (folder / "gymnasium-0.29.1.dist-info" / "METADATA").write_text("Name: gymnasium\nVersion: 0.29.1\n")
    return put(folder, gymnasium=OLD_GYMNASIUM)


def test_a_version_that_was_put_back_is_told_instead_of_a_traceback(tmp_path: Path) -> None:
    path = f"{put_old_gymnasium(tmp_path)}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "mission_gym", "check", "CartPole-v1"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "mission-gym: gymnasium 0.29.1 is too old for Mission Gym, maybe because another package requires it"
        '; run: pip install "gymnasium>=1.1"\n'
    )


def test_the_doctor_tells_a_version_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    (package,) = (each for each in PACKAGES if each.name == "gymnasium")
    for version, level in (
        ("0.29.1", "error"),
        ("1.0.0a2", "error"),
        ("1.1", "ok"),
        ("2.0.0+x1", "ok"),
        ("", "ok"),
    ):
        monkeypatch.setattr("mission_gym.check.packages.read_version", lambda name, version=version: version)
        assert judge_package(package, Attempt()).level == level, version


def test_every_fault_is_told_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    put(tmp_path, numba=RAISES, scipy=HANGS, torch=CRASHES, rich=RAISES, tyro=CRASHES, psutil=RAISES)
    done = run_doctor(tmp_path, "--json", "--deadline", f"{scale_timeout(5):.0f}")
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


def test_numpy_may_be_what_is_broken(tmp_path: Path) -> None:
    """A stand-in that would take the doctor with it, if its own process imported numpy."""
    done = run_doctor(put(tmp_path, numpy=CRASHES))
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    mend = lines.index('        fix: pip install --force-reinstall "numpy>=1.26"')
    assert lines[mend - 2].startswith("error   numpy: numpy does not work: ")
    gymnasium = next(number for number, line in enumerate(lines) if line.startswith("error   gymnasium: "))
    assert lines[gymnasium + 2] == "        fix: fix numpy first"
    assert any(line.startswith("ok      disk: ") for line in lines)


@pytest.mark.parametrize("code", [RAISES, CRASHES, HANGS])
def test_the_package_that_another_fails_by_is_named(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(put(tmp_path, numpy=code))
    package = next(package for package in PACKAGES if package.name == "gymnasium")
    assert judge_package(package, try_code(package.code, scale_timeout(2))).fix == "fix numpy first"


def test_gymnasium_may_be_missing() -> None:
    package = next(package for package in PACKAGES if package.name == "gymnasium")
    found = judge_package(package, Attempt(error="ModuleNotFoundError: No module named 'gymnasium'"))
    assert found.what == "gymnasium is not installed"
    assert found.fix == 'pip install --force-reinstall "gymnasium>=1.1"'
    found = judge_package(package, Attempt(error="ModuleNotFoundError: No module named 'numpy.core'"))
    assert found.fix == "fix numpy first"


@pytest.mark.parametrize(
    ("code", "trial"),
    [
        ("print('noise'); print(7)", Attempt("7")),
        ("import sys; sys.exit(3)", Attempt(error="it ended with code 3")),
        ("import os; os.kill(os.getpid(), 9)", Attempt(error="it was killed by SIGKILL")),
    ],
)
def test_how_a_trial_ends(code: str, trial: Attempt) -> None:
    assert try_code(code) == trial
