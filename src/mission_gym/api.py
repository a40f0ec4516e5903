"""The Python API: train, iterate, resume, branch and load, with the names of the flags.

run = mg.train("CartPole-v1", timesteps="200k", seed=1)
print(run.evaluate(episodes=20))

`api_results` has the objects that these functions return, `api_flags` the types of flags.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

from mission_gym.api_results import Group, Run, Update, write_report
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.config.sizes import parse_count
from mission_gym.errors import UsageError, WorkerError
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import make_seed_group
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.learner.loop import StopFlag
from mission_gym.report.screen.live import JobsScreen, Screen
from mission_gym.run.branch import branch_run
from mission_gym.run.config import resolve
from mission_gym.run.environment import permit_names
from mission_gym.run.open import LoadedPolicy, open_run
from mission_gym.run.resume import find_unfinished, resume_run
from mission_gym.run.session import Session
from mission_gym.run.signals import raise_interrupt, stop_on_signals
from mission_gym.run.stages import EnvSource
from mission_gym.run.start import start_run
from mission_gym.store.resolve import RunRef, find_run
from mission_gym.store.rundir import RunDir
from mission_gym.store.trusted import retry_if_allowed

if TYPE_CHECKING:
    from mission_gym.api_flags import Flags

__all__ = ["Group", "Run", "Update", "branch", "iterate", "load", "resume", "train", "write_report"]

EnvLike = str | Callable[..., Any]
Seeds = int | str | Sequence[int]


@overload
def train(
    env: EnvLike,
    *,
    progress: bool = True,
    seeds: None = None,
    resume_or_start: str | None = None,
    **flags: Unpack[Flags],
) -> Run: ...
@overload
def train(
    env: EnvLike,
    *,
    progress: bool = True,
    seeds: Seeds,
    cuda_mps: Literal["off", "on", "auto"] | None = None,
    **flags: Unpack[Flags],
) -> Group: ...
def train(
    env: EnvLike,
    *,
    progress: bool = True,
    seeds: Seeds | None = None,
    cuda_mps: Literal["off", "on", "auto"] | None = None,
    resume_or_start: str | None = None,
    **flags: Unpack[Flags],
) -> Run | Group:
    """Train and return the run. After Ctrl-C the run is saved, and KeyboardInterrupt is raised.

    env: an id, module:Id, module:callable or a callable. flags: those of `mission-gym train`, with
    underscores, including `preset`, `config`, `set` and `trust`. seeds (5, "1..5", [3, 7]): train a group of
    runs, packed on this machine, and return the group; cuda_mps applies to them. resume_or_start: the
    name of a run to continue, or else start; a finished run is returned as it is.
    """
    if seeds is not None:
        if resume_or_start is not None:
            raise UsageError("resume_or_start names one run, and seeds makes several; remove one")
        return _train_group(env, progress, seeds, cuda_mps or "auto", dict(flags))
    if cuda_mps is not None:
        raise UsageError("a single run shares no GPU; cuda_mps needs seeds [argument cuda_mps]")
    return _train_to_end(_prepare(env, dict(flags), resume_or_start), progress)


def resume(
    run: str | os.PathLike[str] | Run,
    *,
    env: Callable[..., Any] | None = None,
    timesteps: int | str | None = None,
    ray_address: str | None = None,
    runs_dir: str = "runs",
    progress: bool = True,
    trust: bool = False,
) -> Run:
    """Continue a run from its last checkpoint, to its end, and return it.

    run: a path, a name, a prefix or `latest`. env: the callable that the run was trained on, if it can't be
    imported. timesteps: a larger total. trust: allow the code that the run names.
    """
    ref = _find(run, runs_dir)
    if ref.step not in (None, "last"):
        raise UsageError(
            f"{str(run)!r} names a checkpoint, but a run continues from its last one; use mg.branch"
        )
    total = None if timesteps is None else parse_count(timesteps)
    begin = partial(resume_run, ref.run, timesteps=total, ray_address=ray_address, source=env)
    return _train_to_end(_Start(begin, env, ref.run, trust), progress)


def branch(
    run: str | os.PathLike[str] | Run,
    *,
    env: Callable[..., Any] | None = None,
    progress: bool = True,
    **flags: Unpack[Flags],
) -> Run:
    """Train a child of a run, with changes, and return the child.

    run: as in `resume`, also RUN@STEP. env: see `resume`. flags: those of `mission-gym branch`.
    """
    values: dict[str, Any] = dict(flags)
    trust, layers = values.pop("trust", False), _pop_layers(values)
    ref = _find(run, str(values.get("runs_dir", "runs")))
    return _train_to_end(
        _Start(partial(branch_run, ref, values, source=env, from_python=True, **layers), env, None, trust),
        progress,
    )


class _Start(NamedTuple):
    """A run that can begin. begin: called with `listener`; None for a run that is done."""

    begin: Callable[..., AbstractContextManager[Session]] | None
    source: EnvSource
    run: RunDir | None = None  # if it exists already
    trust: bool = False


def _prepare(env: EnvLike, flags: dict[str, Any], resume_or_start: str | None) -> _Start:
    """A new run, or the existing one of this name."""
    if resume_or_start is not None:
        if "run_name" in flags:
            raise UsageError("resume_or_start and run_name both name the run; remove one")
        flags = flags | {"run_name": resume_or_start}
    resolved, source = _resolve(env, flags)
    found = None if resume_or_start is None else find_unfinished(resolved)
    if found is None:
        return _Start(partial(start_run, resolved, source=source), source)
    if found.note:
        warnings.warn(found.note, stacklevel=3)
    again = partial(resume_run, found.run, timesteps=found.timesteps, source=source)
    return _Start(None if found.is_done else again, source, found.run, bool(flags.get("trust", False)))


@contextmanager
def _open(start: _Start, progress: bool) -> Iterator[Session]:
    """The session of a run, with its screen."""
    assert start.begin is not None
    begin = start.begin
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(progress))
        session = retry_if_allowed(
            lambda: stack.enter_context(begin(listener=listener)), lambda error: start.trust
        )
        yield session


def _train_to_end(start: _Start, progress: bool) -> Run:
    if start.begin is None:
        assert start.run is not None
        return Run(start.run.path, start.source)
    with _open(start, progress) as session:
        for _ in session.updates():
            pass
    write_report(session)
    raise_interrupt(session.stop)
    return Run(session.run.path, start.source)


def _find(run: str | os.PathLike[str] | Run, runs_dir: str) -> RunRef:
    ref = find_run(str(run.path if isinstance(run, Run) else run), Path(runs_dir))
    if ref.note:
        warnings.warn(ref.note, stacklevel=3)
    return ref


def _train_group(env: EnvLike, progress: bool, seeds: Seeds, cuda_mps: str, flags: dict[str, Any]) -> Group:
    resolved, source = _resolve(env, flags)
    if source is not None:
        raise UsageError(
            f"seeds={seeds!r}: each seed runs in its own process, which can't import"
            f" {resolved.config.env.env_id}; put the environment into a module, and give module:callable"
        )
    apply_rules(resolved)  # refuses before any folder is made
    given = {"env": resolved.config.env.env_id} | flags
    queue, stop = Queue(), StopFlag()
    group = make_seed_group(queue, resolved, given, seeds, "argument seeds", cuda_mps)
    names = list(group.read_jobs())
    with stop_on_signals(stop), JobsScreen(group, quiet=not progress) as screen:
        jobs = wait_for_jobs(queue, group, names, say=screen.say, watch=screen.watch, should_stop=stop)
    raise_interrupt(stop)
    failed = [f"{job.name}: {job.cause}" for job in jobs.values() if job.state == "failed"]
    if failed:
        raise WorkerError(f"{len(failed)} of {len(jobs)} runs failed; {'; '.join(failed)} [{group.path}]")
    return Group(group.path)


def iterate(
    env: EnvLike, *, progress: bool = False, resume_or_start: str | None = None, **flags: Unpack[Flags]
) -> Iterator[Update]:
    """Train in your own loop: yields one `Update` after each update; `break` saves a checkpoint and stops.

    Arguments are those of `train`. After Ctrl-C the run is saved, and KeyboardInterrupt is raised.
    """
    start = _prepare(env, dict(flags), resume_or_start)
    if start.begin is None:
        return
    with _open(start, progress) as session, closing(session.updates()) as updates:
        for update in updates:
            metrics = session.recorder.rolling() | update.metrics
            yield Update(update.step, metrics, update.episodes, Run(session.run.path, start.source), session)
    raise_interrupt(session.stop)


def load(
    path: str | os.PathLike[str],
    env: Callable[..., Any] | None = None,
    runs_dir: str = "runs",
    *,
    trust: bool = False,
) -> LoadedPolicy:
    """The policy of a run or checkpoint, given by a path or a name. trust: allow the code that the run
    names."""
    ref = find_run(str(path), Path(runs_dir))
    opened = retry_if_allowed(lambda: open_run(ref, env), lambda error: trust)
    for text in opened.notes:
        warnings.warn(text, stacklevel=2)
    return LoadedPolicy(opened)


def _resolve(env: EnvLike, flags: dict[str, Any]) -> tuple[Resolved, EnvSource]:
    flags = dict(flags)
    if "callback" in flags:
        raise UsageError(
            "callback is not a flag; write your own loop, `for update in mg.iterate(...)`, with update.log,"
            " update.save, update.stop, update.set and update.policy [argument callback]"
        )
    trust, layers = flags.pop("trust", False), _pop_layers(flags)
    env_id, source = _name_env(env)
    resolved = resolve(env_id, flags, **layers, from_python=True)
    if trust:
        permit_names(resolved.config, lambda path: True)
    return resolved, source


def _pop_layers(flags: dict[str, Any]) -> dict[str, Any]:
    """Take the other sources of values out of the flags, as `resolve` takes them."""
    sets, config_file = flags.pop("set", ()), flags.pop("config", None)
    return {
        "sets": [sets] if isinstance(sets, str) else list(sets),
        "config_file": None if config_file is None else Path(config_file),
        "preset": flags.pop("preset", None),
    }


def _name_env(env: EnvLike) -> tuple[str, EnvSource]:
    """The import path of a callable if it leads back to it, else its name in angle brackets."""
    if isinstance(env, str):
        return env, None
    if not callable(env):
        raise UsageError(
            f"env is a {type(env).__name__}; give an id, module:callable, or a callable that makes one"
        )
    module, name = getattr(env, "__module__", ""), getattr(env, "__qualname__", type(env).__name__)
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is env:
        return f"{module}:{name}", None
    return f"<{name}>", env


@contextmanager
def _listen(progress: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    if not progress:
        yield lambda event: None
        return
    with Screen() as screen:
        yield screen.listen
