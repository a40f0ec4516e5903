"""A game over a bridge, with everything that a game may have: `python walk_game.py [FAULT]`."""

import random
import sys
from pathlib import Path

import mission_gym.bridge.clients

sys.path.insert(0, str(Path(mission_gym.bridge.clients.__file__).parent))
from mission_gym_bridge import box, dict_of, discrete, serve, text


class Walk:
    """Walk to the right end of a corridor; where there is a wall, a mask forbids to go."""

    observation_space = dict_of(place=box((2,), "float32", -2.0, 2.0), sign=text(8))
    action_space = discrete(2)
    max_episode_steps = 30
    metadata = {"outcomes": ["home", "lost"], "main_outcome": "home"}

    def __init__(self, length=8, render_mode=None):
        self.length = length

    def reset(self, *, seed=None, options=None):
        random.seed(seed)
        chance = random if "shares" in sys.argv else random.Random(seed)
        self.at = chance.randint(-2, 2) + (options or {}).get("ahead", 0)
        self.time = 0
        return self._look()

    def step(self, action):
        if self.time == 3 and "raise" in sys.argv:
            raise RuntimeError("the third step")
        self.at += 1 if action else -1
        self.at += random.randint(0, 1) if "shares" in sys.argv else 0
        self.time += 1
        home, over = self.at >= self.length, self.time >= 30
        obs, info = self._look()
        if home or over:
            info["outcome"] = "home" if home else "lost"
        return obs, 1.0 if home else -0.01, home, over and not home, info

    def _look(self):
        if "prints" in sys.argv:
            print("this is not a message")
        mask = [1, 1] if self.at > -self.length else [0, 1]
        obs = {"place": [self.at / self.length, self.time / 30], "sign": "wall" if self.at < -6 else ""}
        return obs, {"action_mask": mask}

    def render(self):
        import numpy as np

        return np.full((4, 6, 3), self.time, np.uint8)

    def get_state(self):
        return [self.at, 0 if "forgets" in sys.argv else self.time]

    def set_state(self, state):
        self.at, self.time = state


if "stateless" in sys.argv:
    del Walk.get_state

if __name__ == "__main__":
    serve(Walk)
