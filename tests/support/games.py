"""The games of these tests as commands, and whether anything of them is left."""

import shlex
import sys
from pathlib import Path

import psutil

from mission_gym.bridge import BridgeEnv
from mission_gym.env.wrappers import Drop

_HERE = Path(__file__).parent


def game(name: str, *words: str) -> str:
    return shlex.join([sys.executable, str(_HERE / f"{name}.py"), *words])


def make_walk(*words: str) -> Drop:
    """The walking game without its text, which `make_vec` does not take."""
    return Drop(BridgeEnv(game("walk_game", *words)), "sign")


_before: set[psutil.Process] = set()


def forget_processes() -> None:
    """Leave out what other tests have started, and still hold."""
    _before.clear()
    _before.update(psutil.Process().children(recursive=True))


def processes() -> list[psutil.Process]:
    """What this process has started since then, and what that has."""
    return [each for each in psutil.Process().children(recursive=True) if each not in _before]
