"""What the commands about groups share: what jobs may say, staying with a group, telling its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mission_gym.cli.output import show
from mission_gym.cli.training import ask_for_workers
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError, UsageError
from mission_gym.fleet.drive import stay_with
from mission_gym.fleet.queue import Queue
from mission_gym.learner.loop import StopFlag
from mission_gym.procs import usable_cores
from mission_gym.report.formats import show_path
from mission_gym.report.group_html import make_group_html
from mission_gym.report.groups import (
    compare_groups,
    describe_group,
    describe_jobs,
    list_variants,
    view_group,
    view_jobs,
)
from mission_gym.report.screen.jobs import JobsScreen
from mission_gym.report.screen.live import make_console
from mission_gym.report.screen.streams import say
from mission_gym.run.config import resolve, schema
from mission_gym.run.signals import stop_on_signals
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir, Job

_LAYERS = ("preset", "config", "set", "subproc")
_FAILED, _INTERRUPTED = 3, 130


@cache
def flag_names() -> tuple[str, ...]:
    """The flags of `train` that a job may give."""
    fields = (name for field in schema().fields for name in (field.name, *field.aliases))
    return tuple(dict.fromkeys(name for name in (*fields, *_LAYERS) if name != "env_id"))


def resolve_values(values: Mapping[str, Any]) -> Resolved:
    """The config that values by the names of flags ask for; ConfigError."""
    flags = dict(values)
    env, preset, config, sets, subproc = (flags.pop(name, None) for name in ("env", *_LAYERS))
    if subproc:
        ask_for_workers(flags)
    return resolve(
        env,
        flags,
        sets=[sets] if isinstance(sets, str) else list(sets or ()),
        config_file=None if config is None else Path(config),
        preset=preset,
    )


def find_problems(values: Mapping[str, Any]) -> list[str]:
    """What a run of these values would be refused for, as far as that shows before it is started."""
    try:
        apply_rules(resolve_values(values))
    except ConfigError as error:
        return error.problems
    except UsageError as error:
        return [str(error)]
    return []


def follow_group(queue: Queue, group: GroupDir, names: Sequence[str], *, as_json: bool) -> int:
    """Stay with jobs of a group to their end, and tell the result; the exit code."""
    stop = StopFlag()
    jobs = group.read_jobs()
    is_away = any(jobs[name].request.cluster is not None for name in names)
    where = "a Ray cluster" if is_away else f"{usable_cores()} cores"
    say(f"group {show_path(group.path)}: {len(names)} jobs on {where}")
    with stop_on_signals(stop), JobsScreen(group) as screen:
        jobs = stay_with(queue, group, names, say=screen.say, watch=screen.watch, should_stop=stop)
    return tell_end(group, jobs, as_json=as_json, was_stopped=stop())


def tell_end(group: GroupDir, jobs: Mapping[str, Job], *, as_json: bool, was_stopped: bool = False) -> int:
    """Print what became of a group, and write its report; the exit code."""
    if not as_json:
        make_console().print(view_jobs(describe_jobs(group, jobs)))
    show(describe_group(group), as_json=as_json, view=view_group)
    sets = list_variants(group, jobs)
    if sets:
        page = group.path / "report.html"
        write_atomic(page, make_group_html(group.name, compare_groups(sets, say)))
        say(f"report   {show_path(page)}")
    if any(job.state != "done" for job in jobs.values()):
        say(f"go on    mission-gym jobs resume {show_path(group.path)}")
    if was_stopped:
        return _INTERRUPTED
    return _FAILED if any(job.state == "failed" for job in jobs.values()) else 0


def leave_group(queue: Queue, group: GroupDir, *, as_json: bool) -> int:
    """Leave a group to a supervisor of its own, which outlives this process and its terminal."""
    queue.start_supervisor()
    name = show_path(group.path)
    say(f"group {name} goes on without this terminal")
    say(f"status   mission-gym jobs status {name}\nstop     mission-gym jobs stop {name}")
    if as_json:
        document = {"name": group.name, "path": str(group.path), "jobs": list(group.read_jobs())}
        show(document, as_json=True, view=str)
    return 0
