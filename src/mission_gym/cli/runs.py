"""`runs list | show | compare | lineage | timeline | clean`, `config` and `report`: stored runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.cli.flags import (
    FolderFlags,
    ReadFlags,
    RunName,
    Subcommand,
    Switch,
    flag,
    parse,
    run_subcommand,
)
from mission_gym.cli.groups import find_named_group
from mission_gym.config.sizes import parse_count
from mission_gym.errors import UsageError, nearest
from mission_gym.fleet.groups import GroupDeletion, find_removable_group, plan_group_removal, remove_group
from mission_gym.fleet.queue import Queue
from mission_gym.report.documents import (
    compare_runs,
    describe_config,
    describe_run_fully,
    list_documents,
    skip_damaged,
    trace_lineage,
)
from mission_gym.report.formats import show_amount, show_count, show_number, show_path
from mission_gym.report.groups import (
    RunSet,
    compare_groups,
    gather_runs,
    make_comparison_csv,
    make_group_html,
    view_group_comparison,
)
from mission_gym.report.html import make_html
from mission_gym.report.pages import make_timeline_html
from mission_gym.report.screen.live import show
from mission_gym.report.screen.streams import say, strip_control
from mission_gym.report.sweeps import gather_sweep, make_sweep_html
from mission_gym.report.tables import view_comparison, view_config, view_lineage, view_run, view_runs
from mission_gym.report.timeline import describe_time, view_time
from mission_gym.run.retention import clean, find_removable, plan_cleaning, plan_removal
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir

RunNames = Annotated[tyro.conf.Positional[tuple[str, ...]], flag("Runs and groups.", "RUN|GROUP ...")]


_STATES = ("starting", "running", "done", "stopped", "failed")
_SORTS = {  # keys of a row
    "age": ("created",), "name": ("name",), "step": ("step",), "rate": ("fps",), "return": ("return_mean",),
    "best": ("best_outcome", "best_return"),
}  # fmt: skip


@dataclass(kw_only=True)
class ListFlags(ReadFlags):
    """Flags of `runs list`."""

    env: Annotated[str | None, flag("Only runs whose environment contains this text.", "TEXT")] = None
    state: Annotated[str | None, flag("Only runs in this state.", "|".join(_STATES))] = None
    sort: Annotated[
        str, flag("Order; the newest or highest comes last (default: age).", "|".join(_SORTS))
    ] = "age"
    limit: Annotated[str | None, flag("Number of runs, from the end of the list.", "N")] = None


@dataclass(kw_only=True)
class OneRun(ReadFlags):
    """Flags of a command about one run."""

    run: RunName


@dataclass(kw_only=True)
class TimelineFlags(OneRun):
    """Flags of `runs timeline`."""

    out: Annotated[Path | None, flag("Output file (default: timeline.html in the run).", "FILE.html")] = None


@dataclass(kw_only=True)
class CompareFlags(ReadFlags):
    """Flags of `runs compare`."""

    runs: RunNames = ()
    csv: Annotated[Path | None, flag("File to write, with one line per run.", "FILE.csv")] = None
    html: Annotated[Path | None, flag("Page to write, with curves.", "FILE.html")] = None


@dataclass(kw_only=True)
class CleanFlags(ReadFlags):
    """Flags of `runs clean`."""

    runs: RunNames = ()
    yes: Annotated[Switch, flag("Delete; without it, the command only lists.")] = False


@dataclass(kw_only=True)
class ReportFlags(FolderFlags):
    """Flags of `report`."""

    runs: RunNames = ()
    out: Annotated[
        Path | None, flag("Output file (default: report.html in the run or here).", "FILE.html")
    ] = None


def runs(args: Sequence[str]) -> int | None:
    """`mission-gym runs ...`."""
    return run_subcommand("runs", _COMMANDS, args)


def config(args: Sequence[str]) -> None:
    """`mission-gym config RUN`."""
    flags = parse(OneRun, args, "config", "Print every value of a run with its source.")
    show(describe_config(flags.find(flags.run).run), as_json=flags.json, view=view_config)


def _list(args: Sequence[str]) -> None:
    flags = parse(ListFlags, args, "runs list", "List the runs, the newest last.")
    if flags.state is not None and flags.state not in _STATES:
        raise UsageError(
            f"{flags.state!r} is not a state{nearest(flags.state, _STATES)}; use one of {', '.join(_STATES)}"
            " [--state]"
        )
    if flags.sort not in _SORTS:
        raise UsageError(
            f"runs can't be sorted by {flags.sort!r}{nearest(flags.sort, _SORTS)}; use one of"
            f" {', '.join(_SORTS)} [--sort]"
        )
    limit = None if flags.limit is None else parse_count(flags.limit)
    every = list_documents(flags.runs_dir, say)
    rows = [row for row in every if flags.state in (None, row["state"])]
    if flags.env is not None:
        rows = [row for row in rows if flags.env.lower() in str(row["env_id"]).lower()]
    rows.sort(key=lambda row: [(row[key] is not None, row[key] or 0) for key in _SORTS[flags.sort]])
    if limit is not None:
        rows = rows[-limit:] if limit else []
    if not every:
        say(f"no runs in {flags.runs_dir}; `mission-gym train ENV` makes one")
    elif len(rows) < len(every):
        say(f"{len(rows)} of {show_amount(len(every), 'run')}")
    show(rows, as_json=flags.json, view=partial(view_runs, now=time.time()))


def _show(args: Sequence[str]) -> None:
    flags = parse(OneRun, args, "runs show", "Show all details of a run.")
    show(describe_run_fully(flags.find(flags.run).run, say), as_json=flags.json, view=view_run)


def _compare(args: Sequence[str]) -> None:
    flags = parse(CompareFlags, args, "runs compare", "Compare the results and configs of runs or groups.")
    groups = [find_named_group(text, flags.runs_dir) for text in flags.runs]
    if len(groups) < 2 and not (groups and _is_sweep(groups[0])):
        raise UsageError(f"{len(flags.runs)} runs are given; a comparison needs two or more [RUN|GROUP ...]")
    if not any(groups) and not (flags.csv or flags.html):
        document = compare_runs([flags.find(text).run for text in flags.runs], say)
        show(document, as_json=flags.json, view=view_comparison)
        return
    sets: list[RunSet] = []
    for text, group in zip(flags.runs, groups, strict=True):
        if group is None:
            sets.append(RunSet(text, (flags.find(text).run,)))
        elif _is_sweep(group):
            sets += gather_sweep(group)
        else:
            sets.append(gather_runs(group, say))
    if not sets:
        raise UsageError(f"{', '.join(flags.runs)} has no run on fresh seeds yet [RUN|GROUP ...]")
    document = compare_groups(sets, say)
    show(document, as_json=flags.json, view=view_group_comparison)
    if flags.csv:
        write_atomic(flags.csv, make_comparison_csv(document))
    if flags.html:
        write_atomic(flags.html, make_group_html(" and ".join(each.name for each in sets), document))


def _is_sweep(group: GroupDir | None) -> bool:
    return group is not None and group.read().kind == "sweep"


def _lineage(args: Sequence[str]) -> None:
    flags = parse(OneRun, args, "runs lineage", "Show the ancestors and descendants of a run.")
    document = trace_lineage(flags.find(flags.run).run, flags.runs_dir, say)
    show(document, as_json=flags.json, view=view_lineage)


def _timeline(args: Sequence[str]) -> None:
    text = "Show where a run's time went and what its bottleneck is, and write a page with its last updates."
    flags = parse(TimelineFlags, args, "runs timeline", text)
    run = flags.find(flags.run).run
    path = flags.out or run.path / "timeline.html"
    _check_page(path)
    document = describe_time(run)
    show(document, as_json=flags.json, view=view_time)
    write_atomic(path, make_timeline_html(document))
    say(f"page     {show_path(path)}")


def _check_page(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path.name!r} is not an HTML file; use a name that ends in .html [--out]")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist; create it or use another one [--out]")


def _clean(args: Sequence[str]) -> None:
    text = "Delete runs and groups, or else the checkpoints of all runs that the retention rules drop."
    flags = parse(CleanFlags, args, "runs clean", text)
    groups: list[GroupDeletion] = []
    if flags.runs:
        named: list[RunDir] = []
        for name in flags.runs:
            if found := find_removable_group(name, flags.runs_dir):
                groups.append(plan_group_removal(found[0], Queue()))
                named += groups[-1].runs
                say(found[1])
            else:
                ref = find_removable(name, flags.runs_dir)
                named.append(ref.run)
                say(ref.note)
        deletions = plan_removal(list({run.path: run for run in named}.values()))
    else:
        deletions = []
        for run in list_runs(flags.runs_dir):
            with skip_damaged(run, say):
                deletions += plan_cleaning([run])
    items = [item.document() for item in deletions] + [item.document() for item in groups]
    if flags.yes:
        clean(deletions)
        for each in groups:
            remove_group(each.group, Queue())
    show({"deleted": flags.yes, "items": items}, as_json=flags.json, view=_view_cleaning)
    if items and not flags.yes:
        say("nothing was deleted; add --yes to delete")


def _view_cleaning(document: dict[str, Any]) -> RenderableType:
    lines = []
    for item in document["items"]:
        size = f"{show_number(item['size_bytes'] / 1e6)} MB"
        others = f"; {item['num_foreign']} foreign files stay" if item["num_foreign"] else ""
        if "group" in item:
            lines.append(Text(f"{item['group']}  the group's folder  {size}{others}"))
            continue
        what = "whole run" if item["step"] is None else f"checkpoint {show_count(item['step'])}"
        children = f", parent of {', '.join(item['children'])}" if item["children"] else ""
        lines.append(Text(f"{item['run']}  {what}  {size}{children}{others}"))
    return Group(*lines) if lines else Text("nothing to delete")


def report(args: Sequence[str]) -> None:
    """`mission-gym report RUN|GROUP ...`."""
    flags = parse(ReportFlags, args, "report", "Write one self-contained HTML file about runs and groups.")
    if not flags.runs:
        raise UsageError("no run is given; name one or more runs or groups, such as latest [RUN|GROUP ...]")
    if flags.out is not None:
        _check_page(flags.out)
    found: dict[Path, RunDir] = {}
    groups: list[RunSet] = []
    sweeps: list[GroupDir] = []
    for text in flags.runs:
        group = find_named_group(text, flags.runs_dir)
        if group is not None and _is_sweep(group):
            sweeps.append(group)
            groups += gather_sweep(group)  # without the panels of its many runs
            continue
        if group is None:
            members = [flags.find(text).run]
        else:
            # The stored paths may be of another machine; the runs are next to the group's folder.
            paths = (RunDir(group.path.parent / Path(path).name) for path in group.read().runs)
            members = [run for run in paths if run.exists]
            variants = {job.run.name: job.request.variant for job in group.read_jobs().values() if job.run}
            of_each = tuple(variants.get(run.name, "") for run in members)
            groups.append(RunSet(group.name, tuple(members), of_each))
        found |= {run.path: run for run in members}
    if found:
        page = make_html(list(found.values()), groups=groups, sweeps=sweeps)
    elif len(sweeps) == 1:
        page = make_sweep_html(sweeps[0])
    else:
        raise UsageError(f"{', '.join(flags.runs)} has no existing run yet [RUN|GROUP ...]")
    single = next(iter(found)) if len(found) == 1 and not sweeps else None
    path = flags.out or (single or Path()) / "report.html"
    write_atomic(Path(os.path.abspath(path)), page)
    parts = [f"sweep {each.name}" for each in sweeps]
    if found:
        parts.append(show_amount(len(found), "run") if single is None else f"run {single.name}")
    say(", ".join(parts))
    print(strip_control(show_path(path)))


_COMMANDS = {
    "list": Subcommand(_list, "list the runs, the newest last"),
    "show": Subcommand(_show, "show all details of a run"),
    "compare": Subcommand(_compare, "compare the results and configs of runs or groups"),
    "lineage": Subcommand(_lineage, "show the ancestors and descendants of a run"),
    "timeline": Subcommand(_timeline, "show where a run's time went"),
    "clean": Subcommand(_clean, "delete runs, groups or expired checkpoints"),
}
