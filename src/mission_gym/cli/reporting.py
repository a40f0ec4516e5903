"""`report`: one self-contained HTML file about runs and groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from mission_gym.cli.flags import FolderFlags, parse, said
from mission_gym.cli.runs import find_named_group
from mission_gym.errors import UsageError
from mission_gym.report.formats import show_path
from mission_gym.report.groups import RunSet
from mission_gym.report.html import make_html
from mission_gym.report.screen.streams import inert, say
from mission_gym.report.sweep_html import make_sweep_html
from mission_gym.report.sweeps import gather_sweep
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir
from mission_gym.store.rundir import RunDir


@dataclass(kw_only=True)
class ReportFlags(FolderFlags):
    """Flags of `report`."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="RUN|GROUP ...", help_behavior_hint=""),
    ] = ()
    out: Annotated[
        Path | None,
        said("Where to. Without it: report.html in the run, or in the current folder.", "FILE.html"),
    ] = None


def report(args: Sequence[str]) -> None:
    """`mission-gym report RUN|GROUP ...`."""
    flags = parse(ReportFlags, args, "report", "Write one self-contained HTML file about runs and groups.")
    if not flags.runs:
        raise UsageError("no run is given; name one or more runs or groups, such as latest [RUN|GROUP ...]")
    if flags.out is not None and flags.out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{flags.out.name!r} is not an HTML file; give a name that ends in .html [--out]")
    if flags.out is not None and not flags.out.absolute().parent.is_dir():
        raise UsageError(f"{flags.out.parent} is not a folder; make it first, or name another place [--out]")
    runs: dict[Path, RunDir] = {}
    groups: list[RunSet] = []
    sweeps: list[GroupDir] = []
    for text in flags.runs:
        group = find_named_group(text, flags.runs_dir)
        if group is None:
            found = [flags.find(text).run]
        elif group.read().kind == "sweep":
            sweeps.append(group)
            groups += gather_sweep(group)
            found = []  # its runs are many
        else:
            # Paths are those of the machine that made the group; its runs lie beside it.
            beside = (RunDir(group.path.parent / Path(path).name) for path in group.read().runs)
            found = [run for run in beside if run.exists]
            variants = {job.run.name: job.request.variant for job in group.read_jobs().values() if job.run}
            of_each = tuple(variants.get(run.name, "") for run in found)
            groups.append(RunSet(group.name, tuple(found), of_each))
        runs |= {run.path: run for run in found}
    if not runs and len(sweeps) == 1:
        page = make_sweep_html(sweeps[0])
    elif not runs:
        raise UsageError(f"{', '.join(flags.runs)} has no run that is there yet [RUN|GROUP ...]")
    else:
        page = make_html(list(runs.values()), groups=groups, sweeps=sweeps)
    alone = next(iter(runs)) if len(runs) == 1 and not sweeps else None
    path = flags.out or (alone or Path()) / "report.html"
    write_atomic(Path(os.path.abspath(path)), page)
    told = [f"sweep {each.name}" for each in sweeps]
    if runs:
        told.append(f"{len(runs)} runs" if alone is None else f"run {alone.name}")
    say(", ".join(told))
    print(inert(show_path(path)))
