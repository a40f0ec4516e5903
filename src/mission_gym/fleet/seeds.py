"""Seeds as a user writes them: `5`, `1..5`, `3,7,11`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mission_gym.errors import UsageError

_MOST = 1000


def parse_seeds(given: object, first: int, source: str) -> tuple[int, ...]:
    """The seeds that are meant; a number N means `first` to `first` + N - 1. UsageError with the source."""
    seeds: Sequence[int] | None = None
    if isinstance(given, list | tuple) and all(type(each) is int for each in given):
        seeds = list(given)
    elif (type(given) is int or isinstance(given, str)) and re.fullmatch(r"-?\d{1,9}", str(given).strip()):
        seeds = range(first, first + int(str(given)))
    elif isinstance(given, str):
        text = given.replace(" ", "")
        if span := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text):
            seeds = range(int(span[1]), int(span[2]) + 1)
        elif re.fullmatch(r"\d{1,18}(,\d{1,18})+,?", text) or re.fullmatch(r"\d{1,18},", text):
            seeds = [int(part) for part in text.split(",") if part]
    if seeds is None:
        raise UsageError(f"seeds={given!r} can't be read; write 5, 1..5 or 3,7,11 [{source}]")
    if not seeds or len(seeds) > _MOST or min(seeds) < 0:
        raise UsageError(
            f"seeds={given!r} are {len(seeds)}; use 1 to {_MOST} of them, each 0 or above [{source}]"
        )
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds={given!r} name one twice; keep each once [{source}]")
    return tuple(seeds)
