from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from mission_gym.config.plain_yaml import read_file, read_tree, read_yaml, to_plain
from mission_gym.errors import ConfigError


@pytest.mark.parametrize("text", ["!!python/object/apply:os.getcwd []", "a: !!python/name:os.system"])
def test_python_tags_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"only plain YAML values are read, and nothing in it was run.*\[my.yaml\]"
    ):
        read_yaml(text, "my.yaml")


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c"])
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1", "anchors and aliases such as 'x' are not read in line 1"),
        ("a: 1\nb: [*x]", "anchors and aliases such as 'x' are not read in line 2"),
        ("[" * 100_000, "values are nested more than 32 deep in line 1"),
        ("\n" + "- " * 100, "values are nested more than 32 deep in line 2"),
        ("1" + ":1" * 100_000, "a number has more than 1000 digits in line 1"),
    ],
)
def test_what_a_small_text_could_blow_up_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"this is not valid YAML: {message}; correct it \[my.yaml\]"):
        read_yaml(text, "my.yaml")


def test_long_texts_are_no_numbers() -> None:
    for value in ("1 " * 1000, "1" * 2000, "1:30"):
        assert read_yaml(yaml.safe_dump({"notes": value}), "my.yaml") == {"notes": value}


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("a: 1\n" + "#" * (1 << 20))
    with pytest.raises(ConfigError, match=r"the file is longer than 1048576 bytes \[config .*my.yaml\]"):
        read_file(path)


def test_one_section_is_read_as_the_whole_has_it(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("run:\n  notes: 'a\n\n    checkpoints:'\ncheckpoints:\n  keep_last: 7\nsources: {}\n")
    assert read_file(path, "checkpoints") == {"checkpoints": {"keep_last": 7}}
    path.write_text("{checkpoints: {keep_last: 7}}")
    assert read_file(path, "checkpoints") == {"checkpoints": {"keep_last": 7}}


@pytest.mark.parametrize("text", ["2026-01-01", "2026-13-45", "2026-01-01 12:00:00"])
def test_what_looks_like_a_date_stays_text(text: str, tmp_path: Path) -> None:
    assert read_yaml(f"day: {text}", "here") == {"day": text}
    (tmp_path / "given.yaml").write_text(f"{text}: {text}\n")
    assert read_tree(tmp_path / "given.yaml").value == {text: text}


@pytest.mark.parametrize("text", ["{[1, 2]: 3}", "a: 1\n{b: 2}: 3"])
def test_a_key_that_is_no_text_is_told_with_its_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text(text)
    line = text.count("\n") + 1
    assert [problem.split(" [")[0] for problem in read_tree(tmp_path / "given.yaml").problems] == [
        "a key is a list or a mapping; write a text"
    ]
    assert read_tree(tmp_path / "given.yaml").problems[0].endswith(f"given.yaml, line {line}]")
