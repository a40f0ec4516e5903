"""`train`, `resume` and `branch`: a session, shown as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mission_gym.cli.flags import (
    FolderFlags,
    LayerFlags,
    RunName,
    Switch,
    Trust,
    given_layers,
    given_values,
    parse,
    said,
    with_values,
)
from mission_gym.cli.warming import compile_beside
from mission_gym.config.layers import Resolved
from mission_gym.config.plain_yaml import read_stored, to_plain
from mission_gym.config.schema import DEFAULT_ENV_ID
from mission_gym.config.sizes import parse_count
from mission_gym.errors import UsageError
from mission_gym.report.formats import run_argument, show_path
from mission_gym.report.screen.live import Screen
from mission_gym.report.screen.streams import say
from mission_gym.run.config import resolve
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.resolve import find_namesake
from mission_gym.store.rundir import RunDir

Listener = Callable[[dict[str, Any]], None]
_OF_THE_START = ("run.timesteps", "run.run_name", "run.runs_dir")  # not what --resume-or-start ignores


@dataclass(kw_only=True)
class TrainFlags(LayerFlags):
    """Flags of `train`."""

    env_id: Annotated[
        tyro.conf.Positional[str | None],
        tyro.conf.arg(
            metavar="ENV",
            help="Gymnasium id, module:Id or module:callable.",
            help_behavior_hint=f"(default: {DEFAULT_ENV_ID})",
        ),
    ] = None
    subproc: Annotated[Switch, said("Short for --vector workers.")] = False
    seeds: Annotated[
        str | None, said("Several runs as one group, packed on this machine: 5, 1..5 or 3,7,11.", "SEEDS")
    ] = None
    detach: Annotated[Switch, said("Go on without this terminal; see `mission-gym jobs`.")] = False
    cuda_mps: Annotated[
        str | None,
        said(
            "With --seeds or --detach: share a GPU through CUDA MPS; auto: where that is measured better.",
            "off|on|auto",
        ),
    ] = None
    resume_or_start: Annotated[
        str | None,
        said("Go on with the newest run of this name, or start it.", "NAME"),
    ] = None
    json: Annotated[Switch, said("With --seeds or --detach: print the result, or the group, as JSON.")] = (
        False
    )


@dataclass(kw_only=True)
class ResumeFlags(FolderFlags):
    """Flags of `resume`."""

    run: Annotated[RunName, tyro.conf.arg(help="The run to go on with.")]
    timesteps: Annotated[str | None, said("A new total, which extends a finished run.", "N")] = None
    ray_address: Annotated[
        str | None, said("Another Ray cluster than the run was on; none: one of this machine.", "ADDRESS")
    ] = None
    trust: Trust = False


@dataclass(kw_only=True)
class BranchFlags(LayerFlags):
    """Flags of `branch`."""

    parent: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN[@STEP]", help="Where the child begins.")
    ]


def train(args: Sequence[str]) -> int:
    """`mission-gym train [ENV]`."""
    flags = _parse_training(args)
    if flags.resume_or_start is not None and (run := _find_unfinished(flags)):
        return _go_on(run, _resolve(flags))
    if flags.seeds is not None or flags.detach:
        return _train_group(flags)
    if flags.json:
        raise UsageError("a run has no result to print; --json is for --seeds and --detach [--json]")
    if flags.cuda_mps is not None:
        raise UsageError("a run alone shares no GPU; --cuda-mps is for --seeds and --detach [--cuda-mps]")
    resolved = _resolve(flags)
    wait = compile_beside(resolved.config.env.env_id, algo=resolved.config.run.algo)
    from mission_gym.run.start import start_run

    wait()
    return _follow(lambda listener: start_run(resolved, listener))


def read_training(args: Sequence[str]) -> Resolved:
    """The config that the flags of `train` ask for."""
    return _resolve(_parse_training(args))


def submit_training(args: Sequence[str]) -> int:
    """`mission-gym jobs add -- ENV --FLAGS`."""
    flags = _parse_training(args)
    flags.detach = True
    return _train_group(flags)


def _parse_training(args: Sequence[str]) -> Any:
    return parse(with_values(TrainFlags), args, "train", "Train a policy on an environment.")


def _find_unfinished(flags: Any) -> RunDir | None:
    """The run that --resume-or-start names, if there is one with a checkpoint."""
    if flags.seeds is not None or flags.detach or "run_name" in given_values(flags):
        raise UsageError(
            "--resume-or-start names the one run of this process; --seeds, --detach and --run-name are not"
            " for it; remove one [--resume-or-start]"
        )
    run = find_namesake(flags.resume_or_start, Path(_resolve(flags).config.run.runs_dir))
    return run if run is not None and list_checkpoints(run.checkpoints) else None


def _go_on(run: RunDir, asked: Resolved) -> int:
    """Resume a run, with a larger total if that is asked for; one that is done stays so."""
    stored = read_stored(run.config_yaml)
    given = [path for path in stored if path in asked.sources and asked.explicit(path)]
    values = {path: to_plain(asked.config.value(path)) for path in given}
    differing = [
        f"{path}={value} (it has {stored[path].value})"
        for path, value in values.items()
        if path not in _OF_THE_START and value not in ("auto", stored[path].value)
    ]
    if differing:
        say(f"run {run.name} goes on as it was started, without {', '.join(differing)}")
    total = values.get("run.timesteps", 0)
    timesteps = total if total > stored["run.timesteps"].value else None
    if timesteps is None and run.read_status().get("state") == "done":
        say(f"run {run.name} is done; there is nothing to do")
        return 0
    from mission_gym.run.resume import resume_run

    return _follow(lambda listener: resume_run(run, listener, timesteps=timesteps))


def _resolve(flags: Any) -> Resolved:
    values = given_values(flags)
    if flags.resume_or_start is not None:
        values["run_name"] = flags.resume_or_start
    if flags.subproc:
        ask_for_workers(values)
    return resolve(flags.env_id, values, **given_layers(flags))


def ask_for_workers(values: dict[str, Any]) -> None:
    """What --subproc means."""
    if values.setdefault("vector", "workers") != "workers":
        raise UsageError(f"--subproc is --vector workers, and --vector {values['vector']} is given; keep one")


def list_given(flags: Any) -> dict[str, Any]:
    """What was given, layers included, by the names of flags: what a group tells its runs."""
    others = {"env": flags.env_id, "preset": flags.preset, "config": flags.config, "set": flags.set or None}
    others |= {"trust": flags.trust or None, "via": flags.via}
    return given_values(flags) | {name: value for name, value in others.items() if value is not None}


def _train_group(flags: Any) -> int:
    """Several seeds, or a run that goes on without this terminal."""
    from mission_gym.cli.groups import follow_group, leave_group
    from mission_gym.config.rules import apply_rules
    from mission_gym.fleet.queue import Queue
    from mission_gym.fleet.requests import make_seed_group

    given = list_given(flags) | ({"subproc": True} if flags.subproc else {})
    resolved = _resolve(flags)
    apply_rules(resolved)  # refuses before there is a folder
    queue = Queue()
    group = make_seed_group(queue, resolved, given, flags.seeds, "--seeds", flags.cuda_mps or "auto")
    if flags.detach:
        return leave_group(queue, group, as_json=flags.json)
    return follow_group(queue, group, list(group.read_jobs()), as_json=flags.json)


def resume(args: Sequence[str]) -> int:
    """`mission-gym resume RUN`."""
    flags = parse(ResumeFlags, args, "resume", "Go on with a run where its last checkpoint stands.")
    timesteps = None if flags.timesteps is None else parse_count(flags.timesteps)
    ref = flags.find(flags.run)
    if ref.step not in (None, "last"):
        raise UsageError(
            f"{flags.run!r} names a checkpoint, and a run is resumed from its last one;"
            f" `mission-gym branch {flags.run}` begins at another"
        )
    from mission_gym.run.resume import resume_run

    address = flags.ray_address
    return _follow(lambda listener: resume_run(ref.run, listener, timesteps=timesteps, ray_address=address))


def branch(args: Sequence[str]) -> int:
    """`mission-gym branch RUN[@STEP]`."""
    flags: Any = parse(with_values(BranchFlags), args, "branch", "Train a child of a run, with changes.")
    values = given_values(flags)
    ref = FolderFlags(runs_dir=Path(values.get("runs_dir", "runs"))).find(flags.parent)
    from mission_gym.run.branch import branch_run

    return _follow(lambda listener: branch_run(ref, values, listener, **given_layers(flags)))


def _follow(begin: Callable[[Listener], AbstractContextManager[Any]]) -> int:
    """Train to the end; the exit code tells whether it was interrupted."""
    from mission_gym.api import leave_report
    from mission_gym.learner.loop import StopFlag
    from mission_gym.run.signals import STOP_SIGNALS, WARNINGS, stop_on_signals

    early = StopFlag()  # a cluster's warning may come before the first update; Ctrl-C ends at once till then
    with stop_on_signals(early, WARNINGS), Screen() as listener, begin(listener) as session:
        session.stop.reason = session.stop.reason or early.reason
        try:
            for _ in session.updates():
                pass
        except KeyboardInterrupt:
            name = run_argument(session.run.path)
            say(f"stopped at once; the last checkpoint is intact: mission-gym resume {name}")
            return 130
    if (path := leave_report(session)) is not None:
        say(f"  report: {show_path(path)}")
    return 130 if session.stop.reason in STOP_SIGNALS else 0
