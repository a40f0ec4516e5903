"""`sweep ENV` and `sweep show NAME`: a search for settings that tests its winner again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro

from mission_gym.cli.flags import AsJson, EnvId, LayerFlags, ReadFlags, parse, said, with_values
from mission_gym.cli.groups import resolve_values
from mission_gym.cli.output import messages_to_stderr, show
from mission_gym.cli.training import list_given
from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import to_plain
from mission_gym.config.rules import fix_num_envs
from mission_gym.errors import ConfigError, RunStateError, UsageError
from mission_gym.fleet.drive import stay_with
from mission_gym.fleet.filegroup import find_group_of
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.supervisor import TICK_S
from mission_gym.fleet.sweep.question import Numbers, Wish, make_question, read_numbers
from mission_gym.learner.loop import StopFlag
from mission_gym.procs import usable_cores
from mission_gym.report.formats import show_path
from mission_gym.report.screen.jobs import JobsScreen
from mission_gym.report.screen.streams import say
from mission_gym.report.sweep_html import make_sweep_html
from mission_gym.report.sweeps import describe_sweep, view_sweep
from mission_gym.run.signals import stop_on_signals
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir, Job, find_group
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

_FAILED, _INTERRUPTED = 3, 130


@dataclass(kw_only=True)
class SweepFlags(LayerFlags):
    """Flags of `sweep`."""

    env_id: EnvId
    trials: Annotated[
        str | None, said("Trials at most. Without it: 40, or as many as --budget allows.", "N")
    ] = None
    budget: Annotated[
        str | None, said("Time for all of it, the runs on fresh seeds included: 30m, 2h.", "DURATION")
    ] = None
    over: Annotated[
        str | None,
        said(
            "Fields to search, instead of the algorithm's own choice: learning_rate=1e-5..1e-2,n_epochs=3..20"
            " or activation=tanh|relu.",
            "FIELD=RANGE,...",
        ),
    ] = None
    seeds_per_trial: Annotated[str, tyro.conf.arg(metavar="N", help="Runs of every trial.")] = "1"
    retest: Annotated[str, tyro.conf.arg(metavar="N", help="Trials that are trained again.")] = "3"
    retest_seeds: Annotated[
        str, tyro.conf.arg(metavar="N", help="Fresh seeds that they, and the default, are trained with.")
    ] = "5"
    pruner: Annotated[
        str,
        tyro.conf.arg(
            metavar="none|median",
            help="median ends trials whose evaluations are below the median; it may end late starters.",
        ),
    ] = "none"
    json: AsJson = False


@dataclass(kw_only=True)
class ShowFlags(ReadFlags):
    """Flags of `sweep show`."""

    name: Annotated[tyro.conf.Positional[str], said("The sweep.", "NAME")]


def sweep(args: Sequence[str]) -> int:
    """`mission-gym sweep ...`."""
    if args and args[0] == "show":
        return _show(args[1:])
    flags: Any = parse(
        with_values(SweepFlags), args, "sweep",
        "Search for settings, train the best ones again on fresh seeds, and write them as a preset.",
    )  # fmt: skip
    _check_installed()
    wish = Wish(
        flags.trials, flags.budget, flags.over, flags.seeds_per_trial, flags.retest, flags.retest_seeds,
        flags.pruner,
    )  # fmt: skip
    queue = Queue()
    group = _open_sweep(queue, wish, _list_values(flags), trust=flags.trust)
    return go_on(queue, group, as_json=flags.json)


def _show(args: Sequence[str]) -> int:
    flags = parse(ShowFlags, args, "sweep show", "Tell the trials of a sweep, what matters, and its winner.")
    group, note = find_group(flags.name, flags.runs_dir)
    say(note)
    if group.read().kind != "sweep":
        raise UsageError(f"{group.name} is not a sweep; `mission-gym jobs status {group.name}` tells of it")
    show(describe_sweep(group), as_json=flags.json, view=view_sweep)
    return 0


def _check_installed() -> None:
    if find_spec("optuna") is None:
        raise UsageError("a sweep needs Optuna; `pip install 'mission-gym[hpo]'` brings it")


def _list_values(flags: Any) -> Values:
    """What all runs are told, by the names of flags."""
    given = list_given(flags)
    if "config" in given:
        given["config"] = str(Path(given["config"]).absolute())
    values: Values = to_plain(given)
    return values


def _resolve(values: Mapping[str, Any]) -> Resolved:
    """The config of a run that is told these values."""
    return resolve_values({key: value for key, value in values.items() if key not in ("trust", "via")})


def _open_sweep(queue: Queue, wish: Wish, values: Values, *, trust: bool) -> GroupDir:
    """The group of a sweep, a new one or the one that the same command goes on with."""
    name = values.get("run_name") or f"{slug(values['env'])}-sweep"
    runs_dir = Path(values.get("runs_dir") or "runs")
    group = find_group_of(name, runs_dir, "sweep")
    if group is not None:
        if not trust:
            queue.check_own(group)
        _extend(group, wish, values)
        return group
    with messages_to_stderr():
        question = make_question(wish, values, _resolve, say)
    return queue.make_group(
        runs_dir, name, "sweep", [],
        lambda group: write_sweep(group, SweepRecord(question=question)),
    )  # fmt: skip


def _extend(group: GroupDir, wish: Wish, values: Values) -> None:
    """Take over how much is asked for now; ConfigError if something else is asked for."""
    problems: list[str] = []
    record, numbers = read_sweep(group), read_numbers(wish, problems)
    question = record.question
    keys = {**values, **question.asked}
    differing = [key for key in keys if key != "trust" and values.get(key) != question.asked.get(key)]
    differing += ["over"] if (wish.over or "") != question.over else []
    differing += ["seeds_per_trial"] if numbers.num_seeds != len(question.seeds) else []
    if differing:
        problems.append(
            f"{group.name} was begun with other values of {', '.join(differing)}; give the same to go on with"
            " it, or another --run-name for a new sweep"
        )
    if problems:
        raise ConfigError(problems)
    with hold_sweep(group):
        write_sweep(group, record.model_copy(update={"question": _resize(question, numbers, wish)}))
    say(f"the sweep {show_path(group.path)} goes on")


def _resize(question: Question, numbers: Numbers, wish: Wish) -> Question:
    first = question.seeds[-1] + 1
    return question.model_copy(
        update={
            "trials": numbers.trials, "budget_s": numbers.budget_s, "retest": numbers.retest,
            "retest_seeds": list(range(first, first + numbers.num_retest_seeds)), "pruner": wish.pruner,
        }
    )  # fmt: skip


def go_on(queue: Queue, group: GroupDir, *, as_json: bool) -> int:
    """Work on a sweep to its end, and tell the result; the exit code."""
    _check_installed()
    from mission_gym.fleet.sweep.search import Search  # loads Optuna
    from mission_gym.fleet.sweep.study import Study

    stop = StopFlag()
    with hold_sweep(group), stop_on_signals(stop), JobsScreen(group) as screen:
        question = read_sweep(group).question
        base = fix_num_envs(_resolve(question.values))
        screen.say(_tell_question(group, question))
        study = Study(group.path, group.read().name, question.axes, base.config.run.seed)
        search = Search(group, study, base, usable_cores(), screen.say)
        search.go_on(group.read_jobs())
        queue.register(group)
        jobs = stay_with(
            queue, group, [], say=screen.say, should_stop=stop, feed=search.feed,
            watch=lambda jobs: _watch(screen, jobs),
        )  # fmt: skip
        if stop():
            say(f"go on    the same command, or mission-gym jobs resume {show_path(group.path)}")
            return _INTERRUPTED
        record, preset = search.finish(jobs)
        if preset:
            write_atomic(group.path / BEST, preset)
        page = group.path / "report.html"
        write_atomic(page, make_sweep_html(group))
    show(describe_sweep(group), as_json=as_json, view=view_sweep)
    say(f"report   {show_path(page)}")
    say(f"trials   optuna-dashboard {show_path(group.path / STUDY)}")
    if not preset:
        say("no trial was finished and trained again, so there is no preset")
        return _FAILED
    say(f"preset   mission-gym train {record.question.values['env']} --config {show_path(group.path / BEST)}")
    return 0


def wait_for_sweep(group: GroupDir, *, as_json: bool) -> int:
    """Wait until the process that works on a sweep has ended, and tell the result; the exit code."""
    with JobsScreen(group) as screen:
        while find_driver(group) is not None:
            _watch(screen, group.read_jobs())
            time.sleep(TICK_S)
    if not read_sweep(group).is_done:
        path = show_path(group.path)
        raise RunStateError(f"nobody works on {path}; `mission-gym jobs resume {path}` goes on with it")
    show(describe_sweep(group), as_json=as_json, view=view_sweep)
    return 0


def stop_driver(group: GroupDir) -> None:
    """Let the process that works on a sweep stop its jobs and end."""
    driver = find_driver(group)
    if driver is not None:
        with suppress(ProcessLookupError):
            os.kill(driver, signal.SIGTERM)


def _watch(screen: JobsScreen, jobs: Mapping[str, Job]) -> None:
    """Show the jobs that are not over: a sweep has many."""
    living = {name: job for name, job in jobs.items() if not job.has_ended}
    if living:
        screen.watch(living)


def _tell_question(group: GroupDir, question: Question) -> str:
    trials = "as many trials as the budget allows" if question.trials is None else f"{question.trials} trials"
    names = ", ".join(axis.name for axis in question.axes)
    return f"sweep {show_path(group.path)}: {trials} over {names} on {usable_cores()} cores"
