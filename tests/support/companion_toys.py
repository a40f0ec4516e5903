"""An environment that needs a companion, and companions that fail in their ways."""

import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

import mission_gym as mg

LOG = "COMPANION_TOYS_LOG"  # a variable: files that keyword arguments name are copied into runs


def serve(tell, told, *, word="hello"):
    """Tells a word, and notes in a file which process it is, and what it told before."""
    if LOG in os.environ:
        with open(os.environ[LOG], "a") as file:
            file.write(f"{os.getpid()} {told and told['word']}\n")
    tell({"word": word})
    while True:
        time.sleep(60)


def fail(tell, told):
    raise RuntimeError("the port is taken")


class Attended(gym.Env):
    """A short walk; it can't be built without the word that its companion tells."""

    def __init__(self, word=None, render_mode=None):
        assert word == "hello"
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    @staticmethod
    def companion_process(**kwargs):
        return mg.Companion("companion_toys:serve")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return self.np_random.random(2, np.float32), float(action), self.steps == 5, False, {}


def read_starts():
    """The processes of companions that were started, and what each had told before."""
    return [line.split() for line in Path(os.environ[LOG]).read_text().splitlines()]
