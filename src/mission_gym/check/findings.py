"""What both doctors give: findings, errors first. Standard library only, as all that the machine's loads.

Their sentences are in findings.toml; judges decide which of them hold, and give the values.
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
    """One result: what was seen, why it matters, what to do."""

    level: Level
    name: str
    what: str
    why: str = ""
    fix: str = ""


@cache
def read_texts() -> dict[str, dict[str, dict[str, Any]]]:
    """The sentences by name and case."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def tell(name: str, case: str, /, **values: Any) -> Finding:
    """A finding of the table, with the values that its sentences hold."""
    text = read_texts()[name][case]
    sentences = (text.get(part, "").format_map(values) for part in ("what", "why", "fix"))
    return Finding(text["level"], name, *sentences)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first."""
    return sorted(findings, key=lambda finding: get_args(Level).index(finding.level))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.level == "error" for finding in findings)
