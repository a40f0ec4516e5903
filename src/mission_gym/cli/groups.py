"""Shared by the commands about groups of runs: configs of jobs, waiting for a group, its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mission_gym.cli.train import set_workers
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError, RunStateError, UsageError
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.learner.loop import StopFlag
from mission_gym.procs import usable_cores
from mission_gym.report.formats import show_path
from mission_gym.report.groups import (
    compare_groups,
    describe_group,
    describe_jobs,
    list_variants,
    make_group_html,
    view_group,
    view_jobs,
)
from mission_gym.report.screen.live import JobsScreen, make_console, show
from mission_gym.report.screen.streams import say
from mission_gym.run.config import resolve, schema
from mission_gym.run.signals import stop_on_signals
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir, Job, find_group
from mission_gym.store.resolve import STAMP, list_runs

FAILED, INTERRUPTED = 3, 130
_LAYERS = ("preset", "config", "set", "subproc")


@cache
def list_flag_names() -> tuple[str, ...]:
    """The flags of `train` that a job may have."""
    fields = (name for field in schema().fields for name in (field.name, *field.aliases))
    return tuple(dict.fromkeys(name for name in (*fields, *_LAYERS) if name != "env_id"))


def resolve_values(values: Mapping[str, Any]) -> Resolved:
    """The config of values by flag name; ConfigError."""
    flags = {name: value for name, value in values.items() if name not in ("trust", "via")}
    env, preset, config, sets, subproc = (flags.pop(name, None) for name in ("env", *_LAYERS))
    if subproc:
        set_workers(flags)
    return resolve(
        env,
        flags,
        sets=[sets] if isinstance(sets, str) else list(sets or ()),
        config_file=None if config is None else Path(config),
        preset=preset,
    )


def find_problems(values: Mapping[str, Any]) -> list[str]:
    """The reasons to refuse a run of these values that are known before it starts."""
    try:
        apply_rules(resolve_values(values))
    except ConfigError as error:
        return error.problems
    except UsageError as error:
        return [str(error)]
    return []


def find_named_group(text: str, runs_dir: Path) -> GroupDir | None:
    """The group that the user gave; None for a run. A run with exactly this name comes first."""
    named = [run.name for run in list_runs(runs_dir)]
    if text == "latest" or text in named or text in [STAMP.sub("", name) for name in named]:
        return None
    try:
        return find_reported_group(text, runs_dir)
    except RunStateError:
        return None


def find_reported_group(text: str, runs_dir: Path) -> GroupDir:
    """The group of this name or path; a guess is reported. RunStateError."""
    group, note = find_group(text, runs_dir)
    say(note)
    return group


def follow_group(queue: Queue, group: GroupDir, names: Sequence[str], *, as_json: bool) -> int:
    """Wait for jobs of a group and print the result; returns the exit code."""
    stop = StopFlag()
    jobs = group.read_jobs()
    is_away = any(jobs[name].request.cluster is not None for name in names)
    where = "a Ray cluster" if is_away else f"{usable_cores()} cores"
    say(f"group {show_path(group.path)}: {len(names)} jobs on {where}")
    with stop_on_signals(stop), JobsScreen(group) as screen:
        jobs = wait_for_jobs(queue, group, names, say=screen.say, watch=screen.watch, should_stop=stop)
    return show_result(group, jobs, as_json=as_json, was_stopped=stop())


def show_result(group: GroupDir, jobs: Mapping[str, Job], *, as_json: bool, was_stopped: bool = False) -> int:
    """Print the result of a group and write its report; returns the exit code."""
    if not as_json:
        make_console().print(view_jobs(describe_jobs(group, jobs)))
    show(describe_group(group), as_json=as_json, view=view_group)
    sets = list_variants(group, jobs)
    if sets:
        page = group.path / "report.html"
        write_atomic(page, make_group_html(group.name, compare_groups(sets, say)))
        say(f"report    {show_path(page)}")
    if any(job.state != "done" for job in jobs.values()):
        say(f"continue  mission-gym jobs resume {show_path(group.path)}")
    states = {job.state for job in jobs.values()}
    if "failed" in states and not was_stopped:
        return FAILED
    return INTERRUPTED if was_stopped or "stopped" in states else 0


def leave_group(queue: Queue, group: GroupDir, *, as_json: bool) -> int:
    """Start a supervisor in the background for a group, and return."""
    queue.start_supervisor()
    name = show_path(group.path)
    say(f"group {name} runs in the background")
    say(f"status    mission-gym jobs status {name}\nstop      mission-gym jobs stop {name}")
    if as_json:
        document = {"name": group.name, "path": str(group.path), "jobs": list(group.read_jobs())}
        show(document, as_json=True, view=str)
    return 0
