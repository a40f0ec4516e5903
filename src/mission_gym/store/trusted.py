"""What may be imported because a run or a config file names it: the code is judged, not the run.

Registered ids, and classes of environments, wrappers and networks that are installed or lie in the current
folder: always. The standard library and code inside a run: never. The rest (functions, the folder where a run
was started, commands of `bridge:` in the folder where they would run): if the user typed that name here, or
allowed it. Each such name is a line in the user's state folder; where that can't be written it holds for this
process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import TypeVar

from mission_gym.errors import TrustError, UsageError
from mission_gym.names import Place, command_line, locate, make_importable
from mission_gym.store.files import user_folder

_T = TypeVar("_T")
_IN_A_RUN = ("config.yaml", "status.json", "lineage.json")
_MAX_BYTES = 1 << 20
_here: set[str] = set()  # lines of this process


def permit(
    names: Iterable[str], *, typed: Container[str] = (), run: Path | None = None, folder: str = ""
) -> tuple[str, ...]:
    """The names that may be called whatever they are; the others must be classes, which shows when they are
    imported. typed: by the user, now. folder: where the run was started, which becomes importable if a name
    that is allowed needs it. UsageError for what is never run, TrustError for what nobody allowed."""
    make_importable()
    allowed = _read_lines()
    calls, needs_folder = [], False
    for name in names:
        command = command_line(name)
        if command:
            if name in typed:
                allow(command)
            elif command not in allowed:
                raise TrustError(f"{name} is a command, which would run in {os.getcwd()}", command)
            calls.append(name)
            continue
        place = locate(name) if ":" in name else None
        elsewhere = place is None and ":" in name and bool(folder)
        if elsewhere:
            place = locate(name, folder)
        if place is None:  # a registered id, or nowhere, which importing it tells
            continue
        _refuse(name, place, run)
        line = place.line(name)
        if name in typed:
            allow(line)
        elif line not in allowed:
            if elsewhere:
                raise TrustError(
                    f"{name} lies in {place.folder}, where the run says that it was started", line
                )
            continue
        calls.append(name)
        needs_folder |= elsewhere
    if needs_folder and folder not in sys.path:
        sys.path.append(folder)
    return tuple(calls)


def allow(line: str) -> None:
    """Remember a line."""
    if line in _here or line in _read_lines() or "\n" in line:
        return
    _here.add(line)
    try:
        path = find_lines()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except (OSError, RuntimeError):  # asked again next time
        return


def with_leave(call: Callable[[], _T], ask: Callable[[TrustError], bool]) -> _T:
    """Call, and again for each thing that nobody had allowed and `ask` now allows."""
    while True:
        try:
            return call()
        except TrustError as error:
            if not ask(error):
                raise
            allow(error.line)


def find_lines() -> Path:
    """The file of lines; RuntimeError for a user without a home."""
    return user_folder("state") / "trusted"


def _read_lines() -> set[str]:
    try:
        with find_lines().open(encoding="utf-8") as file:
            return _here | set(file.read(_MAX_BYTES).splitlines())
    except (OSError, RuntimeError, UnicodeDecodeError):
        return set(_here)


def _refuse(name: str, place: Place, run: Path | None) -> None:
    module = name.partition(":")[0]
    if place.is_standard:
        raise UsageError(
            f"{name!r} names the standard library's {module!r}, in which there are no environments; it is"
            " never run"
        )
    if module.rpartition(".")[2] == "__main__":
        raise UsageError(f"{name!r} names a program, not a module; it is never run")
    for file in (*place.files, Path(os.path.realpath(place.folder)) / "file"):
        if (run is not None and file.is_relative_to(os.path.realpath(run))) or _lies_in_a_run(file):
            raise UsageError(
                f"{name!r} names code inside a run ({file.parent}); a run is data, and such code is never"
                " run; move it out if it is yours"
            )


def _lies_in_a_run(file: Path) -> bool:
    return any(all((folder / name).exists() for name in _IN_A_RUN) for folder in file.parents)
