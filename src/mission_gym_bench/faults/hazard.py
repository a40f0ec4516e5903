"""An environment that misbehaves in a given way, in a given method."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_LENGTH = 20
_ROOM = 200 << 20  # bytes that can be allocated before the system refuses


class Unprintable(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Hazard(gym.Env[Any, Any]):
    """Episodes of 20 steps. The method `place` misbehaves by `kind` after its first `after` calls; with
    `once`, a path, only the first time over all processes. Pids of started processes are written to the file
    `pids`."""

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "render_modes": ["rgb_array"],
        "render_fps": 10,
    }

    def __init__(
        self,
        kind: str = "",
        place: str = "step",
        after: int = 0,
        once: str = "",
        pids: str = "",
        render_mode: str | None = None,
    ) -> None:
        self.kind, self.place, self.after, self.once, self.pids = kind, place, after, once, pids
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1.0, 1000.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0
        self.at("constructor")

    def at(self, place: str) -> Any:
        """Misbehave if this is the method and the time; return values to return instead, or None."""
        if place != self.place or not self.kind:
            return None
        self.after -= 1
        if self.after >= 0:
            return None
        if self.once:
            try:
                Path(self.once).touch(exist_ok=False)
            except FileExistsError:
                return None
        return misbehave(self.kind, self.pids)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        given = self.at("reset")
        return (np.zeros(2, np.float32), {}) if given is None else given[:1] + given[4:]

    def step(self, action: Any) -> Any:
        self.steps += 1
        given = self.at("step")
        obs = np.array([self.steps, action], np.float32)
        return (obs, 1.0, False, self.steps >= _LENGTH, {}) if given is None else given

    def render(self) -> Any:
        given = self.at("render")
        return np.zeros((32, 32, 3), np.uint8) if given is None else given[0]

    def close(self) -> None:
        self.at("close")


def misbehave(kind: str, pids: str) -> Any:
    """Misbehave; for wrong values, return the five values of a step."""
    obs, reward = np.zeros(2, np.float32), 1.0
    info: dict[str, Any] = {}
    match kind:
        case "raise":
            raise RuntimeError("the simulator fell over")
        case "unprintable":
            raise Unprintable
        case "KeyboardInterrupt":
            raise KeyboardInterrupt
        case "SystemExit":
            raise SystemExit(3)
        case "hang":
            while True:
                time.sleep(60)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(0)
        case "segfault":
            ctypes.string_at(0)
        case "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            limit = resource.getrlimit(resource.RLIMIT_AS)
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, limit[1]))
            hoard = []
            while True:
                hoard.append(bytearray(10 << 20))
        case "binary output":
            for number in (1, 2):
                os.write(number, bytes(range(256)) * 4096)
        case "escape codes":
            raise RuntimeError("\x1b]0;mine\x07\x1b[2J\x1b[31mred")
        case "background process":
            child = subprocess.Popen(
                [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                env={},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            with open(pids, "a") as file:
                file.write(f"{child.pid}\n")
        case "other folder":
            os.chdir("/")
        case "closed descriptors":
            os.closerange(3, 256)
        case "fork":
            if os.fork() == 0:
                time.sleep(600)
        case "signals":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        case "shape":
            obs = np.zeros(3, np.float32)
        case "type":
            return "observation", "reward", "no", None, 7
        case "nothing":
            return None, None, None, None, None
        case "two values":
            return obs, info
        case "nan reward":
            reward = float("nan")
        case "nan observation":
            obs[1] = np.nan
        case _:
            raise ValueError(f"kind={kind!r} is unknown")
    return obs, reward, False, False, info
