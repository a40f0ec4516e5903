from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mission_gym.config.sizes import (
    choose_batch_size,
    nearest_divisors,
    parse_count,
    parse_duration_s,
    pick_batch_size,
)
from mission_gym.errors import ConfigError

BUFFERS = st.integers(1, 200_000)


@pytest.mark.parametrize(
    ("buffer", "batch"),
    [(2048, 512), (8192, 2048), (6144, 1536), (10240, 2560), (48, 48), (1000, 250), (2016, 504), (997, 997)],
)
def test_pick_batch_size_gives_the_listed_numbers(buffer: int, batch: int) -> None:
    assert pick_batch_size(buffer) == batch


@given(BUFFERS, st.floats(0.01, 1.0), st.integers(1, 4096))
def test_pick_batch_size_is_total_and_keeps_its_rules(buffer: int, target_frac: float, min_bs: int) -> None:
    batch = pick_batch_size(buffer, target_frac, min_bs)
    floor = min(min_bs, buffer)
    allowed = [size for size in range(floor, buffer + 1) if buffer % size == 0]
    allowed = [size for size in allowed if size % 64 == 0] or allowed
    distance = abs(batch - buffer * target_frac)
    assert batch in allowed
    assert all(abs(size - buffer * target_frac) >= distance for size in allowed)
    assert all(abs(size - buffer * target_frac) > distance for size in allowed if size > batch)


def test_pick_batch_size_takes_the_larger_of_two_equally_near() -> None:
    assert pick_batch_size(256, target_frac=0.375) == 128


@given(BUFFERS, st.integers(1, 300_000))
def test_choose_batch_size_is_the_largest_divisor_at_or_below_the_target(buffer: int, target: int) -> None:
    batch = choose_batch_size(buffer, target)
    assert buffer % batch == 0
    assert batch <= target
    assert not any(buffer % size == 0 for size in range(batch + 1, min(target, buffer) + 1))


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="a rollout of 0 steps can't be split"):
        pick_batch_size(0)
    with pytest.raises(ConfigError, match="a batch of 0 is empty"):
        choose_batch_size(64, 0)


def test_nearest_divisors_gives_one_on_each_side() -> None:
    assert nearest_divisors(8192, 1000) == [512, 1024]
    assert nearest_divisors(8192, 10_000) == [8192]
    assert nearest_divisors(997, 64) == [1, 997]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("50M", 50_000_000),
        ("500k", 500_000),
        ("1e6", 1_000_000),
        ("1.5m", 1_500_000),
        ("1_000", 1000),
        (" 7 ", 7),
        (12, 12),
        (1e6, 1_000_000),
    ],
)
def test_parse_count(value: object, count: int) -> None:
    assert parse_count(value) == count


@given(st.integers(0, 10**18))
def test_parse_count_reads_what_str_writes(count: int) -> None:
    assert parse_count(str(count)) == parse_count(count) == count
    assert parse_count(f"{count}k") == count * 1000


@pytest.mark.parametrize(
    "value", ["", "many", "1.5", "-5", -5, 1.5, True, None, "5x", float("nan"), "1e999", [5]]
)
def test_parse_count_refuses_with_the_text(value: object) -> None:
    with pytest.raises(
        ConfigError, match="is not a whole number from 0 up; write it like 5000, 500k"
    ) as caught:
        parse_count(value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5m", 300.0), ("90s", 90.0), ("2h", 7200.0), ("1.5h", 5400.0), ("20", 20.0), (2.5, 2.5)],
)
def test_parse_duration_s(value: object, seconds: float) -> None:
    assert parse_duration_s(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "5 days", "-5m", True, None, float("inf")])
def test_parse_duration_s_refuses_with_the_text(value: object) -> None:
    with pytest.raises(ConfigError, match="is not a duration; write it like 90s, 5m or 2h") as caught:
        parse_duration_s(value)
    assert repr(value) in str(caught.value)
