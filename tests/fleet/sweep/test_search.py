"""Sweeps to their end: what is tried and trained again, what a kill costs, what the commands tell."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from mission_gym.cli.main import main
from mission_gym.fleet.queue import Queue
from mission_gym.run.config import resolve
from mission_gym.store.files import read_json
from mission_gym.store.groups import GroupDir
from mission_gym.store.sweeps import STUDY, Axis, StartingPoint, find_driver, read_sweep, write_sweep
from sweep_jobs import Sweepers
from timeouts import LONG_S, wait_until


def work(group: GroupDir) -> int:
    return main(["jobs", "resume", str(group.path)])


def read_study(group: GroupDir) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(group.path / STUDY)))
    return optuna.load_study(study_name="s", storage=storage)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, told = process.communicate(timeout=LONG_S)
    return process.returncode, told


def test_the_winner_is_trained_again_beside_the_default(
    sweepers: Sweepers, capsys: pytest.CaptureFixture[str]
) -> None:
    group = sweepers.make()
    assert work(group) == 0
    record, document = read_sweep(group), read_json(group.group_json)
    default, shipped, *others = record.trials
    assert (default.source, default.score) == ("default", pytest.approx(59.0))
    assert (shipped.source, len(others)) == ("shipped settings", 4)
    assert {row.state for row in record.trials} <= {"complete", "failed"}
    # Three settings on two seeds that no trial had: the best two, and the default.
    again = [job for job in group.read_jobs().values() if job.name.startswith("retest")]
    assert {job.request.seed for job in again} == {1, 2}
    assert len(again) == 6
    assert document["kind"] == "sweep"
    assert document["default"] == {"iqm": 60.515, "low": None, "high": None, "seeds": 2}, "of the re-tests"
    assert document["best"]["iqm"] > document["default"]["iqm"]
    assert (document["iqm"], document["best"]["seeds"]) == (document["best"]["iqm"], 2)
    assert record.verdict.startswith("too few seeds to call the winner better")
    best = record.trials[record.best_trial or 0]
    chosen = resolve("CartPole-v1", {}, config_file=group.path / "best.yaml").config
    assert chosen.algorithm.learning_rate == best.values["learning_rate"]
    assert chosen.num_envs == 8
    told = capsys.readouterr()
    assert "too few seeds to call the winner" in told.out
    assert f"learning_rate: {best.values['learning_rate']}" in told.out
    assert "best.yaml" in told.err
    assert [trial.number for trial in read_study(group).trials] == list(range(6))
    # Again: nothing is left to do.
    starts = sweepers.starts()
    assert work(group) == 0
    assert sweepers.starts() == starts


def test_a_default_that_nothing_beats_stays(sweepers: Sweepers) -> None:
    starts = [StartingPoint(source="default", values={"learning_rate": 1e-5}, given={})]
    axes = [Axis(path="ppo.learning_rate", low=1e-8, high=2e-6, scale="log")]
    group = sweepers.make(axes=axes, starts=starts, trials=3)
    assert work(group) == 0
    assert read_sweep(group).verdict == "no setting beats the default on fresh seeds; the default stays"
    assert read_json(group.group_json)["best"] == read_json(group.group_json)["default"]
    assert "learning_rate: 1.0e-05" in (group.path / "best.yaml").read_text()


def test_trials_that_fail_have_a_cause_and_are_not_the_end(
    sweepers: Sweepers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # on fewer a cause is folded where there is room
    group = sweepers.make(axes=[Axis(path="ppo.learning_rate", low=6e-3, high=1e-2, scale="log")], trials=4)
    assert work(group) == 0
    assert [row.state for row in read_sweep(group).trials] == ["complete"] * 2 + ["failed"] * 2
    assert main(["sweep", "show", "s", "--runs-dir", str(sweepers.runs_dir)]) == 0
    assert "NotFiniteError: the loss is not" in capsys.readouterr().out
    assert read_study(group).trials[2].user_attrs["cause"].startswith("seed 0 failed: NotFiniteError")
    starts = [StartingPoint(source="default", values={"learning_rate": 6e-3}, given={"learning_rate": 6e-3})]
    lost = sweepers.make(starts=starts, trials=1)
    assert work(lost) == 3
    assert not (lost.path / "best.yaml").exists()
    assert "no trial was completed and trained again" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on(sweepers: Sweepers) -> None:
    group = sweepers.make(trials=5, seeds=[0, 1], retest_seeds=[2, 3])
    study = group.path / STUDY
    moments = [
        lambda: study.exists() and study.read_text().count('"op_code":4') >= 1,  # a trial, perhaps no job
        lambda: len(sweepers.starts()) >= 3,
        lambda: study.read_text().count('"op_code":6') >= 2,  # told
        lambda: study.read_text().count('"op_code":4') >= 5,
        lambda: any("retest" in name for name in sweepers.starts()),
    ]
    for has_come in moments:
        process = sweepers.drive(group)
        wait_until(lambda: has_come() or process.poll() is not None)  # noqa: B023
        process.kill()
        process.wait()
    assert work(group) == 0
    trials = read_study(group).trials
    assert [trial.number for trial in trials] == list(range(5))
    assert all(trial.state.is_finished() for trial in trials)
    # Every job ran once: those of a killed sweep went on, and none was asked for twice.
    jobs = group.read_jobs()
    assert len(jobs) == 5 * 2 + len(read_sweep(group).candidates) * 2
    failed = {job.name for job in jobs.values() if job.state == "failed"}
    done = [name for name in sweepers.starts() if name.removeprefix("s-")[:-16] not in failed]
    assert sorted(done) == sorted(set(done))
    assert len(done) == len(jobs) - len(failed)


def test_runs_that_were_killed_with_it_are_tried_again(sweepers: Sweepers) -> None:
    group = sweepers.make(trials=2, retest=1)
    for number in (1, 2):
        go = sweepers.hold()
        process = sweepers.drive(group)
        wait_until(lambda: len(sweepers.starts()) >= 2 * number)  # noqa: B023
        process.kill()
        process.wait()
        for job in group.read_jobs().values():
            pid = group.read_pid(job)
            if pid is not None and group.is_alive(job.name):
                psutil.Process(pid).kill()
        wait_until(lambda: not any(map(group.is_alive, group.read_jobs())))
        go()
    assert work(group) == 0
    assert [row.state for row in read_sweep(group).trials] == ["complete", "complete"]


def test_a_stop_saves_and_it_goes_on(sweepers: Sweepers, capsys: pytest.CaptureFixture[str]) -> None:
    group = sweepers.make(trials=3)
    go = sweepers.hold()
    process = sweepers.drive(group)
    wait_until(lambda: len(sweepers.starts()) == 2)
    assert main(["jobs", "status", "s", "--runs-dir", str(sweepers.runs_dir), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["t000-s0", "t001-s0"]
    assert main(["jobs", "resume", str(group.path)]) == 2  # one process at a time
    assert f"is in use by process {process.pid}" in capsys.readouterr().err
    assert main(["jobs", "stop", "s", "--runs-dir", str(sweepers.runs_dir)]) == 0
    code, told = end(process)
    assert code == 130, told
    assert "mission-gym jobs resume" in told
    assert [trial.state.name for trial in read_study(group).trials] == ["RUNNING", "RUNNING"]
    assert find_driver(group) is None
    assert main(["jobs", "wait", "s", "--runs-dir", str(sweepers.runs_dir)]) == 2
    assert "no process runs the sweep" in capsys.readouterr().err
    go()
    assert work(group) == 0
    assert [row.state for row in read_sweep(group).trials].count("running") == 0
    assert main(["jobs", "wait", "s", "--runs-dir", str(sweepers.runs_dir)]) == 0


def test_a_budget_keeps_time_for_the_test(sweepers: Sweepers) -> None:
    group = sweepers.make(trials=None, budget_s=0.2)
    assert work(group) == 0
    record = read_sweep(group)
    assert 2 <= len(record.trials) <= 4  # what it starts from, and what began before a run was timed
    assert record.best_trial is not None


def test_a_pruner_ends_what_is_behind(sweepers: Sweepers) -> None:
    """Held runs have one evaluation, which is below the median of those before."""
    starts = [
        StartingPoint(source=str(number), values={"learning_rate": rate}, given={"learning_rate": rate})
        for number, rate in enumerate([1e-3] * 6)
    ]
    axes = [Axis(path="ppo.learning_rate", low=1e-8, high=1e-7, scale="log")]
    group = sweepers.make(axes=axes, starts=starts, trials=6, retest=1)
    assert work(group) == 0
    record = read_sweep(group)
    question = record.question.model_copy(update={"trials": 7, "pruner": "median"})
    Queue().record_own(group, [question])
    write_sweep(group, record.model_copy(update={"question": question}))
    sweepers.hold()
    assert work(group) == 0
    assert read_sweep(group).trials[6].state == "pruned"
    assert read_study(group).trials[6].state.name == "PRUNED"


def test_a_sweep_is_shown_compared_reported_and_removed(
    sweepers: Sweepers, capsys: pytest.CaptureFixture[str]
) -> None:
    group = sweepers.make(trials=8)
    assert work(group) == 0
    capsys.readouterr()
    folder = ["--runs-dir", str(sweepers.runs_dir)]
    assert main(["sweep", "show", "s", "--json", *folder]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["trials"]) == 8
    assert document["importance"] == {"learning_rate": 1.0}
    assert document["best"]["iqm"] == document["candidates"][0]["iqm"]
    assert main(["sweep", "show", "s", *folder]) == 0
    assert "importance of each field" in capsys.readouterr().out
    assert main(["runs", "compare", "s", "--json", *folder]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in compared["groups"]] == [f"{group.name} default", f"{group.name} best"]
    assert compared["improvement"][0]["probability"] == 1.0
    assert main(["report", "s", "--out", "page.html", *folder]) == 0
    for page in (Path("page.html"), group.path / "report.html"):
        text = page.read_text()
        for title in ("lower bound by trial", "lower bound by learning_rate", "importance of each field"):
            assert f'aria-label="{title}"' in text
        assert "return on fresh seeds: mean and range" in text
    assert main(["runs", "clean", group.name, "--yes", *folder]) == 0
    assert not list(sweepers.runs_dir.iterdir())
    assert main(["sweep", "show", "s", *folder]) == 2


def test_the_dashboard_of_optuna_opens_the_journal(sweepers: Sweepers, tmp_path: Path) -> None:
    group = sweepers.make(trials=3, retest=1)
    assert work(group) == 0
    with (tmp_path / "said").open("wb") as said:
        program = Path(optuna.__file__).parents[4] / "bin" / "optuna-dashboard"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [str(program), str(group.path / STUDY), "--port", str(port), "--host", "127.0.0.1"]
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        wait_until(lambda: process.poll() is not None or psutil.Process(process.pid).net_connections())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies", timeout=LONG_S) as reply:
            (study,) = json.load(reply)["study_summaries"]
        assert (study["study_name"], study["directions"]) == ("s", ["maximize", "minimize"])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_other_commands_do_not_load_optuna() -> None:
    code = "import sys, mission_gym.cli.jobs, mission_gym.cli.sweep; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
