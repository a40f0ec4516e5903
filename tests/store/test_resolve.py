from datetime import datetime, timedelta

import numpy as np
import pytest

from mission_gym.errors import RunStateError
from mission_gym.store.checkpoints import save_checkpoint
from mission_gym.store.evals import best_step, rank_best, read_evals, write_eval
from mission_gym.store.resolve import RunRef, checkpoint_for, find_run, list_runs
from mission_gym.store.rundir import RunDir

NOW = datetime(2026, 3, 4, 5, 6, 7)


@pytest.fixture
def runs_dir(tmp_path):
    return tmp_path / "runs"


def make(runs_dir, name, second, steps=()):
    run = RunDir.create(runs_dir, name, NOW + timedelta(seconds=second))
    for step in steps:
        save_checkpoint(run.checkpoints, step, policy={"w": np.zeros(1)}, state={}, state_json={}, meta={})
    return run


@pytest.fixture
def runs(runs_dir):
    return [
        make(runs_dir, "pong", 2),
        make(runs_dir, "cartpole", 0, steps=(100, 200, 300)),
        make(runs_dir, "cartpole", 1),
        make(runs_dir, "carry", 0),
    ]


def test_runs_are_listed_newest_last(runs_dir, runs):
    (runs_dir / "not-a-run").mkdir()
    assert [run.name for run in list_runs(runs_dir)] == [
        "carry-20260304-050607",
        "cartpole-20260304-050607",
        "cartpole-20260304-050608",
        "pong-20260304-050609",
    ]
    assert list_runs(runs_dir / "missing") == []


def test_eleven_of_one_second_are_in_order(runs_dir):
    made = [make(runs_dir, "a", 0).name for _ in range(11)]
    assert [run.name for run in list_runs(runs_dir)] == made
    assert find_run("latest", runs_dir).run.name == made[-1]


@pytest.mark.parametrize(
    ("text", "name", "step"),
    [
        ("latest", "pong-20260304-050609", None),
        ("pong", "pong-20260304-050609", None),
        ("po@last", "pong-20260304-050609", "last"),
        ("cartpole-20260304-050607@best", "cartpole-20260304-050607", "best"),
        ("cartpole-20260304-050607@200", "cartpole-20260304-050607", 200),
        ("carr", "carry-20260304-050607", None),
    ],
)
def test_names(runs_dir, runs, text, name, step):
    ref = find_run(text, runs_dir)
    assert (ref.run.name, ref.step, ref.note) == (name, step, "")


def test_the_same_name_twice_means_the_newest_and_says_so(runs_dir, runs):
    ref = find_run("cartpole", runs_dir)
    assert ref.run.name == "cartpole-20260304-050608"
    assert ref.note == "2 runs are named 'cartpole'; taking the newest, cartpole-20260304-050608"


def test_paths(runs_dir, runs, tmp_path, monkeypatch):
    run = runs[1]
    checkpoint = run.checkpoints / "step_000000000200"
    for text, step in (
        (str(run.path), None),
        (f"{run.path}@100", 100),
        (str(checkpoint), 200),
        (str(checkpoint / "policy.safetensors"), 200),
        (f"{run.path}/config.yaml/../", None),
    ):
        ref = find_run(text, tmp_path / "elsewhere")
        assert (ref.run.path, ref.step) == (run.path, step)
    monkeypatch.chdir(run.checkpoints)
    assert find_run("..", runs_dir).run.path == run.path
    assert find_run("step_000000000300", runs_dir).step == 300


def test_a_path_may_hold_an_at_sign(tmp_path):
    run = make(tmp_path / "me@home", "a", 0)
    assert find_run(str(run.path), tmp_path).run.path == run.path
    assert find_run(f"{run.path}@7", tmp_path).step == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("car", r"'car' fits 3 runs: carry-.*, cartpole-.*, cartpole-.*; type more of it"),
        (
            "cartpol-v1",
            r"no run 'cartpol-v1' in .*runs \(did you mean 'cartpole'\?\); `mission-gym runs list`",
        ),
        ("pong@best-one", r"'best-one' in 'pong@best-one' is not a checkpoint; use @STEP, @best or @last"),
        ("@best", r"no run ''"),
    ],
)
def test_what_can_not_be_found(runs_dir, runs, text, message):
    with pytest.raises(RunStateError, match=message):
        find_run(text, runs_dir)


def test_two_steps_or_no_runs(runs_dir, runs):
    with pytest.raises(RunStateError, match=r"names two checkpoints, by path and by @100; drop one"):
        find_run(f"{runs[1].checkpoints / 'step_000000000200'}@100", runs_dir)
    with pytest.raises(RunStateError, match=r"no run 'a': there are no runs in .*`mission-gym train`"):
        find_run("a", runs_dir / "none")


def test_the_checkpoint_that_is_meant(runs):
    run = runs[1]

    def step(wanted):
        return checkpoint_for(RunRef(run, wanted)).step

    assert (step(None), step("last"), step(100)) == (300, 300, 100)
    with pytest.raises(RunStateError, match="has no evaluated checkpoint to call the best; use @last"):
        step("best")
    for at, score in ((100, 1.0), (200, 1.0), (300, 0.5), (400, 9.0)):  # 400 was never saved
        write_eval(run, at, "select", {"score": score})
    assert (step(None), step("best"), step("last")) == (200, 200, 300)
    with pytest.raises(RunStateError, match="has no checkpoint at step 400; it has 100, 200, 300"):
        step(400)
    with pytest.raises(RunStateError, match="has no checkpoint yet"):
        checkpoint_for(RunRef(runs[0], None))


def test_long_lists_are_shortened(runs_dir):
    run = make(runs_dir, "a", 0, steps=range(1, 15))
    with pytest.raises(RunStateError, match=r"it has 3, 4, .*, 14 and 2 earlier"):
        checkpoint_for(RunRef(run, 99))


def test_evaluations_come_back_and_the_best_is_chosen_on_its_suite(runs):
    run = runs[0]
    assert read_evals(run) == []
    assert best_step(run) is None
    path = write_eval(run, 2000, "report", {"score": 100.0})
    assert path.name == "step_000000002000-report.json"
    write_eval(run, 300, "select", {"score": float("nan")})
    assert best_step(run) is None
    for step, score in ((300, 2.0), (100, 2.0), (1000, 1.0)):
        write_eval(run, step, "select", {"score": score, "episodes": 5})
    assert [(result["step"], result["suite"]) for result in read_evals(run)] == [
        (100, "select"),
        (300, "select"),
        (1000, "select"),
        (2000, "report"),
    ]
    assert best_step(run) == 300
    assert best_step(run, among={100, 1000}) == 100


def test_a_confirmation_decides_among_its_candidates_until_others_come(runs):
    run = runs[0]
    for step, score in ((100, 3.0), (200, 2.0), (300, 1.0)):
        write_eval(run, step, "select", {"score": score})
    candidates = [{"step": 100, "score": 0.5}, {"step": 200, "score": 0.75}, {"step": 250, "score": None}]
    path = write_eval(run, 300, "confirm", {"best": 200, "episodes": 8, "candidates": candidates})
    assert [(each["step"], each["confirmed"]) for each in rank_best(run)] == [(200, 8), (100, 8)]
    assert best_step(run, among={100, 300}) == 100
    assert best_step(run, among={300}) == 300  # none of them is left
    write_eval(run, 400, "select", {"score": 0.6})
    assert [each["step"] for each in rank_best(run)] == [200, 400, 100]
    write_eval(run, 400, "confirm", {"episodes": 9, "candidates": [{"step": 400, "score": 0.1}]})
    assert best_step(run) == 400  # the newest one decides
    write_eval(run, 400, "confirm", {"episodes": 9})
    assert best_step(run) == 200
    path.write_text('{"step": 300, "suite": "confirm", "candidates": [{"score": 1}]}')
    assert best_step(run) == 100  # a damaged one does not count
