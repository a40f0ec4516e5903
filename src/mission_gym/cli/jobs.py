"""`jobs run | check | add | status | logs | stop | resume | wait | example`: groups of runs, packed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.cli.flags import parse
from mission_gym.cli.groups import (
    find_problems,
    flag_names,
    follow_group,
    leave_group,
    resolve_values,
    tell_end,
)
from mission_gym.cli.jobs_flags import (
    CheckFlags,
    ExampleFlags,
    GroupFlags,
    LogsFlags,
    ResumeFlags,
    RunFlags,
    StatusFlags,
    StopFlags,
)
from mission_gym.cli.output import show
from mission_gym.errors import RunStateError, UsageError, nearest
from mission_gym.fleet.drafts import inherit
from mission_gym.fleet.groups import ask_jobs, open_group
from mission_gym.fleet.jobfile import make_example, read_job_file
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import find_needs, make_requests
from mission_gym.fleet.supervisor import TICK_S
from mission_gym.fleet.wait import serve, wait_for_jobs
from mission_gym.learner.loop import StopFlag
from mission_gym.procs import usable_cores
from mission_gym.ray.cluster import load_ray, open_cluster
from mission_gym.report.formats import show_path
from mission_gym.report.groups import describe_jobs, view_jobs
from mission_gym.report.screen.jobs import JobsScreen
from mission_gym.report.screen.streams import inert, say
from mission_gym.run.signals import stop_on_signals
from mission_gym.store.groups import GroupDir, Job, find_group, list_groups


def jobs(args: Sequence[str]) -> int:
    """`mission-gym jobs ...`."""
    name = args[0] if args else ""
    if name in ("-h", "--help"):
        print(_help())
        return 0
    known = ", ".join(_COMMANDS)
    if not name:
        raise UsageError(f"name one of the commands of jobs: {known}")
    if name not in _COMMANDS:
        raise UsageError(f"{name!r} is not a command of jobs{nearest(name, _COMMANDS)}; it has {known}")
    return _COMMANDS[name].function(args[1:])


def _help() -> str:
    lines = [f"  {name:<8} {command.text}" for name, command in _COMMANDS.items()]
    return "\n".join(["usage: mission-gym jobs COMMAND [...]", "", *lines])


def _run(args: Sequence[str]) -> int:
    flags = parse(RunFlags, args, "jobs run", "Run the jobs of a file, packed on this machine.")
    queue = Queue()
    group, names = _open_group(queue, flags)
    if flags.detach:
        return leave_group(queue, group, as_json=flags.json)
    return follow_group(queue, group, names, as_json=flags.json)


def _check(args: Sequence[str]) -> int:
    flags = parse(CheckFlags, args, "jobs check", "Check a job file; nothing is started.")
    drafts = read_job_file(flags.file, flag_names(), find_problems).drafts
    rows = [
        {"name": each.name, "seed": each.seed, "parent": each.parent, "values": each.values}
        for each in drafts
    ]
    say(f"{flags.file} is in order: {len(rows)} runs of {len({each.variant for each in drafts})} jobs")
    show(rows, as_json=flags.json, view=lambda rows: "\n".join(row["name"] for row in rows))
    return 0


def _add(args: Sequence[str]) -> int:
    if "--" in args:
        from mission_gym.cli.training import submit_training

        at = list(args).index("--")
        if args[:at]:
            raise UsageError(f"{args[0]!r} stands before --; give a file, or -- and flags of train")
        return submit_training(args[at + 1 :])
    flags = parse(RunFlags, args, "jobs add", "Add the jobs of a file, or -- ENV --FLAGS, to the queue.")
    queue = Queue()
    group, _ = _open_group(queue, flags)
    return leave_group(queue, group, as_json=flags.json)


def _open_group(queue: Queue, flags: RunFlags) -> tuple[GroupDir, list[str]]:
    """The group of a job file, a new one or the one that it goes on with, put into the queue."""
    file = read_job_file(flags.file, flag_names(), find_problems)
    runs_dir = Path(file.runs_dir) if file.runs_dir else flags.runs_dir
    more: dict[str, Any] = {"via": os.path.abspath(flags.file)} | ({"trust": True} if flags.trust else {})
    whole: dict[str | None, dict[str, Any]] = {None: {}}
    for each in file.drafts:  # parents before their children
        whole[each.name] = inherit(whole[each.parent], each.values)
    cluster = _find_cluster(flags)
    drafts = []
    for each in file.drafts:
        needs = find_needs(resolve_values(whole[each.name]), on_cluster=cluster is not None)
        drafts.append(each._replace(values=each.values | more, needs=needs))
    requests = make_requests(file.name, drafts, str(runs_dir), flags.cuda_mps, cluster)
    group, is_new = open_group(queue, file.name, runs_dir, requests, trust=flags.trust)
    if not is_new:
        say(f"{flags.file} goes on with its group {show_path(group.path)}")
    return group, [request.name for request in requests]


def _find_cluster(flags: RunFlags) -> str | None:
    """The address of the cluster that jobs are for, "" for one that is started, None for this machine;
    UsageError where it can't be used."""
    if flags.on == "here":
        if flags.ray_address is not None:
            raise UsageError("ray_address is for --on ray [--ray-address]")
        return None
    load_ray()
    if flags.ray_address is None:
        return ""
    open_cluster(flags.ray_address).close()
    return flags.ray_address


def _status(args: Sequence[str]) -> int:
    flags = parse(StatusFlags, args, "jobs status", "Tell where the jobs of a group stand.")
    group = _find_group(flags.group, flags.runs_dir)
    if flags.follow:
        return _stay(group, as_json=flags.json)
    show(describe_jobs(group, group.read_jobs()), as_json=flags.json, view=view_jobs)
    return 0


def _logs(args: Sequence[str]) -> int:
    flags = parse(LogsFlags, args, "jobs logs", "Print what a job has said.")
    group, names = _find_jobs(flags.job, flags.runs_dir)
    if len(names) > 1:
        raise UsageError(f"{flags.job!r} is a group; name one of its jobs: {', '.join(names)}")
    if not group.log(names[0]).exists():
        say(f"{names[0]} has not begun")
    position = 0
    while True:
        has_ended = group.read_jobs()[names[0]].has_ended  # asked before the rest is read
        data = b""
        if group.log(names[0]).exists():
            with group.log(names[0]).open("rb") as file:
                file.seek(position)
                data = file.read()
        position += len(data)
        sys.stdout.write(inert(data.decode(errors="replace")))
        sys.stdout.flush()
        if has_ended or not flags.follow:
            return 0
        time.sleep(TICK_S)


def _stop(args: Sequence[str]) -> int:
    flags = parse(StopFlags, args, "jobs stop", "Let jobs save and end.")
    queue = Queue()
    if flags.all == (flags.name is not None):
        raise UsageError("name a job or a group, or give --all; one of them [NAME]")
    if flags.name is None:
        targets = [(group, list(group.read_jobs())) for group in queue.list_groups()]
    else:
        targets = [_find_jobs(flags.name, flags.runs_dir)]
    for group, names in targets:
        if group.read().kind == "sweep" and len(names) == len(group.read_jobs()):
            from mission_gym.cli.sweeping import stop_driver

            stop_driver(group)  # else it would ask for more
    targets = [(group, _list_living(group.read_jobs(), names)) for group, names in targets]
    for group, names in targets:
        ask_jobs(group, names, "stop")
    for group, names in targets:
        found = wait_for_jobs(queue, group, names, joins=False)
        for job in (found[name] for name in names):
            say(f"{job.name} {job.state}: {job.cause}")
    if not any(names for _, names in targets):
        say("nothing is to be stopped: all jobs have ended")
    return 0


def _list_living(jobs: Mapping[str, Job], names: Sequence[str]) -> list[str]:
    return [name for name in names if not jobs[name].has_ended]


def _resume(args: Sequence[str]) -> int:
    text = "Try again what failed or was stopped in a group; without a group, look after the queue."
    flags = parse(ResumeFlags, args, "jobs resume", text)
    queue = Queue()
    if flags.group is None:
        stop = StopFlag()
        with stop_on_signals(stop):
            if not serve(queue, say=say, should_stop=stop):
                say("the queue is looked after already")
        return 0
    group = _find_group(flags.group, flags.runs_dir)
    if not flags.trust:
        queue.check_own(group)
    if group.read().kind == "sweep":
        from mission_gym.cli.sweeping import go_on

        return go_on(queue, group, as_json=flags.json)
    known = group.read_jobs()
    ask_jobs(group, [name for name, job in known.items() if job.state in ("failed", "stopped")], "resume")
    queue.register(group)
    return follow_group(queue, group, list(known), as_json=flags.json)


def _wait(args: Sequence[str]) -> int:
    flags = parse(GroupFlags, args, "jobs wait", "Wait until all jobs of a group have ended.")
    return _stay(_find_group(flags.group, flags.runs_dir), as_json=flags.json)


def _stay(group: GroupDir, *, as_json: bool) -> int:
    """Wait for a group without owning it: an interruption ends the waiting alone."""
    if group.read().kind == "sweep":
        from mission_gym.cli.sweeping import wait_for_sweep

        return wait_for_sweep(group, as_json=as_json)
    with JobsScreen(group) as screen:
        names = list(group.read_jobs())
        found = wait_for_jobs(Queue(), group, names, say=screen.say, watch=screen.watch, joins=False)
    return tell_end(group, found, as_json=as_json)


def _example(args: Sequence[str]) -> int:
    flags = parse(ExampleFlags, args, "jobs example", "Print a job file that is sized for this machine.")
    print(make_example(flags.name, usable_cores()), end="")
    return 0


def _find_group(name: str | None, runs_dir: Path) -> GroupDir:
    """The group that is named; without a name the newest of the queue and of the folder, job files first."""
    if name is not None:
        group, note = find_group(name, runs_dir)
        say(note)
        return group
    groups = [*Queue().list_groups(), *list_groups(runs_dir)]
    if not groups:
        raise UsageError(f"there are no groups in {runs_dir}; `mission-gym jobs run FILE` makes one")
    records = [(group.read(), group) for group in groups]
    return max(records, key=lambda item: (item[0].kind == "jobs", item[0].created))[1]


def _find_jobs(text: str, runs_dir: Path) -> tuple[GroupDir, list[str]]:
    """The jobs that are meant by JOB, GROUP/JOB or GROUP."""
    above, _, name = text.rpartition("/")
    if above and not GroupDir(Path(text)).exists:
        group, note = find_group(above, runs_dir)
        say(note)
        known = list(group.read_jobs())
        if name in known:
            return group, [name]
        raise UsageError(f"{group.name} has no job {name!r}{nearest(name, known)}; it has {', '.join(known)}")
    groups = [*reversed(Queue().list_groups()), *reversed(list_groups(runs_dir))]
    jobs = {name: group for group in reversed(groups) for name in group.read_jobs()}
    if text in jobs:
        return jobs[text], [text]
    try:
        group, note = find_group(text, runs_dir)
    except RunStateError as error:
        hint = nearest(text, jobs)
        raise UsageError(f"no job {text!r}{hint}, and {error}" if jobs else str(error)) from error
    say(note)
    return group, list(group.read_jobs())


class _Command(NamedTuple):
    function: Callable[[Sequence[str]], int]
    text: str


_COMMANDS = {
    "run": _Command(_run, "the jobs of a file, packed on this machine"),
    "check": _Command(_check, "everything that is wrong in a file; starts nothing"),
    "add": _Command(_add, "the jobs of a file, or -- ENV --FLAGS, behind those in the queue"),
    "status": _Command(_status, "where the jobs of a group stand"),
    "logs": _Command(_logs, "what a job has said"),
    "stop": _Command(_stop, "let jobs save and end"),
    "resume": _Command(_resume, "try again what failed or was stopped"),
    "wait": _Command(_wait, "until all jobs of a group have ended"),
    "example": _Command(_example, "a job file that is sized for this machine"),
}
