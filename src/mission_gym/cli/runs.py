"""`runs list | show | compare | lineage | timeline | clean` and `config`: what is on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.cli.flags import ReadFlags, RunName, Switch, parse, said
from mission_gym.cli.output import show
from mission_gym.errors import RunStateError, UsageError, nearest
from mission_gym.fleet.groups import (
    GroupDeletion,
    find_removable_group,
    plan_group_removal,
    remove_group,
)
from mission_gym.fleet.queue import Queue
from mission_gym.report.documents import (
    compare_runs,
    describe_config,
    describe_run,
    describe_run_fully,
    leaving_out,
    trace_lineage,
)
from mission_gym.report.formats import show_count, show_number, show_path
from mission_gym.report.group_html import make_group_html
from mission_gym.report.groups import (
    RunSet,
    compare_groups,
    gather_runs,
    make_comparison_csv,
    view_group_comparison,
)
from mission_gym.report.screen.streams import say
from mission_gym.report.sweeps import gather_sweep
from mission_gym.report.tables import view_comparison, view_config, view_lineage, view_run, view_runs
from mission_gym.report.timeline import make_png
from mission_gym.report.timing import describe_time, view_time
from mission_gym.run.retention import clean, find_removable, plan_cleaning, plan_removal
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir, find_group
from mission_gym.store.resolve import STAMP, list_runs
from mission_gym.store.rundir import RunDir


@dataclass(kw_only=True)
class OneRun(ReadFlags):
    """Flags of a command about one run."""

    run: Annotated[RunName, tyro.conf.arg(help="The run.")]


@dataclass(kw_only=True)
class SeveralRuns(ReadFlags):
    """Flags of a command about several runs."""

    runs: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN ...", help_behavior_hint="")
    ] = ()


@dataclass(kw_only=True)
class CompareFlags(SeveralRuns):
    """Flags of `runs compare`."""

    csv: Annotated[Path | None, said("Write one line per run there.", "FILE.csv")] = None
    html: Annotated[Path | None, said("Write the report there, with curves.", "FILE.html")] = None


@dataclass(kw_only=True)
class CleanFlags(SeveralRuns):
    """Flags of `runs clean`."""

    yes: Annotated[Switch, said("Delete; without it nothing is.")] = False


@dataclass(kw_only=True)
class TimelineFlags(OneRun):
    """Flags of `runs timeline`."""

    out: Annotated[Path | None, said("Where to. Without it: timeline.png in the run.", "FILE.png")] = None


def runs(args: Sequence[str]) -> None:
    """`mission-gym runs ...`."""
    name = args[0] if args else ""
    if name in ("-h", "--help"):
        print("usage: mission-gym runs list|show|compare|lineage|timeline|clean [...]")
    elif not name:
        raise UsageError(f"name one of the commands of runs: {', '.join(_VIEWS)}")
    elif name not in _VIEWS:
        known = ", ".join(_VIEWS)
        raise UsageError(f"{name!r} is not a command of runs{nearest(name, _VIEWS)}; it has {known}")
    else:
        _VIEWS[name](args[1:])


def config(args: Sequence[str]) -> None:
    """`mission-gym config RUN`."""
    flags = parse(OneRun, args, "config", "Print every value of a run with its source.")
    show(describe_config(flags.find(flags.run).run), as_json=flags.json, view=view_config)


def _list(args: Sequence[str]) -> None:
    flags = parse(ReadFlags, args, "runs list", "List the runs, the newest last.")
    rows = []
    for run in list_runs(flags.runs_dir):
        with leaving_out(run, say):
            rows.append(describe_run(run))
    if not rows:
        say(f"no runs in {flags.runs_dir}; `mission-gym train ENV` makes one")
    show(rows, as_json=flags.json, view=view_runs)


def _show(args: Sequence[str]) -> None:
    flags = parse(OneRun, args, "runs show", "Tell everything about a run.")
    show(describe_run_fully(flags.find(flags.run).run, say), as_json=flags.json, view=view_run)


def _compare(args: Sequence[str]) -> None:
    flags = parse(CompareFlags, args, "runs compare", "Compare results and configs of runs, or of groups.")
    groups = [find_named_group(text, flags.runs_dir) for text in flags.runs]
    if len(groups) < 2 and not (groups and _is_sweep(groups[0])):
        raise UsageError(f"{len(flags.runs)} runs are given; a comparison needs two or more [RUN ...]")
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
        raise UsageError(f"{', '.join(flags.runs)} has no run on fresh seeds yet [RUN ...]")
    document = compare_groups(sets, say)
    show(document, as_json=flags.json, view=view_group_comparison)
    if flags.csv:
        write_atomic(flags.csv, make_comparison_csv(document))
    if flags.html:
        write_atomic(flags.html, make_group_html(" and ".join(each.name for each in sets), document))


def _is_sweep(group: GroupDir | None) -> bool:
    return group is not None and group.read().kind == "sweep"


def find_named_group(text: str, runs_dir: Path) -> GroupDir | None:
    """The group that is meant; None if that is a run, or nothing. A run of just this name comes first."""
    named = [run.name for run in list_runs(runs_dir)]
    if text == "latest" or text in named or text in [STAMP.sub("", name) for name in named]:
        return None
    try:
        group, note = find_group(text, runs_dir)
    except RunStateError:
        return None
    say(note)
    return group


def _lineage(args: Sequence[str]) -> None:
    flags = parse(OneRun, args, "runs lineage", "Tell where a run came from and what came from it.")
    document = trace_lineage(flags.find(flags.run).run, flags.runs_dir, say)
    show(document, as_json=flags.json, view=view_lineage)


def _timeline(args: Sequence[str]) -> None:
    text = "Tell where a run's time went and what bounds it; draw its last updates."
    flags = parse(TimelineFlags, args, "runs timeline", text)
    run = flags.find(flags.run).run
    path = flags.out or run.path / "timeline.png"
    if path.suffix.lower() != ".png":
        raise UsageError(f"{path.name!r} is not a PNG; give a name that ends in .png [--out]")
    document = describe_time(run)
    show(document, as_json=flags.json, view=view_time)
    write_atomic(path, make_png(document))
    say(f"picture  {show_path(path)}")


def _clean(args: Sequence[str]) -> None:
    text = (
        "Delete the runs and groups that are named, or else the checkpoints of all runs that retention drops."
    )
    flags = parse(CleanFlags, args, "runs clean", text)
    groups: list[GroupDeletion] = []
    if flags.runs:
        named: list[RunDir] = []
        for text in flags.runs:
            if found := find_removable_group(text, flags.runs_dir):
                groups.append(plan_group_removal(found[0], Queue()))
                named += groups[-1].runs
                say(found[1])
            else:
                ref = find_removable(text, flags.runs_dir)
                named.append(ref.run)
                say(ref.note)
        doomed = plan_removal(list({run.path: run for run in named}.values()))
    else:
        doomed = []
        for run in list_runs(flags.runs_dir):
            with leaving_out(run, say):
                doomed += plan_cleaning([run])
    items = [item.document() for item in doomed] + [item.document() for item in groups]
    if flags.yes:
        clean(doomed)
        for each in groups:
            remove_group(each.group, Queue())
    show({"deleted": flags.yes, "items": items}, as_json=flags.json, view=_view_cleaning)
    if items and not flags.yes:
        say("nothing was deleted; --yes does it")


def _view_cleaning(document: dict[str, Any]) -> RenderableType:
    lines = []
    for item in document["items"]:
        size = f"{show_number(item['size_bytes'] / 1e6)} MB"
        others = f"; {item['num_foreign']} files that are not ours stay" if item["num_foreign"] else ""
        if "group" in item:
            lines.append(Text(f"{item['group']}  the group's folder  {size}{others}"))
            continue
        what = "whole run" if item["step"] is None else f"checkpoint {show_count(item['step'])}"
        children = f", parent of {', '.join(item['children'])}" if item["children"] else ""
        lines.append(Text(f"{item['run']}  {what}  {size}{children}{others}"))
    return Group(*lines) if lines else Text("nothing to delete")


_VIEWS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": _list,
    "show": _show,
    "compare": _compare,
    "lineage": _lineage,
    "timeline": _timeline,
    "clean": _clean,
}
