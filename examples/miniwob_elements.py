"""MiniWoB++ by page elements: the policy chooses a visible element to click or to type into.

A wrapper for `miniwob/...` environments; docs/browsers.md has the commands. Copy this file into your folder:

    mission-gym train miniwob:miniwob/click-test-2-v1 --wrap "miniwob_elements:Elements(16)" --vector threads

The observation has numbers for each of the first `num` elements, those that the instruction names first, and
the instruction. The action is a masked Discrete. Screenshots are taken only for videos: without them a step
is three times as fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
from gymnasium import spaces

OUTCOMES = ("success", "failure", "out_of_steps")
_CLICK, _TYPE, _NOTHING = "CLICK_ELEMENT", "FOCUS_ELEMENT_AND_TYPE_FIELD", "NONE"
_ANSWER_S = 20.0  # for a browser to answer; Selenium's own timeout is two minutes
_NO_CLOCK = "core.EPISODE_MAX_TIME = 1e9;"  # ms
_TEXT_INPUTS = ("input_text", "input_password", "input_number", "input_search", "textarea")
_KINDS = (("button", "input_submit", "input_button"), ("a",), _TEXT_INPUTS,
          ("input_checkbox", "input_radio"), ("label",), ("span",), ("t", "p", "div"))  # fmt: skip
_LEAF = 3  # index of the flag for leaves; the other flags survive from one episode to the next
_MAX_TEXT = 256
_NUM_FIELDS = 3  # fields of the instruction that elements are compared with
_GREEN, _RED = (40, 170, 80), (220, 50, 50)
_WORD = re.compile(r"\w+")
_ASCII = "".join(chr(code) for code in range(32, 127))


class _Element(NamedTuple):
    ref: int
    takes_text: bool
    relevance: float
    features: list[float]


NUM_FEATURES = 1 + 4 + (len(_KINDS) + 1) + 3 + 3 + 2 * _NUM_FIELDS


class Elements(gym.Wrapper):
    """Action i clicks element i. With `fields`, action k * num + i types field k of the instruction into it.

    An episode ends after `max_steps`. MiniWoB++'s clock is stopped, because it would run while a policy
    learns. The reward is the task's own without the bonus for the time that is left.
    """

    renders_itself = True  # `render_mode` is for this wrapper, since the environment has no "rgb_array"

    def __init__(
        self,
        env: gym.Env,
        num: int = 16,
        fields: int = 0,
        max_steps: int = 20,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(env)
        self._renders = render_mode == "rgb_array"
        self._width, self._height = _read_size(env)
        self._num, self._num_typed, self._max_steps = num, fields, max_steps
        config = env.get_wrapper_attr("action_space_config")
        types = [str(getattr(each, "value", each)) for each in config.action_types]
        needed = (_NOTHING, _CLICK, _TYPE) if fields else (_NOTHING, _CLICK)
        if missing := [name for name in needed if name not in types]:
            raise ValueError(
                f"Elements needs the action types {', '.join(missing)}; use action_space_config=liu18, or "
                "leave it out [--env-kwargs]"
            )
        self._types = {name: types.index(name) for name in needed}
        self._blank = {name: _make_blank(space) for name, space in env.action_space.spaces.items()}
        self._elements: list[_Element] = []
        self._num_steps = self._num_fields = 0
        self._driver: Any = None
        self._browser: list[psutil.Process] = []
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
        self._image = np.zeros((self._height, self._width, 3), np.uint8)
        self._check_browser()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with self._end_after_failure():
            given = {"record_screenshots": self._renders, **(options or {})}
            obs, info = self.env.reset(seed=seed, options=given)
            self._check_browser()
        self._num_steps = 0
        if self._renders:
            self._image = np.array(obs["screenshot"], np.uint8)
        shown = self._observe(obs)
        return shown, self._make_info(info, None)

    def step(self, action: Any) -> Any:
        typed, index = divmod(int(action), self._num)
        chosen = {"action_type": self._types[_NOTHING]}
        if index < len(self._elements) and typed <= self._num_fields:
            kind = self._types[_TYPE if typed else _CLICK]
            chosen = {"action_type": kind, "ref": self._elements[index].ref}
            if typed:
                chosen["field"] = typed - 1
        before = self._elements[index : index + 1]
        with self._end_after_failure():
            obs, _, terminated, truncated, info = self.env.step(self._blank | chosen)
        self._num_steps += 1
        reward, outcome = 0.0, None
        if terminated:
            reward = float(info["raw_reward"])
            outcome = OUTCOMES[0] if reward > 0 else OUTCOMES[1]
        elif truncated or self._num_steps >= self._max_steps:
            truncated, outcome = True, OUTCOMES[2]
        if self._renders:
            if not terminated:  # at the end the page is covered
                self._image = np.array(obs["screenshot"], np.uint8)
            for element in before:
                _draw_frame(self._image, element.features[1:5], _RED if outcome == OUTCOMES[1] else _GREEN)
        return self._observe(obs), reward, terminated, truncated, self._make_info(info, outcome)

    def render(self) -> Any:
        """Return the last image of the page at twice its size, uint8 [H, W, 3], with the element framed."""
        return self._image.repeat(2, axis=0).repeat(2, axis=1)

    def close(self) -> None:
        """Close the environment and its browser, which survives a driver that died."""
        try:
            super().close()
        finally:
            self._kill_browser()

    def _make_mask(self) -> np.ndarray:
        """Return int8 [actions]: 1 for actions that do something now; the first one if none does."""
        mask = np.zeros((1 + self._num_typed, self._num), np.int8)
        mask[0, : len(self._elements)] = 1
        inputs = [index for index, element in enumerate(self._elements) if element.takes_text]
        for field in range(min(self._num_typed, self._num_fields)):
            mask[1 + field, inputs] = 1
        mask[0, 0] |= not self._elements
        return mask.ravel()

    @contextmanager
    def _end_after_failure(self) -> Iterator[None]:
        """Kill the browser after an exception: if it hangs, its driver would wait for it to close."""
        try:
            yield
        except Exception:
            self._kill_browser()
            raise

    def _kill_browser(self) -> None:
        for process in self._browser:
            with suppress(psutil.Error):
                process.kill()

    def _check_browser(self) -> None:
        """If a new browser was started, remember its processes, stop its clock and set its timeout."""
        driver = getattr(getattr(self.env.unwrapped, "instance", None), "driver", None)
        if driver is None or driver is self._driver:
            return
        self._kill_browser()
        self._driver, self._browser = driver, []
        with suppress(psutil.Error):
            top = psutil.Process(driver.service.process.pid)
            self._browser = [*top.children(recursive=True), top]
        driver.execute_script(_NO_CLOCK)
        if (config := getattr(driver.command_executor, "client_config", None)) is not None:
            config.timeout = _ANSWER_S

    def _make_info(self, info: dict[str, Any], outcome: str | None) -> dict[str, Any]:
        kept = {name: value for name, value in info.items() if name != "root_dom"}
        return kept | {"outcome": outcome, "action_mask": self._make_mask()}

    def _observe(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        instruction = str(obs["utterance"])
        values = [str(value) for _, value in obs["fields"]]
        self._num_fields = len(values)
        self._elements = self._find_elements(obs["dom_elements"], instruction.lower(), values)
        features = np.zeros((self._num, NUM_FEATURES), np.float32)
        for index, element in enumerate(self._elements):
            features[index] = element.features
        plain = "".join(letter if letter in _ASCII else "?" for letter in instruction[:_MAX_TEXT])
        return {"elements": features.ravel(), "instruction": plain}

    def _find_elements(self, dom: Sequence[Any], instruction: str, values: list[str]) -> list[_Element]:
        """Return the leaves inside the page. Text next to other elements stands for its parent, such as a
        label."""
        found: dict[int, _Element] = {}
        for each in dom:
            left, top, width, height = (float(each[name][0]) for name in ("left", "top", "width", "height"))
            x, y = left + width / 2, top + height / 2
            is_inside = 0 <= x < self._width and 0 <= y < self._height and min(width, height) >= 3
            ref = int(each["ref"])
            ref = ref if ref > 0 else int(each["parent"])
            if not each["flags"][_LEAF] or not is_inside or ref in found:
                continue
            box = (left / self._width, top / self._height, width / self._width, height / self._height)
            found[ref] = self._make_element(each, ref, box, instruction, values)
        return sorted(found.values(), key=lambda element: -element.relevance)[: self._num]

    def _make_element(
        self, each: Mapping[str, Any], ref: int, box: Sequence[float], instruction: str, values: list[str]
    ) -> _Element:
        tag, text, typed = str(each["tag"]), str(each["text"]).strip().lower(), str(each["value"]).strip()
        words, wanted = set(_WORD.findall(text)), set(_WORD.findall(instruction))
        share = len(words & wanted) / len(words) if words else 0.0
        quoted = float(bool(text) and f'"{text}"' in instruction)
        fields = [value.lower() for value in values[:_NUM_FIELDS]]
        fields += [""] * (_NUM_FIELDS - len(fields))
        same = [float(bool(value) and value == text) for value in fields]
        entered = [float(bool(value) and value == typed.lower()) for value in fields]
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
            *entered,
        ]
        relevance = 4 * max(same) + 2 * quoted + share + 0.5 * any(kinds[:4])
        return _Element(ref, tag in _TEXT_INPUTS, relevance, features)


def _draw_frame(image: np.ndarray, box: Sequence[float], colour: tuple[int, int, int]) -> None:
    """Draw a frame into an image [H, W, 3]; box: left, top, width, height as shares of it."""
    height, width = image.shape[:2]
    left, top = int(box[0] * width), int(box[1] * height)
    right, bottom = int((box[0] + box[2]) * width), int((box[1] + box[3]) * height)
    inner = image[top : bottom + 1, left : right + 1].copy()
    image[max(top - 2, 0) : bottom + 3, max(left - 2, 0) : right + 3] = colour
    image[top : bottom + 1, left : right + 1] = inner


def _read_size(env: gym.Env) -> tuple[int, int]:
    """Return the width and height of the page; ValueError if this is not a MiniWoB++ environment."""
    shown, acts = env.observation_space, env.action_space
    parts = shown.spaces if isinstance(shown, spaces.Dict) else {}
    taken = acts.spaces if isinstance(acts, spaces.Dict) else {}
    if not {"dom_elements", "utterance", "fields", "screenshot"} <= set(parts) or "action_type" not in taken:
        raise ValueError(
            "Elements is for environments of MiniWoB++, such as miniwob:miniwob/click-test-v1; this one has "
            f"the observation space {shown} [--wrap]"
        )
    height, width = parts["screenshot"].shape[:2]
    return width, height


def _make_blank(space: spaces.Space) -> Any:
    """Return a value for a part of an action that is not used."""
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    return np.zeros(space.shape, space.dtype) if space.shape else ""
