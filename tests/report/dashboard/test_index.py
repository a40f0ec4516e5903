"""The index: rows of runs and groups, refused folders, and what is read again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dashboard_runs import HandRun
from mission_gym.report.dashboard import index as index_module
from mission_gym.report.dashboard.index import Index
from mission_gym.store import lock
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import Candidate, Question, SweepRecord, TrialRow, write_sweep


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FRESH_S", 0.0)


def test_a_run_is_a_row_and_is_sent_again_only_when_it_changes(hand_run: HandRun, tmp_path: Path) -> None:
    index = Index(tmp_path)
    news = index.changes(0)
    (row,) = news["rows"]
    assert row["name"] == hand_run.name
    assert row["env"] == "toys:Hand"
    assert (row["main"], row["outcomes"]) == ("won", {"won": 0.5})
    assert row["spark"] == [1.429, 2.857, 4.286]
    assert index.changes(news["version"])["rows"] == []
    hand_run.dir.write_status(step=40)
    later = index.changes(news["version"])
    assert [row["step"] for row in later["rows"]] == [40]
    hand_run.add(40)
    assert index.changes(later["version"])["rows"][0]["spark"][-1] == 5.714


def test_a_run_whose_process_is_gone_has_failed(hand_run: HandRun, tmp_path: Path) -> None:
    index = Index(tmp_path)
    with hand_run.dir.lock():
        hand_run.dir.write_status(state="running")
        assert index.changes(0)["rows"][0]["state"] == "running"
    (row,) = index.changes(0)["rows"]
    assert (row["state"], row["cause"]) == ("failed", "the process was killed")


def test_damaged_and_linked_runs_are_reported_and_not_read(hand_run: HandRun, tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    bad, linked = HandRun(runs_dir, "bad"), HandRun(runs_dir, "linked")
    bad.dir.status_json.write_text("{")
    (linked.dir.path / "log.txt").symlink_to(secret)
    os.symlink(hand_run.dir.path, runs_dir / "elsewhere")
    index = Index(runs_dir)
    rows = {row["name"]: row for row in index.changes(0)["rows"]}
    assert set(rows) == {bad.name, linked.name}
    assert rows[bad.name]["state"] == "damaged"
    assert "truncated or altered" in rows[bad.name]["cause"]
    assert rows[linked.name]["state"] == "refused"
    assert index.find(linked.name) is None
    assert index.find(bad.name) is not None
    for name in ("elsewhere", "..", ".", "", "a/b", "../secret", "none", "a\0b", str(hand_run.dir.path)):
        assert index.find(name) is None


def test_an_odd_run_does_not_hide_the_others(hand_run: HandRun, tmp_path: Path) -> None:
    plans: list[Any] = ["x", {"facts": 1}, {"facts": [1, {"name": "environment", "value": "toys:Odd"}]}]
    for number, plan in enumerate(plans):
        odd = RunDir.create(tmp_path, f"plan{number}")
        odd.metrics_jsonl.write_text(json.dumps({"event": "plan", "main_outcome": [1], "time/plan": plan}))
    RunDir.create(tmp_path, "folder").metrics_jsonl.mkdir()
    os.mkfifo(RunDir.create(tmp_path, "pipe").path / "lineage.json")
    rows = {row["name"].partition("-")[0]: row for row in Index(tmp_path).changes(0)["rows"]}
    assert len(rows) == 6
    assert rows["plan2"]["env"] == "toys:Odd"
    assert rows["plan0"]["env"] is rows["plan1"]["env"] is rows["plan1"]["main"] is None
    assert rows["folder"]["spark"] == []
    assert rows["pipe"]["state"] == "refused"


def test_a_page_of_an_earlier_server_gets_all_rows(hand_run: HandRun, tmp_path: Path) -> None:
    seen = Index(tmp_path).changes(0)["version"]
    later = Index(tmp_path).changes(seen)
    assert later["version"] > seen
    assert [row["name"] for row in later["rows"]] == [hand_run.name]


def test_the_folder_is_named_as_the_user_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Index(Path("runs")).changes(0)["problem"] == "runs does not exist yet; the first run creates it"


def test_groups_are_read_and_a_damaged_one_is_reported(hand_run: HandRun, tmp_path: Path) -> None:
    group = {"name": "x", "kind": "seeds", "runs": [str(hand_run.dir.path)], "iqm": 3, "low": 1, "high": 4}
    for name, text in (("seeds", json.dumps(group)), ("torn", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "group.json").write_text(text)
    seeds, torn = Index(tmp_path).changes(0)["groups"]
    told = {key: seeds[key] for key in ("name", "kind", "iqm", "low", "high", "runs", "jobs")}
    assert told == {
        "name": "seeds", "kind": "seeds", "iqm": 3, "low": 1, "high": 4, "runs": [hand_run.name], "jobs": [],
    }  # fmt: skip
    assert (torn["kind"], torn["runs"]) == ("damaged", [])


def test_a_missing_folder_is_not_an_error(tmp_path: Path) -> None:
    news = Index(tmp_path / "none").changes(0)
    assert news["rows"] == []
    assert "the first run creates it" in news["problem"]


def test_sparklines_of_many_runs_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        HandRun(tmp_path, name).add(1, 2)
    index = Index(tmp_path)
    monkeypatch.setattr(index_module, "_SPARKS_S", -1.0)
    first = index.changes(0)
    assert [row["spark"] for row in first["rows"]] == [None, None]
    monkeypatch.setattr(index_module, "_SPARKS_S", 60.0)
    assert [len(row["spark"]) for row in index.changes(first["version"])["rows"]] == [2, 2]


def request(name: str, **more: Any) -> JobRequest:
    return JobRequest(name=name, variant=name, arguments=(), folder="/", python="python", **more)


def test_the_queue_is_in_the_order_of_starts(hand_run: HandRun, tmp_path: Path) -> None:
    later = [request("low"), request("high", priority=3), request("child", parent="low")]
    group = GroupDir.create(tmp_path, "four", "jobs", [request("base"), *later])
    group.note("started", "base", cores=2)
    group.note("run", "base", run=f"/elsewhere/{hand_run.name}")
    with lock.hold(group.lock("base"), wait_s=0.0) as held:
        lock.sign(held, "1")
        hand_run.dir.write_status(state="done")
        index = Index(tmp_path)
        (told,) = index.changes(0)["groups"]
    jobs = told["jobs"]
    assert [job["name"] for job in jobs] == ["base", "high", "low", "child"]
    assert (jobs[0]["state"], jobs[0]["run"], jobs[0]["cores"]) == ("running", hand_run.name, 2)
    assert [job["waits_for"] for job in jobs] == [None, None, None, "low"]
    before = index.changes(0)
    group.note("ended", "base", state="failed", cause="no\nmore")
    news = index.changes(before["version"])
    assert [(job["name"], job["state"], job["cause"]) for job in news["groups"][0]["jobs"]][-1] == (
        "base", "failed", "no",
    )  # fmt: skip
    assert news["names"] is None
    assert index.changes(news["version"])["groups"] is None


def test_a_sweep_draws_its_best_trials_and_then_its_retests(hand_run: HandRun, tmp_path: Path) -> None:
    names = ["t000", "t001", "t002", "retest-t002"]
    group = GroupDir.create(tmp_path, "lr", "sweep", [request(name) for name in names])
    for name in names[:3]:
        group.note("run", name, run=f"/elsewhere/{name}-run")
    question = Question(
        asked={}, values={}, over="", axes=[], starts=[], measure="return", trials=3, budget_s=None,
        seeds=[0], retest=1, retest_seeds=[1], folder="/",
    )  # fmt: skip
    rows = [
        TrialRow(number=number, source=source, state="complete", values={}, score=score)
        for number, source, score in ((0, "default", 5.0), (1, "search", None), (2, "search", 7.0))
    ]
    record = SweepRecord(question=question, trials=rows)
    write_sweep(group, record)
    (row,) = Index(tmp_path).changes(0)["groups"]
    assert row["variants"] == [
        {"name": "trial 2", "runs": ["t002-run"]},
        {"name": "default", "runs": ["t000-run"]},
    ]
    assert row["best_score"] == 7.0
    group.note("run", "retest-t002", run="/elsewhere/again")
    record.candidates, record.best_trial = [Candidate(trial=2, source="search", values={}, mean=6.5)], 2
    write_sweep(group, record)
    (row,) = Index(tmp_path).changes(0)["groups"]
    assert row["variants"] == [{"name": "trial 2 on fresh seeds", "runs": ["again"]}]
    assert row["best_score"] == 6.5


def test_the_best_evaluation_and_the_algorithm_are_in_the_row(hand_run: HandRun, tmp_path: Path) -> None:
    (row,) = Index(tmp_path).changes(0)["rows"]
    assert (row["best_return"], row["best_rate"]) == (5.0, 0.5)
    assert row["env"] == "toys:Hand"


def test_a_journal_can_not_name_a_run_of_another_folder(hand_run: HandRun, tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    group = GroupDir.create(runs_dir, "odd", "jobs", [request("one")])
    group.note("started", "one")
    group.note("run", "one", run=str(hand_run.dir.path))
    (told,) = Index(runs_dir).changes(0)["groups"]
    assert told["jobs"][0]["run"] is None
    group.lock("one").unlink(missing_ok=True)
    os.mkfifo(group.lock("one"))  # which would be waited for
    (told,) = Index(runs_dir).changes(0)["groups"]
    assert (told["kind"], told["jobs"]) == ("refused", [])


@pytest.mark.parametrize("folder", ["checkpoints/step_000000000010", "eval"])
@pytest.mark.parametrize("is_pipe", [True, False])
def test_links_and_pipes_deep_in_a_run_are_not_followed(
    hand_run: HandRun, tmp_path: Path, folder: str, is_pipe: bool
) -> None:
    index = Index(tmp_path)
    place = hand_run.dir.path / folder
    place.mkdir(parents=True, exist_ok=True)
    assert index.find(hand_run.name) is not None
    if is_pipe:
        os.mkfifo(place / "meta.json")
    else:
        (place / "meta.json").symlink_to("/etc/passwd")
    assert index.find(hand_run.name) is None


def test_values_of_a_status_that_are_not_numbers_are_left_out(hand_run: HandRun, tmp_path: Path) -> None:
    status = json.loads(hand_run.dir.status_json.read_text())
    odd = {"heartbeat": "x", "now_fps": [1], "eta_s": {}, "phase": 3, "outcomes": {"won": "all", "lost": 0.5}}
    hand_run.dir.status_json.write_text(json.dumps(status | odd))
    (row,) = Index(tmp_path).changes(0)["rows"]
    assert [row[key] for key in ("heartbeat", "now_fps", "eta_s", "phase")] == [None] * 4
    assert row["outcomes"] == {"won": None, "lost": 0.5}


def test_ended_runs_are_checked_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_NUM_CLOSE", 1)
    runs = [HandRun(tmp_path, name) for name in "abc"]
    index = Index(tmp_path)
    version = index.changes(0)["version"]
    for run in runs:
        run.dir.write_status(step=7)
    told = []
    for _ in range(3):
        news = index.changes(version)
        version = news["version"]
        told.append([row["name"] for row in news["rows"] if row["step"] == 7])
    assert [len(names) for names in told] == [1, 1, 1]
    assert sorted(name for names in told for name in names) == [run.name for run in runs]
