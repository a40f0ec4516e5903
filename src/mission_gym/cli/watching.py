"""`watch`: the live dashboard of a runs folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import tyro

from mission_gym.algorithms import ALGORITHMS, load_algorithm
from mission_gym.cli.flags import FolderFlags, parse, said
from mission_gym.screen.streams import inert, say
from mission_gym.store.metrics import read_metrics
from mission_gym.watch.guard import is_loopback
from mission_gym.watch.serve import PORT, serve


@dataclass(kw_only=True)
class WatchFlags(FolderFlags):
    """Flags of `watch`."""

    port: Annotated[
        int, tyro.conf.arg(metavar="N", help="Port; the next free one if it is taken, any free one with 0.")
    ] = PORT
    host: Annotated[
        str, said("Address to listen on. Without it: 127.0.0.1, this machine alone.", "ADDRESS")
    ] = "127.0.0.1"


def watch(args: Sequence[str]) -> None:
    """`mission-gym watch`."""
    flags = parse(WatchFlags, args, "watch", "Show the runs of a folder in a browser, live.")
    metrics = [*read_metrics(), *(metric for algo in ALGORITHMS for metric in load_algorithm(algo).metrics)]
    if not is_loopback(flags.host):
        say(f"everybody who reaches {flags.host} and knows the token can read these runs, unencrypted")

    def tell(address: str, note: str) -> None:
        print(inert(address), flush=True)
        say(note)
        say(f"showing {flags.runs_dir}; Ctrl-C ends it")

    with suppress(KeyboardInterrupt):  # the usual way to end it
        serve(flags.runs_dir, metrics, flags.host, flags.port, tell)
