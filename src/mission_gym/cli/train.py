"""`train`, `resume` and `branch`: training with a live view."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import tyro

from mission_gym.algorithms import load_algorithm
from mission_gym.cli.flags import (
    CudaMps,
    FolderFlags,
    LayerFlags,
    RunName,
    Switch,
    Trust,
    flag,
    given_values,
    parse,
    with_values,
)
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import DEFAULT_ENV_ID
from mission_gym.config.sizes import parse_count
from mission_gym.errors import UsageError
from mission_gym.report.formats import run_argument, show_path, show_value
from mission_gym.report.screen.live import Screen
from mission_gym.report.screen.streams import say
from mission_gym.run.config import resolve, schema
from mission_gym_missions import CAPTURE_ID, PLACEMENT_ID, TERRITORY_ID

Listener = Callable[[dict[str, Any]], None]
_SIMULATORS = {
    CAPTURE_ID: "mission_gym_missions.capture.simulator",
    PLACEMENT_ID: "mission_gym_missions.placement.simulator",
    TERRITORY_ID: "mission_gym_missions.territory.simulator",
}
_USUAL = (
    "timesteps", "algo", "seed", "n_envs", "learning_rate", "network_arch", "env_kwargs", "eval_freq",
    "stop_when", "run_name",
)  # fmt: skip
_PATIENCE_S = 1.0  # loading compiled code from the disk takes about half a second


LogTable = Annotated[Switch, flag("Print a table of the metrics with each row of progress.csv.")]


@dataclass(kw_only=True)
class TrainFlags(LayerFlags):
    """Flags of `train`."""

    env_id: Annotated[
        tyro.conf.Positional[str | None],
        flag("Gymnasium id, module:Id or module:callable.", "ENV", default=f"(default: {DEFAULT_ENV_ID})"),
    ] = None
    subproc: Annotated[Switch, flag("Same as --vector workers.")] = False
    seeds: Annotated[str | None, flag("Seeds of a group of runs: 5, 1..5 or 3,7,11.", "SEEDS")] = None
    detach: Annotated[Switch, flag("Train in the background; see `mission-gym jobs`.")] = False
    cuda_mps: CudaMps = None
    resume_or_start: Annotated[
        str | None, flag("Resume the run of this name if it exists; otherwise start it.", "NAME")
    ] = None
    json: Annotated[Switch, flag("Print the result or the group as JSON, with --seeds or --detach.")] = False
    log_table: LogTable = False


@dataclass(kw_only=True)
class ResumeFlags(FolderFlags):
    """Flags of `resume`."""

    run: RunName
    timesteps: Annotated[str | None, flag("New total number of steps, to extend a finished run.", "N")] = None
    ray_address: Annotated[
        str | None, flag("Ray cluster to continue on; none starts a local one.", "ADDRESS")
    ] = None
    log_table: LogTable = False
    trust: Trust = False


@dataclass(kw_only=True)
class BranchFlags(LayerFlags):
    """Flags of `branch`."""

    parent: Annotated[tyro.conf.Positional[str], flag("Run and checkpoint to start from.", "RUN[@STEP]")]
    log_table: LogTable = False


def train(args: Sequence[str]) -> int:
    """`mission-gym train [ENV]`."""
    flags = parse_train(args)
    if flags.resume_or_start is not None and (code := _continue(flags)) is not None:
        return code
    if flags.seeds is not None or flags.detach:
        if flags.log_table:
            raise UsageError("a group has no log table; --log-table needs a single run [--log-table]")
        return _train_group(flags)
    if flags.json:
        raise UsageError("a single run prints no result; --json needs --seeds or --detach [--json]")
    if flags.cuda_mps is not None:
        raise UsageError("a single run shares no GPU; --cuda-mps needs --seeds or --detach [--cuda-mps]")
    resolved = resolve_flags(flags)
    wait = compile_in_background(resolved.config.env.env_id, algo=resolved.config.run.algo)
    from mission_gym.run.start import start_run

    wait()
    return _follow(lambda listener: start_run(resolved, listener), flags.log_table)


def submit_training(args: Sequence[str]) -> int:
    """`mission-gym jobs add -- ENV --FLAGS`."""
    flags = parse_train(args)
    flags.detach = True
    return _train_group(flags)


def parse_train(args: Sequence[str]) -> Any:
    """The flags of `train`; --help prints the usual ones."""
    if {"-h", "--help"} & set(args):
        print(_make_help())
        raise SystemExit(0)
    args = ["--help" if arg == "--help-all" else arg for arg in args]
    return parse(with_values(TrainFlags), args, "train", "Train a policy on an environment.")


def _make_help() -> str:
    """The usual flags and an example."""
    fields = {info.name: info for info in reversed(schema().fields)}  # the default algorithm's come last
    lines = ["usage: mission-gym train [ENV] [--FLAG VALUE ...]", "", "Train a policy on an environment.", ""]
    lines.append(f"  ENV  Gymnasium id, module:Id or module:callable (default: {DEFAULT_ENV_ID})")
    for info in (fields[name] for name in _USUAL):
        default = f" (default: {show_value(info.default)})" if info.default not in ("", {}, (), None) else ""
        text = wrap(f"{info.description}{default}", 78, initial_indent=" " * 6, subsequent_indent=" " * 6)
        lines += [f"  --{info.name.replace('_', '-')} {info.type_text}", *text]
    lines += ["", "example: mission-gym train CartPole-v1 --timesteps 200k --seed 1"]
    return "\n".join([*lines, "mission-gym train --help-all lists all flags."])


def compile_in_background(env_id: str, *, algo: str | None = None) -> Callable[[], None]:
    """Compile a mission's simulator and the learner in a thread, while the command loads other modules.
    Returns a function that waits for the thread."""
    modules = {
        "simulator": _SIMULATORS.get(env_id),
        "learner": load_algorithm(algo).compiled if algo else None,
    }
    thread = threading.Thread(target=_compile, args=(modules,), daemon=True)
    with suppress(RuntimeError):  # the system refuses a thread: compiled at the first use
        thread.start()

    def wait() -> None:
        importlib.import_module("mission_gym.policy.torch_forms")  # torch takes seconds to load
        if thread.ident is not None:
            thread.join()  # a plan must not measure the compiler

    return wait


def _compile(modules: dict[str, str | None]) -> None:
    for name, path in modules.items():
        if path:
            module = importlib.import_module(path)
            timer = threading.Timer(_PATIENCE_S, _report_compiling, (name, module))
            with suppress(RuntimeError):  # the system refuses a thread
                timer.start()
            try:
                module.compile_kernels()
            finally:
                timer.cancel()


def _report_compiling(name: str, module: Any) -> None:
    if module.is_compiling():
        say(f"compiling the {name} (about 15 s, once)")


def _continue(flags: Any) -> int | None:
    """Resume the run of --resume-or-start; None if a new one has to be started."""
    if flags.seeds is not None or flags.detach or "run_name" in given_values(flags):
        raise UsageError(
            "--resume-or-start names the run of this process, and can't be combined with --seeds, --detach or"
            " --run-name; remove one [--resume-or-start]"
        )
    from mission_gym.run.resume import find_unfinished, resume_run

    found = find_unfinished(resolve_flags(flags))
    if found is None:
        return None
    say(found.note)
    if found.is_done:
        say(f"run {found.run.name} is done; there is nothing to do")
        return 0
    run, total = found.run, found.timesteps
    return _follow(lambda listener: resume_run(run, listener, timesteps=total), flags.log_table)


def resolve_flags(flags: Any) -> Resolved:
    """The config of the flags of `train`."""
    values = given_values(flags)
    if flags.resume_or_start is not None:
        values["run_name"] = flags.resume_or_start
    if flags.subproc:
        set_workers(values)
    return resolve(flags.env_id, values, **flags.layers())


def set_workers(values: dict[str, Any]) -> None:
    """Apply --subproc."""
    if values.setdefault("vector", "workers") != "workers":
        raise UsageError(
            f"--subproc means --vector workers, but --vector {values['vector']} is given; keep one"
        )


def list_given(flags: Any) -> dict[str, Any]:
    """The given values and sources by flag name: the flags of a group's runs."""
    others = {"env": flags.env_id, "preset": flags.preset, "config": flags.config, "set": flags.set or None}
    others |= {"trust": flags.trust or None, "via": flags.via}
    return given_values(flags) | {name: value for name, value in others.items() if value is not None}


def _train_group(flags: Any) -> int:
    """Train several seeds, or one run in the background."""
    from mission_gym.cli.groups import follow_group, leave_group
    from mission_gym.config.rules import apply_rules
    from mission_gym.fleet.queue import Queue
    from mission_gym.fleet.requests import make_seed_group

    given = list_given(flags) | ({"subproc": True} if flags.subproc else {})
    resolved = resolve_flags(flags)
    apply_rules(resolved)  # refuses before any folder is made
    queue = Queue()
    group = make_seed_group(queue, resolved, given, flags.seeds, "--seeds", flags.cuda_mps or "auto")
    if flags.detach:
        return leave_group(queue, group, as_json=flags.json)
    return follow_group(queue, group, list(group.read_jobs()), as_json=flags.json)


def resume(args: Sequence[str]) -> int:
    """`mission-gym resume RUN`."""
    flags = parse(ResumeFlags, args, "resume", "Continue a run from its last checkpoint.")
    timesteps = None if flags.timesteps is None else parse_count(flags.timesteps)
    ref = flags.find(flags.run)
    if ref.step not in (None, "last"):
        raise UsageError(
            f"{flags.run!r} names a checkpoint, but a run continues from its last one;"
            f" `mission-gym branch {flags.run}` starts from another"
        )
    from mission_gym.run.resume import resume_run

    address = flags.ray_address
    return _follow(
        lambda listener: resume_run(ref.run, listener, timesteps=timesteps, ray_address=address),
        flags.log_table,
    )


def branch(args: Sequence[str]) -> int:
    """`mission-gym branch RUN[@STEP]`."""
    flags: Any = parse(with_values(BranchFlags), args, "branch", "Train a child of a run, with changes.")
    values = given_values(flags)
    ref = FolderFlags(runs_dir=Path(values.get("runs_dir", "runs"))).find(flags.parent)
    from mission_gym.run.branch import branch_run

    return _follow(lambda listener: branch_run(ref, values, listener, **flags.layers()), flags.log_table)


def _follow(start: Callable[[Listener], AbstractContextManager[Any]], log_table: bool) -> int:
    """Train to the end; returns the exit code."""
    from mission_gym.api import write_report
    from mission_gym.learner.loop import StopFlag
    from mission_gym.run.signals import STOP_SIGNALS, WARNINGS, stop_on_signals

    early = StopFlag()  # a cluster may warn before the first update; until then Ctrl-C ends at once
    with (
        stop_on_signals(early, WARNINGS),
        Screen(log_table=log_table) as screen,
        start(screen.listen) as session,
    ):
        session.stop.reason = session.stop.reason or early.reason
        try:
            for _ in session.updates():
                pass
        except KeyboardInterrupt:
            name = run_argument(session.run.path)
            say(f"stopped without saving; continue from the last checkpoint: mission-gym resume {name}")
            return 130
    if (path := write_report(session)) is not None:
        say(f"  report: {show_path(path)}")
    return 130 if session.stop.reason in STOP_SIGNALS else 0
