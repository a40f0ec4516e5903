"""`demo`: its files, its verdict and its exit code."""

import pytest

from mission_gym.cli import eval as commands
from mission_gym.cli.eval import choose_seed, choose_three
from mission_gym.cli.main import main
from mission_gym.store.checkpoints import CheckpointInfo
from mission_gym.store.resolve import list_runs
from mission_gym.streams import suite_seeds


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


def test_the_video_shows_a_win_of_the_last_checkpoint_and_a_loss_of_the_first():
    seeds = suite_seeds("report", 4)
    first = dict.fromkeys(seeds, "captured") | {seeds[2]: "lost"}
    last = dict.fromkeys(seeds, "captured") | {seeds[0]: "lost"}
    seed, why = choose_seed("captured", first.get, last.get)
    assert seed == seeds[2]
    assert "the last one wins and the first one does not" in why
    assert choose_seed("captured", {}.get, {}.get) == (seeds[0], "")


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
