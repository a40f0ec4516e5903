"""`bench defaults` at tiny sizes: its clock, its rows, and the stored trials of peers."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mission_gym.errors import UsageError, WorkerError
from mission_gym.rollout.play import Actor
from mission_gym.run.evaluation import Evaluator
from mission_gym_bench import main as bench_main
from mission_gym_bench import ours
from mission_gym_bench.defaults import peers, trials
from mission_gym_bench.defaults.main import SHORT_CASES, DefaultsGrid, make_defaults_row, measure_defaults
from mission_gym_bench.defaults.trials import (
    CASES,
    PEERS,
    DefaultsCase,
    DefaultsTrial,
    measure_lacking,
    read_trials,
)
from mission_gym_bench.runner import Evaluation, TrainingJob
from mission_gym_bench.views import view_bench

_BY_NAME = {case.name: case for case in CASES}
_CASE = DefaultsCase("LargeRewards", 1000, 0.0, "91,000")
_TINY = replace(_BY_NAME["LargeRewards"], timesteps=1024)


def _trial(side, seed, score, curve=(), steps=1000, train_s=10.0):
    return DefaultsTrial(
        "LargeRewards", side, seed, score, steps, 5, train_s, 20.0, [list(each) for each in curve]
    )


def _trials(side, *scores):
    return [_trial(side, seed, score) for seed, score in enumerate(scores, 1)]


def test_a_training_that_was_stopped_is_not_compared(tmp_path):
    job = TrainingJob("", _TINY.env_id, {"timesteps": 10**9, "seed": 1, "max_time": 0.1}, 2)
    with pytest.raises(WorkerError, match="the training was stopped at step "):
        ours.train_defaults(job, tmp_path)


@pytest.mark.parametrize(
    ("train", "name", "gradient_steps"),
    [
        (ours.train_defaults, "LargeRewards", None),
        (peers.train_sb3, "LargeRewards", 320),  # 2,048 / 64 * 10
        (peers.train_cleanrl, "LargeRewards", 4 * 16),  # rollouts of 512, four minibatches, four epochs
        (ours.train_defaults, "pendulum", None),
        (peers.train_sb3, "pendulum", 320),
        (peers.train_cleanrl, "CatchPixels", 2 * 16),  # of 1,024, four minibatches, four epochs
        (peers.train_cleanrl, "pendulum", 320),
    ],
)
def test_every_side_trains_and_is_examined(train, name, gradient_steps, tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "_NUM_EXAMS", 2)
    monkeypatch.setattr(ours, "_EXAM_EPISODES", 2)
    result = train(TrainingJob("", _BY_NAME[name].env_id, {"timesteps": 2048, "seed": 1}, 2), tmp_path)
    assert result.warm_steps == result.evals[-1].step == 2048
    assert gradient_steps in (None, result.gradient_steps)
    low, high = {"LargeRewards": (-100_000, 100_000), "pendulum": (-2000, 0), "CatchPixels": (-10, 10)}[name]
    assert all(low <= score <= high for score in (result.report_return, result.evals[-1].return_mean))


def test_ours_trains_with_defaults_alone(tmp_path):
    """The values that decide what is learned come from no flag and no settings."""
    ours.train_defaults(TrainingJob("", _TINY.env_id, {"timesteps": 1024, "seed": 1}, 1), tmp_path)
    (run,) = tmp_path.iterdir()
    sources = (run / "config.yaml").read_text().partition("sources:")[2]
    flags = {line.split(": ")[0].strip() for line in sources.splitlines() if "flag " in line}
    assert flags == {
        "env.env_id", "vector.vector", "compute.device", "compute.threads", "compute.tune", "run.seed",
        "evaluation.eval_freq", "run.timesteps", "run.runs_dir", "run.tensorboard",
    }  # fmt: skip
    assert "settings" not in sources


def test_exams_do_not_count_as_training(monkeypatch):
    clock = [0.0]
    played = []

    def play(self, actor, **options):
        clock[0] += 100.0
        played.append(clock[0])
        return real(self, actor)

    real = Evaluator.play_all
    monkeypatch.setattr(ours.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(Evaluator, "play_all", play)
    monkeypatch.setattr(ours, "_NUM_EXAMS", 2)
    monkeypatch.setattr(ours, "_EXAM_EPISODES", 1)
    actor = Actor(lambda obs, mask, noise, state: (((obs[0][:, 0] - 5e6) * 30 + 1.5).astype(int), state))
    with ours.Examiner(
        TrainingJob("", _BY_NAME["FarOffset"].env_id, {"timesteps": 20, "seed": 1}, 1)
    ) as examiner:
        clock[0] += 50.0
        examiner.begin()
        for step in (5, 10, 15, 20):
            clock[0] += 1.0
            examiner.look(step, lambda: actor)
        result = examiner.finish(25, actor, 7)
    assert result.evals == [Evaluation(10, 2.0, 50), Evaluation(20, 4.0, 50), Evaluation(25, 4.0, 50)]
    assert (result.warm_s, result.warm_steps, result.report_return) == (4.0, 25, 50)
    assert len(played) == 4  # three points, one report


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((31.0, 32.0, 33.0, 34.0, 35.0), "better"),
        ((9.0, 15.0, 20.0, 26.0, 35.0), "no difference shown"),
        ((5.0, 6.0, 7.0, 8.0, 9.0), "worse"),
        ((31.0, 32.0, 33.0, 34.0), "too few seeds"),
    ],
)
def test_verdicts_need_five_seeds_on_both_sides(scores, verdict):
    peer = _trials("sb3", 10.0, 15.0, 20.0, 25.0, 30.0)
    row = make_defaults_row(_CASE, {"ours": _trials("ours", *scores), "sb3": peer, "cleanrl": []})
    assert row["verdict"] == {"sb3": verdict}
    assert row["peers"] == {"sb3": 20.0, "cleanrl": None}
    assert row["ratio"] == pytest.approx(sum(scores) / len(scores) / 20.0)
    assert row["note"] == "cleanrl was not measured"


def test_one_seed_is_too_few_for_a_verdict():
    row = make_defaults_row(
        _CASE,
        {"ours": _trials("ours", 1.0), "sb3": _trials("sb3", 2.0, 3.0), "cleanrl": _trials("cleanrl", 9.0)},
    )
    assert set(row["verdict"].values()) == {"too few seeds"}
    assert row["ratio"] == pytest.approx(1 / 9)


def test_the_ratio_is_of_what_was_gained_over_random_play():
    case = replace(_CASE, random=-200.0)
    row = make_defaults_row(
        case,
        {
            side: _trials(side, score)
            for side, score in (("ours", -100.0), ("sb3", -160.0), ("cleanrl", -180.0))
        },
    )
    assert row["ratio"] == pytest.approx(2.5)
    nothing = make_defaults_row(
        case,
        {
            side: _trials(side, score)
            for side, score in (("ours", -100.0), ("sb3", -200.0), ("cleanrl", -210.0))
        },
    )
    assert nothing["ratio"] is None
    assert nothing["s_to_score"] == {}


def test_time_to_a_peers_score_is_the_median_over_seeds_at_the_best_rate():
    peer = [
        _trial("sb3", 1, 100.0, [(500, 50.0), (1000, 100.0)], train_s=10.0),
        _trial("sb3", 2, 90.0, [(500, 90.0), (1000, 80.0)], train_s=20.0),
        _trial("sb3", 3, 80.0, [(500, 10.0), (1000, 20.0)], train_s=40.0),
    ]
    mine = [
        _trial("ours", 1, 95.0, [(250, 95.0), (1000, 10.0)], train_s=1.0),
        _trial("ours", 2, 95.0, [(250, 80.0), (750, 90.0)], train_s=2.0),
        _trial("ours", 3, 85.0, [(250, 80.0), (1000, 89.0)], train_s=2.0),
    ]
    row = make_defaults_row(_CASE, {"ours": mine, "sb3": peer, "cleanrl": []})
    assert row["steps_per_s"] == {"ours": 1000.0, "sb3": 100.0}
    # Of the peer 1000, 500 and, since its exams never get there, all of 1000 steps.
    assert row["s_to_score"] == {"sb3": {"score": 90.0, "ours": 0.75, "peer": 10.0, "ratio": 10.0 / 0.75}}
    slow = make_defaults_row(_CASE, {"ours": mine[2:], "sb3": peer, "cleanrl": []})
    assert slow["s_to_score"]["sb3"] == {"score": 90.0, "ours": None, "peer": 10.0, "ratio": None}


def test_a_case_whose_package_is_missing_is_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(DefaultsCase, "is_there", property(lambda self: not self.extra))
    (row,) = measure_defaults(DefaultsGrid((_BY_NAME["hopper"],), (1,)))
    assert row["ours"] is None
    assert row["ratio"] is None
    assert row["verdict"] == {}
    assert "left out: pip install mission-gym[mujoco]" in row["note"]


def test_ours_is_trained_beside_what_is_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    grid = DefaultsGrid((_TINY,), (1, 2), report_episodes=2)
    monkeypatch.setitem(bench_main.BENCHMARKS, "defaults", lambda full: measure_defaults(grid))
    (row,) = bench_main.run_bench("defaults", full=False)
    assert row["case"] == "LargeRewards, 1,024 steps"
    assert len(row["scores"]["ours"]) == 2
    assert row["steps_per_s"]["ours"] > 0
    assert {"cpu", "torch", "stable_baselines3"} <= row["peers_machine"].keys()
    console = Console(width=1000, record=True, file=StringIO())
    console.print(view_bench([row, row]))
    shown = console.export_text()
    assert shown.count("peers machine: cpu") == 1
    assert "; known 91,000; " in shown


def test_peers_are_measured_where_the_file_has_nothing_and_kept_as_they_arrive(monkeypatch, tmp_path):
    path = tmp_path / "peers.json"
    made = []

    def run_jobs(jobs, *, at_once, keep):
        made.extend((job.side, job.flags["seed"]) for job in jobs)
        before = len(read_trials(path)[1]) if path.exists() else 0
        for number, job in enumerate(jobs):
            keep(
                job,
                trials.TrainingResult(3, 2048, 1.23456789, None, [Evaluation(2048, 1.0, 1 / 3)], 12345.678),
            )
            assert len(read_trials(path)[1]) == before + number + 1
        return []

    monkeypatch.setattr(trials, "run_jobs", run_jobs)
    measure_lacking(path, PEERS, [_TINY])
    assert made == [(peer, seed) for seed in (1, 2, 3, 4, 5) for peer in PEERS]
    machine, kept = read_trials(path)
    assert machine == trials.describe_machine()
    assert kept[0] == DefaultsTrial(
        "LargeRewards", "sb3", 1, 12346.0, 2048, 3, 1.2346, 0.0, [[2048, 0.33333]]
    )
    made.clear()
    measure_lacking(path, PEERS, [_TINY])
    assert made == []
    measure_lacking(path, ["ours", "sb3"], [_TINY])
    assert made == [("ours", seed) for seed in (1, 2, 3, 4, 5)]
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"machine": machine | {"torch": "1.0", "mission-gym": "0.0"}}))
    with pytest.raises(UsageError, match=r"was measured elsewhere \(torch differ\); .* name a new file"):
        measure_lacking(path, PEERS, [_TINY])


def test_without_sb3_peers_are_not_begun(monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "find_sides", lambda: ["ours"])
    with pytest.raises(UsageError, match="both peers need SB3, which is not installed; run: pip install"):
        measure_lacking(tmp_path / "peers.json", PEERS, [_TINY])


def test_an_unknown_case_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"case 'cartpole' is unknown \(did you mean 'cart_pole'\?\)"):
        trials.find_cases(["cartpole"])
    assert trials.find_cases([]) == list(CASES)
    assert trials.find_cases(["hopper"]) == [_BY_NAME["hopper"]]


def test_what_is_kept_of_peers_is_whole():
    _, kept = read_trials()
    assert len({(each.case, each.side, each.seed) for each in kept}) == len(kept) > 0
    for each in kept:
        steps = [step for step, _ in each.curve]
        assert each.side in PEERS
        assert steps == sorted(steps)
        assert steps[-1] == each.steps >= _BY_NAME[each.case].timesteps
        assert each.steps / each.train_s > 100


def test_the_short_form_needs_no_mujoco():
    assert not [case.name for case in SHORT_CASES if case.extra == "mujoco"]
