"""`bench NAME`: performance figures of this machine, peers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from mission_gym.cli.flags import AsJson, Switch, parse, said
from mission_gym.cli.output import messages_to_stderr, show
from mission_gym.report.tables import view_bench, view_faults

_PROOFS = ("faults", "soak", "bridge")  # whose rows must hold; the others are measurements


@dataclass(kw_only=True)
class BenchFlags:
    """Flags of `bench`."""

    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="NAME",
            help="ppo, dqn, learning, defaults, vector, waiting, bridge, capture, territory, overlap, tune,"
            " fleet, watch, images, gpu, ray, soak, faults or accounting.",
        ),
    ]
    full: Annotated[Switch, said("The whole grid; the default takes under ten minutes.")] = False
    pretend: Annotated[
        Switch, said("gpu: count kernels and waits on a pretended card; no GPU is needed.")
    ] = False
    json: AsJson = False


def bench(args: Sequence[str]) -> int:
    """`mission-gym bench NAME`; 1 if something that must hold does not."""
    flags = parse(BenchFlags, args, "bench", "Reproduce performance figures on this machine.")
    from mission_gym_bench.main import run_bench

    with messages_to_stderr():
        rows = run_bench(flags.name, full=flags.full, pretend=flags.pretend)
    show(rows, as_json=flags.json, view=view_faults if flags.name == "faults" else view_bench)
    return int(any(row.get("holds") is False for row in rows if flags.name in _PROOFS))
