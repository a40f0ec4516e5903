"""Commands that read runs: one JSON document on stdout, or a table; `clean` shows before it deletes."""

import json
import re
import shutil

import pytest

from mission_gym.cli.main import main
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.resolve import find_run, list_runs
from timeouts import LONG_S

ENV_ID = "toys:Identity"
RATE_KEYS = {"rate", "low", "high"}
EVAL_KEYS = {"run", "step", "episodes", "return_mean", "return_low", "return_high", "length_mean", "outcomes"}
ROW_KEYS = {"name", "path", "state", "step", "fps", "return_mean"}


@pytest.fixture
def read(family, capsys):
    """Run a command on the family and return its JSON document."""

    def command(*args):
        assert main([*args, "--runs-dir", str(family), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return command


@pytest.fixture
def text(family, capsys, monkeypatch):
    """Run a command on the family and return what it prints on a wide terminal: narrow ones fold tables, and
    the widths of cells depend on the numbers and on the path of the folder."""
    monkeypatch.setenv("COLUMNS", "200")

    def command(*args):
        assert main([*args, "--runs-dir", str(family)]) == 0
        return capsys.readouterr().out

    return command


def test_list(read, text):
    rows = read("runs", "list")
    assert [row["state"] for row in rows] == ["done", "done"]
    assert [row["step"] for row in rows] == [192, 256]
    assert all(row.keys() >= ROW_KEYS for row in rows)
    assert {(row["env_id"], row["algo"], row["group"]) for row in rows} == {(ENV_ID, "ppo", None)}
    shown = text("runs", "list")
    assert shown.splitlines()[0].split()[:4] == ["run", "environment", "algo", "state"]
    assert "group" not in shown
    assert re.search(r"parent-\d{8}-\d{6} +toys:Identity +ppo +done +192 ", shown)


def test_list_filters_sorts_and_limits(read, text, capsys):
    def names(*args):
        return [row["name"].partition("-")[0] for row in read("runs", "list", *args)]

    assert names() == ["parent", "child"]
    assert names("--sort", "name") == ["child", "parent"]
    assert names("--sort", "step", "--limit", "1") == ["child"]
    assert names("--env", "IDENT") == ["parent", "child"]
    assert names("--env", "cart") == names("--state", "failed") == []
    for flag, word in (("--state", "faild"), ("--sort", "steps")):
        assert main(["runs", "list", flag, word]) == 2
        assert f"(did you mean '{'failed' if flag == '--state' else 'step'}'?)" in capsys.readouterr().err


def test_an_empty_folder_is_an_empty_list(tmp_path, capsys):
    assert main(["runs", "list", "--json", "--runs-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == []
    assert "`mission-gym train ENV` makes one" in err


def test_show(read, text):
    document = read("runs", "show", "child")
    assert document.keys() >= ROW_KEYS | {"env_failures", "gradient_steps", "predicted_fps", "best_step"}
    assert document["verdict"].keys() == {"bound", "evidence", "advice"}
    assert document["parent"].startswith("parent-")
    assert document["parent_step"] == 128
    shown = text("runs", "show", "parent")
    assert "done: all steps made" in shown
    assert ENV_ID in shown
    assert re.search(r"bound by +\w+", shown)


def test_timeline(read, text, family, tmp_path):
    document = read("runs", "timeline", "child", "--out", str(tmp_path / "a.html"))
    assert document["run"].startswith("child-")
    for phases in document["roles"].values():
        assert sum(phases.values()) == pytest.approx(document["wall_s"], abs=1e-3)
    assert {span[0] for span in document["spans"]} >= {"collector", "learner"}
    page = (tmp_path / "a.html").read_text()
    assert 'class="lanes"' in page
    assert 'class="shares"' in page
    shown = text("runs", "timeline", "parent")
    assert re.search(r"collector +act +0:\d\d +\d+ % +choosing actions", shown)
    assert re.search(r"cpu +.* busy", shown)
    assert (find_run("parent", family).run.path / "timeline.html").is_file()


def test_a_timeline_is_an_html_file(family, capsys):
    assert main(["runs", "timeline", "parent", "--out", "a.svg", "--runs-dir", str(family)]) == 2
    assert "'a.svg' is not an HTML file; use a name that ends in .html [--out]" in capsys.readouterr().err


def test_compare_shows_what_differs(read, text):
    document = read("runs", "compare", "parent", "child")
    assert document["differences"]["ppo.gamma"] == [0.99, 0.9]
    assert "ppo.gae_lambda" not in document["differences"]
    assert re.search(r"ppo.gamma +0.99 +0.9", text("runs", "compare", "parent", "child"))


def test_compare_leaves_settings_of_other_algorithms_out_of_the_table(capsys, tmp_path):
    for algo in ("ppo", "dqn"):
        args = [
            "train",
            "CartPole-v1",
            "--algo",
            algo,
            "--timesteps",
            "64",
            "--n-envs",
            "2",
            "--run-name",
            algo,
        ]
        assert main([*args, "--eval-freq", "0", "--no-tensorboard", "--runs-dir", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["runs", "compare", "ppo", "dqn", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "n_epochs" not in shown
    assert re.search(r"\d+ settings of dqn and ppo are left out; --json has them", shown)
    assert main(["runs", "compare", "ppo", "dqn", "--json", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "ppo.n_epochs" in shown
    assert "dqn.replay_size" in shown


def test_lineage_goes_both_ways(read, text):
    up, down = read("runs", "lineage", "child"), read("runs", "lineage", "parent")
    assert [(item["name"][:6], item["step"], item["exists"]) for item in up["ancestors"]] == [
        ("parent", 128, True)
    ]
    assert [(item["name"][:5], item["step"]) for item in down["descendants"]] == [("child", 128)]
    assert "from step 128" in text("runs", "lineage", "child")


def test_config_tells_each_value_with_its_source(read, text):
    document = read("config", "child")
    assert document["ppo.gamma"] == {"value": 0.9, "source": "flag --gamma"}
    assert document["policy.network_arch"]["value"] == [64, 64]
    assert re.search(r"ppo.gamma +0.9 +flag --gamma", text("config", "child"))


def test_eval(read, text, family):
    document = read("eval", "parent@128", "--episodes", "5")
    assert document.keys() >= EVAL_KEYS
    assert (document["step"], document["episodes"], document["mode"]) == (128, 5, "greedy")
    assert read("eval", "parent@last", "--episodes", "5", "--stochastic")["mode"] == "sampled"
    path = str(find_run("parent@128", family).run.checkpoints / "step_000000000128")
    assert read("eval", path, "--episodes", "5") == document
    assert "5 episodes each" in text("eval", "parent", "--episodes", "5")


def test_eval_beside_the_baselines(read, text):
    document = read("eval", "parent", "--episodes", "5", "--baselines")
    assert document["baselines"].keys() >= {"random", "noop"}
    shown = text("eval", "parent", "--episodes", "5", "--baselines").splitlines()[0].split()
    assert shown[:3] == ["trained", "random", "noop"]


def test_a_step_without_checkpoint_is_refused(family, capsys):
    assert main(["eval", "parent@100", "--runs-dir", str(family)]) == 2
    assert "no checkpoint at step 100; it has" in capsys.readouterr().err


def test_baselines(capsys):
    assert main(["baselines", ENV_ID, "--episodes", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"random", "noop"}
    assert all(result.keys() >= EVAL_KEYS - {"run", "step"} for result in document.values())


def test_check_finds_a_broken_environment(capsys):
    args = ["check", "toys:Faulty", "--env-kwargs", "fail=nan", "--json"]
    assert main(args) == 2
    findings = json.loads(capsys.readouterr().out)
    assert findings[0]["level"] == "error"
    assert findings[0].keys() == {"level", "name", "what", "why", "fix"}


def test_a_finished_run_is_resumed_only_with_more_steps(family, tmp_path, capsys):
    shutil.copytree(family, tmp_path / "runs", dirs_exist_ok=True)
    where = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["resume", "parent", *where]) == 2
    assert "is finished (all steps made, 192 steps); `mission-gym resume parent" in capsys.readouterr().err
    assert main(["resume", "parent@128", *where]) == 2
    assert "`mission-gym branch parent@128` starts from another" in capsys.readouterr().err
    assert main(["resume", "parent", *where, "--timesteps", "256"]) == 0
    assert find_run("parent", tmp_path / "runs").run.read_status()["step"] == 256


def test_an_evaluation_that_can_not_be_read_is_named_by_those_who_choose(family, tmp_path, capsys):
    folder = shutil.copytree(family, tmp_path / "runs")
    (damaged,) = folder.glob("parent-*/eval/step_000000000128-select.json")
    damaged.write_text("{")
    for args in (["eval", "parent", "--episodes", "1"], ["resume", "parent", "--timesteps", "256"]):
        capsys.readouterr()
        assert main([*args, "--runs-dir", str(folder)]) == 0
        told = capsys.readouterr().err
        assert told.count("an evaluation is ignored") == 1
        assert damaged.name in told
    assert main(["eval", "parent@last", "--episodes", "1", "--runs-dir", str(folder)]) == 0
    assert "is ignored" not in capsys.readouterr().err


def test_a_run_whose_status_was_lost_is_resumed(family, tmp_path):
    shutil.copytree(family, tmp_path / "runs")
    run = find_run("parent", tmp_path / "runs").run
    run.status_json.write_bytes(b"")
    assert main(["resume", "parent", "--timesteps", "256", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert run.read_status()["step"] == 256


def test_clean_shows_first_and_deletes_with_yes(family, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    shutil.copytree(family, runs_dir)
    where = ["--runs-dir", str(runs_dir)]
    parent = find_run("parent", runs_dir).run
    first = parent.checkpoints / "step_000000000192"
    for step in range(150, 160):  # copies under names that retention has no reason to keep
        shutil.copytree(first, parent.checkpoints / f"step_{step:012d}")
    assert main(["runs", "clean", *where]) == 0
    out, err = capsys.readouterr()
    assert "checkpoint 151" in out
    assert "nothing was deleted; add --yes to delete" in err
    before = len(list_checkpoints(parent.checkpoints))
    assert main(["runs", "clean", *where, "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    steps = [info.step for info in list_checkpoints(parent.checkpoints)]
    assert len(steps) == before - len(document["items"])
    assert {128, 192} <= set(steps)  # the branch's parent and the last


def test_clean_removes_a_named_run(family, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    shutil.copytree(family, runs_dir)
    args = ["runs", "clean", "parent", "--runs-dir", str(runs_dir)]
    assert main(args) == 0
    assert re.search(r"parent-\S+  whole run  \S+ MB, parent of", capsys.readouterr().out)
    assert len(list_runs(runs_dir)) == 2
    assert main([*args, "--yes"]) == 0
    assert [run.name[:5] for run in list_runs(runs_dir)] == ["child"]


def test_clean_leaves_a_locked_run_alone(family, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    shutil.copytree(family, runs_dir)
    run = find_run("child", runs_dir).run
    with run.lock():
        assert main(["runs", "clean", "child", "--yes", "--runs-dir", str(runs_dir)]) == 2
    assert "is in use by process" in capsys.readouterr().err
    assert run.exists


def test_doctor_tells_the_machine(tmp_path, capsys):
    flags = ["--runs-dir", str(tmp_path), "--deadline", str(LONG_S)]
    assert main(["doctor", "--json", *flags]) in (0, 2)
    document = json.loads(capsys.readouterr().out)
    assert document["machine"]["usable_cores"] >= 1
    assert document["torch"]["devices"][0]["name"] == "cpu"
    assert {"level", "name", "what", "why", "fix"} == set(document["findings"][0])


def test_wrappers_lists_the_short_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wrappers", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"frame-stack", "grey", "resize", "atari", "time-limit", "last-action", "drop", "weigh"} <= {
        row["name"] for row in rows
    }
    assert set(rows[0]) == {"name", "usage", "text", "wrapper"}
    assert main(["wrappers"]) == 0
    assert "weigh:1,0.5" in capsys.readouterr().out
