"""`watch`: the live dashboard of a runs folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import RenderableType
from rich.live import Live

from mission_gym.algorithms import list_metrics
from mission_gym.cli.flags import FolderFlags, Switch, flag, parse
from mission_gym.report.dashboard.guard import is_loopback
from mission_gym.report.dashboard.index import Index
from mission_gym.report.dashboard.serve import PORT, serve
from mission_gym.report.overview import view_overview
from mission_gym.report.screen.live import make_console
from mission_gym.report.screen.streams import say, strip_control

_EVERY_S = 1.0  # between two updates of `--terminal`


@dataclass(kw_only=True)
class WatchFlags(FolderFlags):
    """Flags of `watch`."""

    port: Annotated[int, flag("Port, or the next free one; 0 takes any free port.", "N", default=None)] = PORT
    host: Annotated[str, flag("Address to listen on.", "ADDRESS", default=None)] = "127.0.0.1"
    notebook: Annotated[Switch, flag("Allow notebooks to embed it, and end with stdin.")] = False
    terminal: Annotated[Switch, flag("Show the runs in the terminal instead of a browser.")] = False


def watch(args: Sequence[str]) -> None:
    """`mission-gym watch`."""
    flags = parse(WatchFlags, args, "watch", "Show the runs of a folder live in a browser.")
    if flags.terminal:
        with suppress(KeyboardInterrupt):
            _show_in_terminal(flags.runs_dir)
        return
    if not is_loopback(flags.host):
        say(f"anyone who can reach {flags.host} and knows the token can read these runs, unencrypted")

    def report(address: str, note: str) -> None:
        print(strip_control(address), flush=True)
        say(note)
        say(f"showing {flags.runs_dir}; press Ctrl-C to end")

    with suppress(KeyboardInterrupt):  # the usual end
        serve(flags.runs_dir, list_metrics(), flags.host, flags.port, report, in_notebook=flags.notebook)


def _show_in_terminal(runs_dir: Path) -> None:
    """Show a table of the runs, updated in a terminal, once in a pipe."""
    console, index = make_console(), Index(runs_dir)

    def make_view() -> RenderableType:
        found = index.changes(0)
        folder = found["problem"] or str(runs_dir)
        return view_overview(found["rows"], found["groups"], folder, time.time(), console.height - 6)

    if not console.is_terminal:
        console.print(make_view())
        return
    with Live(make_view(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(make_view(), refresh=True)
