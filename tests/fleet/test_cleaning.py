"""`runs clean GROUP`: a group is deleted with its runs; foreign files stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mission_gym.cli.main import main
from mission_gym.fleet.queue import Queue
from mission_gym.store.groups import GroupDir
from queue_jobs import Crew


@pytest.fixture
def group(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> GroupDir:
    """A group of two runs that are done."""
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    monkeypatch.chdir(crew.runs_dir.parent)
    group = crew.group(crew.request("a"), crew.request("b"))
    crew.finish(group)
    return group


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_group_is_listed_and_removed_with_its_runs(
    crew: Crew, group: GroupDir, capsys: pytest.CaptureFixture[str]
) -> None:
    crew.finish(other := crew.group(crew.request("c"), name="other"))
    before = names(crew.runs_dir)
    capsys.readouterr()
    assert main(["runs", "clean", "g", "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item.get("group") for item in items] == [None, None, group.name]
    assert names(crew.runs_dir) == before
    assert main(["runs", "clean", "g", "--yes"]) == 0
    assert f"{group.name}  the group's folder" in capsys.readouterr().out
    (run,) = (job.run for job in other.read_jobs().values())
    assert run is not None
    assert names(crew.runs_dir) == sorted([other.name, run.name])
    assert not Queue()._mark(group).exists()


def test_foreign_files_and_the_targets_of_links_stay(crew: Crew, group: GroupDir) -> None:
    (group.path / "jobs" / "notes.log").write_text("mine")
    (crew.signs / "report.html").write_text("mine")
    (group.path / "report.html").symlink_to(crew.signs / "report.html")
    assert main(["runs", "clean", group.name, "--yes"]) == 0
    assert names(group.path) == ["jobs", "report.html"]
    assert names(group.path / "jobs") == ["notes.log"]
    assert (crew.signs / "report.html").read_text() == "mine"


def test_an_interrupted_removal_can_be_repeated(crew: Crew, group: GroupDir) -> None:
    for path in (*(group.path / "jobs").iterdir(), group.journal.path):
        path.unlink()
    assert main(["runs", "clean", group.name, "--yes"]) == 0
    assert not group.path.exists()


def test_names_come_before_paths(crew: Crew, group: GroupDir) -> None:
    stray = GroupDir.create(Path(), "g", "jobs", [crew.request("a")])
    (stray.path).rename("g")
    assert main(["runs", "clean", "g", "--yes"]) == 0
    assert not group.path.exists()
    assert GroupDir(Path("g")).exists


@pytest.mark.parametrize("work", ["waits", "lives"])
def test_a_group_with_unfinished_jobs_stays(
    crew: Crew, group: GroupDir, work: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = crew.group(crew.request("c", "wait"), name="other")
    if work == "waits":
        Queue().register(other)
    else:
        crew.tick_until(lambda: other.is_alive("c"))
    assert main(["runs", "clean", "other", "--yes"]) == 2
    assert "has unfinished jobs; stop them first: `mission-gym jobs stop" in capsys.readouterr().err
    assert other.exists
    crew.go()
    crew.finish(other)


def test_foreign_groups_stay(crew: Crew, group: GroupDir, capsys: pytest.CaptureFixture[str]) -> None:
    project = crew.runs_dir / "project"
    project.mkdir()
    (project / "group.json").write_text('{"name": "project", "kind": "jobs", "runs": []}')
    assert main(["runs", "clean", "project", "--yes"]) == 2
    assert "was not made by mission-gym: it has no .journal.jsonl-lock" in capsys.readouterr().err
    (crew.runs_dir / "link").symlink_to(group.path)
    assert main(["runs", "clean", "runs/link", "--yes"]) == 2
    assert "is a symbolic link; nothing in it is deleted" in capsys.readouterr().err
    group.path.rename("moved")
    assert main(["runs", "clean", "./moved", "--yes"]) == 2
    assert "'./moved' is not in the runs folder runs; give its full path" in capsys.readouterr().err
    assert len(names(Path("moved"))) == 4


def test_an_ambiguous_prefix_is_refused(
    crew: Crew, group: GroupDir, capsys: pytest.CaptureFixture[str]
) -> None:
    crew.finish(crew.group(crew.request("c"), name="gamma"))
    assert main(["runs", "clean", "ga", "--yes"]) == 0  # one group begins so, and no run
    assert main(["runs", "clean", "g-", "--yes"]) == 2
    assert "'g-' fits 3 runs or groups" in capsys.readouterr().err
    assert main(["runs", "clean", "nobody", "--yes"]) == 2
    assert "no run or group 'nobody' in runs" in capsys.readouterr().err
