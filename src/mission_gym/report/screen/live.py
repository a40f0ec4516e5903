"""A console, and a run as it happens on it.

All of a run goes to stderr. In a terminal one live line stays below what is printed; without one there are
plain lines, at most one in five seconds and one per evaluation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from mission_gym.report.screen.streams import PatientStream, inert
from mission_gym.report.terminal import Event, RunView

_PIPED_WIDTH = 200  # no cell is folded for a file that nobody looks at through 80 columns
_PLAIN_S = 5.0


class _InertConsole(Console):
    """A console that sends no control characters but its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=inert(segment.text))

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a terminal that was closed, a full disk
            self.on_broken_pipe()


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: brackets and colons in it mean nothing."""
    stream: Any = PatientStream(sys.stderr if stderr else sys.stdout)
    console = _InertConsole(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not console.is_jupyter and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


class Screen:
    """A context manager that gives the listener of a run."""

    def __init__(self) -> None:
        self._console = make_console(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._shown_at = time.monotonic()
        self._view = RunView()

    def __enter__(self) -> Callable[[Event], None]:
        return self._listen

    def __exit__(self, *error: object) -> None:
        self._stop_live()

    def _listen(self, event: dict[str, Any]) -> None:
        if event["event"] == "status":
            if event["phase"] is not None:  # else the run is over, and said so
                self._view.see(event)
                self._show_line()
            return
        if event["event"] == "end":
            self._stop_live()
        for view in self._view.see(event):
            # The lines of a pipe stay whole, and so do commands, which are copied from any width.
            is_whole = isinstance(view, Text) and bool(view.no_wrap or not self._console.is_terminal)
            self._console.print(view, soft_wrap=is_whole)

    def _show_line(self) -> None:
        now = time.monotonic()
        if self._is_live:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            line = self._view.make_line(self._console.width, ascii_only=self._console.options.ascii_only)
            self._live.update(line, refresh=True)
        elif now - self._shown_at >= _PLAIN_S:
            self._shown_at = now
            self._console.print(Text(self._view.show_words()), soft_wrap=not self._console.is_terminal)

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
