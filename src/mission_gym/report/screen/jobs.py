"""A group as it goes on: one table that stays in place, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.live import Live

from mission_gym.report.groups import describe_jobs, tell_counts, view_jobs
from mission_gym.report.screen.live import make_console
from mission_gym.report.screen.streams import inert
from mission_gym.store.groups import GroupDir, Job

_PLAIN_S = 30.0


class JobsScreen:
    """A context manager; `watch` shows jobs, `say` prints a line above them. Nothing is drawn by a thread."""

    def __init__(self, group: GroupDir, *, quiet: bool = False) -> None:
        self._group, self._quiet = group, quiet
        self._console = make_console(stderr=True)
        self._live: Live | None = None
        self._shown_at = -_PLAIN_S
        self._states: list[str] = []

    def __enter__(self) -> JobsScreen:
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            self._console.print(inert(text), soft_wrap=True, style="dim")

    def watch(self, jobs: Mapping[str, Job]) -> None:
        """Show where the jobs stand."""
        rows = describe_jobs(self._group, jobs)
        if self._live is not None:
            self._live.update(view_jobs(rows), refresh=True)
        elif not self._quiet and self._is_news(rows):
            self._console.print(tell_counts(rows), soft_wrap=True)

    def _is_news(self, rows: list[dict[str, Any]]) -> bool:
        """Whether a plain line is due: a state changed, or some time has passed."""
        states, now = [row["state"] for row in rows], time.monotonic()
        if states == self._states and now - self._shown_at < _PLAIN_S:
            return False
        self._states, self._shown_at = states, now
        return True
