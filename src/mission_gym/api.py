"""The Python API: train, iterate, load; the same names as the flags, the same run directories.

run = mg.train("CartPole-v1", timesteps="200k", seed=1)
print(run.evaluate(episodes=20))
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.data import Episode
from mission_gym.errors import DiskError, UsageError, WorkerError
from mission_gym.fleet.drive import stay_with
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import make_seed_group
from mission_gym.learner.loop import StopFlag
from mission_gym.report.groups import describe_group
from mission_gym.report.screen.jobs import JobsScreen
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.run.build import make_loaded_policy
from mission_gym.run.config import resolve
from mission_gym.run.environment import permit_names
from mission_gym.run.open import LoadedPolicy, evaluate_run, keep_result, open_run
from mission_gym.run.recorder import Listener
from mission_gym.run.session import Session
from mission_gym.run.signals import stop_on_signals
from mission_gym.run.stages import EnvSource
from mission_gym.run.start import start_run
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir
from mission_gym.store.resolve import RunRef, find_run
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym.store.trusted import with_leave

EnvLike = str | Callable[..., Any]
Seeds = int | str | Sequence[int]
_REPORT_S = 60.0  # of training, below which a run leaves no report


class Run:
    """A run on disk."""

    def __init__(self, path: str | os.PathLike[str], env: Callable[..., Any] | None = None) -> None:
        self._dir = RunDir(Path(path))
        self._env = env

    @property
    def path(self) -> Path:
        return self._dir.path

    def evaluate(
        self,
        episodes: int = 20,
        *,
        stochastic: bool = False,
        eval_stage: str | None = None,
        trust: bool = False,
    ) -> dict[str, Any]:
        """Play the report suite with the best checkpoint; the keys of `mission-gym eval --json`. eval_stage:
        of its curriculum. trust: allow the code that the run names, if it was not allowed before."""
        ref = RunRef(self._dir, None)
        opened = with_leave(lambda: open_run(ref, self._env, eval_stage=eval_stage), lambda error: trust)
        document, _ = evaluate_run(opened, episodes, explore=stochastic)
        try:
            keep_result(opened, document)
        except DiskError as error:  # the result was asked for
            warnings.warn(f"the result is not kept: {error}", stacklevel=2)
        return document

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return MetricsLog.read(self._dir.metrics_jsonl)

    def status(self) -> dict[str, Any]:
        """The run's state, counters and rate."""
        return self._dir.read_status()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


class Group:
    """Several runs with one question, on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._dir = GroupDir(Path(path))

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def runs(self) -> list[Run]:
        """The runs, in the order in which they were asked for."""
        return [Run(path) for path in self._dir.read().runs]

    def summary(self) -> dict[str, Any]:
        """What group.json holds (`iqm`, `low`, `high` of the last evaluations, `best_run`), and `curve`."""
        return describe_group(self._dir)

    def __repr__(self) -> str:
        return f"Group({str(self.path)!r})"


@overload
def train(env: EnvLike, *, progress: bool = True, seeds: None = None, **flags: Any) -> Run: ...
@overload
def train(env: EnvLike, *, progress: bool = True, seeds: Seeds, **flags: Any) -> Group: ...
def train(env: EnvLike, *, progress: bool = True, seeds: Seeds | None = None, **flags: Any) -> Run | Group:
    """Train and return the run. `env` is an id, module:Id, module:callable or a callable; flags are those
    of `mission-gym train`, with underscores (`preset`, `config`, `set` and `trust` included). With `seeds`
    (5, "1..5", [3, 7]) several runs are made, packed on this machine, and their group is returned; `cuda_mps`
    is for them."""
    if seeds is not None:
        return _train_group(env, progress, seeds, flags)
    resolved, source = _resolve(env, flags)
    with _listener(progress) as listener, start_run(resolved, listener, source) as session:
        for _ in session.updates():
            pass
    leave_report(session)
    return Run(session.run.path, source)


def leave_report(session: Session) -> Path | None:
    """Write report.html into a run that trained long enough to be worth it; where it is."""
    if session.rate.elapsed_s < _REPORT_S:
        return None
    from mission_gym.report.html import make_html

    path = session.run.path / "report.html"
    try:
        write_atomic(path, make_html([session.run]))
    except Exception as error:  # noqa: BLE001  border: the run itself is whole, whatever its report meets
        warnings.warn(f"no report was written: {error}", stacklevel=2)
        return None
    return path


def _train_group(env: EnvLike, progress: bool, seeds: Seeds, flags: dict[str, Any]) -> Group:
    cuda_mps = flags.pop("cuda_mps", "auto")
    resolved, source = _resolve(env, flags)
    if source is not None:
        raise UsageError(
            f"seeds={seeds!r}: each seed is a process of its own, and none can import"
            f" {resolved.config.env.env_id}; put the environment into a module, and give module:callable"
        )
    apply_rules(resolved)  # refuses before there is a folder
    given = {"env": resolved.config.env.env_id} | flags
    queue, stop = Queue(), StopFlag()
    group = make_seed_group(queue, resolved, given, seeds, "argument seeds", cuda_mps)
    names = list(group.read_jobs())
    with stop_on_signals(stop), JobsScreen(group, quiet=not progress) as screen:
        jobs = stay_with(queue, group, names, say=screen.say, watch=screen.watch, should_stop=stop)
    failed = [f"{job.name}: {job.cause}" for job in jobs.values() if job.state == "failed"]
    if failed:
        raise WorkerError(f"{len(failed)} of {len(jobs)} runs failed; {'; '.join(failed)} [{group.path}]")
    return Group(group.path)


@dataclass(frozen=True, slots=True)
class Update:
    """One update, as `iterate` gives it."""

    step: int
    metrics: dict[str, float]
    episodes: list[Episode]
    run: Run
    _session: Session

    @property
    def policy(self) -> ActingPolicy:
        """The policy as it is now, ready to act."""
        session = self._session
        return make_loaded_policy(session.config, session.spec, session.learner.weights())


def iterate(env: EnvLike, *, progress: bool = False, **flags: Any) -> Iterator[Update]:
    """Train with the loop in your hands: one item per update; `break` stops, with the checkpoint saved."""
    resolved, source = _resolve(env, flags)
    with (
        _listener(progress) as listener,
        start_run(resolved, listener, source) as session,
        closing(session.updates()) as updates,
    ):
        for update in updates:
            metrics = session.recorder.rolling() | update.metrics
            yield Update(update.step, metrics, update.episodes, Run(session.run.path, source), session)


def load(
    path: str | os.PathLike[str],
    env: Callable[..., Any] | None = None,
    runs_dir: str = "runs",
    *,
    trust: bool = False,
) -> LoadedPolicy:
    """The policy of a run or checkpoint (a path, or a name as on the command line). trust: allow the code
    that the run names, if it was not allowed before."""
    ref = find_run(str(path), Path(runs_dir))
    opened = with_leave(lambda: open_run(ref, env), lambda error: trust)
    for text in opened.notes:
        warnings.warn(text, stacklevel=2)
    return LoadedPolicy(opened)


def _resolve(env: EnvLike, flags: dict[str, Any]) -> tuple[Resolved, EnvSource]:
    flags = dict(flags)
    trust = flags.pop("trust", False)
    sets = flags.pop("set", ())
    preset, config_file = flags.pop("preset", None), flags.pop("config", None)
    env_id, source = _name_of(env)
    resolved = resolve(
        env_id,
        flags,
        sets=[sets] if isinstance(sets, str) else list(sets),
        config_file=None if config_file is None else Path(config_file),
        preset=preset,
        from_python=True,
    )
    if trust:
        permit_names(resolved.config, lambda path: True)
    return resolved, source


def _name_of(env: EnvLike) -> tuple[str, EnvSource]:
    """A callable's own import path where that leads back to it, else a name in angle brackets."""
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


def _listener(progress: bool) -> AbstractContextManager[Listener]:
    if not progress:
        return nullcontext(lambda event: None)
    from mission_gym.report.screen.live import Screen

    return Screen()
