"""The versions that numbers and speed depend on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

_PACKAGES = ("mission-gym", "numpy", "torch", "gymnasium", "numba", "scipy")


def versions(card: str = "") -> dict[str, str]:
    """What bits depend on: a resume under other versions is statistical. card: the one that computes."""
    return {name: version(name) for name in _PACKAGES} | {
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
        **({"card": card} if card else {}),
    }


def compare_versions(recorded: Mapping[str, str], card: str = "") -> tuple[list[str], list[str]]:
    """What changed since a plan recorded its versions, in words, and the names that it does not know."""
    now = versions(card)
    changed = [f"{name} {old} -> {now.get(name)}" for name, old in recorded.items() if now.get(name) != old]
    return changed, [name for name in now if name not in recorded]
