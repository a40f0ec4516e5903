"""MiniWoB++ by its elements: a policy chooses which visible element of the page to click, or to type into.

In: the Dict of a `miniwob/...` environment (elements of the page, instruction, fields of the instruction).
Out: numbers for each of the first `num` elements, those that the instruction names first, and a masked
Discrete action. Screenshots are taken for films alone, without them a step is three times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.env.factory import Env
from mission_gym.errors import EnvContractError
from mission_gym.procs.children import ProcessTree

OUTCOMES = ("success", "failure", "out_of_steps")
_CLICK, _TYPE, _NOTHING = "CLICK_ELEMENT", "FOCUS_ELEMENT_AND_TYPE_FIELD", "NONE"
_ANSWER_S = 20.0  # of a browser; Selenium would wait for two minutes
_NO_CLOCK = "core.EPISODE_MAX_TIME = 1e9;"  # ms
_TYPED = ("input_text", "input_password", "input_number", "input_search", "textarea")
_KINDS = (("button", "input_submit", "input_button"), ("a",), _TYPED, ("input_checkbox", "input_radio"),
          ("label",), ("span",), ("t", "p", "div"))  # fmt: skip
_LEAF = 3  # its place in the flags of an element; the others carry over from one episode to the next
_MAX_TEXT = 256
_NUM_FIELDS = 3  # of the instruction, that elements are compared to
_GREEN, _RED = (40, 170, 80), (220, 50, 50)
_WORD = re.compile(r"\w+")
_ASCII = "".join(chr(code) for code in range(32, 127))


class _Element(NamedTuple):
    ref: int
    is_typed: bool  # it takes text
    appeal: float
    features: list[float]


NUM_FEATURES = 1 + 4 + (len(_KINDS) + 1) + 3 + 3 + 2 * _NUM_FIELDS


class Elements(gym.Wrapper[Any, Any, Any, Any]):
    """Acts on elements by their place: action i clicks element i; with `fields`, action k * num + i types
    field k of the instruction into it. An episode ends after `max_steps`; MiniWoB++'s clock, which would run
    on while a policy learns, does not. The reward is the task's own, without its share of the time left."""

    def __init__(
        self, env: Env, num: int = 16, fields: int = 0, max_steps: int = 20, render_mode: str | None = None
    ) -> None:
        super().__init__(env)
        self._draws = render_mode == "rgb_array"
        self._width, self._height = _read_size(env)
        self._num, self._num_typed, self._max_steps = num, fields, max_steps
        config = env.get_wrapper_attr("action_space_config")
        types = [str(getattr(each, "value", each)) for each in config.action_types]
        wanted = (_NOTHING, _CLICK, _TYPE) if fields else (_NOTHING, _CLICK)
        if missing := [name for name in wanted if name not in types]:
            raise EnvContractError(
                f"elements needs the action types {', '.join(missing)}; use action_space_config=liu18, or "
                "leave it out [--env-kwargs]"
            )
        self._types = {name: types.index(name) for name in wanted}
        self._blank = {name: _make_blank(space) for name, space in env.action_space.spaces.items()}  # type: ignore[attr-defined]
        self._elements: list[_Element] = []
        self._num_steps = self._num_fields = 0
        self._driver: Any = None
        self._browser: ProcessTree | None = None
        self.action_space = spaces.Discrete(num * (1 + fields))
        self.observation_space = spaces.Dict(
            {
                "elements": spaces.Box(0.0, 1.0, (num * NUM_FEATURES,), np.float32),
                "instruction": spaces.Text(_MAX_TEXT, min_length=0, charset=_ASCII),
            }
        )
        self.metadata = env.metadata | {
            "outcomes": OUTCOMES,
            "main_outcome": OUTCOMES[0],
            "render_modes": ["rgb_array"],
            "render_fps": 2,
        }
        self._picture = np.zeros((self._height, self._width, 3), np.uint8)
        self._look_at_browser()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with self._watch():
            given = {"record_screenshots": self._draws, **(options or {})}
            obs, info = self.env.reset(seed=seed, options=given)
            self._look_at_browser()
        self._num_steps = 0
        if self._draws:
            self._picture = np.array(obs["screenshot"], np.uint8)
        shown = self._show(obs)
        return shown, self._tell(info, None)

    def step(self, action: Any) -> Any:
        typed, place = divmod(int(action), self._num)
        chosen = {"action_type": self._types[_NOTHING]}
        if place < len(self._elements) and typed <= self._num_fields:
            chosen = {
                "action_type": self._types[_TYPE if typed else _CLICK],
                "ref": self._elements[place].ref,
            }
            if typed:
                chosen["field"] = typed - 1
        before = self._elements[place : place + 1]
        with self._watch():
            obs, _, terminated, truncated, info = self.env.step(self._blank | chosen)
        self._num_steps += 1
        reward, outcome = 0.0, None
        if terminated:
            reward = float(info["raw_reward"])
            outcome = OUTCOMES[0] if reward > 0 else OUTCOMES[1]
        elif truncated or self._num_steps >= self._max_steps:
            truncated, outcome = True, OUTCOMES[2]
        if self._draws:
            if not terminated:  # else the page is covered
                self._picture = np.array(obs["screenshot"], np.uint8)
            for element in before:
                _mark(self._picture, element.features[1:5], _RED if outcome == OUTCOMES[1] else _GREEN)
        return self._show(obs), reward, terminated, truncated, self._tell(info, outcome)

    def render(self) -> Any:
        """The page as it was seen last, twice as large, with a frame around what was acted on: uint8 [H, W,
        3]."""
        return self._picture.repeat(2, axis=0).repeat(2, axis=1)

    def close(self) -> None:
        """Close the environment, and end what its driver has left: a browser outlives a driver that died."""
        try:
            super().close()
        finally:
            if self._browser is not None:
                self._browser.end()

    def read_mask(self) -> Array:
        """int8 [actions]: 1 where an action does something now; where none does, the first."""
        mask = np.zeros((1 + self._num_typed, self._num), np.int8)
        mask[0, : len(self._elements)] = 1
        typed = [place for place, element in enumerate(self._elements) if element.is_typed]
        for field in range(min(self._num_typed, self._num_fields)):
            mask[1 + field, typed] = 1
        mask[0, 0] |= not self._elements
        return mask.ravel()

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """End a browser in which something failed: if it hangs, its driver would wait for it to close."""
        try:
            yield
        except Exception:
            if self._browser is not None:
                self._browser.end()
            raise

    def _look_at_browser(self) -> None:
        """Note the processes of a browser that was started, stop its clock, and wait for its answers only for
        a while."""
        driver = getattr(getattr(self.env.unwrapped, "instance", None), "driver", None)
        if driver is None or driver is self._driver:
            return
        if self._browser is not None:
            self._browser.end()
        self._driver, self._browser = driver, ProcessTree(driver.service.process.pid)
        driver.execute_script(_NO_CLOCK)
        if (config := getattr(driver.command_executor, "client_config", None)) is not None:
            config.timeout = _ANSWER_S

    def _tell(self, info: dict[str, Any], outcome: str | None) -> dict[str, Any]:
        told = {name: value for name, value in info.items() if name != "root_dom"}
        return told | {"outcome": outcome, "action_mask": self.read_mask()}

    def _show(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        instruction = str(obs["utterance"])
        values = [str(value) for _, value in obs["fields"]]
        self._num_fields = len(values)
        self._elements = self._find(obs["dom_elements"], instruction.lower(), values)
        features = np.zeros((self._num, NUM_FEATURES), np.float32)
        for place, element in enumerate(self._elements):
            features[place] = element.features
        plain = "".join(letter if letter in _ASCII else "?" for letter in instruction[:_MAX_TEXT])
        return {"elements": features.ravel(), "instruction": plain}

    def _find(self, dom: Sequence[Any], instruction: str, values: list[str]) -> list[_Element]:
        """The elements that can be acted on: leaves inside the page. Text beside others stands for what it
        lies in, such as a label."""
        found: dict[int, _Element] = {}
        for each in dom:
            left, top, width, height = (float(each[name][0]) for name in ("left", "top", "width", "height"))
            x, y = left + width / 2, top + height / 2
            inside = 0 <= x < self._width and 0 <= y < self._height and min(width, height) >= 3
            ref = int(each["ref"])
            ref = ref if ref > 0 else int(each["parent"])
            if not each["flags"][_LEAF] or not inside or ref in found:
                continue
            box = (left / self._width, top / self._height, width / self._width, height / self._height)
            found[ref] = self._judge(each, ref, box, instruction, values)
        return sorted(found.values(), key=lambda element: -element.appeal)[: self._num]

    def _judge(
        self, each: Mapping[str, Any], ref: int, box: Sequence[float], instruction: str, values: list[str]
    ) -> _Element:
        tag, text, typed = str(each["tag"]), str(each["text"]).strip().lower(), str(each["value"]).strip()
        words, wanted = set(_WORD.findall(text)), set(_WORD.findall(instruction))
        share = len(words & wanted) / len(words) if words else 0.0
        quoted = float(bool(text) and f'"{text}"' in instruction)
        fields = [value.lower() for value in values[:_NUM_FIELDS]]
        fields += [""] * (_NUM_FIELDS - len(fields))
        same = [float(bool(value) and value == text) for value in fields]
        kept = [float(bool(value) and value == typed.lower()) for value in fields]
        kinds = [float(tag in kind) for kind in _KINDS]
        kinds.append(float(not any(kinds)))
        features = [
            1.0,
            *(min(max(value, 0.0), 1.0) for value in box),
            *kinds,
            share,
            quoted,
            float(bool(typed)),
            *(min(max(float(value), 0.0), 1.0) for value in each["bg_color"][:3]),
            *same,
            *kept,
        ]
        appeal = 4 * max(same) + 2 * quoted + share + 0.5 * any(kinds[:4])
        return _Element(ref, tag in _TYPED, appeal, features)


def _mark(picture: Array, box: Sequence[float], colour: tuple[int, int, int]) -> None:
    """Draw a frame around a part of a picture [H, W, 3]; box: left, top, width, height as shares of it."""
    height, width = picture.shape[:2]
    left, top = int(box[0] * width), int(box[1] * height)
    right, bottom = int((box[0] + box[2]) * width), int((box[1] + box[3]) * height)
    inner = picture[top : bottom + 1, left : right + 1].copy()
    picture[max(top - 2, 0) : bottom + 3, max(left - 2, 0) : right + 3] = colour
    picture[top : bottom + 1, left : right + 1] = inner


def _read_size(env: Env) -> tuple[int, int]:
    """Width and height of the page; EnvContractError where this is not such an environment."""
    shown, acts = env.observation_space, env.action_space
    parts = shown.spaces if isinstance(shown, spaces.Dict) else {}
    taken = acts.spaces if isinstance(acts, spaces.Dict) else {}
    if not {"dom_elements", "utterance", "fields", "screenshot"} <= set(parts) or "action_type" not in taken:
        raise EnvContractError(
            "elements is for environments of MiniWoB++, such as miniwob:miniwob/click-test-v1; this one "
            f"shows {shown} [--wrap]"
        )
    height, width = parts["screenshot"].shape[:2]  # type: ignore[index]
    return width, height


def _make_blank(space: spaces.Space[Any]) -> Any:
    """A value for a part of an action that is not used."""
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    return np.zeros(space.shape, space.dtype) if space.shape else ""
