"""`report`: the path and contents of the file, and refused arguments."""

import json

import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.report import html
from mission_gym.store.resolve import list_runs


def test_a_run_keeps_its_report(family, capsys):
    assert main(["report", "child", "--runs-dir", str(family)]) == 0
    (child,) = (run for run in list_runs(family) if run.name.startswith("child"))
    assert capsys.readouterr().out.strip() == str(child.path / "report.html")
    assert child.name in (child.path / "report.html").read_text()


def test_several_runs_and_groups_are_one_file(family, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = family / "both"
    folder.mkdir()
    runs = [str(run.path) for run in list_runs(family)]
    group = {"name": "both", "kind": "seeds", "runs": [*runs, "gone"], "iqm": 0.5, "low": 0.25, "high": 0.75}
    (folder / "group.json").write_text(json.dumps(group))
    assert main(["report", "both", "child", "--runs-dir", str(family), "--out", "both.html"]) == 0
    page = (tmp_path / "both.html").read_text()
    assert "Returns of the last evaluations" in page
    assert "(too few for a mean)" in page
    assert f"{len(runs)} runs" in page
    (folder / "group.json").write_text(json.dumps(group | {"runs": ["gone"]}))
    assert main(["report", "both", "--runs-dir", str(family)]) == 2
    assert "has no existing run yet" in capsys.readouterr().err
    (folder / "group.json").unlink()
    folder.rmdir()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no run is given"),
        (["child", "--out", "a.pdf"], "'a.pdf' is not an HTML file"),
        (["none"], "no run 'none'"),
        (["child", "--out", "nope/a.html"], "the folder nope does not exist; create it"),
    ],
)
def test_invalid_reports_are_refused(family, args, message, capsys):
    assert main(["report", *args, "--runs-dir", str(family)]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_was_long_enough_leaves_a_report(tmp_path, monkeypatch, capsys):
    flags = ["--timesteps", "64", "--n-envs", "2", "--n-steps", "16", "--no-tensorboard", "--eval-freq", "0"]
    command = ["train", "toys:Identity", *flags, "--runs-dir", str(tmp_path)]
    assert main([*command, "--run-name", "short"]) == 0
    monkeypatch.setattr("mission_gym.api_results._REPORT_S", 0.0)
    assert main([*command, "--run-name", "long"]) == 0
    assert "report: " in capsys.readouterr().err
    assert [run.name[:4] for run in list_runs(tmp_path) if (run.path / "report.html").exists()] == ["long"]


def test_a_report_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    def fail(runs):
        raise ZeroDivisionError("a curve")

    monkeypatch.setattr("mission_gym.api_results._REPORT_S", 0.0)
    monkeypatch.setattr(html, "make_html", fail)
    with pytest.warns(UserWarning, match="no report was written: a curve"):
        run = mg.train(
            "toys:Identity", progress=False, runs_dir=str(tmp_path), timesteps=64, n_envs=2,
            n_steps_per_env=16, tensorboard=False, eval_freq=0, vector="serial",
        )  # fmt: skip
    assert run.path.exists()
