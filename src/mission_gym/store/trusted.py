"""Which code may be imported because a run or a config file names it: the code is judged, not the run.

Always allowed: registered ids, and classes of environments, wrappers and networks that are installed or in
the current folder. Never allowed: the standard library and code inside a run. Everything else (functions, the
folder in which a run was started, `bridge:` commands) needs the user to type the name or to allow it. Each
allowed name is a line of a file in the user's state folder, or in memory if that can't be written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mission_gym.errors import TrustError, UsageError
from mission_gym.names import CodeLocation, command_line, locate, make_importable
from mission_gym.store.files import user_folder

_T = TypeVar("_T")
_IN_A_RUN = ("config.yaml", "status.json", "lineage.json")
_MAX_BYTES = 1 << 20
_here: set[str] = set()  # lines allowed by this process


def permit(
    names: Iterable[str], *, typed: Container[str] = (), run: Path | None = None, folder: str = ""
) -> tuple[str, ...]:
    """Return the names that may be any callable; the others must be classes, which importing them checks.

    typed: names that the user has just typed. folder: where the run was started; it becomes importable if an
    allowed name needs it. UsageError for code that is never run, TrustError for code that is not allowed.
    """
    make_importable()
    allowed = _read_lines()
    calls, needs_folder = [], False
    for name in names:
        line, is_elsewhere = command_line(name), False
        refusal = f"{name} is a command, which would run in {os.getcwd()}"
        if not line:
            location = locate(name) if ":" in name else None
            if is_elsewhere := location is None and ":" in name and bool(folder):
                location = locate(name, folder)
            if location is None:  # a registered id, or code that does not exist, which importing it reports
                continue
            _refuse(name, location, run)
            line = location.line(name)
            refusal = f"{name} is in {location.folder}, where the run claims to have been started"
        if name in typed:
            allow(line)
        elif line not in allowed:
            if is_elsewhere or command_line(name):
                raise TrustError(refusal, line)
            continue
        calls.append(name)
        needs_folder |= is_elsewhere
    if needs_folder and folder not in sys.path:
        sys.path.append(folder)
    return tuple(calls)


def allow(line: str) -> None:
    """Remember an allowed line."""
    if line in _read_lines() or "\n" in line:
        return
    _here.add(line)
    with suppress(OSError, RuntimeError):  # the user is asked again next time
        path = find_trust_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def retry_if_allowed(call: Callable[[], _T], ask: Callable[[TrustError], bool]) -> _T:
    """Call; on TrustError call again if `ask` allows the code."""
    while True:
        try:
            return call()
        except TrustError as error:
            if not ask(error):
                raise
            allow(error.line)


def find_trust_file() -> Path:
    """Return the file of allowed lines; RuntimeError for a user without a home."""
    return user_folder("state") / "trusted"


def _read_lines() -> set[str]:
    try:
        with find_trust_file().open(encoding="utf-8") as file:
            return _here | set(file.read(_MAX_BYTES).splitlines())
    except (OSError, RuntimeError, UnicodeDecodeError):
        return set(_here)


def _refuse(name: str, location: CodeLocation, run: Path | None) -> None:
    module = name.partition(":")[0]
    if location.is_standard:
        raise UsageError(f"{name!r} names the standard library's {module!r}; it is never run")
    if module.rpartition(".")[2] == "__main__":
        raise UsageError(f"{name!r} names a program, not a module; it is never run")
    for file in (*location.files, Path(os.path.realpath(location.folder)) / "file"):
        if (run is not None and file.is_relative_to(os.path.realpath(run))) or _is_in_run(file):
            raise UsageError(
                f"{name!r} names code inside a run ({file.parent}); a run is data, and such code is never "
                "run; move it out if it is yours"
            )


def _is_in_run(file: Path) -> bool:
    return any(all((folder / name).exists() for name in _IN_A_RUN) for folder in file.parents)
