"""The versions that numbers and speed depend on."""

from __future__ import annotations

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """What bits depend on: a resume under other versions is statistical."""
    packages = {name: version(name) for name in ("mission-gym", "numpy", "torch", "gymnasium")}
    return packages | {
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
    }
