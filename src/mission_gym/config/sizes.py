"""Batch sizes, and the text forms of counts and durations. Pure functions."""

from __future__ import annotations

import re
from decimal import Decimal
from math import isfinite, isqrt
from numbers import Integral, Real

from mission_gym.errors import ConfigError

_COUNT = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,2})?)([km]?)", re.IGNORECASE)
_COUNT_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _divisors(buffer: int) -> list[int]:
    """All divisors in ascending order."""
    if buffer < 1:
        raise ConfigError(f"a rollout of {buffer} steps can't be split; it needs at least 1 step")
    small = [number for number in range(1, isqrt(buffer) + 1) if buffer % number == 0]
    return sorted({*small, *(buffer // number for number in small)})


def pick_batch_size(buffer: int, target_frac: float = 0.25, min_bs: int = 64, multiple: int = 64) -> int:
    """Return the divisor of `buffer` that is nearest to `target_frac` of it.

    Candidates are at least `min(min_bs, buffer)`, and multiples of `multiple` if there are any. Of two
    equally near ones the larger wins.
    """
    large = [size for size in _divisors(buffer) if size >= min(min_bs, buffer)]
    candidates = [size for size in large if size % multiple == 0] or large
    return min(candidates, key=lambda size: (abs(size - buffer * target_frac), -size))


def choose_batch_size(buffer: int, target: int) -> int:
    """Return the largest divisor of `buffer` at or below `target`."""
    if target < 1:
        raise ConfigError(f"a batch of {target} is empty; ask for at least 1")
    return max(size for size in _divisors(buffer) if size <= target)


def nearest_divisors(buffer: int, wanted: int) -> list[int]:
    """Return the nearest divisors of `buffer` below and above `wanted`, if they exist."""
    divisors = _divisors(buffer)
    below = [size for size in divisors if size < wanted][-1:]
    above = [size for size in divisors if size > wanted][:1]
    return below + above


def parse_count(value: object) -> int:
    """Return the whole number that `50M`, `500k`, `1e6` or a number stands for."""
    number: Decimal | None = None
    if isinstance(value, str):
        if match := _COUNT.fullmatch(value.strip()):
            number = Decimal(match[1]) * _COUNT_UNITS[match[2].lower()]
    elif isinstance(value, Integral) and not isinstance(value, bool):
        number = Decimal(int(value))
    elif isinstance(value, Real) and not isinstance(value, bool) and isfinite(value):
        number = Decimal(float(value))
    if number is None or number < 0 or number != int(number):
        raise ConfigError(f"{value!r} is not a whole number from 0 up; write it like 5000, 500k, 50M or 1e6")
    return int(number)


def parse_duration_s(value: object) -> float:
    """Return the seconds that `90s`, `5m`, `2h` or a number stands for."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower())):
        return float(match[1]) * _DURATION_UNITS[match[2]]
    if isinstance(value, Real) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    raise ConfigError(f"{value!r} is not a duration; write it like 90s, 5m or 2h")
