"""Which code may be imported because a run or a config file names it: the code is judged, not the run.

Always allowed: registered ids, and classes of environments, wrappers and networks that are installed or in
the current folder. Never allowed: the standard library, and code inside a run or next to a config file.
Everything else (functions, the folder in which a run was started, folders without __init__.py, `bridge:`
commands) needs the user to type the name or to allow it. Each allowed name is a line of a file in the user's
state folder, or in memory if that can't be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from mission_gym.errors import DiskError, TrustError, UsageError
from mission_gym.names import (
    CodeLocation,
    command_line,
    find_variables,
    is_in_run,
    locate,
    make_importable,
    read_path,
)
from mission_gym.store.files import make_private, open_plain, user_folder

_T = TypeVar("_T")
_MAX_BYTES = 1 << 20
_HOSTS = {"base_url", "allow_loopback", "served_at"}  # arguments of Explore
_here: set[str] = set()  # lines allowed by this process


def permit(
    names: Iterable[str], *, typed: Container[str] = (), runs: Iterable[Path] = (), folder: str = ""
) -> tuple[str, ...]:
    """Return the names that may be any callable; the others must be classes, which importing them checks.

    typed: names that the user has just typed. runs: folders whose code is never run. folder: where the
    run was started; it becomes importable if an allowed name needs it. UsageError for code that is never run,
    TrustError for code that is not allowed.
    """
    here = make_importable()
    allowed = _read_lines()
    calls, needs_folder = [], False
    for name in names:
        if not name.isprintable():
            raise UsageError(f"{name!r} contains control characters; names of code have none; correct it")
        line, is_elsewhere = command_line(name), False
        refusal = f"{name} is a command, which would run in {here}" if line else ""
        if not line:
            location = locate(name) if ":" in name else None
            if is_elsewhere := location is None and ":" in name and bool(folder):
                location = locate(name, folder)
            if location is None and ":" in name:  # the current folder lies in a run
                location = locate(name, here)
            if location is None:  # a registered id, or code that does not exist, which importing it reports
                continue
            _refuse(name, location, runs)
            line = location.line(name)
            if location.bare_folder is not None:
                refusal = f"{name} is in {location.bare_folder}, a folder without __init__.py"
            if is_elsewhere:
                refusal = f"{name} is in {location.folder}, where the run claims to have been started"
        if name in typed:
            allow(line)
        elif line not in allowed:
            if refusal:
                raise TrustError(refusal, line)
            continue
        calls.append(name)
        needs_folder |= is_elsewhere
    if needs_folder:
        make_importable(folder)
    return tuple(calls)


def permit_request(line: str, problem: str, *, typed: bool = False, done: str = "nothing was run") -> None:
    """Check that a run or a config file may ask for something; TrustError. line: records the permission.
    typed: the user has just requested it. done: see TrustError."""
    if typed:
        allow(line)
    elif line not in _read_lines():
        raise TrustError(problem, line, done)


def permit_contact(what: str, *, typed: bool = False) -> None:
    """Check that a run or a config file may contact another machine; TrustError. what: the contact, which is
    also the line that records the permission. typed: the user has just requested it."""
    problem = f"a file, not you, asks for this connection: {what}"
    permit_request(what, problem, typed=typed, done="nothing was sent")


def name_tracker(name: str, run: Path) -> str:
    """Return the line that allows a run to send its metrics to a tracker; runs that are made here may."""
    return f"the tracker {name} for {run}"


def permit_kwargs(env_id: str, kwargs: Mapping[str, Any], *, typed: bool = False) -> None:
    """Check the arguments of an environment that name hosts or environment variables; TrustError."""
    for key, name in find_variables(kwargs).items():
        line = f"{env_id} with {key} from the environment variable {name}"
        permit_request(line, f"a file, not you, asks for a variable: {line}", typed=typed)
    if "explore" in env_id.lower():
        for name in _HOSTS.intersection(kwargs):
            permit_contact(f"{env_id} with {name}={kwargs[name]!r}", typed=typed)


def permit_copies(
    kwargs: Mapping[str, Any], runs: Sequence[Path], *, typed: bool = False, copied: Container[str] = ()
) -> None:
    """Check the files that arguments of a new run name, which it copies into its folder; TrustError for one
    that is neither in the current folder nor in `runs`, from which the arguments may come: a shared run must
    not contain the user's private files. copied: arguments with copies in the parent."""
    folders = [Path(os.getcwd()), *runs] if runs else [Path("/")]
    own = [os.path.realpath(folder) for folder in folders]
    for key, value in kwargs.items():
        if key in copied or not isinstance(value, str) or not value or not os.path.exists(value):
            continue
        path = Path(os.path.realpath(value))
        if not any(path.is_relative_to(folder) for folder in own):
            line = f"a copy of {path}"
            problem = f"a file, not you, asks for {line} in the run ({key})"
            permit_request(line, problem, typed=typed, done="nothing was copied")


def find_data_folders(files: Iterable[Path]) -> list[Path]:
    """Return the folders of config files, which count as runs unless the user works in them or made them
    importable."""
    folders = {Path(os.path.realpath(file)).parent for file in files}
    own = [Path(os.path.realpath(entry)) for entry in (os.getcwd(), *read_path())]
    return [each for each in folders if not any(entry.is_relative_to(each) for entry in own)]


def allow(line: str) -> None:
    """Remember an allowed line."""
    if line in _read_lines():
        return
    _here.add(line)
    if not line.isprintable():  # a folder with a line break: it can't be a line of the file
        return
    with suppress(OSError, DiskError):  # the user is asked again next time
        path = find_trust_file()
        make_private(path.parent)
        with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(f"{line}\n".encode())


def retry_if_allowed(call: Callable[[], _T], ask: Callable[[TrustError], bool]) -> _T:
    """Call; on TrustError call again if `ask` allows the code. It asks once about each line."""
    asked: set[str] = set()
    while True:
        try:
            return call()
        except TrustError as error:
            if error.line in asked or not ask(error):
                raise
            asked.add(error.line)
            allow(error.line)


def find_trust_file() -> Path:
    """Return the file of allowed lines; DiskError for a user without a home."""
    return user_folder("state") / "trusted"


def _read_lines() -> set[str]:
    try:
        with find_trust_file().open(encoding="utf-8") as file:
            return _here | set(file.read(_MAX_BYTES).split("\n"))
    except (OSError, DiskError, UnicodeDecodeError):
        return set(_here)


def _refuse(name: str, location: CodeLocation, runs: Iterable[Path]) -> None:
    module = name.partition(":")[0]
    if location.is_standard:
        raise UsageError(f"{name!r} names the standard library's {module!r}; it is never run")
    if module.rpartition(".")[2] == "__main__":
        raise UsageError(f"{name!r} names a program, not a module; it is never run")
    for path in location.paths:
        if is_in_run(path) or any(path.is_relative_to(os.path.realpath(run)) for run in runs):
            raise UsageError(
                f"{name!r} names code inside a run or next to a config file ({path.parent}); these are data, "
                "and such code is never run; move it out if it is yours"
            )
