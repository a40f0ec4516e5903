"""The study: Optuna's journal in the group's folder, and the sampler that draws from it. Loads Optuna.

A trial is one line of the journal, with all its parameters, so a kill leaves it whole or leaves none. It has
two values: the lower bound of its evaluations, to be maximised, and seconds, to be minimised. The sampler
gets the order of the trials by the first value, and by the second where that is equal: a search for both
alike would spend trials on what is bad and fast.
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
from mission_gym.fleet.sweep.space import from_straight, straighten, to_straight
from mission_gym.store.files import disk_errors
from mission_gym.store.sweeps import STUDY, Axis, TrialRow, Value, Values
from mission_gym.streams import generator

_LOCK_S = 3  # after which the lock of a killed process is taken away; it is held for milliseconds
_STARTUP = 10  # trials that are drawn at random first, at most a quarter of all
_STATES: dict[TrialState, Any] = {
    TrialState.RUNNING: "running", TrialState.COMPLETE: "complete", TrialState.FAIL: "failed",
    TrialState.PRUNED: "pruned",
}  # fmt: skip


# What comes out of a journal in which something else stands than a sweep wrote.
_DAMAGES = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError,
)  # fmt: skip


class Trial(NamedTuple):
    """A trial of the study."""

    row: TrialRow
    given: Values  # what its runs are told
    curve: Sequence[float]  # lower bounds of its evaluations
    is_doomed: bool  # to be pruned: its runs were asked to stop


class Study:
    """The study of one sweep. Only one process at a time may hold it open for writing."""

    def __init__(self, folder: Path, name: str, axes: Sequence[Axis], seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = folder / STUDY
        _cut_torn(path)
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
            self._order(self.list_trials())
        except _DAMAGES as error:
            raise RunStateError(
                f"{path} is damaged: {type(error).__name__}; restore it from a copy"
            ) from error
        if not self._study.metric_names:
            with disk_errors(path), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # names in charts are called experimental
                self._study.set_metric_names(["lower bound", "seconds"])

    def list_trials(self) -> list[Trial]:
        """All trials in their order."""
        return [_describe(trial) for trial in self._study.get_trials(deepcopy=False)]

    def add(self, source: str, values: Values, given: Values) -> Trial:
        """A trial that runs from now on; what lies outside the ranges is told beside its parameters."""
        inside = {axis.name: axis for axis in self._axes if axis.holds(values[axis.name])}
        trial = create_trial(
            state=TrialState.RUNNING,
            params={name: values[name] for name in inside},
            distributions={name: _distribute(axis) for name, axis in inside.items()},
            user_attrs={"source": source, "values": values, "given": given},
        )
        with disk_errors(Path(STUDY)):
            self._study.add_trial(trial)
        return self.list_trials()[-1]

    def note(self, number: int, **facts: Any) -> None:
        """Add facts to a trial that runs."""
        study_id = self._storage.get_study_id_from_name(self._study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        with disk_errors(Path(STUDY)):
            for name, value in facts.items():
                self._storage.set_trial_user_attr(trial_id, name, value)

    def finish(self, number: int, score: float, seconds: float) -> None:
        """A trial came to its end."""
        with disk_errors(Path(STUDY)):
            self._study.tell(number, [score, seconds])

    def fail(self, number: int, cause: str) -> None:
        """A trial has no value."""
        self.note(number, cause=cause)
        with disk_errors(Path(STUDY)):
            self._study.tell(number, state=TrialState.FAIL)

    def prune(self, number: int, cause: str) -> None:
        """A trial was ended early."""
        self.note(number, cause=cause)
        with disk_errors(Path(STUDY)):
            self._study.tell(number, state=TrialState.PRUNED)

    def draw(self, num_trials: int | None) -> dict[str, Value]:
        """The next setting, by path; equal trials so far give an equal one."""
        trials = self.list_trials()
        seed = int(generator("sweep", self._seed, len(trials)).integers(1 << 31))
        startup = _STARTUP if num_trials is None else min(_STARTUP, max(1, num_trials // 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, multivariate=True)
            drawn = self._order(trials, sampler).ask(
                {axis.name: _distribute_straight(axis) for axis in self._axes}
            )
        return {
            axis.path: drawn.params[axis.name]
            if axis.choices
            else from_straight(axis, drawn.params[axis.name])
            for axis in self._axes
        }

    def compute_importance(self) -> dict[str, float]:
        """What share of the difference between the best trials and the rest each field explains (PED-ANOVA),
        the largest first; none where too few trials were finished."""
        view = self._order([each for each in self.list_trials() if each.row.state == "complete"])
        if len(view.trials) < 2 * len(self._axes) or len({each.value for each in view.trials}) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(optuna.importance.get_param_importances(view))

    def is_behind(self, curve: Sequence[float]) -> bool:
        """Whether the last of a running trial's evaluations is below the median of the others there."""
        view = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner())
        for trial in self.list_trials():
            if trial.row.state in ("complete", "pruned") and trial.curve:
                view.add_trial(_make_curve(trial.curve, TrialState.COMPLETE))
        view.add_trial(_make_curve(curve, TrialState.RUNNING))
        return bool(view.pruner.prune(view, view.trials[-1]))

    def _order(self, trials: Iterable[Trial], sampler: Any = None) -> optuna.Study:
        """The trials in memory with one value, their place in the order; those that failed are the last."""
        view = optuna.create_study(direction="maximize", sampler=sampler)
        ranked = rank([each.row for each in trials if each.row.state != "running"])
        places = {row.number: place for place, row in enumerate(reversed(ranked))}
        for trial in trials:
            params = self._straighten(trial.row.values)
            if params is None:
                continue
            place = places.get(trial.row.number)
            view.add_trial(
                create_trial(
                    state=TrialState.RUNNING if place is None else TrialState.COMPLETE,
                    value=place,
                    params=params,
                    distributions={axis.name: _distribute_straight(axis) for axis in self._axes},
                )
            )
        return view

    def _straighten(self, values: Values) -> dict[str, Any] | None:
        """The values as the sampler gets them; None for a choice that the search does not have."""
        found: dict[str, Any] = {}
        for axis in self._axes:
            value = values[axis.name]
            if axis.choices:
                if value not in axis.choices:
                    return None
                found[axis.name] = value
            elif not isinstance(value, int | float):
                return None
            else:
                found[axis.name] = to_straight(axis, value)
        return found


def rank(rows: Iterable[TrialRow]) -> list[TrialRow]:
    """Trials that came to a value, the best first: by lower bound, then by seconds; then the others."""

    def key(row: TrialRow) -> tuple[float, float, float]:
        has_value = row.score is not None and row.state in ("complete", "pruned")
        score = row.score if has_value and row.score is not None else float("-inf")
        return (-score, row.seconds or 0.0, row.number)

    return sorted(rows, key=key)


def _describe(trial: FrozenTrial) -> Trial:
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
    return Trial(row, facts.get("given", {}), curve, "doomed" in facts)


def _distribute(axis: Axis) -> BaseDistribution:
    """The range as the journal has it."""
    if axis.choices:
        return CategoricalDistribution(axis.choices)
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.scale in ("log", "power"))
    return FloatDistribution(axis.low, axis.high, log=axis.scale == "log")


def _distribute_straight(axis: Axis) -> BaseDistribution:
    if axis.choices:
        return CategoricalDistribution(axis.choices)
    low, high, is_log, is_whole = straighten(axis)
    if is_whole:
        return IntDistribution(int(low), int(high), log=is_log)
    return FloatDistribution(low, high, log=is_log)


def _make_curve(curve: Sequence[float], state: TrialState) -> FrozenTrial:
    values = dict(enumerate(curve))
    return create_trial(
        state=state, value=curve[-1] if state == TrialState.COMPLETE else None, intermediate_values=values
    )


def _cut_torn(path: Path) -> None:
    """Cut off a last line that a power cut or a full disk has torn: Optuna would refuse the whole journal."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with disk_errors(path):
            os.truncate(path, whole)
