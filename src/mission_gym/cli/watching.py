"""`watch`: the live dashboard of a runs folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import RenderableType
from rich.live import Live

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.cli.flags import FolderFlags, Switch, parse, said
from mission_gym.report.dashboard.guard import is_loopback
from mission_gym.report.dashboard.index import Index
from mission_gym.report.dashboard.serve import PORT, serve
from mission_gym.report.overview import view_overview
from mission_gym.report.screen.live import make_console
from mission_gym.report.screen.streams import inert, say
from mission_gym.store.metrics import read_metrics

_EVERY_S = 1.0  # between two looks of `--terminal`


@dataclass(kw_only=True)
class WatchFlags(FolderFlags):
    """Flags of `watch`."""

    port: Annotated[
        int, tyro.conf.arg(metavar="N", help="Port; the next free one if it is taken, any free one with 0.")
    ] = PORT
    host: Annotated[
        str, said("Address to listen on. Without it: 127.0.0.1, this machine alone.", "ADDRESS")
    ] = "127.0.0.1"
    notebook: Annotated[
        Switch, said("As mg.watch() starts it: pages of this machine may frame it; it ends with its stdin.")
    ] = False
    terminal: Annotated[Switch, said("Show the runs here instead of in a browser.")] = False


def watch(args: Sequence[str]) -> None:
    """`mission-gym watch`."""
    flags = parse(WatchFlags, args, "watch", "Show the runs of a folder in a browser, live.")
    if flags.terminal:
        with suppress(KeyboardInterrupt):
            _show_here(flags.runs_dir)
        return
    metrics = [*read_metrics(), *(metric for algo in ALGORITHMS for metric in load_algorithm(algo).metrics)]
    if not is_loopback(flags.host):
        say(f"everybody who reaches {flags.host} and knows the token can read these runs, unencrypted")

    def tell(address: str, note: str) -> None:
        print(inert(address), flush=True)
        say(note)
        say(f"showing {flags.runs_dir}; Ctrl-C ends it")

    with suppress(KeyboardInterrupt):  # the usual way to end it
        serve(flags.runs_dir, metrics, flags.host, flags.port, tell, in_notebook=flags.notebook)


def _show_here(runs_dir: Path) -> None:
    """The runs as a table that follows them; once, where there is no terminal."""
    console, index = make_console(), Index(runs_dir)

    def look() -> RenderableType:
        found = index.changes(0)
        return view_overview(
            found["rows"], found["groups"], found["problem"] or str(runs_dir), time.time(), console.height - 6
        )

    if not console.is_terminal:
        console.print(look())
        return
    with Live(look(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(look(), refresh=True)
