"""What both doctors give: findings, errors first. Standard library only, as all that the machine's loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["error", "warning", "info", "ok"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result: what was seen, why it matters, what to do."""

    level: Level
    name: str
    what: str
    why: str = ""
    fix: str = ""


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first."""
    return sorted(findings, key=lambda finding: get_args(Level).index(finding.level))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.level == "error" for finding in findings)
