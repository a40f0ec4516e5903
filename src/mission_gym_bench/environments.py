"""Environments without shipped settings, for `bench defaults`: `mission_gym_bench.environments:cart_pole`.

Known environments under names that no settings match, and toys with a known optimum and one difficulty each.
A toy's optimum and random score are returns of a whole episode, averaged over its random starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array

Env = gym.Env[Any, Any]
_Step = tuple[Array, float, bool, bool, dict[str, Any]]


def _rename(env_id: str, **kwargs: Any) -> Callable[..., Env]:
    return partial(gym.make, env_id, **kwargs)


cart_pole = _rename("CartPole-v1")
acrobot = _rename("Acrobot-v1")
mountain_car = _rename("MountainCar-v0")
mountain_car_continuous = _rename("MountainCarContinuous-v0")
pendulum = _rename("Pendulum-v1")
lunar_lander = _rename("LunarLander-v3")
lunar_lander_continuous = _rename("LunarLander-v3", continuous=True)
bipedal_walker = _rename("BipedalWalker-v3")
hopper = _rename("Hopper-v5")
half_cheetah = _rename("HalfCheetah-v5")


class Toy(Env):
    """A base for toys: episodes are truncated at a length, if nothing ends them before."""

    length = 50

    def __init__(self, obs_space: spaces.Space[Any], num_actions: int) -> None:
        self.observation_space = obs_space
        self.action_space = spaces.Discrete(num_actions)
        self.steps = 0

    def draw(self) -> None:
        """Draw the state of the next observation."""
        raise NotImplementedError

    def observe(self) -> Array:
        """Return the observation."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.draw()
        return self.observe(), {}

    def advance(self, reward: float, terminated: bool = False) -> _Step:
        """Count the step and return its result."""
        self.steps += 1
        return self.observe(), reward, terminated, self.steps >= self.length, {}


class LargeRewards(Toy):
    """Steer a sledge with inertia to a mark and stop there: +1000 on it, -1000 off it, at each of 100 steps.

    Positions are integers up to 20 from the mark, speeds up to 3; it starts at rest, 5 or more away. Values
    are tens of thousands, and rewards are constant until the mark is passed.
    """

    optimum, random = 91_000.0, -89_406.0  # by dynamic programming
    length = 100
    far, fast, near = 20, 3, 1

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (2,), np.float32), 3)
        self.position, self.speed = 0, 0

    def draw(self) -> None:
        side = int(self.np_random.choice([-1, 1]))
        self.position, self.speed = side * int(self.np_random.integers(5, self.far + 1)), 0

    def observe(self) -> Array:
        return np.array([self.position / self.far, self.speed / self.fast], np.float32)

    def step(self, action: Any) -> _Step:
        self.position, self.speed = self.move(self.position, self.speed, int(action) - 1)
        return self.advance(1000.0 if abs(self.position) <= self.near else -1000.0)

    def move(self, position: int, speed: int, push: int) -> tuple[int, int]:
        """Return position and speed after a push; a wall at either end stops it."""
        speed = max(-self.fast, min(speed + push, self.fast))
        moved = position + speed
        return (moved, speed) if abs(moved) <= self.far else (self.far if moved > 0 else -self.far, 0)


class RarePrizes(Toy):
    """799 steps that pay nothing; then two doors appear, and the lit one pays 1000, the other 300.

    With one reward at the end of such a long episode, either prize is over 10 standard deviations of the
    returns, and clipping there makes them equal. Earlier observations are zero. In thousands it would be
    easy.
    """

    optimum, random = 1000.0, 650.0
    length = 800

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (2,), np.float32), 2)
        self.lit = 0

    def draw(self) -> None:
        self.lit = int(self.np_random.integers(2))

    def observe(self) -> Array:
        shown = np.zeros(2, np.float32)
        if self.steps == self.length - 1:
            shown[:] = 1.0, 2 * self.lit - 1
        return shown

    def step(self, action: Any) -> _Step:
        at_the_doors = self.steps == self.length - 1
        prize = 1000.0 if action == self.lit else 300.0
        obs, reward, _, _, info = self.advance(prize if at_the_doors else 0.0)
        return obs, reward, at_the_doors, False, info


class LargeObservations(Toy):
    """1 for naming the third of +-10,000 that contains the first number, mirrored if the last one (-1 or 1)
    is negative. The number between is as large as the first and means nothing. 50 steps."""

    optimum, random = 50.0, 50 / 3

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1e4, 1e4, (3,), np.float32), 3)
        self.shown = np.zeros(3)

    def draw(self) -> None:
        large = self.np_random.uniform(-1e4, 1e4, 2)
        self.shown = np.array([*large, self.np_random.choice([-1.0, 1.0])])

    def observe(self) -> Array:
        return self.shown.astype(np.float32)

    def step(self, action: Any) -> _Step:
        share = self.shown[0] * self.shown[2] / 1e4  # in [-1, 1]
        reward = float(action == min(int((share + 1) * 1.5), 2))
        self.draw()
        return self.advance(reward)


class FarOffset(Toy):
    """1 for naming the third of 5,000,000 +- 0.05 that contains the number, a float64; 50 steps. As a float32
    it never changes."""

    optimum, random = 50.0, 50 / 3
    _offset, _half = 5e6, 0.05

    def __init__(self) -> None:
        super().__init__(spaces.Box(0.0, 1e7, (1,), np.float64), 3)
        self.share = 0.0  # in [0, 1)

    def draw(self) -> None:
        self.share = float(self.np_random.random())

    def observe(self) -> Array:
        return np.array([self._offset + self._half * (2 * self.share - 1)])

    def step(self, action: Any) -> _Step:
        reward = float(action == int(self.share * 3))
        self.draw()
        return self.advance(reward)


class SparseGoal(Toy):
    """1 for reaching the goal on an 8 x 8 board within 40 steps, and nothing before; start and goal are
    random."""

    optimum, random = 1.0, 0.261  # by dynamic programming
    length = 40
    _size = 8

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (4,), np.float32), 4)
        self.position, self.goal = np.zeros(2, np.int64), np.zeros(2, np.int64)

    def draw(self) -> None:
        here, there = self.np_random.choice(self._size**2, 2, replace=False)
        self.position, self.goal = (np.array(divmod(int(cell), self._size)) for cell in (here, there))

    def observe(self) -> Array:
        both = np.concatenate([self.position, self.goal])
        return (2 * both / (self._size - 1) - 1).astype(np.float32)

    def step(self, action: Any) -> _Step:
        move = ((-1, 0), (1, 0), (0, -1), (0, 1))[int(action)]
        self.position = np.clip(self.position + move, 0, self._size - 1)
        found = bool((self.position == self.goal).all())
        return self.advance(float(found), terminated=found)


class Continuing(Toy):
    """Hold a high level that pays up to 2 per step, without an end; truncated every 1,000 steps.

    An action moves down, stays or moves up by one of 20 levels, which pay with the third power of their
    height. One action in twenty slips to up, and above the top the level falls to 0. At a discount of 0.99
    the start is worth 18 to a random policy, and the best state 167 to the best policy.
    """

    optimum, random = 1650.0, 304.0  # by dynamic programming
    length = 1000
    top = 20
    slip = 0.05

    def __init__(self) -> None:
        super().__init__(spaces.Box(0.0, 1.0, (1,), np.float32), 3)
        self.level = 0

    def draw(self) -> None:
        self.level = int(self.np_random.integers(3))

    def observe(self) -> Array:
        return np.array([self.level / self.top], np.float32)

    def step(self, action: Any) -> _Step:
        slips = self.np_random.random() < self.slip
        self.level = self.move(self.level, 2 if slips else int(action))
        return self.advance(2 * (self.level / self.top) ** 3)

    def move(self, level: int, action: int) -> int:
        """Return the level after an action that does not slip."""
        moved = max(level + action - 1, 0)
        return 0 if moved > self.top else moved


class Catch(Toy):
    """Ten balls fall down a 12 x 12 board, one by one, straight or diagonally, and bounce off its sides.

    1 for each ball that a paddle of three cells catches, -1 for each other. A ball's trail, the cell it came
    from, shows its direction.
    """

    optimum, random = 10.0, -5.0
    cells, balls, slants = 12, 10, (-1, 0, 1)
    length = balls * (cells - 1)

    def __init__(self, obs_space: spaces.Space[Any]) -> None:
        super().__init__(obs_space, 3)
        self.row, self.column, self.slant, self.paddle = 0, 0, 0, 1
        self.trail: tuple[int, int] | None = None

    def draw(self) -> None:
        self.paddle = int(self.np_random.integers(1, self.cells - 1))
        self.drop()

    def drop(self) -> None:
        """Drop the next ball."""
        self.row, self.column, self.trail = 0, int(self.np_random.integers(self.cells)), None
        self.slant = int(self.np_random.choice(self.slants))

    def step(self, action: Any) -> _Step:
        self.paddle = min(max(self.paddle + int(action) - 1, 1), self.cells - 2)
        self.trail = self.row, self.column
        self.column, self.slant = self.move(self.column, self.slant)
        self.row += 1
        reward = 0.0
        if self.row == self.cells - 1:
            reward = 1.0 if abs(self.column - self.paddle) <= 1 else -1.0
            self.drop()
        return self.advance(reward)

    def move(self, column: int, slant: int) -> tuple[int, int]:
        """Return column and slant of a ball one row below."""
        slant = slant if 0 <= column + slant < self.cells else -slant
        return column + slant, slant


class CatchPixels(Catch):
    """The game as a grey image of 48 x 48."""

    pixels = 4  # of a cell's side

    def __init__(self) -> None:
        side = self.cells * self.pixels
        super().__init__(spaces.Box(0, 255, (side, side, 1), np.uint8))

    def observe(self) -> Array:
        shown = np.zeros((self.cells, self.cells), np.uint8)
        if self.trail is not None:
            shown[self.trail] = 128
        shown[self.row, self.column] = 255
        shown[-1, self.paddle - 1 : self.paddle + 2] = 192
        return shown.repeat(self.pixels, 0).repeat(self.pixels, 1)[:, :, None]


class CatchPlanes(Catch):
    """The game as planes of bits: ball, trail and paddle."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 1, (self.cells, self.cells, 3), np.bool_))

    def observe(self) -> Array:
        shown = np.zeros((self.cells, self.cells, 3), np.bool_)
        shown[self.row, self.column, 0] = True
        if self.trail is not None:
            shown[(*self.trail, 1)] = True
        shown[-1, self.paddle - 1 : self.paddle + 2, 2] = True
        return shown
