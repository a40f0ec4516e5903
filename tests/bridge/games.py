"""The games of these tests as commands, and whether anything of them is left."""

import shlex
import sys
from pathlib import Path

import psutil

_HERE = Path(__file__).parent


def game(name: str, *words: str) -> str:
    return shlex.join([sys.executable, str(_HERE / f"{name}.py"), *words])


_before: set[psutil.Process] = set()


def forget_processes() -> None:
    """Leave out what other tests have started, and still hold."""
    _before.clear()
    _before.update(psutil.Process().children(recursive=True))


def processes() -> list[psutil.Process]:
    """What this process has started since then, and what that has."""
    return [each for each in psutil.Process().children(recursive=True) if each not in _before]
