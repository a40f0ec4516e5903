"""`train`, `resume` and `branch`: a session, shown as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from mission_gym.cli.flags import RUNS_DIR, LayerFlags, RunName, Switch, given_values, parse, with_values
from mission_gym.cli.output import note
from mission_gym.cli.warming import compile_beside
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import DEFAULT_ENV_ID
from mission_gym.config.sizes import parse_count
from mission_gym.errors import UsageError
from mission_gym.report.formats import run_argument
from mission_gym.run.config import resolve
from mission_gym.screen import Screen
from mission_gym.store.resolve import find_run

Listener = Callable[[dict[str, Any]], None]


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
    subproc: Annotated[Switch, tyro.conf.arg(help="Short for --vector workers.", help_behavior_hint="")] = (
        False
    )


@dataclass(kw_only=True)
class ResumeFlags:
    """Flags of `resume`."""

    run: Annotated[RunName, tyro.conf.arg(help="The run to go on with.")]
    timesteps: Annotated[
        str | None,
        tyro.conf.arg(metavar="N", help="A new total, which extends a finished run.", help_behavior_hint=""),
    ] = None
    runs_dir: Annotated[Path, tyro.conf.arg(help=RUNS_DIR, metavar="DIR")] = Path("runs")


@dataclass(kw_only=True)
class BranchFlags(LayerFlags):
    """Flags of `branch`."""

    parent: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN[@STEP]", help="Where the child begins.")
    ]


def train(args: Sequence[str]) -> int:
    """`mission-gym train [ENV]`."""
    resolved = read_training(args)
    wait = compile_beside(resolved.config.env.env_id, algo=resolved.config.run.algo)
    from mission_gym.run.start import start_run

    wait()
    return _follow(lambda listener: start_run(resolved, listener))


def read_training(args: Sequence[str]) -> Resolved:
    """The config that the flags of `train` ask for."""
    flags: Any = parse(with_values(TrainFlags), args, "train", "Train a policy on an environment.")
    values = given_values(flags)
    if flags.subproc and values.setdefault("vector", "workers") != "workers":
        raise UsageError(f"--subproc is --vector workers, and --vector {values['vector']} is given; keep one")
    return resolve(flags.env_id, values, sets=flags.set, config_file=flags.config, preset=flags.preset)


def resume(args: Sequence[str]) -> int:
    """`mission-gym resume RUN`."""
    flags = parse(ResumeFlags, args, "resume", "Go on with a run where its last checkpoint stands.")
    timesteps = None if flags.timesteps is None else parse_count(flags.timesteps)
    ref = find_run(flags.run, flags.runs_dir)
    note(ref.note)
    if ref.step not in (None, "last"):
        raise UsageError(
            f"{flags.run!r} names a checkpoint, and a run is resumed from its last one;"
            f" `mission-gym branch {flags.run}` begins at another"
        )
    from mission_gym.run.start import resume_run

    return _follow(lambda listener: resume_run(ref.run, listener, timesteps=timesteps))


def branch(args: Sequence[str]) -> int:
    """`mission-gym branch RUN[@STEP]`."""
    flags: Any = parse(with_values(BranchFlags), args, "branch", "Train a child of a run, with changes.")
    values = given_values(flags)
    ref = find_run(flags.parent, Path(values.get("runs_dir", "runs")))
    note(ref.note)
    from mission_gym.run.branch import branch_run

    return _follow(
        lambda listener: branch_run(
            ref, values, listener, sets=flags.set, config_file=flags.config, preset=flags.preset
        )
    )


def _follow(begin: Callable[[Listener], AbstractContextManager[Any]]) -> int:
    """Train to the end; the exit code tells whether it was interrupted."""
    with Screen() as listener, begin(listener) as session:
        try:
            for _ in session.updates():
                pass
        except KeyboardInterrupt:
            name = run_argument(session.run.path)
            note(f"stopped at once; the last checkpoint is intact: mission-gym resume {name}")
            return 130
        return 130 if session.stop.reason in ("SIGINT", "SIGTERM") else 0
