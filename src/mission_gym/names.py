"""Locates the code of `module:name` without running it, and decides whether it may be called.

The current folder can be imported from, before everything else, unless it lies in a run. An argument
`env:NAME` names an environment variable, such as a key, which is read only when an environment is built.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import TrustError, UsageError

BRIDGE = "bridge:"  # prefix of a command that runs an environment in another process
_INSTALLED = ("site-packages", "dist-packages")  # these may be inside the standard library's folder
_ONLY_IN_RUNS = ("status.json", "lineage.json")  # a config.yaml may also be a project's
_WRITES_FILES = ("RecordVideo", "Monitor")  # Gymnasium's and SB3's write to a path of their arguments
_VARIABLE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_added: list[str] = []  # folders that this process made importable


class CodeLocation(NamedTuple):
    """Where the code of a name is, with everything that importing it would read."""

    folder: Path  # that contains the top-level module
    paths: tuple[Path, ...]  # files and folders of all modules on the way, as found and without links
    is_standard: bool  # it belongs to the standard library
    bare_folder: Path | None = None  # a package on the way without __init__.py that is not installed

    def line(self, name: str) -> str:
        """Return the line that records that `name` is allowed."""
        return f"{name} in {self.folder}"


def make_importable(folder: str = "") -> str:
    """Make modules in the current folder importable, before all others, and return the folder. With `folder`,
    make that one importable, after all others. A folder that lies in a run never becomes importable."""
    path = folder or os.getcwd()
    if path not in sys.path and not is_in_run(Path(path)):
        sys.path.insert(len(sys.path) if folder else 0, path)
        _added.append(path)
    return path


def read_path(*, added: bool = True) -> list[str]:
    """Return the import path with absolute entries. added: with the folders that `make_importable` added."""
    return [entry or os.getcwd() for entry in sys.path if added or entry not in _added]


def is_in_run(path: Path) -> bool:
    """Return whether a path, or the folder that it leads to through links, is in a run or is one."""
    places = {Path(os.path.abspath(path)), Path(os.path.realpath(path))}
    folders = {folder for place in places for folder in (place, *place.parents)}
    return any(os.path.lexists(folder / name) for folder in folders for name in _ONLY_IN_RUNS)


def command_line(name: str) -> str:
    """Return the line that records that a `bridge:` command is allowed in this folder; empty for other
    names."""
    return f"{name} in {os.getcwd()}" if name.startswith(BRIDGE) else ""


def locate(name: str, folder: str | None = None) -> CodeLocation | None:
    """Locate every module of `package.module:name`; if `folder` is given, only there."""
    parts = name.partition(":")[0].split(".")
    search = None if folder is None else [folder]
    found: list[str] = []
    bare_folder: Path | None = None
    spec: ModuleSpec | None = None
    for number in range(1, len(parts) + 1):
        parent, spec = spec, _find_spec(parts[number - 1], search)
        if spec is None:
            if parent is None or parent.origin is None:
                return None
            break  # a package may make its modules when it is imported
        if spec.origin in ("built-in", "frozen"):
            return CodeLocation(Path(sys.prefix), (), is_standard=True)
        inner = spec.submodule_search_locations
        found += [spec.origin] if spec.origin else list(inner or ())
        if spec.origin is None:
            bare = [Path(each) for each in inner or () if not set(_INSTALLED) & set(Path(each).parts)]
            bare_folder = next(iter(bare), bare_folder)
        if number == 1:
            top = Path(found[0]).parent.parent if inner is not None and spec.origin else Path(found[0]).parent
        if inner is None:
            break
        search = list(inner)
    paths = [Path(make(path)) for path in found for make in (os.path.abspath, os.path.realpath)]
    return CodeLocation(top, tuple(dict.fromkeys(paths)), any(map(_is_standard, paths)), bare_folder)


def _find_spec(module: str, search: list[str] | None) -> ModuleSpec | None:
    """Find a module in some folders, or on the import path, without importing it. For a finder of files, the
    last part of a dotted name is enough."""
    try:
        return importlib.util.find_spec(module) if search is None else PathFinder.find_spec(module, search)
    except (ImportError, ValueError):  # a finder that fails, or a program's `__main__`
        return None


def find_variables(kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that arguments name as `env:NAME`, by argument."""
    found = {key: _VARIABLE.fullmatch(value) for key, value in kwargs.items() if isinstance(value, str)}
    return {key: match[1] for key, match in found.items() if match}


def read_variables(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the values of the variables that they name; UsageError if one is not set."""
    named = find_variables(kwargs)
    for key, name in named.items():
        if name not in os.environ:
            raise UsageError(
                f"{key}=env:{name} needs the environment variable {name}, which is not set; export it where "
                "the environment is built [--env-kwargs]"
            )
    return {**kwargs, **{key: os.environ[name] for key, name in named.items()}}


def judge(name: str, target: Any, kinds: tuple[type, ...], calls: tuple[str, ...]) -> None:
    """Accept classes of these kinds, and names in `calls`.

    UsageError for code of the standard library, whatever its name here. TrustError for any other callable,
    and for classes that do more than an environment needs. Its module has been imported.
    """
    wanted = " or ".join(kind.__name__ for kind in kinds)
    cause = f"is not a subclass of {wanted}, so it may do anything"
    if isinstance(target, type) and issubclass(target, kinds):
        bases = [base for base in target.__mro__ if _is_hazardous(base)]
        if not bases:
            return
        cause = f"is a {bases[0].__name__}, which is made for tests, and may write files or start processes"
        if bases[0].__name__ in _WRITES_FILES:
            cause = f"is a {bases[0].__name__}, which may write files to any folder"
    if inspect.isroutine(target) or isinstance(target, type):
        home = locate(getattr(target, "__module__", None) or "builtins")
        if home is not None and home.is_standard:
            raise UsageError(f"{name!r} is code of the standard library; it is never run")
    if name not in calls:
        location = locate(name)
        line = location.line(name) if location else name
        raise TrustError(f"{line} {cause}", line, "its module was imported, but it was not called")


def _is_hazardous(kind: type) -> bool:
    return kind.__module__.startswith("mission_gym_bench.") or kind.__name__ in _WRITES_FILES


def _is_standard(file: Path) -> bool:
    homes = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    inner = next((file.relative_to(home) for home in homes if file.is_relative_to(home)), None)
    return inner is not None and not set(_INSTALLED) & set(inner.parts)
