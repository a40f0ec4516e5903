"""The objects that the API returns: runs and groups on disk, and the updates of `iterate`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mission_gym.data import Episode
from mission_gym.errors import DiskError, RunStateError, UsageError
from mission_gym.report.groups import describe_group
from mission_gym.run.build import make_loaded_policy
from mission_gym.run.open import LoadedPolicy, OpenRun, evaluate_run, keep_result, open_run
from mission_gym.run.session import Session
from mission_gym.store.checkpoints import step_name
from mission_gym.store.files import write_atomic
from mission_gym.store.groups import GroupDir
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from mission_gym.store.trusted import retry_if_allowed

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
        try:
            status = self.status()
        except RunStateError:  # damaged or removed
            return f"Run({str(self.path)!r})"
        return f"Run({str(self.path)!r}, state={status.get('state')!r}, step={status.get('step', 0)})"


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


@dataclass(frozen=True, slots=True)
class Update:
    """One update of `iterate`. Its methods work until the next update begins."""

    step: int
    metrics: dict[str, float]
    episodes: list[Episode]
    run: Run
    _session: Session

    @property
    def policy(self) -> LoadedPolicy:
        """The present policy, with the `predict` of `mg.load`."""
        session = self._session
        config, environment = session.config, session.environment
        acting = make_loaded_policy(config, session.spec, session.learner.weights())
        return LoadedPolicy(OpenRun(session.run, session.step, config, environment, acting))

    def log(self, name: str, value: float) -> None:
        """Add your own number to the next row of metrics.jsonl, progress.csv, TensorBoard and trackers, as
        `user/NAME`. The last value of a name counts."""
        self._pause.recorder.log(name, value)

    def save(self) -> Path:
        """Save a checkpoint now, and return its folder; DiskError if the disk refuses it."""
        session = self._pause
        if not session.save():
            raise DiskError(f"no checkpoint can be written to {session.run.path}; free disk space")
        return session.run.checkpoints / step_name(session.step)

    def stop(self, cause: str = "stopped by the caller") -> None:
        """End the run after this update, as stopped, with this cause; it can be resumed."""
        self._pause.stop.reason = cause

    def set(self, **values: float) -> None:
        """Change `learning_rate`, or another value that has a schedule, from the next update on.

        The value replaces the schedule until it is set again. A resume and a branch keep it.
        """
        self._pause.set_values(values)

    @property
    def _pause(self) -> Session:
        if not self._session.is_paused:
            raise UsageError(f"the update at step {self.step} is over; call its methods inside the loop")
        return self._session

    def __repr__(self) -> str:
        shown = self.metrics.get("rollout/ep_rew_mean")
        reward = "" if shown is None else f", ep_rew_mean={shown:.6g}"
        return f"Update(step={self.step}{reward}, episodes={len(self.episodes)}, run={self.run.path.name!r})"


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
