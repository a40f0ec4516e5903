"""The game of `bench bridge`: steps of a known cost behind the Python client. `python -m ... SPINS BYTES`."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from mission_gym.bridge.clients.mission_gym_bridge import box, discrete, serve
from mission_gym_bench.burn import spin


class BurnGame:
    """Steps of `spins` turns of a loop, and observations of so many bytes; episodes of 200 steps."""

    action_space = discrete(2)

    def __init__(self, spins: int, size: int) -> None:
        self.observation_space = box((size,), "uint8", 0, 255)
        self._spins, self._obs, self._steps = spins, np.zeros(size, np.uint8), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode. Option loop_s: tell the steps per second of a plain loop of that length, made
        here, where no bridge is crossed."""
        self._steps = 0
        return self._obs, {"own_rate": self._loop(options["loop_s"])} if options else {}

    def step(self, action: int) -> Any:
        """Make a step."""
        self._steps += 1
        spin(self._spins)
        return self._obs, 1.0, False, self._steps >= 200, {}

    def _loop(self, seconds: float) -> float:
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            *_, truncated, _ = self.step(1)
            steps += 1
            if truncated:
                self.reset()
        self._steps = 0
        return steps / (time.perf_counter() - begun)


if __name__ == "__main__":
    serve(lambda: BurnGame(int(sys.argv[1]), int(sys.argv[2])))
