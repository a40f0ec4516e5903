"""Prints constraints with the lowest versions that pyproject.toml allows.

`make lowest` installs them into its own environment and runs a smoke test there. A bound may name a version
that was never released, so the package index is asked for the lowest release from there on. torch is not
included: constraints.txt selects its build.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_LEFT_OUT = ("torch",)


def read_bounds(text: str) -> dict[str, str]:
    """Return the lower bound of every dependency, by name."""
    dependencies = tomllib.loads(text)["project"]["dependencies"]
    matches = [re.match(r"([\w.-]+)>=([\d.]+)$", each) for each in dependencies]
    assert all(matches), "every dependency has a lower bound and nothing else"
    return {match[1]: match[2] for match in matches if match and match[1] not in _LEFT_OUT}


def choose_lowest(bound: str, released: list[str]) -> str:
    """Return the lowest final release from a bound on."""
    finals = [version for version in released if re.fullmatch(r"[\d.]+", version)]
    return min((version for version in finals if _key(version) >= _key(bound)), key=_key)


def _key(version: str) -> list[int]:
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:  # 6.0 equals 6
        numbers.pop()
    return numbers


def _list_released(name: str) -> list[str]:
    words = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    line = next(line for line in shown.splitlines() if line.startswith("Available versions:"))
    return line.removeprefix("Available versions:").replace(" ", "").split(",")


if __name__ == "__main__":
    for name, bound in read_bounds(_PYPROJECT.read_text()).items():
        sys.stdout.write(f"{name}=={choose_lowest(bound, _list_released(name))}\n")
