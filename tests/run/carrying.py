"""An environment that shows whether something was carried on; its workers load nothing else of the tests."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.streams import suite_seeds


class Carrying(gym.Env[Any, Any]):
    """Pays less with every reset since it was built; raises on one seed of the suite. Its process is killed
    in the first step over all processes with `once`, a path, or in each with `always`."""

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
