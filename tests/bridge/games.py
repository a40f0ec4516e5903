"""The games of these tests as commands, and whether anything of them is left."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from waits import LONG_S

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


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
