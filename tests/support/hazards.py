"""Environments that fail, hang, leak or kill their process, for tests of supervision."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.streams import suite_seeds
from mission_gym.vector.worker import Service, serve


class MuteError(ValueError):
    """An exception that can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OwnError(Exception):
    """An exception of the user's."""


class Hazard(gym.Env[Any, Any]):
    """Episodes of 20 steps that show (steps, 0). At step `at` of an episode it does what `kind` says; with
    `once`, a path, only the first time over all processes. `births`, a folder, counts how often one was
    built, over all processes: the process is killed while it builds those of `deaths`."""

    def __init__(
        self,
        kind: str = "",
        at: int = 3,
        once: str = "",
        note: str = "",
        births: str = "",
        deaths: Sequence[int] = (),
    ) -> None:
        if births and count_birth(Path(births)) in deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        self.kind, self.at, self.once, self.note = kind, at, once, note
        self.observation_space = spaces.Box(-1.0, 1000.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = self.total = 0
        self.leak: list[bytes] = []
        if kind == "constructor":
            raise RuntimeError("no licence for the simulator")
        if kind == "own constructor":
            raise OwnError("no licence for the simulator")
        if kind == "exit constructor":
            os._exit(7)
        if kind == "mute constructor":
            raise MuteError
        if kind == "grandchild":  # nothing ties it to this process
            code = "import time; time.sleep(600)"
            child = subprocess.Popen([sys.executable, "-S", "-c", code], env={}, start_new_session=True)
            Path(note).write_text(str(child.pid))

    def due(self) -> bool:
        if self.steps != self.at:
            return False
        if self.once:
            try:
                Path(self.once).touch(exist_ok=False)
            except FileExistsError:
                return False
        return True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        if self.kind in ("reset", "reset, close hangs"):
            raise RuntimeError("the map file is missing")
        if self.kind == "mute reset":
            raise MuteError
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.total += 1
        if self.kind == "fast" and self.total == 101:
            Path(self.note).touch()
        obs = np.array([self.steps, action], np.float32)
        if self.kind and self.due():
            obs = self.fail(obs)
        return obs, 1.0, False, self.steps >= 20, {}

    def fail(self, obs: Any) -> Any:
        match self.kind:
            case "raise":
                raise RuntimeError("the simulator fell over")
            case "mute":
                raise MuteError
            case "exit":
                os._exit(7)
            case "segfault":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                hang_here()
            case "nan":
                obs[1] = np.nan
            case "shape":
                obs = np.full(4, 77.0, np.float32)
            case "space":
                self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
                obs = np.full(4, 77.0, np.float32)
            case "print":
                for _ in range(64):
                    os.write(1, b"x" * (1 << 20))
            case "leak":  # 50 MB a second
                while True:
                    self.leak.append(os.urandom(500_000))
                    time.sleep(0.01)
            case "slow":  # waits until another environment has made a hundred steps
                while not Path(self.note).exists():
                    time.sleep(0.001)
        return obs

    def close(self) -> None:
        if self.kind == "close raises":
            raise RuntimeError("the window is gone")
        if self.kind == "mute close":
            raise MuteError
        if self.kind in ("close hangs", "reset, close hangs"):
            hang_here()
        if self.kind == "close exits":
            os._exit(7)


class Fading(gym.Env[Any, Any]):
    """Pays less with every reset since it was built, which shows whether an instance was used again. With
    `fails` it raises on one seed of the suite. Its process is killed in the first step over all processes
    with `once`, a path, or in each with `always`."""

    def __init__(self, fails: bool = False, once: str = "", always: bool = False) -> None:
        self._once, self._always = once, always
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._resets = 0
        self._fails = fails
        self._bad = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._resets += 1
        self._bad = self._fails and seed == suite_seeds("select", 3)[2]
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._always:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._once:
            with suppress(FileExistsError):
                Path(self._once).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        if self._bad:
            raise RuntimeError("this seed always fails")
        return np.zeros(1, np.float32), 1.0 / self._resets, True, False, {}


def count_birth(births: Path) -> int:
    """How many there were before this one."""
    for number in count():
        with suppress(FileExistsError):
            (births / str(number)).touch(exist_ok=False)
            return number
    raise AssertionError("numbers do not end")


def hang_here() -> None:
    while True:
        time.sleep(60)


class FaultyService(Service):
    """A worker with a fault of our own: the third step of the first one raises, with `once` in `extra`."""

    num_steps = 0

    def step(self, rows: Any) -> Any:
        self.num_steps += 1
        once = Path(self.setup.extra)
        if self.setup.env_ids[0] == 0 and self.num_steps == 3 and not once.exists():
            once.touch()
            raise KeyError("a fault of ours")
        return super().step(rows)


def serve_faulty(link: Any, setup: bytes) -> None:
    serve(link, setup, FaultyService)


def report_modules(link: Any, setup: Any) -> None:
    import mission_gym.rollout.worker

    assert mission_gym.rollout.worker
    link.send([name for name in ("torch", "tensorboardX", "pydantic") if name in sys.modules])


def no_threads() -> Hazard:
    """An environment in whose process no further thread can start."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = refuse  # type: ignore[method-assign]
    return Hazard()
