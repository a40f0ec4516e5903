"""Locates the code of `module:name` without running it, and decides whether it may be called.

The current folder can be imported from, before everything else.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import TrustError, UsageError

BRIDGE = "bridge:"  # prefix of a command that runs an environment in another process
_INSTALLED = ("site-packages", "dist-packages")  # these may be inside the standard library's folder


class CodeLocation(NamedTuple):
    """Where the top-level module of a name is."""

    folder: Path  # that contains the module
    files: tuple[Path, ...]
    is_standard: bool  # it belongs to the standard library

    def line(self, name: str) -> str:
        """Return the line that records that `name` is allowed."""
        return f"{name} in {self.folder}"


def make_importable() -> str:
    """Make modules in the current folder importable, and return the folder."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return folder


def command_line(name: str) -> str:
    """Return the line that records that a `bridge:` command is allowed in this folder; empty for other
    names."""
    return f"{name} in {os.getcwd()}" if name.startswith(BRIDGE) else ""


def locate(name: str, folder: str | None = None) -> CodeLocation | None:
    """Locate the top-level module of `module.inner:name`; if `folder` is given, only there."""
    top = name.partition(":")[0].partition(".")[0]
    try:
        if folder is None:
            spec = importlib.util.find_spec(top)
        else:
            spec = importlib.machinery.PathFinder.find_spec(top, [folder])
    except (ImportError, ValueError):  # a finder that fails, or a program's `__main__`
        return None
    if spec is None:
        return None
    if spec.origin in ("built-in", "frozen"):
        return CodeLocation(Path(sys.prefix), (), is_standard=True)
    is_package = spec.submodule_search_locations is not None
    files = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    paths = tuple(Path(os.path.realpath(file)) for file in files)
    parent = Path(files[0]).parent
    if is_package and spec.origin:
        parent = parent.parent
    return CodeLocation(parent, paths, is_standard=any(map(_is_standard, paths)))


def judge(name: str, target: Any, kinds: tuple[type, ...], calls: tuple[str, ...]) -> None:
    """Accept classes of these kinds, and names in `calls`.

    UsageError for code of the standard library, whatever its name here; TrustError for any other callable.
    """
    if isinstance(target, type) and issubclass(target, kinds):
        return
    if inspect.isroutine(target) or isinstance(target, type):
        home = locate(getattr(target, "__module__", None) or "builtins")
        if home is not None and home.is_standard:
            raise UsageError(f"{name!r} is code of the standard library; it is never run")
    if name not in calls:
        location = locate(name)
        line = location.line(name) if location else name
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TrustError(f"{line} is not a subclass of {wanted}, so it may do anything", line)


def _is_standard(file: Path) -> bool:
    homes = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    inner = next((file.relative_to(home) for home in homes if file.is_relative_to(home)), None)
    return inner is not None and not set(_INSTALLED) & set(inner.parts)
