"""Small environments with known answers, one line of a test away: `toys:Identity`.

They are registered nowhere. Each is a few lines, so that a test that fails can be read to the end.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array

Step = tuple[Any, float, bool, bool, dict[str, Any]]
Reset = tuple[Any, dict[str, Any]]
Fault = Literal["raise", "reset", "nan", "shape", "no_action", "space", "constructor"]


def seed_of(env_id: int, episode: int) -> int:
    """Seeds of episodes. They are here since a worker imports the module of a function that it gets."""
    return 1000 * env_id + episode


class Toy(gym.Env[Any, Any]):
    """What the toys share: a step count and episodes of a fixed length."""

    length = 20
    steps = 0

    def observe(self) -> Any:
        """Return what the agent sees now."""
        raise NotImplementedError

    def begin(self) -> None:
        """Draw what is new in an episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.steps = 0
        self.begin()
        return self.observe(), self.info()

    def info(self) -> dict[str, Any]:
        return {}

    def advance(self, reward: float, terminated: bool = False) -> Step:
        """Count the step; the episode is truncated at its length."""
        self.steps += 1
        return self.observe(), reward, terminated, self.steps >= self.length, self.info()


class Identity(Toy):
    """Reward 1 for the action that equals the observed number; 20 steps."""

    def __init__(self, n: int = 4, start: int = 0) -> None:
        self.observation_space = spaces.Discrete(n, start=start)
        self.action_space = spaces.Discrete(n, start=start)
        self.n, self.start, self.target = n, start, start

    def begin(self) -> None:
        self.target = self.start + int(self.np_random.integers(self.n))

    def observe(self) -> int:
        return self.target

    def step(self, action: Any) -> Step:
        reward = float(action == self.target)
        self.begin()
        return self.advance(reward)


class Binary(Toy):
    """Reward is the share of bits that equal the observed ones; 20 steps."""

    def __init__(self, n: int = 3) -> None:
        self.observation_space = spaces.MultiBinary(n)
        self.action_space = spaces.MultiBinary(n)
        self.bits = np.zeros(n, np.int8)

    def begin(self) -> None:
        self.bits = self.np_random.integers(0, 2, self.bits.shape, np.int8)

    def observe(self) -> Array:
        return self.bits.copy()

    def step(self, action: Any) -> Step:
        reward = float(np.mean(action == self.bits))
        self.begin()
        return self.advance(reward)


class Pointer(Toy):
    """Reward is minus the distance between a 2-D action and the target observed; 20 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.target = np.zeros(2, np.float32)

    def begin(self) -> None:
        self.target = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def observe(self) -> Array:
        return self.target.copy()

    def step(self, action: Any) -> Step:
        reward = -float(np.linalg.norm(np.asarray(action) - self.target))
        self.begin()
        return self.advance(reward)


class Far(Toy):
    """Reward 1 for saying on which side of 5,000,000 a number is, 0.05 away at most; 20 steps.

    As a float32 it is 5,000,000.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1e7, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.gap = 0.0

    def begin(self) -> None:
        self.gap = float(self.np_random.uniform(-0.05, 0.05))

    def observe(self) -> Array:
        return np.array([5e6 + self.gap])

    def step(self, action: Any) -> Step:
        reward = float(action == (self.gap > 0))
        self.begin()
        return self.advance(reward)


class Constant(Toy):
    """Pays for ever, shows nothing new, truncates every 10 steps: worth pay / (1 - gamma) everywhere."""

    def __init__(self, pay: float = 1.0, length: int = 10) -> None:
        self.pay, self.length = pay, length
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def observe(self) -> Array:
        return np.ones(1, np.float32)

    def step(self, action: Any) -> Step:
        return self.advance(self.pay)


class DictMask(Toy):
    """Choose (colour, side) as shown, over a nested observation and with an action mask.

    Every step pays 0.5 for each part that fits. One colour, never the right one, is forbidden at each
    step. The episode of 10 steps is won if at least 8 steps were right in both parts.
    """

    metadata = {"outcomes": ["won", "lost"], "main_outcome": "won"}
    length = 10

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (16, 16, 1), np.uint8),
                "body": spaces.Dict(
                    {"pose": spaces.Box(-np.inf, np.inf, (3,), np.float32), "switches": spaces.MultiBinary(2)}
                ),
                "colour": spaces.Discrete(3),
            }
        )
        self.action_space = spaces.MultiDiscrete([3, 2])
        self.colour, self.side, self.forbidden, self.num_right = 0, 0, 1, 0

    def begin(self) -> None:
        if self.steps == 0:
            self.num_right = 0
        self.colour, self.side = int(self.np_random.integers(3)), int(self.np_random.integers(2))
        self.forbidden = (self.colour + 1 + int(self.np_random.integers(2))) % 3

    def observe(self) -> dict[str, Any]:
        camera = np.zeros((16, 16, 1), np.uint8)
        camera[:, self.side * 8 : self.side * 8 + 8] = 255
        switches = np.array([self.side, 1 - self.side], np.int8)
        pose = np.array([self.side, self.colour, self.steps / self.length], np.float32)
        return {"camera": camera, "body": {"pose": pose, "switches": switches}, "colour": self.colour}

    def info(self) -> dict[str, Any]:
        mask = np.ones(5, np.int8)
        mask[self.forbidden] = 0
        return {"action_mask": mask}

    def step(self, action: Any) -> Step:
        if action[0] == self.forbidden:
            raise ValueError(f"colour {action[0]} is forbidden now")
        terms = {"colour": 0.5 * (action[0] == self.colour), "side": 0.5 * (action[1] == self.side)}
        self.num_right += sum(terms.values()) == 1.0
        self.begin()
        obs, reward, terminated, truncated, info = self.advance(float(sum(terms.values())))
        info["reward_terms"] = terms
        if truncated:
            info["outcome"] = "won" if self.num_right >= 8 else "lost"
            info["episode_metrics"] = {"right": self.num_right}
        return obs, reward, terminated, truncated, info


class Blindfold(Toy):
    """Open one of four boxes: 1 for the one with the prize, and 2 or -2 by luck whichever it is; 20 steps.

    Both are told under `hidden`. Who sees them gets 20 and knows what every step pays; who does not gets 5.
    """

    def __init__(self) -> None:
        hidden = {"prize": spaces.Discrete(4), "luck": spaces.Box(-2.0, 2.0, (1,), np.float32)}
        self.observation_space = spaces.Dict(
            {"hidden": spaces.Dict(hidden), "noise": spaces.Box(-1.0, 1.0, (2,), np.float32)}
        )
        self.action_space = spaces.Discrete(4)
        self.prize, self.luck = 0, 2.0

    def begin(self) -> None:
        self.prize = int(self.np_random.integers(4))
        self.luck = float(self.np_random.choice([-2.0, 2.0]))

    def observe(self) -> dict[str, Any]:
        noise = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return {"hidden": {"prize": self.prize, "luck": np.array([self.luck], np.float32)}, "noise": noise}

    def step(self, action: Any) -> Step:
        reward = float(action == self.prize) + self.luck
        self.begin()
        return self.advance(reward)


class Corridor(Toy):
    """Walk to the right end of `n` places, which pays 1; walls can't be walked into, and that is masked."""

    def __init__(self, n: int = 6) -> None:
        self.observation_space = spaces.Discrete(n)
        self.action_space = spaces.Discrete(3)  # left, stay, right
        self.n, self.place = n, 0

    def begin(self) -> None:
        self.place = 0

    def observe(self) -> int:
        return self.place

    def info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.place > 0, True, self.place < self.n - 1])}

    def step(self, action: Any) -> Step:
        if not self.info()["action_mask"][action]:
            raise ValueError(f"action {action} walks into a wall at place {self.place}")
        self.place += int(action) - 1
        won = self.place == self.n - 1
        return self.advance(float(won), terminated=won)


class Glimpses(Toy):
    """A dot that walks over a picture, the last frames of it along the first axis; pays for its own column.

    stack: 0 for the picture alone, which a wrapper may stack.
    """

    def __init__(self, stack: int = 3) -> None:
        self.observation_space = spaces.Box(0, 255, (stack, 12, 12) if stack else (12, 12), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.frames, self.place, self.stack = np.zeros((stack or 1, 12, 12), np.uint8), 0, stack

    def begin(self) -> None:
        self.place = int(self.np_random.integers(12))
        self.frames[:] = self.draw()

    def draw(self) -> Array:
        frame = np.zeros((12, 12), np.uint8)
        frame[:, self.place] = 255
        return frame

    def observe(self) -> Array:
        return self.frames.copy() if self.stack else self.frames[-1].copy()

    def step(self, action: Any) -> Step:
        reward = float(int(action) == self.place // 6)
        self.place = (self.place + int(self.np_random.integers(-1, 2))) % 12
        self.frames = np.concatenate([self.frames[1:], self.draw()[None]])
        return self.advance(reward)


class Captioned(Glimpses):
    """The picture, and beside it the place of the dot as a number."""

    def __init__(self) -> None:
        super().__init__(stack=0)
        place = spaces.Box(-100, 100, (1,), np.float32)
        self.observation_space = spaces.Dict(picture=self.observation_space, place=place)

    def observe(self) -> Any:
        return {"picture": super().observe(), "place": np.array([self.place], np.float32)}


class Stateful(Toy):
    """A random walk with get_state and set_state; it can't be replayed cheaply, so it is saved."""

    length = 50

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.position = np.zeros(2)

    def begin(self) -> None:
        self.position = self.np_random.normal(size=2)

    def observe(self) -> Array:
        return self.position.astype(np.float32)

    def step(self, action: Any) -> Step:
        self.position += self.np_random.normal(size=2) + (2 * int(action) - 1)
        return self.advance(-float(np.abs(self.position).sum()))

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "steps": self.steps}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position, self.steps = state["position"].copy(), state["steps"]


class Unseeded(Stateful):
    """The walk of a careless author: it ignores its seed and has no state to save."""

    get_state = set_state = None  # type: ignore[assignment]

    def begin(self) -> None:
        self.position = np.full(2, random.random())


class Faulty(Toy):
    """Breaks in the way asked for at step `at` (0 is the reset) of every episode behind the first `after`."""

    def __init__(self, fail: Fault = "raise", at: int = 3, after: int = 0) -> None:
        if fail == "constructor":
            raise RuntimeError("no licence for the simulator")
        self.fail, self.at, self.harmless = fail, at, after
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def observe(self) -> Array:
        obs = np.zeros(2, np.float32)
        if self.is_due(self.steps):
            if self.fail == "nan":
                obs[1] = np.nan
            elif self.fail == "shape":
                obs = np.zeros(3, np.float32)
            elif self.fail == "space":
                self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
                obs = np.zeros(4, np.float32)
        return obs

    def info(self) -> dict[str, Any]:
        if self.fail != "no_action":
            return {}
        return {"action_mask": np.full(2, not self.is_due(self.steps))}

    def is_due(self, step: int) -> bool:
        return self.harmless < 0 and step >= self.at

    def begin(self) -> None:
        self.harmless -= 1
        if self.fail == "reset" and self.is_due(self.at):
            raise RuntimeError("the map file is missing")

    def step(self, action: Any) -> Step:
        if self.fail == "raise" and self.is_due(self.steps + 1):
            raise RuntimeError("the simulator fell over")
        return self.advance(0.0)


class StepCount(gym.Env[Any, Any]):
    """Its step count is the reward, and fills an observation of the given shape; 100 steps."""

    def __init__(self, shape: tuple[int, ...] = (2,), dtype: type = np.float32) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> Any:
        return np.full(self.observation_space.shape, self.steps, self.observation_space.dtype)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), float(self.steps), False, self.steps >= 100, {}


class Recall(gym.Env[Any, Any]):
    """Shows a sign in its first step and asks for it in its last one, after `delay` steps: 1 if the action
    is the sign, else 0. Without memory the mean return is 0.5."""

    def __init__(self, delay: int = 5) -> None:
        self.delay = delay
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = self.sign = 0

    def observe(self) -> Any:
        shown = (2 * self.sign - 1) if self.steps == 0 else 0
        return np.array([shown, self.steps == self.delay], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.sign = 0, int(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        asked = self.steps == self.delay
        self.steps += 1
        return self.observe(), float(asked and int(action) == self.sign), asked, False, {}
