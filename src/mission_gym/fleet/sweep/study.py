"""The study: Optuna's journal in the group's folder, and the sampler that draws from it. Loads Optuna.

A trial is one line of the journal with all its parameters, so a kill leaves it complete or absent. It has two
values: the lower bound of its evaluations, maximised, and seconds, minimised. The sampler gets the rank of
the trials by the lower bound, and by seconds for ties. Optimising both equally would spend trials on
settings that are bad and fast.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from mission_gym.errors import RunStateError
from mission_gym.fleet.sweep.space import SamplerRange, from_sampler, sampler_range, to_sampler
from mission_gym.store.files import disk_errors
from mission_gym.store.sweeps import STUDY, Axis, TrialRow, Value, Values
from mission_gym.streams import generator

_LOCK_S = 3  # after which the lock of a killed process is broken; it is held for milliseconds
_STARTUP = 10  # trials drawn at random first, at most a quarter of all
_STATES: dict[TrialState, Any] = {
    TrialState.RUNNING: "running", TrialState.COMPLETE: "complete", TrialState.FAIL: "failed",
    TrialState.PRUNED: "pruned",
}  # fmt: skip
# Raised by Optuna for a journal that no sweep wrote.
_DAMAGES = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError,
)  # fmt: skip


class SweepTrial(NamedTuple):
    """A trial of the study."""

    row: TrialRow
    given: Values  # the flags of its runs
    curve: Sequence[float]  # lower bounds of its evaluations
    is_stopping: bool  # it will be pruned: its runs were asked to stop


class Study:
    """The study of one sweep. Only one process at a time may open it for writing."""

    def __init__(self, folder: Path, name: str, axes: Sequence[Axis], seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / STUDY
        _cut_partial_line(path)
        self._axes, self._seed = axes, seed
        lock = JournalFileSymlinkLock(str(path), grace_period=_LOCK_S)
        try:
            with disk_errors(path):
                self._storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
                self._study = optuna.create_study(
                    storage=self._storage,
                    study_name=name,
                    directions=["maximize", "minimize"],
                    load_if_exists=True,
                )
            self._rank(self.list_trials())
        except _DAMAGES as error:
            raise RunStateError(
                f"{path} is damaged: {type(error).__name__}; restore it from a copy"
            ) from error
        if not self._study.metric_names:
            with disk_errors(path), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # metric names are experimental in Optuna
                self._study.set_metric_names(["lower bound", "seconds"])

    def list_trials(self) -> list[SweepTrial]:
        """All trials in order."""
        return [_describe(trial) for trial in self._study.get_trials(deepcopy=False)]

    def add(self, source: str, values: Values, given: Values) -> SweepTrial:
        """Add a running trial. Values outside the ranges are attributes instead of parameters."""
        inside = {axis.name: axis for axis in self._axes if axis.holds(values[axis.name])}
        trial = create_trial(
            state=TrialState.RUNNING,
            params={name: values[name] for name in inside},
            distributions={name: _stored_distribution(axis) for name, axis in inside.items()},
            user_attrs={"source": source, "values": values, "given": given},
        )
        with disk_errors(Path(STUDY)):
            self._study.add_trial(trial)
        return self.list_trials()[-1]

    def note(self, number: int, **facts: Any) -> None:
        """Add attributes to a running trial."""
        study_id = self._storage.get_study_id_from_name(self._study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        with disk_errors(Path(STUDY)):
            for name, value in facts.items():
                self._storage.set_trial_user_attr(trial_id, name, value)

    def finish(self, number: int, score: float, seconds: float) -> None:
        """End a trial with its two values."""
        with disk_errors(Path(STUDY)):
            self._study.tell(number, [score, seconds])

    def drop(self, number: int, cause: str, *, is_pruned: bool = False) -> None:
        """End a trial without values: it failed, or was pruned."""
        self.note(number, cause=cause)
        with disk_errors(Path(STUDY)):
            self._study.tell(number, state=TrialState.PRUNED if is_pruned else TrialState.FAIL)

    def draw(self, num_trials: int | None) -> dict[str, Value]:
        """The next setting, by path; a function of the trials so far."""
        trials = self.list_trials()
        seed = int(generator("sweep", self._seed, len(trials)).integers(1 << 31))
        startup = _STARTUP if num_trials is None else min(_STARTUP, max(1, num_trials // 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, multivariate=True)
            params = self._rank(trials, sampler).ask(self._distributions()).params
        return {
            axis.path: params[axis.name] if axis.choices else from_sampler(axis, params[axis.name])
            for axis in self._axes
        }

    def compute_importance(self) -> dict[str, float]:
        """The share of the difference between the best trials and the others that each field explains
        (PED-ANOVA), the largest first; empty if too few trials are complete."""
        view = self._rank([each for each in self.list_trials() if each.row.state == "complete"])
        if len(view.trials) < 2 * len(self._axes) or len({each.value for each in view.trials}) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(optuna.importance.get_param_importances(view))

    def is_behind(self, curve: Sequence[float]) -> bool:
        """Whether the last evaluation of a running trial is below the median of the others at that time."""
        view = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
        for trial in self.list_trials():
            if trial.row.state in ("complete", "pruned") and trial.curve:
                view.add_trial(_make_curve(trial.curve, TrialState.COMPLETE))
        view.add_trial(_make_curve(curve, TrialState.RUNNING))
        return bool(view.pruner.prune(view, view.trials[-1]))

    def _rank(self, trials: Iterable[SweepTrial], sampler: Any = None) -> optuna.Study:
        """A study in memory whose only value is the rank of each trial; failed trials rank last."""
        view = optuna.create_study(direction="maximize", sampler=sampler)
        ended = rank([each.row for each in trials if each.row.state != "running"])
        ranks = {row.number: place for place, row in enumerate(reversed(ended))}
        for trial in trials:
            params = self._to_sampler(trial.row.values)
            if params is not None:
                place = ranks.get(trial.row.number)
                state = TrialState.RUNNING if place is None else TrialState.COMPLETE
                view.add_trial(
                    create_trial(state=state, value=place, params=params, distributions=self._distributions())
                )
        return view

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {
            axis.name: CategoricalDistribution(axis.choices)
            if axis.choices
            else _distribution(sampler_range(axis))
            for axis in self._axes
        }

    def _to_sampler(self, values: Values) -> dict[str, Any] | None:
        """The values on the sampler's scale; None if one is not among the choices of its axis."""
        found: dict[str, Any] = {}
        for axis in self._axes:
            value = values[axis.name]
            if value not in axis.choices if axis.choices else not isinstance(value, int | float):
                return None
            found[axis.name] = value if axis.choices else to_sampler(axis, value)
        return found


def rank(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """The trials with a value, best first: by lower bound, then by seconds; then the others."""

    def key(row: TrialRow) -> tuple[float, float, float]:
        has_value = row.score is not None and row.state in ("complete", "pruned")
        score = row.score if has_value and row.score is not None else float("-inf")
        return (-score, row.seconds or 0.0, row.number)

    return sorted(rows, key=key)


def _describe(trial: FrozenTrial) -> SweepTrial:
    facts: Mapping[str, Any] = trial.user_attrs
    score, seconds = trial.values or (None, None)
    curve = facts.get("curve", [])
    state = _STATES[trial.state]
    if state == "pruned" and curve:
        score = curve[-1]
    row = TrialRow(
        number=trial.number, source=facts.get("source", "search"), state=state,
        values=facts.get("values", {}), score=score, seconds=seconds, cause=facts.get("cause", ""),
    )  # fmt: skip
    return SweepTrial(row, facts.get("given", {}), curve, "doomed" in facts)


def _stored_distribution(axis: Axis) -> BaseDistribution:
    """The range in the journal."""
    if axis.choices:
        return CategoricalDistribution(axis.choices)
    is_log = axis.scale == "log" or (axis.is_whole and axis.scale == "power")
    return _distribution(SamplerRange(axis.low, axis.high, is_log, axis.is_whole))


def _distribution(span: SamplerRange) -> BaseDistribution:
    if span.is_whole:
        return IntDistribution(int(span.low), int(span.high), log=span.is_log)
    return FloatDistribution(span.low, span.high, log=span.is_log)


def _make_curve(curve: Sequence[float], state: TrialState) -> FrozenTrial:
    values = dict(enumerate(curve))
    return create_trial(
        state=state, value=curve[-1] if state == TrialState.COMPLETE else None, intermediate_values=values
    )


def _cut_partial_line(path: Path) -> None:
    """Cut off a partial last line after a power cut or on a full disk: Optuna would refuse the journal."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with disk_errors(path):
            os.truncate(path, end)
