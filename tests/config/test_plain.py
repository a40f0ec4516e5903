from __future__ import annotations

import datetime

import numpy as np
import pytest

from mission_gym.config.plain import read_yaml, to_plain
from mission_gym.errors import ConfigError


@pytest.mark.parametrize("text", ["!!python/object/apply:os.getcwd []", "a: !!python/name:os.system"])
def test_python_tags_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"only plain YAML values are read, and nothing in it was run.*\[my.yaml\]"
    ):
        read_yaml(text, "my.yaml")


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "day: 2024-13-45"])
def test_broken_yaml_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"this is not valid YAML: .*\[my.yaml\]"):
        read_yaml(text, "my.yaml")


def test_to_plain_gives_what_a_file_gives_back() -> None:
    value = to_plain({"a": (1, [True, None]), "b": {"c": np.float64(0.5)}})
    assert value == {"a": [1, [True, None]], "b": {"c": 0.5}}
    assert type(value["b"]["c"]) is float


@pytest.mark.parametrize("value", [object(), np.zeros(2), datetime.date(2024, 1, 1), {(1, 2): 3}])
def test_to_plain_refuses_what_a_file_can_not_hold(value: object) -> None:
    with pytest.raises(ValueError, match="can't be stored; use numbers, text, lists and mappings"):
        to_plain(value)
