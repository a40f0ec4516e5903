"""The plumbing of the benchmarks at tiny sizes; measured numbers are never asserted."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mission_gym.errors import UsageError, WorkerError
from mission_gym_bench import main, ours, sac, sb3
from mission_gym_bench.dqn import SHAPES, DqnGrid, measure_dqn
from mission_gym_bench.missions import ORIGINAL, CaptureGrid, measure_capture
from mission_gym_bench.overhead import measure_accounting
from mission_gym_bench.overlap import OverlapGrid, make_overlap_row, measure_overlap
from mission_gym_bench.ppo import (
    LearningCase,
    LearningGrid,
    PpoCase,
    PpoGrid,
    make_learning_row,
    measure_learning,
    measure_ppo,
)
from mission_gym_bench.runner import (
    Evaluation,
    TrainingJob,
    TrainingResult,
    compare_sides,
    make_child_command,
    run_jobs,
)
from mission_gym_bench.sac import SacGrid, SacShape, measure_sac
from timeouts import LONG_S

_CASE = PpoCase("CartPole-v1", 32, 128, 2048, 10, num_updates=1)


def _flags(**more):
    return {"seed": 1, "device": "cpu", "threads": 1} | more


def _result(report_return, *evals):
    return TrainingResult(10, 100, 1.0, None, [Evaluation(*each) for each in evals], report_return)


@pytest.fixture
def jobs_here(monkeypatch, tmp_path):
    """Jobs run in this process, since starting one takes seconds; `ppo` below starts real ones."""

    numbers = itertools.count()

    def run_here(jobs, *, at_once):
        return [(job, train(job)) for job in jobs]

    def train(job):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return job.run(folder)

    for name in ("dqn", "ppo", "overlap", "sac"):
        monkeypatch.setattr(f"mission_gym_bench.{name}.run_jobs", run_here)


def test_benchmarks_load_without_the_packages_of_a_mission():
    code = "import sys, mission_gym_bench.main; print('selectolax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        UsageError, match=r"'learnin' is unknown \(did you mean 'learning'\?\); use one of ppo, dqn"
    ):
        main.run_bench("learnin", full=False)


def test_ppo_without_the_peer_writes_its_rows(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setitem(main.BENCHMARKS, "ppo", lambda full: measure_ppo(PpoGrid((_CASE,), 1)))
    rows = main.run_bench("ppo", full=False)
    forms = ["on one core", "on all cores"]
    assert [row["case"] for row in rows] == [
        f"CartPole-v1, 32 x 128, batch 2048, 10 epochs, {f}" for f in forms
    ]
    row = rows[0]
    assert row["forms"].keys() == {f"ours {form}" for form in forms}
    assert row["ours"] > 0
    assert row["peers"] == {"sb3": None}
    assert row["ratio"] is None
    assert row["note"] == "sb3 is not installed: pip install mission-gym[sb3]"
    assert row["gradient_steps"] == {"ours": [40]}
    assert row["wall_s"]["ours"][0] > 0
    assert {"cpu", "cores", "python", "torch", "numpy"} <= row["machine"].keys()
    (path,) = Path("bench-results").glob("ppo-*.json")
    assert json.loads(path.read_text()) == rows
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "[1/2] CartPole-v1 seed 1 ours on one core" in captured.err


def test_accounting_reports_the_share_of_each_part():
    rows = measure_accounting(2048)
    assert [row["case"] for row in rows] == [
        "accounting: timers in the collector's loop",
        "accounting: phases, timeline and a row for every update",
        "accounting: sampler thread",
        "accounting: all together",
    ]
    assert rows[-1]["ours"] == pytest.approx(sum(row["ours"] for row in rows[:-1]))


def test_capture_measures_simulator_memory_and_training():
    rows = measure_capture(CaptureGrid(((1, 1), (4, 2)), (("cpu", 1),), 0.0))
    assert [row["case"] for row in rows] == [
        "simulator, 1 envs, one core",
        "simulator, 4 envs, 2 threads",
        "memory of an environment",
        "training, preset cpu",
    ]
    assert [row["peers"].get(ORIGINAL) for row in rows] == [1750.0, 1750.0, None, 590.0]
    assert 0 < rows[2]["ours"] < 20_000


def test_overlap_measures_time_and_learning(jobs_here):
    grid = OverlapGrid(
        (("CartPole-v1", 512),), (1,), n_envs=4, n_steps=8, wait_s=0.001, num_updates=1, repeats=1
    )
    waiting, learning = measure_overlap(grid)
    assert waiting["case"].startswith("4 environments that wait 1 ms")
    assert waiting["ratio"] == waiting["peers"]["overlap off"] / waiting["ours"]
    assert learning["case"] == "CartPole-v1, 512 steps"
    assert learning["returns"].keys() == {"on", "off"}


def test_overlap_differences_are_in_pooled_standard_deviations():
    column = {
        f"ours {form}": [_result(None, (10, 0.1, 5.0), (20, 0.2, number)) for number in numbers]
        for form, numbers in (("on", (1.0, 2.0, 3.0)), ("off", (2.0, 4.0, 6.0)))
    }
    row = make_overlap_row("case", column)
    assert (row["ours"], row["peers"]) == (2.0, {"overlap off": 4.0})
    assert row["pooled_deviation"] == pytest.approx(2.5**0.5)  # variances 1 and 4
    assert row["difference_in_deviations"] == pytest.approx(-2.0 / 2.5**0.5)
    assert row["mean_of_evaluations"]["on"] == [3.0, 3.5, 4.0]


def test_learning_runs_every_side(jobs_here):
    (row,) = measure_learning(LearningGrid((LearningCase("CartPole-v1", 512, 1.0),), (1,), 2))
    assert row["case"] == "CartPole-v1 to 1 within 512 steps"
    assert row["ratio"] == row["peers"]["sb3"] / row["ours"]
    assert row["steps_to_score"] == {"ours": [512], "sb3": [512]}
    assert (row["passed"], row["sb3_passed"]) == ("1/1", "1/1")


@pytest.mark.parametrize("side", [ours, sb3])
def test_sides_evaluate_at_the_same_steps_and_make_the_same_gradient_steps(side, tmp_path):
    """Acrobot's settings normalise, so the peer's statistics are used too."""
    flags = _flags(
        timesteps=768, n_envs=4, n_steps_per_env=64, n_epochs=2, batch_size=64, eval_freq=512, eval_episodes=1
    )
    result = side.train(TrainingJob("", "Acrobot-v1", flags, 2), tmp_path)
    assert [each.step for each in result.evals] == [512, 768]
    assert result.evals[0].train_s < result.evals[1].train_s
    assert result.gradient_steps == 3 * 2 * 4
    assert result.warm_steps == 512
    assert -500 <= result.report_return <= 0


def test_the_peer_follows_schedules_and_continuous_actions(tmp_path):
    flags = _flags(
        timesteps=128, n_envs=2, n_steps_per_env=32, n_epochs=1, batch_size=64, eval_episodes=1,
        learning_rate_final=0.0, clip_range_final=0.0,
    )  # fmt: skip
    result = sb3.train(TrainingJob("sb3", "Pendulum-v1", flags), tmp_path)
    assert [each.step for each in result.evals] == [64, 128]
    assert result.report_return is None
    assert result.return_mean is None  # no episode has ended


def test_learning_row_counts_seeds_that_never_reach_the_threshold_as_slowest():
    case = LearningCase("CartPole-v1", 1000, 100.0)
    reached = _result(120.0, (200, 2.0, 50.0), (400, 4.0, 100.0), (600, 6.0, 90.0))
    sooner = _result(99.0, (200, 1.0, 101.0))
    never = _result(10.0, (200, 2.0, 20.0))
    row = make_learning_row(case, {"ours": [reached, sooner, never], "sb3": [never, never, reached]})
    assert row["ours"] == 4.0
    assert row["peers"] == {"sb3": None}
    assert row["ratio"] is None
    assert row["spread"] == {"ours": [1.0, None], "sb3": [4.0, None]}
    assert row["steps_to_score"] == {"ours": [400, 200, None], "sb3": [None, None, 400]}
    assert (row["passed"], row["sb3_passed"]) == ("1/3", "1/3")
    assert row["ours_returns"] == [120.0, 99.0, 10.0]


def test_ratio_above_one_is_better_either_way():
    numbers = {"ours": [30.0, 10.0, 20.0], "sb3": [10.0, 5.0, 40.0]}
    faster = compare_sides("a", "steps/s", numbers, more_is_better=True)
    assert (faster["ours"], faster["peers"], faster["ratio"]) == (20.0, {"sb3": 10.0}, 2.0)
    assert faster["spread"] == {"ours": [10.0, 30.0], "sb3": [5.0, 40.0]}
    slower = compare_sides("a", "s", numbers, more_is_better=False)
    assert slower["ratio"] == 0.5


def test_a_failed_child_ends_all_jobs_and_leaves_no_process():
    jobs = [TrainingJob("ours", name, _flags(timesteps="50M")) for name in ("NoSuchEnv-v0", "CartPole-v1")]
    with pytest.raises(WorkerError, match=r"(?s)NoSuchEnv-v0 seed 1 ours ended with code 1.*unknown environ"):
        run_jobs(jobs, at_once=2)
    assert psutil.Process().children(recursive=True) == []


def test_a_child_ends_with_its_parent(tmp_path):
    job = {"side": "ours", "env_id": "CartPole-v1", "flags": _flags(timesteps="50M")}
    with subprocess.Popen(make_child_command(tmp_path), stdin=subprocess.PIPE, text=True) as child:
        child.stdin.write(json.dumps(job) + "\n")
        child.stdin.close()  # as the system does when the parent is killed
        assert child.wait(timeout=LONG_S) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("side", [ours, sb3])
def test_sides_of_dqn_make_the_same_gradient_steps(side, tmp_path):
    flags = SHAPES[0].flags | _flags(timesteps=40, n_envs=2, learning_starts=8, eval_freq=24, eval_episodes=1)
    result = side.train(TrainingJob("", "CartPole-v1", flags, 2), tmp_path)
    assert [each.step for each in result.evals] == [24, 40]
    assert result.gradient_steps == 8  # of 32 transitions behind the first 8
    assert result.warm_steps == 32


@pytest.mark.parametrize("side", [ours, sb3])
def test_sides_of_sac_make_the_same_gradient_steps(side, tmp_path):
    shape = SacShape("Pendulum-v1", 2, 4)
    flags = shape.flags | _flags(timesteps=40, batch_size=8, network_arch="8")
    result = side.train(TrainingJob("", shape.env_id, flags), tmp_path)
    assert result.gradient_steps == 32  # of 40 transitions behind the first 8
    assert result.warm_steps == 32


def test_sac_measures_arithmetic_speed_and_learning(jobs_here):
    learning = (LearningCase("Pendulum-v1", 64, -9000.0),)
    rows = measure_sac(SacGrid(sac.SHAPES[1:], 32, 0.0, 1, learning, (1,)))
    assert [row["unit"] for row in rows] == ["gradient steps/s", "steps/s", "s to score"]
    assert rows[0]["ratio"] == pytest.approx(rows[0]["ours"] / rows[0]["peers"]["products"])
    assert rows[2]["passed"] == rows[2]["sb3_passed"] == "1/1"


def test_the_products_are_those_of_a_gradient_step():
    """Counted by hand, in multiply-adds."""
    actor, critic = 17 * 256 + 256 * 256 + 256 * 12, 23 * 256 + 256 * 256 + 256
    seen = 17 * 256  # by the critics' first layer next to the action; nothing needs its gradient
    products = 256 * (2 * actor + 2 * actor - 17 * 256)  # forward twice, weights, inputs but the first
    products += 256 * 2 * (3 * critic + critic + (critic - 23 * 256) + (critic - seen))
    assert sum(m * k * n for m, k, n in sac.list_products()) == products


def test_dqn_measures_speed_priorities_and_the_replay_ratio(jobs_here):
    learning = (LearningCase("CartPole-v1", 512, 1.0),)
    rows = measure_dqn(DqnGrid(SHAPES[:1], 200, 1, 1000, 5, (2,), learning, (1,)))
    assert [row["unit"] for row in rows] == ["steps/s", "gradient steps/s", "us", "us", "", "s to score"]
    assert rows[5]["passed"] == "1/1"
    assert rows[0]["ratio"] == pytest.approx(rows[1]["ratio"])
    assert rows[2]["note"].startswith("uniformly ")
    assert rows[4]["ratios"] == [0.25]
