"""The index: what it tells of runs and groups, what it leaves out, and what it reads again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hand_runs import HandRun

from mission_gym.dashboard import index as index_module
from mission_gym.dashboard.index import Index
from mission_gym.store.rundir import RunDir


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FRESH_S", 0.0)


def test_a_run_is_a_row_and_is_told_again_only_when_it_changes(hand_run: HandRun, tmp_path: Path) -> None:
    index = Index(tmp_path)
    news = index.changes(0)
    (row,) = news["rows"]
    assert row["name"] == hand_run.name
    assert row["env"] == "toys:Hand"
    assert (row["main"], row["outcomes"]) == ("won", {"won": 0.5})
    assert row["spark"] == [10 / 7, 20 / 7, 30 / 7]
    assert index.changes(news["version"])["rows"] == []
    hand_run.dir.write_status(step=40)
    later = index.changes(news["version"])
    assert [row["step"] for row in later["rows"]] == [40]
    hand_run.add(40)
    assert index.changes(later["version"])["rows"][0]["spark"][-1] == 40 / 7


def test_a_run_whose_process_is_gone_says_so(hand_run: HandRun, tmp_path: Path) -> None:
    index = Index(tmp_path)
    with hand_run.dir.lock():
        hand_run.dir.write_status(state="running")
        assert index.changes(0)["rows"][0]["state"] == "running"
    (row,) = index.changes(0)["rows"]
    assert (row["state"], row["cause"]) == ("failed", "process gone")


def test_what_is_damaged_or_leads_out_is_said_and_not_read(hand_run: HandRun, tmp_path: Path) -> None:
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
    assert Index(Path("runs")).changes(0)["problem"] == "runs is not there yet; a first run makes it"


def test_groups_are_read_and_a_damaged_one_is_told(hand_run: HandRun, tmp_path: Path) -> None:
    group = {"name": "x", "kind": "seeds", "runs": [str(hand_run.dir.path)], "iqm": 3, "low": 1, "high": 4}
    for name, text in (("seeds", json.dumps(group)), ("torn", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "group.json").write_text(text)
    seeds, torn = Index(tmp_path).changes(0)["groups"]
    assert seeds == {"name": "seeds", "kind": "seeds", "iqm": 3, "low": 1, "high": 4, "runs": [hand_run.name]}
    assert (torn["kind"], torn["runs"]) == ("damaged", [])


def test_a_folder_that_is_not_there_is_not_an_error(tmp_path: Path) -> None:
    news = Index(tmp_path / "none").changes(0)
    assert news["rows"] == []
    assert "a first run makes it" in news["problem"]


def test_sparklines_of_many_runs_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        HandRun(tmp_path, name).add(1, 2)
    index = Index(tmp_path)
    monkeypatch.setattr(index_module, "_SPARKS_S", -1.0)
    first = index.changes(0)
    assert [row["spark"] for row in first["rows"]] == [None, None]
    monkeypatch.setattr(index_module, "_SPARKS_S", 60.0)
    assert [len(row["spark"]) for row in index.changes(first["version"])["rows"]] == [2, 2]
