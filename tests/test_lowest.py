"""The constraints of `make lowest`."""

from pathlib import Path

import pytest

from lowest_versions import choose_lowest, read_bounds

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_every_dependency_has_a_lower_bound():
    bounds = read_bounds(PYPROJECT.read_text())
    assert bounds["starlette"] == "1.0.1"
    assert "torch" not in bounds
    with pytest.raises(AssertionError, match="lower bound and nothing else"):
        read_bounds('[project]\ndependencies = ["numpy>=1,<2"]')


@pytest.mark.parametrize(
    ("bound", "lowest"),
    [("6", "6.0"), ("6.0.1", "6.0.1"), ("6.1", "6.10"), ("5.9", "6.0"), ("12", "12.535.77")],
)
def test_the_lowest_release_is_chosen(bound, lowest):
    assert choose_lowest(bound, ["12.535.77", "6.10", "6.0.1", "6.0", "6.0rc1", "5.4.1"]) == lowest
