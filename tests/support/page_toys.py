"""A page as MiniWoB++ shows it, without a browser: two buttons, a text field, and what was done to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

TYPES = ["NONE", "CLICK_COORDS", "CLICK_ELEMENT", "FOCUS_ELEMENT_AND_TYPE_FIELD"]
LETTERS = spaces.Text(256, min_length=0)


def element(ref: int, tag: str, text: str = "", value: str = "", **given: Any) -> dict[str, Any]:
    """An element; box: left, top, width, height. leaf: whether nothing lies in it."""
    box = given.get("box", (10, 60, 40, 20))
    places = {
        name: np.array([number], np.float32)
        for name, number in zip(("left", "top", "width", "height"), box, strict=True)
    }
    return places | {
        "ref": ref,
        "parent": given.get("parent", 1),
        "tag": tag,
        "text": text,
        "value": value,
        "bg_color": np.array([0.5, 0.5, 0.5, 1.0], np.float32),
        "flags": np.array([0, 0, 0, given.get("leaf", 1)], np.int8),
    }


class Page(gym.Env[Any, Any]):
    """Asks for one of two buttons; the other one is wrong. With `field` a word has to be typed before."""

    metadata = {"render_modes": []}

    def __init__(self, field: bool = False, types: list[str] | None = None) -> None:
        self.action_space_config = SimpleNamespace(action_types=TYPES if types is None else types)
        self.action_space = spaces.Dict(
            {
                "action_type": spaces.Discrete(len(TYPES)),
                "coords": spaces.Box(0.0, 160.0, (2,), np.float32),
                "ref": spaces.Discrete(1000),
                "field": spaces.Discrete(20),
                "text": LETTERS,
            }
        )
        self.observation_space = spaces.Dict(
            {
                "dom_elements": spaces.Sequence(spaces.Discrete(2)),
                "fields": spaces.Sequence(spaces.Tuple([LETTERS, LETTERS])),
                "screenshot": spaces.Box(0, 255, (210, 160, 3), np.uint8),
                "utterance": LETTERS,
            }
        )
        self.has_field = field
        self.done: list[dict[str, Any]] = []
        self.options: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.wanted = int(self.np_random.integers(2))
        self.typed, self.options = "", options
        return self.show(), {"raw_reward": 0, "root_dom": object()}

    def show(self) -> dict[str, Any]:
        names = ("ONE", "TWO")
        elements = [
            element(1, "body", leaf=0),
            element(2, "div", "read me first"),
            element(3, "button", "ONE"),
            element(4, "button", "TWO", box=(60, 60, 40, 20)),
            element(-1, "t", "far away", parent=9, box=(-4908, 60, 26, 11)),
            element(-2, "t", "a label", parent=7),
        ]
        fields = [("target", names[self.wanted])]
        if self.has_field:
            elements.append(element(5, "input_text", value=self.typed))
            fields.append(("name", "Ida"))
        utterance = f"Click button {names[self.wanted]}. \u2026"
        return {
            "dom_elements": tuple(elements),
            "fields": tuple(fields),
            "utterance": utterance,
            "screenshot": np.full((210, 160, 3), 100, np.uint8),
        }

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.done.append(action)
        kind, ref = TYPES[action["action_type"]], action["ref"]
        if kind == "FOCUS_ELEMENT_AND_TYPE_FIELD":
            self.typed = self.show()["fields"][action["field"]][1]
        over = kind == "CLICK_ELEMENT" and ref in (3, 4)
        won = ref == 3 + self.wanted and (not self.has_field or self.typed == "Ida")
        # The time that is left is part of the reward, as there.
        return (
            self.show(),
            0.37 * over,
            over,
            False,
            {"raw_reward": (1 if won else -1) if over else 0, "root_dom": object()},
        )
