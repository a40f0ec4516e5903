"""`runs clean RUN --yes` removes a run of ours, and of it what we wrote; nothing of anybody else's."""

import json
import shutil
from pathlib import Path

import pytest

from mission_gym.cli.main import main
from mission_gym.run.resume import resume_run
from mission_gym.store.resolve import find_run, list_runs


@pytest.fixture
def runs_dir(family, tmp_path, monkeypatch):
    """A copy of the family below the current folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(family, tmp_path / "runs"))


def make_project(path):
    """A folder that only looks like a run."""
    for name in ("config.yaml", "checkpoints/best.pt", "notes.txt", "checkpoints/.tmp-work/a.txt"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    return path


def files(path):
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


@pytest.mark.parametrize(
    "status", [None, "null", "[]", "{}", '{"state": "done"}', '{"status": "ok", "pid": 3}']
)
def test_a_project_folder_is_not_a_run(status, runs_dir, tmp_path, capsys):
    project = make_project(tmp_path / "project")
    (project / ".lock").touch()
    if status is not None:
        (project / "status.json").write_text(status)
    before = files(project)
    assert main(["runs", "clean", str(project), "--yes"]) == 2
    assert (
        "is not a run of ours: it has no status.json with a state, a pid and times" in capsys.readouterr().err
    )
    assert files(project) == before


def test_what_stands_beside_the_runs_needs_its_full_path(runs_dir, tmp_path, capsys):
    run = find_run("child", runs_dir).run
    shutil.move(run.path, tmp_path / "elsewhere")
    assert main(["runs", "clean", "./elsewhere", "--yes"]) == 2
    assert "'./elsewhere' is not in the runs folder runs; give its full path" in capsys.readouterr().err
    assert main(["runs", "clean", str(tmp_path / "elsewhere"), "--yes"]) == 0
    assert not (tmp_path / "elsewhere").exists()


def test_a_name_is_never_a_path(runs_dir, tmp_path):
    """`child` is the run `child-...`, whatever lies in the current folder."""
    shutil.copytree(find_run("parent", runs_dir).run.path, tmp_path / "child")
    assert main(["runs", "clean", "child", "--yes"]) == 0
    assert (tmp_path / "child" / "status.json").exists()
    assert [run.name[:6] for run in list_runs(runs_dir)] == ["parent"]


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("config.yaml", "config.yaml is not a folder"),
        ("checkpoints", "checkpoints is not a run of ours: it has no .lock"),
        ("checkpoints/step_000000000192", "step_000000000192 is not a run of ours"),
        ("missing", "missing is not a folder"),
    ],
)
def test_a_path_inside_a_run_does_not_mean_the_run(inside, said, runs_dir, capsys):
    run = find_run("parent", runs_dir).run
    assert main(["runs", "clean", str(run.path / inside), "--yes"]) == 2
    assert said in capsys.readouterr().err
    assert run.config_yaml.exists()


def test_a_checkpoint_is_not_a_whole_run(runs_dir, capsys):
    assert main(["runs", "clean", "parent@128", "--yes"]) == 2
    assert "'parent@128' names a checkpoint; only whole runs are removed" in capsys.readouterr().err
    assert len(list_runs(runs_dir)) == 2


def test_a_linked_run_is_not_removed(runs_dir, tmp_path, capsys):
    run = find_run("child", runs_dir).run
    shutil.move(run.path, tmp_path / "target")
    run.path.symlink_to(tmp_path / "target")
    before = files(tmp_path / "target")
    assert main(["runs", "clean", "child", "--yes"]) == 2
    assert "is a link; nothing in it is deleted" in capsys.readouterr().err
    assert files(tmp_path / "target") == before


def test_foreign_files_stay(runs_dir, capsys):
    run = find_run("child", runs_dir).run
    theirs = ["notes.txt", "paper/config.yaml", "eval/mine.json", "env/mine.yaml"]
    for name in theirs:
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("mine")
    assert main(["runs", "clean", "child"]) == 0
    assert "4 foreign files stay" in capsys.readouterr().out
    assert main(["runs", "clean", "child", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["num_foreign"] == 4
    assert files(run.path) == sorted(theirs)


def test_a_run_with_a_link_is_not_removed(runs_dir, tmp_path, capsys):
    run = find_run("child", runs_dir).run
    shutil.move(run.checkpoints, tmp_path / "big-disk")
    run.checkpoints.symlink_to(tmp_path / "big-disk")
    before = files(tmp_path / "big-disk"), files(run.path)
    assert main(["runs", "clean", "child", "--yes"]) == 2
    assert "checkpoints is a link, a pipe or a device; nothing is written" in capsys.readouterr().err
    assert (files(tmp_path / "big-disk"), files(run.path)) == before


def test_names_that_leave_the_run_delete_nothing(runs_dir, tmp_path):
    run = find_run("child", runs_dir).run
    project = make_project(tmp_path / "project")
    names = {"one": "../../../project", "two": str(project), "three": ".."}
    run.env_files_json.write_text(json.dumps(names))
    before = files(project)
    assert main(["runs", "clean", "child", "--yes"]) == 0
    assert files(project) == before
    assert not run.path.exists()


def test_cleaning_all_runs_leaves_what_is_not_ours(runs_dir):
    project = make_project(runs_dir / "project")
    before = files(project)
    assert main(["runs", "clean", "--yes"]) == 0
    assert files(project) == before


def test_cleaning_all_runs_leaves_what_is_linked(runs_dir, tmp_path):
    run = find_run("child", runs_dir).run
    shutil.move(run.checkpoints, tmp_path / "big-disk")
    run.checkpoints.symlink_to(tmp_path / "big-disk")
    last = tmp_path / "big-disk" / "step_000000000256"
    for step in range(200, 210):  # copies under names that retention has no reason to keep
        shutil.copytree(last, last.with_name(f"step_{step:012d}"))
    before = files(tmp_path / "big-disk")
    assert main(["runs", "clean", "--yes"]) == 0
    assert files(tmp_path / "big-disk") == before


def test_a_resume_deletes_nothing_of_others(runs_dir):
    run = find_run("child", runs_dir).run
    theirs = [".tmp-work/a.txt", "checkpoints/.tmp-work/a.txt", "eval/.tmp-work-999999999"]
    for name in theirs:
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("mine")
    with resume_run(run, lambda event: None, timesteps=320):
        pass
    assert all((run.path / name).read_text() == "mine" for name in theirs)
