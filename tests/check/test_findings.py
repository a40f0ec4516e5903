"""The table of sentences: whole, and every one of them said somewhere."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

from mission_gym.check import findings
from mission_gym.check.findings import Level, make_finding, read_texts

CASES = [(name, case) for name, cases in read_texts().items() for case in cases]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_sentence_has_its_parts_and_a_judge(name: str, case: str) -> None:
    text = read_texts()[name][case]
    assert text.keys() <= {"level", "what", "why", "fix"}
    assert text["level"] in get_args(Level)
    assert text["what"]
    assert (text.get("why") and text.get("fix")) or text["level"] not in ("error", "warning")
    assert name in LITERALS
    assert case in LITERALS


def find_literals() -> set[str]:
    folder = Path(findings.__file__).parent
    nodes = (node for path in folder.glob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


LITERALS = find_literals()


def test_a_value_that_is_missing_is_an_error() -> None:
    fields = [field for _, field, _, _ in Formatter().parse(read_texts()["reward"]["scale"]["what"]) if field]
    assert fields == ["largest"]
    assert make_finding("reward", "scale", largest=5000.0).what == "the largest reward of a step is 5e+03"
    with pytest.raises(KeyError, match="largest"):
        make_finding("reward", "scale")
