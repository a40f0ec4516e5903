"""Optuna's journal: its contents, its state after a kill, and the settings drawn from it."""

from __future__ import annotations

import math
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from mission_gym.errors import RunStateError
from mission_gym.fleet.sweep.study import Study
from mission_gym.store.sweeps import STUDY, Axis

RATE = Axis(path="ppo.learning_rate", low=1e-5, high=1e-2, scale="log")
GAMMA = Axis(path="ppo.gamma", low=0.9, high=0.9999, scale="gap")
STEPS = Axis(path="ppo.n_steps_per_env", low=16, high=1024, scale="power")
KIND = Axis(path="policy.activation", choices=["tanh", "relu"])
AXES = [RATE, GAMMA, STEPS, KIND]


def open_study(folder: Path) -> Study:
    return Study(folder, "study", AXES, 0)


def search(study: Study, num: int) -> None:
    """Trials whose score depends on the learning rate alone."""
    for _ in range(num):
        values = {path.split(".")[1]: value for path, value in study.draw(num).items()}
        trial = study.add("search", values, values)
        score = -abs(math.log10(float(values["learning_rate"])) + 3.0)  # type: ignore[arg-type]
        study.finish(trial.row.number, score, 1.0)


def test_optuna_reads_the_journal(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    values = {"learning_rate": 1e-7, "gamma": 0.99, "n_steps_per_env": 64, "activation": "tanh"}
    study.add("default", values, {})
    study.add("search", values | {"learning_rate": 1e-3}, {"learning_rate": 1e-3})
    study.add("search", values | {"activation": "elu"}, {})
    study.finish(1, 9.0, 2.5)
    study.drop(2, "NotFiniteError")
    storage = JournalStorage(JournalFileBackend(str(tmp_path / STUDY)))
    theirs = optuna.load_study(study_name="study", storage=storage)
    default, complete, failed = theirs.trials
    assert [each.name for each in theirs.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert (default.state, complete.values, failed.state) == (TrialState.RUNNING, [9.0, 2.5], TrialState.FAIL)
    assert complete.params == {
        "learning_rate": 1e-3,
        "gamma": 0.99,
        "n_steps_per_env": 64,
        "activation": "tanh",
    }
    assert "learning_rate" not in default.params  # outside the range: an attribute
    assert default.user_attrs["values"] == values
    assert (failed.user_attrs["cause"], "activation" in failed.params) == ("NotFiniteError", False)


def test_a_partial_line_is_cut_off(tmp_path: Path) -> None:
    search(open_study(tmp_path), 3)
    before = open_study(tmp_path).list_trials()
    with (tmp_path / STUDY).open("ab") as file:
        file.write(b'{"op_code": 4, "work')
    study = open_study(tmp_path)
    assert study.list_trials() == before
    search(study, 1)
    assert len(open_study(tmp_path).list_trials()) == 4


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text('{"op_code": 4}\n{"op_code": 4}\n')
    with pytest.raises(RunStateError, match="is damaged"):
        open_study(tmp_path)


def test_draws_are_repeatable_and_differ(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    search(study, 8)
    assert open_study(tmp_path).draw(8) == study.draw(8)
    settings = [trial.row.values for trial in study.list_trials()]
    assert all(settings.count(each) == 1 for each in settings)


def test_the_search_finds_the_optimum_and_the_important_field(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    search(study, 40)
    rows = [trial.row for trial in study.list_trials()]
    late = [row.score for row in rows[-10:] if row.score is not None]
    assert max(late) > -0.3
    importance = study.compute_importance()
    assert sum(importance.values()) == pytest.approx(1.0)
    assert next(iter(importance)) == "learning_rate"
    assert importance["learning_rate"] > 0.5


def test_a_trial_below_the_median_is_behind(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    values = {"learning_rate": 1e-3, "gamma": 0.99, "n_steps_per_env": 64, "activation": "tanh"}
    assert not study.is_behind([-1.0])
    for number in range(6):
        study.add("search", values, {})
        study.note(number, curve=[1.0, 2.0])
        study.finish(number, 2.0, 1.0)
    assert study.is_behind([0.5])
    assert not study.is_behind([1.5])
    assert study.is_behind([1.5, 1.9])
