"""Tests the packages that Mission Gym needs: imports and uses each of them in a child process.

Code that may raise, crash or hang is tried with `try_code`. Only the standard library is used here.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mission_gym.check.findings import Finding

DEADLINE_S = 60.0
_GRACE_S = 5.0  # the child ends itself at the deadline and prints its stack; after that it is killed
_FILE = re.compile(r'File "([^<"]+)"')
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of some code: its last printed line, or its error and the file that raised it."""

    output: str = ""
    error: str = ""
    file: str = ""


def try_code(code: str, deadline_s: float = DEADLINE_S) -> Attempt:
    """Run Python code in a new interpreter with our search path."""
    path = [entry or os.getcwd() for entry in sys.path]
    head = (
        f"import faulthandler, sys; faulthandler.enable(); sys.path[:] = {path!r}\n"
        f"faulthandler.dump_traceback_later({deadline_s}, exit=True)\n"
    )
    # Files instead of pipes, because a process that is left over would hold a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        command = [sys.executable, "-c", head + code]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=deadline_s + _GRACE_S
            )
            code_or_signal = done.returncode
        except subprocess.TimeoutExpired:
            return Attempt(error=f"it did not end within {deadline_s:g} s")
        lines, errors = (_read(file).splitlines() for file in (out, err))
    if code_or_signal == 0:
        return Attempt(next((line for line in reversed(lines) if line.strip()), ""))
    if any(line.startswith("Timeout (") for line in errors):
        return Attempt(error=f"it did not end within {deadline_s:g} s", file=_find_file(errors, "Thread "))
    if code_or_signal < 0:
        name = signal.Signals(-code_or_signal).name
        return Attempt(error=f"it was killed by {name}", file=_find_file(errors, "Current thread "))
    last = next((line for line in reversed(errors) if line.strip()), f"it ended with code {code_or_signal}")
    return Attempt(error=last, file=(_FILE.findall("\n".join(errors)) or [""])[-1])


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return str(file.read(), "utf-8", "replace")


def _find_file(errors: list[str], thread: str) -> str:
    """Return the file of the innermost frame, which faulthandler writes first; the main thread comes last."""
    start = max((number for number, line in enumerate(errors) if line.startswith(thread)), default=0)
    first = _FILE.search("\n".join(errors[start:]))
    return "" if first is None else first[1]


@dataclass(frozen=True, slots=True)
class Package:
    """One dependency of pyproject.toml."""

    requirement: str  # as pip takes it
    module: str
    loss: str  # consequence of its absence
    use: str = ""  # code that tests it

    @property
    def name(self) -> str:
        return re.split("[<>=]", self.requirement)[0]

    @property
    def code(self) -> str:
        return f"import {self.module}\n{self.use}"


# A failure that is caused by another package of the table names that package.
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
PACKAGES = tuple(Package(requirement, **row) for requirement, row in _TABLE.items())


def judge_package(package: Package, attempt: Attempt) -> Finding:
    """Report the version of a package, or its error and the command that fixes it or its cause."""
    name = package.name
    if is_too_old(package):
        return Finding(
            "error", name, f"{name} {read_version(name)} is too old", package.loss, _install(package)
        )
    if not attempt.error:
        return Finding("ok", name, f"{name} {read_version(name)}".strip())
    missing = _MISSING.match(attempt.error)
    if missing is not None and missing[1] == package.module:
        return Finding("error", name, f"{name} is not installed", package.loss, _install(package))
    cause = missing[1] if missing is not None else _top_module(attempt.file)
    other = next((each for each in PACKAGES if each.module == cause != package.module), None)
    fix = _install(package) if other is None else f"fix {other.name} first"
    return Finding("error", name, f"{name} does not work: {attempt.error}", package.loss, fix)


def is_too_old(package: Package) -> bool:
    """Return whether the installed version is too old."""
    minimum = package.requirement.partition(">=")[2]
    here, needed = (
        list(map(int, re.findall(r"\d+", text))) for text in (read_version(package.name), minimum)
    )
    return bool(here) and here[: len(needed)] < needed


def explain_too_old() -> str:
    """Return a remedy for packages that another package has downgraded; empty without any."""
    old = [package for package in PACKAGES if is_too_old(package)]
    if not old:
        return ""
    here = ", ".join(f"{package.name} {read_version(package.name)}" for package in old)
    needed = " ".join(f'"{package.requirement}"' for package in old)
    why = "too old for Mission Gym, maybe because another package requires it"
    return f"{here} is {why}; run: pip install {needed}"


def read_version(name: str) -> str:
    """Return the installed version without importing the package; empty if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _install(package: Package) -> str:
    return f'pip install --force-reinstall "{package.requirement}"'


def _top_module(file: str) -> str:
    """Return the top-level package of a file on the search path."""
    roots = [root for root in map(Path, sys.path) if Path(file).is_relative_to(root)]
    if not file or not roots:
        return ""
    root = max(roots, key=lambda each: len(each.parts))
    return Path(file).relative_to(root).parts[0].removesuffix(".py")
