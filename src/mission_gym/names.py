"""Where the code of `module:name` lies, found without running any of it; and whether it may be called.

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

BRIDGE = "bridge:"  # before the command of a game in another process
_INSTALLED = ("site-packages", "dist-packages")  # they may lie inside the folder of the standard library


class Place(NamedTuple):
    """The folder that holds a name's outermost module, its files, and whether Python itself came with it."""

    folder: Path
    files: tuple[Path, ...]
    is_standard: bool

    def line(self, name: str) -> str:
        """By which a name that was allowed is remembered."""
        return f"{name} in {self.folder}"


def make_importable() -> str:
    """Let modules be imported from the current folder, and return it."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return folder


def command_line(name: str) -> str:
    """By which a `bridge:` command is remembered: it is one of the folder where it runs; else nothing."""
    return f"{name} in {os.getcwd()}" if name.startswith(BRIDGE) else ""


def locate(name: str, folder: str | None = None) -> Place | None:
    """Where the outermost module of `module.inner:name` is, of all importable ones or in `folder` alone."""
    top = name.partition(":")[0].partition(".")[0]
    try:
        if folder is None:
            spec = importlib.util.find_spec(top)
        else:
            spec = importlib.machinery.PathFinder.find_spec(top, [folder])
    except (ImportError, ValueError):  # a finder that fails; a program's own `__main__`
        return None
    if spec is None:
        return None
    if spec.origin in ("built-in", "frozen"):
        return Place(Path(sys.prefix), (), is_standard=True)
    is_package = spec.submodule_search_locations is not None
    files = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    paths = tuple(Path(os.path.realpath(file)) for file in files)
    holder = Path(files[0]).parent
    if is_package and spec.origin:
        holder = holder.parent
    return Place(holder, paths, is_standard=any(map(_is_standard, paths)))


def judge(name: str, target: Any, kinds: tuple[type, ...], calls: tuple[str, ...]) -> None:
    """Let classes of these kinds pass, which do what they are for, and names among `calls`; TrustError for
    any other callable, UsageError for the standard library's, under whatever name it was found."""
    if isinstance(target, type) and issubclass(target, kinds):
        return
    if inspect.isroutine(target) or isinstance(target, type):
        home = locate(getattr(target, "__module__", None) or "builtins")
        if home is not None and home.is_standard:
            raise UsageError(f"{name!r} is of the standard library; it is never run")
    if name not in calls:
        place = locate(name)
        line = place.line(name) if place else name
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TrustError(f"{line} is not a class of {wanted}, and may do anything", line)


def _is_standard(file: Path) -> bool:
    homes = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    inner = next((file.relative_to(home) for home in homes if file.is_relative_to(home)), None)
    return inner is not None and not set(_INSTALLED) & set(inner.parts)
