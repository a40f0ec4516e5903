"""An append-only journal of JSON lines, which several processes write; what was appended is on the disk.

Rows come whole or (DiskError) not at all. One torn by a kill or a power cut is not seen by readers, and is
cut off by the next writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mission_gym.store import lock
from mission_gym.store.tables import MetricsLog

_WAIT_S = 30.0  # for other writers, each of which takes milliseconds


class Journal:
    """A journal by its path; it is opened for each append, so that a handle costs nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, all of them or none."""
        with lock.hold(self.path.with_name(f".{self.path.name}-lock"), wait_s=_WAIT_S):
            table = MetricsLog(self.path)
            try:
                table.append_all(rows)
                table.position()  # the disk has it
            finally:
                table.close()

    def read(self) -> list[dict[str, Any]]:
        """All whole rows; RunStateError for a damaged one."""
        return MetricsLog.read(self.path)
