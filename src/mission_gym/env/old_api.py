"""Knows environments and spaces of the old `gym` package, which Gymnasium replaced, and says what to do."""

from __future__ import annotations

from typing import Any

OLD_API = (
    "environments of the old gym package go through shimmy: let a function of yours return "
    "shimmy.GymV26CompatibilityV0(env=...), or GymV21CompatibilityV0 where step() gives four values "
    '(pip install "shimmy[gym-v26]" or "shimmy[gym-v21]")'
)


def is_old(thing: Any) -> bool:
    """Whether an environment or a space is one of the old package, which need not be installed here."""
    return any(kind.__module__.partition(".")[0] == "gym" for kind in type(thing).__mro__)
