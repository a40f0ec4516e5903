"""A toy that shows a number from 0 to 3 in any form of observation: `Shown` with form=words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from toys import Step, Toy

COLOURS, THINGS = ("red", "green", "blue", "grey"), ("ball", "key", "box")
Rng = np.random.Generator


class Mission(gym.Space[str]):
    """A space of its own whose values are strings, as MiniGrid has one."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go to the red ball"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mission)


def _say(rng: Rng, answer: int) -> str:
    polite = rng.choice(["Please", "Now", "You must"])
    return f"{polite} go to the {COLOURS[answer]} {rng.choice(THINGS)}."


def _code(rng: Rng, answer: int) -> str:
    """The third character tells; the others are drawn from the same four."""
    letters = rng.choice(list("ABCD"), 6)
    letters[2] = "ABCD"[answer]
    return "".join(letters)


def _list(rng: Rng, answer: int) -> tuple[dict[str, Any], ...]:
    """The kind of the largest element; 0 if there is none."""
    if not answer:
        return ()
    sizes = rng.uniform(0.0, 4.0, int(rng.integers(1, 6)))
    sizes[rng.integers(len(sizes))] = rng.uniform(6.0, 10.0)
    kinds = [answer if size > 5 else int(rng.integers(4)) for size in sizes]
    return tuple(
        {"kind": kind, "size": np.array([size], np.float32), "name": COLOURS[kind]}
        for kind, size in zip(kinds, sizes, strict=True)
    )


def _grid(rng: Rng, answer: int, side: int) -> np.ndarray:
    grid = rng.integers(0, 3, (side, side, 3), np.uint8)
    grid[side // 2, side // 2, 0] = 3 + answer
    return grid


def _planes(rng: Rng, answer: int) -> np.ndarray:
    planes = np.zeros((10, 10, 4), bool)
    planes[*rng.integers(0, 10, 2), answer] = True
    return planes


def _picture(rng: Rng, answer: int, shape: tuple[int, ...], high: float, dtype: Any) -> np.ndarray:
    """One quarter of [..., H, W, C] is bright."""
    picture = np.zeros(shape, dtype)
    height, width = shape[-3] // 2, shape[-2] // 2
    top, left = answer // 2 * height, answer % 2 * width
    picture[..., top : top + height, left : left + width, :] = high * rng.uniform(0.6, 1.0)
    return picture


ELEMENT = spaces.Dict(
    {"kind": spaces.Discrete(4), "size": spaces.Box(0.0, 10.0, (1,), np.float32), "name": spaces.Text(8)}
)
SENTENCE = spaces.Text(80, charset="".join(map(chr, range(32, 127))))
FORMS: dict[str, tuple[gym.Space[Any], Callable[[Rng, int], Any]]] = {
    "words": (SENTENCE, _say),
    "mission": (spaces.Dict({"mission": Mission(), "noise": spaces.Box(-1, 1, (2,))}), _say),
    "code": (spaces.Text(6), _code),
    "list": (spaces.Sequence(ELEMENT), _list),
    "stack": (
        spaces.Sequence(spaces.Box(-np.inf, np.inf, (2,), np.float32), stack=True),
        lambda rng, answer: rng.normal(size=(answer, 2)).astype(np.float32),
    ),
    "grid": (spaces.Box(0, 255, (5, 5, 3), np.uint8), lambda rng, answer: _grid(rng, answer, 5)),
    "wide_grid": (spaces.Box(0, 255, (9, 9, 3), np.uint8), lambda rng, answer: _grid(rng, answer, 9)),
    "from_five": (spaces.Discrete(4, start=5), lambda rng, answer: np.int64(5 + answer)),
    "list_from_five": (
        spaces.Sequence(spaces.Discrete(4, start=5)),
        lambda rng, answer: tuple([np.int64(5 + answer)] * int(rng.integers(1, 4))),
    ),
    "narrow": (
        spaces.Box(0, 255, (300, 10, 3), np.uint8),
        lambda rng, answer: _picture(rng, answer, (300, 10, 3), 255.0, np.uint8),
    ),
    "planes": (spaces.Box(0, 1, (10, 10, 4), np.bool_), _planes),
    "floats": (
        spaces.Box(-1.0, 1.0, (12, 12, 2), np.float32),
        lambda rng, answer: _picture(rng, answer, (12, 12, 2), 1.0, np.float32),
    ),
    "frames": (
        spaces.Box(0, 255, (2, 16, 16, 3), np.uint8),
        lambda rng, answer: _picture(rng, answer, (2, 16, 16, 3), 255.0, np.uint8),
    ),
    "large": (
        spaces.Box(0, 255, (140, 40, 3), np.uint8),
        lambda rng, answer: _picture(rng, answer, (140, 40, 3), 255.0, np.uint8),
    ),
}


class Shown(Toy):
    """Reward 1 for the number that is shown; 20 steps. A policy that ignores it gets 5."""

    def __init__(self, form: str = "words") -> None:
        self.observation_space, self._show = FORMS[form]
        self.action_space = spaces.Discrete(4)
        self.answer = 0

    def begin(self) -> None:
        self.answer = int(self.np_random.integers(4))

    def observe(self) -> Any:
        shown = self._show(self.np_random, self.answer)
        if isinstance(self.observation_space, spaces.Dict):
            return {"mission": shown, "noise": self.np_random.uniform(-1, 1, 2).astype(np.float32)}
        return shown

    def step(self, action: Any) -> Step:
        reward = float(action == self.answer)
        self.begin()
        return self.advance(reward)


class Rare(Toy):
    """A grid of ids that ignores its seed, and shows a rare one: no two looks at it are alike."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (5, 5), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.rng = np.random.default_rng()

    def observe(self) -> Any:
        grid = self.rng.integers(0, 6, (5, 5)).astype(np.uint8)
        grid[0, 0] = 17 if self.rng.random() < 0.02 else 0
        return grid

    def step(self, action: Any) -> Step:
        return self.advance(0.0)
