"""`jobs run | check | add | status | logs | stop | resume | wait | example`: groups of packed runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mission_gym.cli.flags import (
    AsJson,
    CudaMps,
    FolderFlags,
    ReadFlags,
    Subcommand,
    Switch,
    Trust,
    flag,
    parse,
    run_subcommand,
)
from mission_gym.cli.groups import (
    find_problems,
    find_reported_group,
    follow_group,
    leave_group,
    list_flag_names,
    resolve_values,
    show_result,
)
from mission_gym.errors import RunStateError, UsageError, nearest
from mission_gym.fleet.groups import ask_jobs, open_group
from mission_gym.fleet.jobfile import make_example, read_job_file
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import find_needs, inherit, make_requests
from mission_gym.fleet.supervisor import TICK_S
from mission_gym.fleet.wait import serve, wait_for_jobs
from mission_gym.learner.loop import StopFlag
from mission_gym.procs import usable_cores
from mission_gym.ray.cluster import load_ray, open_cluster
from mission_gym.report.formats import show_path
from mission_gym.report.groups import describe_jobs, view_groups_jobs
from mission_gym.report.screen.live import JobsScreen, show
from mission_gym.report.screen.streams import say, strip_control
from mission_gym.run.signals import stop_on_signals
from mission_gym.store.groups import GroupDir, list_groups

_FileName = Annotated[tyro.conf.Positional[Path], flag("Job file.", "FILE.yaml")]


@dataclass(kw_only=True)
class JobsCheckFlags:
    """Flags of `jobs check`."""

    file: _FileName
    json: AsJson = False


@dataclass(kw_only=True)
class RunFlags(ReadFlags):
    """Flags of `jobs run` and `jobs add`."""

    file: _FileName
    detach: Annotated[Switch, flag("Run the jobs in the background.")] = False
    cuda_mps: CudaMps = None
    on: Annotated[Literal["here", "ray"], flag("This machine (default) or a Ray cluster.", "here|ray")] = (
        "here"
    )
    ray_address: Annotated[
        str | None, flag("Cluster: auto, or HOST:PORT of its head (default: start one here).", "ADDRESS")
    ] = None
    trust: Trust = False


@dataclass(kw_only=True)
class GroupFlags(ReadFlags):
    """Flags of `jobs wait`."""

    group: Annotated[
        tyro.conf.Positional[str | None], flag("Group (default: unfinished ones, else the newest).", "GROUP")
    ] = None


@dataclass(kw_only=True)
class JobsResumeFlags(GroupFlags):
    """Flags of `jobs resume`."""

    trust: Trust = False


@dataclass(kw_only=True)
class StatusFlags(GroupFlags):
    """Flags of `jobs status`."""

    follow: Annotated[Switch, flag("Wait until all jobs have ended.")] = False


@dataclass(kw_only=True)
class LogsFlags(FolderFlags):
    """Flags of `jobs logs`."""

    job: Annotated[tyro.conf.Positional[str], flag("JOB or GROUP/JOB.", "JOB")]
    follow: Annotated[
        Switch,
        tyro.conf.arg(aliases=["-f"], help="Follow the log until the job ends.", help_behavior_hint=""),
    ] = False


@dataclass(kw_only=True)
class StopFlags(FolderFlags):
    """Flags of `jobs stop`."""

    name: Annotated[tyro.conf.Positional[str | None], flag("JOB, GROUP/JOB or GROUP.", "NAME")] = None
    all: Annotated[Switch, flag("Stop every job of the queue.")] = False


@dataclass(kw_only=True)
class ExampleFlags:
    """Flags of `jobs example`."""

    name: Annotated[tyro.conf.Positional[str], flag("four-jobs.", "NAME")]


def jobs(args: Sequence[str]) -> int | None:
    """`mission-gym jobs ...`."""
    return run_subcommand("jobs", _COMMANDS, args)


def _run(args: Sequence[str]) -> int:
    flags = parse(RunFlags, args, "jobs run", "Run the jobs of a file, packed on this machine.")
    queue = Queue()
    group, names = _open_group(queue, flags)
    if flags.detach:
        return leave_group(queue, group, as_json=flags.json)
    return follow_group(queue, group, names, as_json=flags.json)


def _check(args: Sequence[str]) -> int:
    flags = parse(JobsCheckFlags, args, "jobs check", "Check a job file without starting anything.")
    drafts = read_job_file(flags.file, list_flag_names(), find_problems).drafts
    keys = ("name", "seed", "parent", "values")
    rows = [{key: getattr(each, key) for key in keys} for each in drafts]
    say(f"{flags.file} is valid: {len(rows)} runs of {len({each.variant for each in drafts})} jobs")
    show(rows, as_json=flags.json, view=lambda rows: "\n".join(row["name"] for row in rows))
    return 0


def _add(args: Sequence[str]) -> int:
    if "--" in args:
        from mission_gym.cli.train import submit_training

        at = list(args).index("--")
        if args[:at] and not args[0].startswith("--"):
            raise UsageError(f"{args[0]!r} comes before --; give a file, or -- and flags of train")
        return submit_training([*args[:at], *args[at + 1 :]])
    flags = parse(RunFlags, args, "jobs add", "Add the jobs of a file, or -- ENV --FLAGS, to the queue.")
    queue = Queue()
    group, _ = _open_group(queue, flags)
    return leave_group(queue, group, as_json=flags.json)


def _open_group(queue: Queue, flags: RunFlags) -> tuple[GroupDir, list[str]]:
    """Queue the new or continued group of a job file; returns it with the names of its jobs."""
    file = read_job_file(flags.file, list_flag_names(), find_problems)
    runs_dir = Path(file.runs_dir) if file.runs_dir else flags.runs_dir
    more: dict[str, Any] = {"via": os.path.abspath(flags.file)} | ({"trust": True} if flags.trust else {})
    cluster = _find_cluster(flags)
    values: dict[str | None, dict[str, Any]] = {None: {}}
    drafts = []
    for each in file.drafts:  # parents before their children
        values[each.name] = inherit(values[each.parent], each.values)
        needs = find_needs(resolve_values(values[each.name]), on_cluster=cluster is not None)
        drafts.append(each._replace(values=each.values | more, needs=needs))
    requests = make_requests(file.name, drafts, str(runs_dir), flags.cuda_mps or "auto", cluster)
    group, is_new = open_group(queue, file.name, runs_dir, requests, trust=flags.trust)
    if not is_new:
        say(f"{flags.file} continues its group {show_path(group.path)}")
    return group, [request.name for request in requests]


def _find_cluster(flags: RunFlags) -> str | None:
    """The address of the jobs' cluster, "" for one that is started here, None for this machine; UsageError if
    it can't be used."""
    if flags.on == "here":
        if flags.ray_address is not None:
            raise UsageError("ray_address needs --on ray [--ray-address]")
        return None
    load_ray()
    if flags.ray_address is None:
        return ""
    open_cluster(flags.ray_address).close()
    return flags.ray_address


def _status(args: Sequence[str]) -> int:
    text = "Show the jobs of a group; without a group, all that are queued or running."
    flags = parse(StatusFlags, args, "jobs status", text)
    queue = Queue()
    for name, count in queue.list_others().items():
        say(
            f"unfinished groups in the queue of {name}: {count}; if that is this machine under another name, "
            f"`MISSION_GYM_QUEUE={name} mission-gym jobs resume` continues them"
        )
    groups = _find_groups(flags.group, flags.runs_dir)
    if flags.follow:
        return _wait_for(groups[-1], as_json=flags.json)
    rows = []
    for group in groups:
        kind = group.read().kind
        found = describe_jobs(group, group.read_jobs())
        rows += [row | {"group": group.name, "kind": kind} for row in found]
    waiting = queue.explain_waiting()
    for row in rows:
        if row["state"] == "queued" and not row["cause"]:
            row["cause"] = waiting or None
    show(rows, as_json=flags.json, view=view_groups_jobs)
    return 0


def _logs(args: Sequence[str]) -> int:
    flags = parse(LogsFlags, args, "jobs logs", "Print the log of a job.")
    group, names = _find_jobs(flags.job, flags.runs_dir)
    if len(names) > 1:
        raise UsageError(f"{flags.job!r} is a group; name one of its jobs: {', '.join(names)}")
    log = group.log(names[0])
    if not log.exists():
        say(f"{names[0]} has not started")
    position = 0
    while True:
        has_ended = group.read_jobs()[names[0]].has_ended  # before the log is read
        data = b""
        if log.exists():
            with log.open("rb") as file:
                file.seek(position)
                data = file.read()
        position += len(data)
        sys.stdout.write(strip_control(data.decode(errors="replace")))
        sys.stdout.flush()
        if has_ended or not flags.follow:
            return 0
        time.sleep(TICK_S)


def _stop(args: Sequence[str]) -> int:
    flags = parse(StopFlags, args, "jobs stop", "Ask jobs to save and end.")
    queue = Queue()
    if flags.all == (flags.name is not None):
        raise UsageError("give either a job or group, or --all [NAME]")
    if flags.name is None:
        targets = [(group, list(group.read_jobs())) for group in queue.list_groups()]
    else:
        targets = [_find_jobs(flags.name, flags.runs_dir)]
    for group, names in targets:
        if group.read().kind == "sweep" and len(names) == len(group.read_jobs()):
            from mission_gym.cli.sweep import stop_driver

            stop_driver(group)  # else it would add more jobs
    living: list[tuple[GroupDir, list[str]]] = []
    for group, names in targets:
        known = group.read_jobs()
        living.append((group, [name for name in names if not known[name].has_ended]))
        ask_jobs(*living[-1], "stop")
    for group, names in living:
        found = wait_for_jobs(queue, group, names, joins=False)
        for job in (found[name] for name in names):
            say(f"{job.name} {job.state}: {job.cause}")
    if not any(names for _, names in living):
        say("there is nothing to stop: all jobs have ended")
    return 0


def _resume(args: Sequence[str]) -> int:
    text = "Retry the failed and stopped jobs of a group; without a group, supervise the queue."
    flags = parse(JobsResumeFlags, args, "jobs resume", text)
    queue = Queue()
    if flags.group is None:
        stop = StopFlag()
        with stop_on_signals(stop):
            if not serve(queue, say=say, should_stop=stop):
                say("another process supervises the queue")
        return 0
    (group,) = _find_groups(flags.group, flags.runs_dir)
    if flags.trust:
        queue.allow_all(group)
    queue.check_own(group)
    if group.read().kind == "sweep":
        from mission_gym.cli.sweep import run_sweep

        return run_sweep(queue, group, as_json=flags.json)
    known = group.read_jobs()
    ask_jobs(group, [name for name, job in known.items() if job.state in ("failed", "stopped")], "resume")
    queue.register(group)
    return follow_group(queue, group, list(known), as_json=flags.json)


def _wait(args: Sequence[str]) -> int:
    flags = parse(GroupFlags, args, "jobs wait", "Wait until all jobs of a group have ended.")
    return _wait_for(_find_groups(flags.group, flags.runs_dir)[-1], as_json=flags.json)


def _wait_for(group: GroupDir, *, as_json: bool) -> int:
    """Wait for a group without owning it: an interruption ends only the waiting."""
    if group.read().kind == "sweep":
        from mission_gym.cli.sweep import wait_for_sweep

        return wait_for_sweep(group, as_json=as_json)
    with JobsScreen(group) as screen:
        names = list(group.read_jobs())
        found = wait_for_jobs(Queue(), group, names, say=screen.say, watch=screen.watch, joins=False)
    return show_result(group, found, as_json=as_json)


def _example(args: Sequence[str]) -> int:
    flags = parse(ExampleFlags, args, "jobs example", "Print a job file that is sized for this machine.")
    print(make_example(flags.name, usable_cores()), end="")
    return 0


def _find_groups(name: str | None, runs_dir: Path) -> list[GroupDir]:
    """The group of this name; by default those with unfinished jobs, the newest last, else the newest."""
    if name is not None:
        return [find_reported_group(name, runs_dir)]
    groups = Queue().list_groups() or list_groups(runs_dir)[-1:]
    if not groups:
        raise UsageError(f"there are no groups in {runs_dir}; `mission-gym jobs run FILE` makes one")
    return groups


def _find_jobs(text: str, runs_dir: Path) -> tuple[GroupDir, list[str]]:
    """The jobs of JOB, GROUP/JOB or GROUP."""
    above, _, name = text.rpartition("/")
    if above and not GroupDir(Path(text)).exists:
        group = find_reported_group(above, runs_dir)
        known = list(group.read_jobs())
        if name in known:
            return group, [name]
        raise UsageError(f"{group.name} has no job {name!r}{nearest(name, known)}; it has {', '.join(known)}")
    groups = [*list_groups(runs_dir), *Queue().list_groups()]  # the last one wins
    found = {name: group for group in groups for name in group.read_jobs()}
    if text in found:
        return found[text], [text]
    try:
        group = find_reported_group(text, runs_dir)
    except RunStateError as error:
        hint = nearest(text, found)
        raise UsageError(f"no job {text!r}{hint}, and {error}" if found else str(error)) from error
    return group, list(group.read_jobs())


_COMMANDS = {
    "run": Subcommand(_run, "run the jobs of a file, packed on this machine"),
    "check": Subcommand(_check, "report all problems of a file, without starting anything"),
    "add": Subcommand(_add, "add the jobs of a file, or -- ENV --FLAGS, to the queue"),
    "status": Subcommand(_status, "show the jobs that are queued or running, or those of a group"),
    "logs": Subcommand(_logs, "print the log of a job"),
    "stop": Subcommand(_stop, "ask jobs to save and end"),
    "resume": Subcommand(_resume, "retry failed and stopped jobs"),
    "wait": Subcommand(_wait, "wait until all jobs of a group have ended"),
    "example": Subcommand(_example, "print a job file that is sized for this machine"),
}
