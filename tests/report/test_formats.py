"""Numbers and paths as a person reads them."""

import math
from pathlib import Path

import pytest

from mission_gym.report.formats import (
    run_argument,
    show_count,
    show_duration,
    show_number,
    show_path,
    show_rate,
    show_value,
)


@pytest.mark.parametrize("show", [show_number, show_count, show_rate, show_duration])
@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_what_is_missing_is_never_a_number(show, missing):
    assert show(missing) == "n/a"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (show_number(0.0), "0"),
        (show_number(-0.12345), "-0.1235"),
        (show_number(999.96), "1000"),
        (show_number(12345.6), "12,346"),
        (show_count(1048576), "1,048,576"),
        (show_rate(0.455), "46 %"),
        (show_duration(59.7), "1:00"),
        (show_duration(3725), "1:02:05"),
        (show_value((64, 64)), "64,64"),
        (show_value({"size": 5, "easy": True}), "size=5 easy=True"),
        (show_value(None), "none"),
    ],
)
def test_numbers_and_values(shown, expected):
    assert shown == expected


def test_a_run_is_named_as_a_command_finds_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_argument(tmp_path / "runs" / "a-1") == "a-1"
    assert run_argument(tmp_path / "runs" / "a; ls") == "'a; ls'"
    assert run_argument(tmp_path / "other runs" / "a-1") == "'other runs/a-1'"
    assert show_path(Path("/elsewhere/a-1")) == "/elsewhere/a-1"
