"""Small environments whose actions have parts, or masks over combinations: `action_toys:Throw`.

As in `toys`, each is a few lines with a known answer, and raises where an action is not of its space.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from toys import Step, Toy

MaskForm = Literal["flat", "grid", "method", "obs"]


class Throw(Toy):
    """A hand, two fingers and an aim, all as observed: 1 for the hand, 1 for the fingers, less the distance.

    A perfect episode of 20 steps returns 40.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 3.0, (5,), np.float32)
        self.action_space = spaces.Dict(
            {
                "aim": spaces.Box(-2.0, 2.0, (2,), np.float32),
                "hand": spaces.Discrete(3, start=1),
                "how": spaces.Dict({"fingers": spaces.MultiBinary(2)}),
            }
        )
        self.target = np.zeros(5, np.float32)

    def begin(self) -> None:
        aim = self.np_random.uniform(-1.0, 1.0, 2)
        self.target = np.array([*aim, *self.np_random.integers((1, 0, 0), (4, 2, 2))], np.float32)

    def observe(self) -> Array:
        return self.target.copy()

    def step(self, action: Any) -> Step:
        check(self.action_space, action)
        right = action["hand"] == self.target[2]
        fingers = np.mean(action["how"]["fingers"] == self.target[3:])
        reward = float(right) + float(fingers) - float(np.linalg.norm(action["aim"] - self.target[:2]))
        self.begin()
        return self.advance(reward)


class Levers(Toy):
    """Set a switch, two levers and a bolt as observed: the share of the four that is right; 20 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.MultiDiscrete([3, 2, 4, 2])
        self.action_space = spaces.Tuple(
            (spaces.Discrete(3), spaces.Tuple((spaces.MultiDiscrete([2, 4]), spaces.MultiBinary(1))))
        )
        self.wanted = np.zeros(4, np.int64)

    def begin(self) -> None:
        self.wanted = self.np_random.integers(0, (3, 2, 4, 2))

    def observe(self) -> Array:
        return self.wanted.copy()

    def step(self, action: Any) -> Step:
        check(self.action_space, action)
        switch, (levers, bolt) = action
        reward = float(np.mean(np.array([switch, *levers, *bolt]) == self.wanted))
        self.begin()
        return self.advance(reward)


class Couples(Toy):
    """Choose the pair that is shown, of a 4 x 3 table in which few are free, which no mask of parts can say.

    A pair that is taken raises. Ten steps; 1 for the right pair. form: how the mask is given.
    """

    length = 10

    def __init__(self, form: MaskForm = "flat") -> None:
        shown: dict[str, Any] = {"pair": spaces.MultiDiscrete([4, 3])}
        if form == "obs":
            shown["action_mask"] = spaces.MultiBinary((4, 3))
        self.observation_space = spaces.Dict(shown)
        self.action_space = spaces.MultiDiscrete([4, 3], start=[0, 5])
        self.form, self.pair, self.free = form, (0, 0), np.ones((4, 3), np.int8)
        if form == "method":
            self.action_masks = lambda: self.free.astype(bool).ravel()

    def begin(self) -> None:
        self.pair = int(self.np_random.integers(4)), int(self.np_random.integers(3))
        self.free = (self.np_random.random((4, 3)) < 0.3).astype(np.int8)
        self.free[self.pair] = 1

    def observe(self) -> dict[str, Any]:
        obs: dict[str, Any] = {"pair": np.array(self.pair)}
        return obs | {"action_mask": self.free.copy()} if self.form == "obs" else obs

    def info(self) -> dict[str, Any]:
        masks = {"flat": self.free.ravel(), "grid": self.free}
        return {"action_mask": masks[self.form].copy()} if self.form in masks else {}

    def step(self, action: Any) -> Step:
        pair = int(action[0]), int(action[1]) - 5
        if not self.free[pair]:
            raise ValueError(f"the pair {pair} is taken")
        reward = float(pair == self.pair)
        self.begin()
        return self.advance(reward)


class Guarded(Toy):
    """Choose tool and place as shown, with a force that pays nothing; wrong ones may be forbidden.

    Masks are like the action: of the tool alone, and joint over both numbers of the place. 20 steps.
    form: actions and masks are a dict, or a tuple; `obs`: the masks are a part of the observation.
    """

    def __init__(self, force: bool = True, form: Literal["dict", "tuple", "obs"] = "dict") -> None:
        self.observation_space: spaces.Space[Any] = spaces.MultiDiscrete([3, 2, 3])
        if form == "obs":
            masks = spaces.Dict({"tool": spaces.MultiBinary(3), "place": spaces.MultiBinary((2, 3))})
            self.observation_space = spaces.Dict({"wanted": self.observation_space, "action_mask": masks})
        parts = {"tool": spaces.Discrete(3), "place": spaces.MultiDiscrete([2, 3])}
        if force:
            parts["force"] = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Tuple(parts.values()) if form == "tuple" else spaces.Dict(parts)
        self.wanted, self.form = np.zeros(3, np.int64), form
        self.tools, self.places = np.ones(3, np.int8), np.ones((2, 3), np.int8)

    def begin(self) -> None:
        self.wanted = self.np_random.integers(0, (3, 2, 3))
        self.tools = (self.np_random.random(3) < 0.5).astype(np.int8)
        self.places = (self.np_random.random((2, 3)) < 0.5).astype(np.int8)
        self.tools[self.wanted[0]] = self.places[tuple(self.wanted[1:])] = 1

    def observe(self) -> Any:
        wanted, masks = self.wanted.copy(), {"tool": self.tools.copy(), "place": self.places.copy()}
        return {"wanted": wanted, "action_mask": masks} if self.form == "obs" else wanted

    def info(self) -> dict[str, Any]:
        tools, places = self.tools.astype(bool), self.places.ravel().astype(bool)
        if self.form == "obs":
            return {}
        return {"action_mask": (tools, places) if self.form == "tuple" else {"tool": tools, "place": places}}

    def step(self, action: Any) -> Step:
        check(self.action_space, action)
        tool, place = action[:2] if self.form == "tuple" else (action["tool"], action["place"])
        if not self.tools[tool] or not self.places[tuple(place)]:
            raise ValueError(f"{action} is forbidden")
        reward = float(tool == self.wanted[0] and (place == self.wanted[1:]).all())
        self.begin()
        return self.advance(reward)


def check(space: spaces.Space[Any], action: Any) -> None:
    """Raise where an action is not of its space."""
    if not space.contains(action):
        raise ValueError(f"{action} is not in {space}")


class Wide(Toy):
    """A million combinations, which pay nothing."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(2)
        self.action_space = spaces.MultiDiscrete([100, 100, 100])

    def observe(self) -> int:
        return 0

    def step(self, action: Any) -> Step:
        return self.advance(0.0)


class Brittle(Throw):
    """Breaks at the first aim that is far out."""

    def step(self, action: Any) -> Step:
        if np.abs(action["aim"]).max() > 1.9:
            raise RuntimeError(f"the string broke at {action['aim'].tolist()}")
        return super().step(action)
