"""`demo`: its files, its verdict and its exit code."""

import pytest

from mission_gym.cli import eval as commands
from mission_gym.cli.eval import choose_three
from mission_gym.cli.main import main
from mission_gym.store.checkpoints import CheckpointInfo
from mission_gym.store.resolve import list_runs


def test_a_short_demo_writes_all_files_and_misses_the_goal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(commands, "_DEMO_EPISODES", 16)
    monkeypatch.setattr(commands, "_DEMO_WIDTH", 160)
    monkeypatch.setattr(commands, "choose_three", lambda infos: infos[-1:])  # of three: test_processes.py
    monkeypatch.setitem(commands._DEMO_VALUES, "eval_episodes", 16)
    assert main(["demo", "--max-time", "1s", "--runs-dir", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    for name in ("trained", "noop", "random", "rush", "careful", "holder"):
        assert name in out
    assert "the goal was NOT reached: captured" in err
    (run,) = list_runs(tmp_path)
    for name in ("report.html", "learning.gif", "learning.mp4"):
        assert (run.path / name).stat().st_size > 10_000
        assert name in err
    assert (run.env / "levels" / "normal.yaml").exists()


def test_a_wrong_flag_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--max-time", "soon"]) == 2
    assert "max_time" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ([0, 100, 200, 380, 400], [0, 200, 400]),
        ([0, 10, 400], [0, 10, 400]),
        ([0, 400], [0, 400]),
        ([0], [0]),
    ],
)
def test_first_middle_and_last(steps, chosen, tmp_path):
    infos = [CheckpointInfo(step, tmp_path, 0, {}) for step in steps]
    assert [info.step for info in choose_three(infos)] == chosen
