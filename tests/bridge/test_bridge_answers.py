"""Answers that break the protocol in a way that only their reader sees: each is a fault that is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mission_gym.bridge.answers import ProtocolError, read_games, read_hello
from mission_gym.bridge.clients.mission_gym_bridge import (
    GameRows,
    Values,
    box,
    dict_of,
    discrete,
    multi_binary,
    pack,
    text,
    tuple_of,
    unpack,
)

SPACES = [
    ({"type": "discrete", "n": 2, "start": "a"}, r'"start" of "action_space" must be a whole number'),
    ({"type": "discrete", "n": 2, "start": None}, "must be a whole number, got None"),
    ({"type": "discrete", "n": 1 << 40}, r'"n" of "action_space" must be a number above 0 and below 2\^31'),
    ({"type": "multi_discrete", "nvec": [1 << 40]}, r"must be a list of numbers above 0 and below 2\^31"),
    (
        {"type": "dict", "spaces": {1: discrete(2), "a": discrete(2)}},
        "has a part with the name 1; use a text",
    ),
    ({"type": "dict", "spaces": {}}, r'"action_space" has no parts'),
    ({"type": "tuple", "spaces": []}, r'"action_space" has no parts'),
    (box((2,), low=math.nan), r'"action_space" is not a box'),
    (box([1] * 33), r'"shape" of "action_space" must be a list of at most 32 sizes above 0'),
    (box((1 << 13, 1 << 13)), r'"action_space" has 67108864 elements, and at most 33554432 are allowed'),
    (tuple_of(*[box((1 << 24,), "uint8")] * 3), r'"action_space" has 50331648 elements'),
    (dict_of(a=multi_binary(1 << 30)), r'"action_space" has 1073741824 elements'),
    (tuple_of(*[discrete(2)] * 5000), r'"action_space" has 5000 leaves, and at most 4096 are allowed'),
]


def hello(observes: Any = None, acts: Any = None) -> Any:
    space = box((2,)) if observes is None else observes
    return read_hello(
        {"version": 1, "observation_space": space, "action_space": discrete(2) if acts is None else acts}
    )


@pytest.mark.parametrize(("space", "problem"), SPACES)
def test_spaces_that_are_none(space: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        hello(acts=space)


@pytest.mark.parametrize("mask", ["abc", [300, 0], [1, "a"], {"a": "x"}, [[1, 0], "x"]])
def test_masks_that_are_none(mask: Any) -> None:
    answer = {"obs": [bytes(8)], "info": [{"action_mask": mask}]}
    with pytest.raises(ProtocolError, match='"action_mask" must be bytes of 0 and 1'):
        read_games(hello(), answer, 1, steps=False)


def test_any_text_is_a_text() -> None:
    space = hello(text(12)).observation_space
    assert [space.contains(words) for words in ("", "go to é-2!", "x" * 13, 5)] == [True, True, False, False]
    assert space == hello(text(12)).observation_space != hello(text(13)).observation_space


def test_the_python_client_refuses_observations_of_another_shape() -> None:
    rows = GameRows(Values(box((2,))), 1)
    with rows.guard(0):
        rows.write(0, [0.5], {})  # NumPy would write it twice
    assert rows.answer()["errors"] == ["ValueError: an observation has shape (1,), but its space has (2,)"]


def test_an_info_that_cannot_travel_is_left_out() -> None:
    rows = GameRows(Values(box((2,))), 1)
    rows.write(0, [0.5, 0.5], {"units": {(1, 2): "tank"}, "score": 3})
    assert unpack(pack(rows.answer()))["info"] == [{"score": 3}]
