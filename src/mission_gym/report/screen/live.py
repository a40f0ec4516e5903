"""The terminal: documents as JSON or views, and a live run or group.

A live run or group is shown on stderr. In a terminal, one line or table stays below the printed text. Without
a terminal, there are plain lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mission_gym.report.formats import show_count, show_duration, show_number
from mission_gym.report.groups import describe_jobs, show_counts, view_jobs
from mission_gym.report.screen.streams import SafeStream, strip_control
from mission_gym.report.terminal import Event, RunView
from mission_gym.store.files import to_json
from mission_gym.store.groups import GroupDir, Job

_PIPED_WIDTH = 200  # lines of a file need not fit into 80 columns
_RUN_S, _JOBS_S = 5.0, 30.0  # between two plain lines
_PLAY_S = 0.1  # between two updates of a live line


class _InertConsole(Console):
    """A console that sends no control characters but its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=strip_control(segment.text))

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:  # a closed terminal or a full disk
            self.on_broken_pipe()


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints brackets and colons literally."""
    stream: Any = SafeStream(sys.stderr if stderr else sys.stdout)
    console = _InertConsole(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not console.is_jupyter and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def show(document: Any, *, as_json: bool, view: Callable[[Any], RenderableType]) -> None:
    """Print the result of a command on stdout, as JSON or as a view."""
    if as_json:
        sys.stdout.write(f"{json.dumps(to_json(document), indent=2, allow_nan=False)}\n")
        sys.stdout.flush()
    else:
        make_console().print(view(document))


class _LiveView:
    """A context manager that keeps a view below the printed text, if stderr is a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = make_console(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _update(self, view: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(view, refresh=True)


class Screen(_LiveView):
    """Shows a run; `listen` takes its events. log_table: print the metrics of every row of progress.csv."""

    def __init__(self, *, log_table: bool = False) -> None:
        super().__init__()
        self._log_table = log_table
        self._shown_at = time.monotonic()
        self._view = RunView()

    def listen(self, event: Event) -> None:
        """Print the views of an event, or update the progress line."""
        if event["event"] == "status":
            if event["phase"] is not None:  # else the run has ended
                self._view.add(event)
                self._show_progress()
            return
        if event["event"] == "end":
            self._stop()
        for view in self._view.add(event):
            # Lines in a pipe and commands to copy are never wrapped.
            is_whole = isinstance(view, Text) and bool(view.no_wrap or not self._console.is_terminal)
            self._console.print(view, soft_wrap=is_whole)
        if self._log_table and event["event"] == "progress":
            self._console.print(view_metrics(event | {"time/total_timesteps": event["step"]}))

    def _show_progress(self) -> None:
        now = time.monotonic()
        if self._is_live:
            ascii_only = self._console.options.ascii_only
            self._update(self._view.make_line(self._console.width, ascii_only=ascii_only))
        elif now - self._shown_at >= _RUN_S:
            self._shown_at = now
            self._console.print(Text(self._view.show_progress()), soft_wrap=not self._console.is_terminal)


def view_metrics(row: Mapping[str, Any]) -> RenderableType:
    """The sections of a row of progress.csv that Stable-Baselines3 prints, in its form."""
    table = Table(show_header=False, box=box.ASCII)
    table.add_column()
    table.add_column(justify="right")
    section = ""
    for name, value in sorted(row.items()):
        head, _, tail = name.partition("/")
        if head not in ("rollout", "time", "train") or not isinstance(value, int | float):
            continue
        if head != section:
            table.add_row(f"{head}/", "")
            section = head
        table.add_row(f"  {tail}", show_number(value))
    return table


class PlayScreen(_LiveView):
    """Shows the progress of evaluations and videos: a live line in a terminal, else plain lines."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_at = self._begun_at = time.monotonic()

    def expect(self, what: str, num_episodes: int) -> Callable[[int, int], None]:
        """A player begins; returns the function that takes its ended episodes and its steps."""
        self._begun_at = time.monotonic()

        def see(num_ended: int, num_steps: int) -> None:
            spent_s = time.monotonic() - self._begun_at
            left = f", {show_duration(spent_s * (num_episodes / num_ended - 1))} left" if num_ended else ""
            self._show(
                f"{what}: {show_count(num_ended)} of {show_count(num_episodes)} episodes,"
                f" {show_count(num_steps)} steps{left}"
            )

        return see

    def count(self, frames: Iterable[Any]) -> Iterator[Any]:
        """Pass the frames of a video on."""
        self._begun_at = time.monotonic()
        for number, frame in enumerate(frames, 1):
            self._show(f"frame {show_count(number)}, {show_duration(time.monotonic() - self._begun_at)}")
            yield frame
        self._show("writing the video")

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._shown_at < (_PLAY_S if self._is_live else _RUN_S):
            return
        self._shown_at = now
        if self._is_live:
            self._update(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
        else:
            self._console.print(Text(text), soft_wrap=True)


class JobsScreen(_LiveView):
    """Shows a group; `watch` shows its jobs, `say` prints a line above them."""

    def __init__(self, group: GroupDir, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._group, self._quiet = group, quiet
        self._shown_at = -_JOBS_S
        self._states: list[str] = []

    def say(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            self._console.print(strip_control(text), soft_wrap=True, style="dim")

    def watch(self, jobs: Mapping[str, Job]) -> None:
        """Show the jobs: as a table, or as a plain line if a state changed or some time has passed."""
        rows = describe_jobs(self._group, jobs)
        states, now = [row["state"] for row in rows], time.monotonic()
        if self._is_live:
            self._update(view_jobs(rows))
        elif not self._quiet and (states != self._states or now - self._shown_at >= _JOBS_S):
            self._states, self._shown_at = states, now
            self._console.print(show_counts(rows), soft_wrap=True)
