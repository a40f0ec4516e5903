"""The Python API: train, iterate, load; the same names as the flags, the same run directories.

run = mg.train("CartPole-v1", timesteps="200k", seed=1)
print(run.evaluate(episodes=20))
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules
from mission_gym.data import Episode
from mission_gym.errors import DiskError, UsageError, WorkerError
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.requests import make_seed_group
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.learner.loop import StopFlag
from mission_gym.report.groups import describe_group
from mission_gym.report.screen.live import JobsScreen, Screen
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.run.build import make_loaded_policy
from mission_gym.run.config import resolve
from mission_gym.run.environment import permit_names
from mission_gym.run.open import LoadedPolicy, evaluate_run, keep_result, open_run
from mission_gym.run.session import Session
from mission_gym.run.signals import stop_on_signals
from mission_gym.run.stages import EnvSource
from mission_gym.run.start import start_run
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir
from mission_gym.store.resolve import RunRef, find_run
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym.store.trusted import retry_if_allowed

EnvLike = str | Callable[..., Any]
Seeds = int | str | Sequence[int]
_REPORT_S = 60.0  # a run that trained for less gets no report


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
        """Play the report suite with the best checkpoint; returns the keys of `mission-gym eval --json`.
        eval_stage: a stage of the curriculum. trust: allow the code that the run names."""
        ref = RunRef(self._dir, None)
        opened = retry_if_allowed(
            lambda: open_run(ref, self._env, eval_stage=eval_stage), lambda error: trust
        )
        document, _ = evaluate_run(opened, episodes, explore=stochastic)
        try:
            keep_result(opened, document)
        except DiskError as error:  # the caller still gets the result
            warnings.warn(f"the result is not stored: {error}", stacklevel=2)
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
    """A group of runs on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._dir = GroupDir(Path(path))

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def runs(self) -> list[Run]:
        """The runs, in the order of their requests."""
        return [Run(path) for path in self._dir.read().runs]

    def summary(self) -> dict[str, Any]:
        """The contents of group.json (`iqm`, `low`, `high` of the last evaluations, `best_run`), and
        `curve`."""
        return describe_group(self._dir)

    def __repr__(self) -> str:
        return f"Group({str(self.path)!r})"


@overload
def train(env: EnvLike, *, progress: bool = True, seeds: None = None, **flags: Any) -> Run: ...
@overload
def train(env: EnvLike, *, progress: bool = True, seeds: Seeds, **flags: Any) -> Group: ...
def train(env: EnvLike, *, progress: bool = True, seeds: Seeds | None = None, **flags: Any) -> Run | Group:
    """Train and return the run.

    env: an id, module:Id, module:callable or a callable. flags: those of `mission-gym train`, with
    underscores, including `preset`, `config`, `set` and `trust`. seeds (5, "1..5", [3, 7]): train a group of
    runs, packed on this machine, and return the group; `cuda_mps` applies to groups.
    """
    if seeds is not None:
        return _train_group(env, progress, seeds, flags)
    resolved, source = _resolve(env, flags)
    with _listen(progress) as listener, start_run(resolved, listener, source) as session:
        for _ in session.updates():
            pass
    write_report(session)
    return Run(session.run.path, source)


def write_report(session: Session) -> Path | None:
    """Write report.html into a run that trained long enough; returns its path."""
    if session.rate.elapsed_s < _REPORT_S:
        return None
    from mission_gym.report.html import make_html

    path = session.run.path / "report.html"
    try:
        write_atomic(path, make_html([session.run]))
    except Exception as error:  # noqa: BLE001  border: a failed report must not fail the run
        warnings.warn(f"no report was written: {error}", stacklevel=2)
        return None
    return path


def _train_group(env: EnvLike, progress: bool, seeds: Seeds, flags: dict[str, Any]) -> Group:
    cuda_mps = flags.pop("cuda_mps", "auto")
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
    failed = [f"{job.name}: {job.cause}" for job in jobs.values() if job.state == "failed"]
    if failed:
        raise WorkerError(f"{len(failed)} of {len(jobs)} runs failed; {'; '.join(failed)} [{group.path}]")
    return Group(group.path)


@dataclass(frozen=True, slots=True)
class Update:
    """One update of `iterate`."""

    step: int
    metrics: dict[str, float]
    episodes: list[Episode]
    run: Run
    _session: Session

    @property
    def policy(self) -> ActingPolicy:
        """The present policy, ready to act."""
        session = self._session
        return make_loaded_policy(session.config, session.spec, session.learner.weights())


def iterate(env: EnvLike, *, progress: bool = False, **flags: Any) -> Iterator[Update]:
    """Train in your own loop: yields one item per update; `break` saves a checkpoint and stops."""
    resolved, source = _resolve(env, flags)
    with (
        _listen(progress) as listener,
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
    """The policy of a run or checkpoint, given by a path or a name. trust: allow the code that the run
    names."""
    ref = find_run(str(path), Path(runs_dir))
    opened = retry_if_allowed(lambda: open_run(ref, env), lambda error: trust)
    for text in opened.notes:
        warnings.warn(text, stacklevel=2)
    return LoadedPolicy(opened)


def _resolve(env: EnvLike, flags: dict[str, Any]) -> tuple[Resolved, EnvSource]:
    flags = dict(flags)
    trust = flags.pop("trust", False)
    sets = flags.pop("set", ())
    preset, config_file = flags.pop("preset", None), flags.pop("config", None)
    env_id, source = _name_env(env)
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
