"""Numbers as a person reads them. What is missing or not finite shows as `n/a`, never as 0."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any, TypeGuard

import yaml

MISSING = "n/a"


def _is_there(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def show_number(value: float | None) -> str:
    """Four digits of a number."""
    if not _is_there(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show_count(value: float | None) -> str:
    """A whole number with thousands apart."""
    return f"{value:,.0f}" if _is_there(value) else MISSING


def show_rate(value: float | None) -> str:
    """A share of 1 in per cent."""
    return f"{100 * value:.0f} %" if _is_there(value) else MISSING


def show_duration(seconds: float | None) -> str:
    """Seconds as h:mm:ss or m:ss."""
    if not _is_there(seconds):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_value(value: Any) -> str:
    """A value of a config as its flag takes it."""
    if isinstance(value, list | tuple):
        items = [str(item) for item in value]
        return (" " if any("," in item for item in items) else ",").join(items)
    if isinstance(value, dict):
        nested = any(isinstance(item, dict | list) for item in value.values())
        return _in_one_line(value) if nested else " ".join(f"{key}={item}" for key, item in value.items())
    return "none" if value is None else str(value)


def _in_one_line(value: Any) -> str:
    """As YAML, which `--set` takes."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, width=1 << 30, allow_unicode=True, sort_keys=False
    )
    return text.strip()


def show_path(path: Path) -> str:
    """A path as short as it can be typed from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def run_argument(path: Path) -> str:
    """A run as a command takes it: its name where the default folder holds it, else its path."""
    in_default = path.parent == Path("runs").absolute()
    return shlex.quote(path.name if in_default else show_path(path))
