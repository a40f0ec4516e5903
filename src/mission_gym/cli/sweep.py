"""`sweep ENV` and `sweep show NAME`: a search for settings that retests its winner."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro

from mission_gym.cli.flags import AsJson, EnvId, LayerFlags, ReadFlags, flag, parse, with_values
from mission_gym.cli.groups import FAILED, INTERRUPTED, find_reported_group, resolve_values
from mission_gym.cli.train import list_given
from mission_gym.config.plain_yaml import to_plain
from mission_gym.config.rules import fix_num_envs
from mission_gym.errors import ConfigError, RunStateError, UsageError
from mission_gym.fleet.groups import find_newest_group
from mission_gym.fleet.process import send_signal
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.supervisor import TICK_S
from mission_gym.fleet.sweep.question import SweepRequest, make_question, read_size
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.learner.loop import StopFlag
from mission_gym.procs import usable_cores
from mission_gym.report.formats import show_path
from mission_gym.report.screen.live import JobsScreen, show
from mission_gym.report.screen.streams import messages_to_stderr, say
from mission_gym.report.sweeps import describe_sweep, make_sweep_html, view_sweep
from mission_gym.run.signals import stop_on_signals
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir, Job
from mission_gym.store.rundir import slug
from mission_gym.store.sweeps import (
    BEST,
    STUDY,
    Question,
    SweepRecord,
    Values,
    find_driver,
    hold_sweep,
    read_sweep,
    write_sweep,
)


@dataclass(kw_only=True)
class SweepFlags(LayerFlags):
    """Flags of `sweep`."""

    env_id: EnvId
    trials: Annotated[str | None, flag("Most trials (default: 40, or as --budget allows).", "N")] = None
    budget: Annotated[str | None, flag("Total time, including retests: 30m, 2h.", "DURATION")] = None
    over: Annotated[
        str | None,
        flag(
            "Fields to search (default: the algorithm's own choice): learning_rate=1e-5..1e-2,n_epochs=3..20"
            " or activation=tanh|relu.",
            "FIELD=RANGE,...",
        ),
    ] = None
    seeds_per_trial: Annotated[str, flag("Number of runs per trial.", "N", default=None)] = "1"
    retest: Annotated[str, flag("Number of the best trials to train again.", "N", default=None)] = "3"
    retest_seeds: Annotated[str, flag("Number of fresh seeds for them.", "N", default=None)] = "5"
    pruner: Annotated[
        str,
        flag(
            "median stops trials whose evaluations fall below the median, including slow starters.",
            "none|median",
            default=None,
        ),
    ] = "none"
    json: AsJson = False


@dataclass(kw_only=True)
class ShowFlags(ReadFlags):
    """Flags of `sweep show`."""

    name: Annotated[tyro.conf.Positional[str], flag("Name or path of the sweep.", "NAME")]


def sweep(args: Sequence[str]) -> int:
    """`mission-gym sweep ...`."""
    if args and args[0] == "show":
        return _show(args[1:])
    text = "Search for settings, train the best ones again on fresh seeds, and write the winner as a preset."
    flags: Any = parse(with_values(SweepFlags), args, "sweep", text)
    _check_installed()
    request = SweepRequest(**{name: getattr(flags, name) for name in SweepRequest._fields})
    queue = Queue()
    group = _open_sweep(queue, request, _list_values(flags), trust=flags.trust)
    return run_sweep(queue, group, as_json=flags.json)


def _show(args: Sequence[str]) -> int:
    flags = parse(ShowFlags, args, "sweep show", "Show the trials, the important fields and the winner.")
    group = find_reported_group(flags.name, flags.runs_dir)
    if group.read().kind != "sweep":
        raise UsageError(f"{group.name} is not a sweep; use `mission-gym jobs status {group.name}`")
    show(describe_sweep(group), as_json=flags.json, view=view_sweep)
    return 0


def _check_installed() -> None:
    if find_spec("optuna") is None:
        raise UsageError("a sweep needs Optuna; install it with `pip install 'mission-gym[hpo]'`")


def _list_values(flags: Any) -> Values:
    """The values of all runs, by flag name."""
    given = list_given(flags)
    if "config" in given:
        given["config"] = str(Path(given["config"]).absolute())
    values: Values = to_plain(given)
    return values


def _open_sweep(queue: Queue, request: SweepRequest, values: Values, *, trust: bool) -> GroupDir:
    """The group of a sweep: a new one, or the one that the same command started."""
    name = values.get("run_name") or f"{slug(values['env'])}-sweep"
    runs_dir = Path(values.get("runs_dir") or "runs")
    group = find_newest_group(name, runs_dir, "sweep")
    if group is not None:
        if trust:
            queue.allow_all(group)
        queue.check_own(group)
        _extend(queue, group, request, values)
        return group
    with messages_to_stderr():
        record = SweepRecord(question=make_question(request, values, resolve_values, say))

    def prepare(group: GroupDir) -> None:
        queue.record_own(group, [record.question])
        write_sweep(group, record)

    return queue.make_group(runs_dir, name, "sweep", [], prepare)


def _extend(queue: Queue, group: GroupDir, request: SweepRequest, values: Values) -> None:
    """Continue a sweep with the size of this request; ConfigError if anything else differs."""
    problems: list[str] = []
    record, size = read_sweep(group), read_size(request, problems)
    question = record.question
    keys = {**values, **question.asked}
    differing = [key for key in keys if key != "trust" and values.get(key) != question.asked.get(key)]
    differing += ["over"] if (request.over or "") != question.over else []
    differing += ["seeds_per_trial"] if size.num_seeds != len(question.seeds) else []
    if differing:
        problems.append(
            f"{group.name} was started with other values of {', '.join(differing)}; use the same values to"
            " continue it, or another --run-name for a new sweep"
        )
    if problems:
        raise ConfigError(problems)
    first = question.seeds[-1] + 1
    changes = {
        "trials": size.trials, "budget_s": size.budget_s, "retest": size.retest, "pruner": request.pruner,
        "retest_seeds": list(range(first, first + size.num_retest_seeds)),
    }  # fmt: skip
    with hold_sweep(group):
        question = question.model_copy(update=changes)
        queue.record_own(group, [question])
        write_sweep(group, record.model_copy(update={"question": question}))
    say(f"the sweep {show_path(group.path)} continues")


def run_sweep(queue: Queue, group: GroupDir, *, as_json: bool) -> int:
    """Run a sweep to its end and print the result; returns the exit code."""
    _check_installed()
    from mission_gym.fleet.sweep.search import Search  # loads Optuna
    from mission_gym.fleet.sweep.study import Study

    stop = StopFlag()
    with hold_sweep(group), stop_on_signals(stop), JobsScreen(group) as screen:
        question = read_sweep(group).question
        base = fix_num_envs(resolve_values(question.values))
        screen.say(_show_question(group, question))
        study = Study(group.path, group.read().name, question.axes, base.config.run.seed)
        search = Search(queue, group, study, base, usable_cores(), screen.say)
        search.retry_jobs(group.read_jobs())
        queue.register(group)
        jobs = wait_for_jobs(
            queue, group, [], say=screen.say, should_stop=stop, feed=search.feed,
            watch=lambda jobs: _watch(screen, jobs),
        )  # fmt: skip
        if stop():
            say(f"continue  the same command, or mission-gym jobs resume {show_path(group.path)}")
            return INTERRUPTED
        record, preset = search.finish(jobs)
        if preset:
            write_atomic(group.path / BEST, preset)
        page = group.path / "report.html"
        write_atomic(page, make_sweep_html(group))
    show(describe_sweep(group), as_json=as_json, view=view_sweep)
    say(f"report   {show_path(page)}")
    say(f"trials   optuna-dashboard {show_path(group.path / STUDY)}")
    if not preset:
        say("no trial was completed and trained again, so there is no preset")
        return FAILED
    say(f"preset   mission-gym train {record.question.values['env']} --config {show_path(group.path / BEST)}")
    return 0


def wait_for_sweep(group: GroupDir, *, as_json: bool) -> int:
    """Wait until the process of a sweep has ended, and print the result; returns the exit code."""
    with JobsScreen(group) as screen:
        while find_driver(group) is not None:
            _watch(screen, group.read_jobs())
            time.sleep(TICK_S)
    if not read_sweep(group).is_done:
        path = show_path(group.path)
        raise RunStateError(
            f"no process runs the sweep {path}; `mission-gym jobs resume {path}` continues it"
        )
    show(describe_sweep(group), as_json=as_json, view=view_sweep)
    return 0


def stop_driver(group: GroupDir) -> None:
    """Ask the process of a sweep to stop its jobs and end."""
    driver = find_driver(group)
    if driver is not None:
        send_signal(driver, signal.SIGTERM)


def _watch(screen: JobsScreen, jobs: Mapping[str, Job]) -> None:
    """Show only unfinished jobs: a sweep has many."""
    living = {name: job for name, job in jobs.items() if not job.has_ended}
    if living:
        screen.watch(living)


def _show_question(group: GroupDir, question: Question) -> str:
    trials = "as many trials as the budget allows" if question.trials is None else f"{question.trials} trials"
    names = ", ".join(axis.name for axis in question.axes)
    return f"sweep {show_path(group.path)}: {trials} over {names} on {usable_cores()} cores"
