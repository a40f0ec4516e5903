"""Findings of both checks, errors first. Only the standard library, like everything that `doctor` loads.

Their sentences are in findings.toml; the checks choose them and provide the values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Level = Literal["error", "warning", "info", "ok"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result: the observation, its importance and the remedy."""

    level: Level
    name: str
    what: str
    why: str = ""
    fix: str = ""


@cache
def read_texts() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the sentences by name and case."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def make_finding(name: str, case: str, /, **values: Any) -> Finding:
    """Make a finding of the table, with the values for its sentences."""
    text = read_texts()[name][case]
    sentences = (text.get(part, "").format_map(values) for part in ("what", "why", "fix"))
    return Finding(text["level"], name, *sentences)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by level, errors first."""
    return sorted(findings, key=lambda finding: get_args(Level).index(finding.level))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether any finding is an error."""
    return any(finding.level == "error" for finding in findings)
