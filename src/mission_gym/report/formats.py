"""Numbers, values and paths as text. A value that is missing or not finite is `n/a`, never 0."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any, TypeGuard

import yaml

MISSING = "n/a"


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def show_number(value: float | None) -> str:
    """A number with four digits."""
    if not _is_known(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show_count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}" if _is_known(value) else MISSING


def show_amount(count: int, noun: str) -> str:
    """A count with its noun: 1 run, 2 runs."""
    return f"{show_count(count)} {noun}{'' if count == 1 else 's'}"


def show_rate(value: float | None) -> str:
    """A share of 1 in percent."""
    return f"{100 * value:.0f} %" if _is_known(value) else MISSING


def show_gb(size_bytes: float | None) -> str:
    """Bytes in GB."""
    return f"{size_bytes / 1e9:.2f} GB" if _is_known(size_bytes) else MISSING


def show_duration(seconds: float | None) -> str:
    """Seconds as h:mm:ss or m:ss."""
    if not _is_known(seconds):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_age(seconds: float | None) -> str:
    """Seconds in one unit that fits: s, min, h or d."""
    if not _is_known(seconds):
        return MISSING
    for limit, unit, text in ((90.0, 1, "s"), (5400.0, 60, "min"), (172800.0, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / unit:.0f} {text}"
    return f"{seconds / 86400:.0f} d"


def show_value(value: Any) -> str:
    """A config value in the form of its flag."""
    if isinstance(value, list | tuple):
        items = [str(item) for item in value]
        return (" " if any("," in item for item in items) else ",").join(items)
    if isinstance(value, dict):
        if not any(isinstance(item, dict | list) for item in value.values()):
            return " ".join(f"{key}={item}" for key, item in value.items())
        text = yaml.safe_dump(
            value, default_flow_style=True, width=1 << 30, allow_unicode=True, sort_keys=False
        )
        return str(text).strip()  # one line, for `--set`
    return "none" if value is None else str(value)


def show_path(path: Path) -> str:
    """A path relative to the current folder, if it is inside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def run_argument(path: Path) -> str:
    """A run as an argument of a command: its name if it is in the default folder, else its path."""
    in_default = path.parent == Path("runs").absolute()
    return shlex.quote(path.name if in_default else show_path(path))
