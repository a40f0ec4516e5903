"""A curriculum from a file, from `train` to `report`, as its commands tell it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mission_gym.cli.groups import find_problems, list_flag_names, resolve_values
from mission_gym.cli.main import main
from mission_gym.fleet.jobfile import read_job_file
from mission_gym.fleet.requests import make_arguments
from mission_gym.run.config import read_config
from mission_gym.store.resolve import list_runs

FILE = """stages:
- {name: alone, kwargs: {bots: 1}, until: {steps: 64}}
- {name: crowd, kwargs: {bots: 3}}
"""
SMALL = [
    "--n-envs", "4", "--n-steps", "16", "--batch-size", "16", "--timesteps", "192", "--vector", "serial",
    "--eval-freq", "64", "--eval-episodes", "2", "--no-tensorboard",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curriculum")
    (folder / "bots.yaml").write_text(FILE)
    where = ["--runs-dir", str(folder / "runs"), "--curriculum", str(folder / "bots.yaml")]
    assert main(["train", "stage_toys:Staged", *where, *SMALL, "--run-name", "staged"]) == 0
    (folder / "bots.yaml").unlink()
    return folder


def ask(folder: Path, *args: str) -> list[str]:
    return [*args, "--runs-dir", str(folder / "runs")]


def test_the_terminal_shows_stages(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bots.yaml").write_text(FILE)
    where = ["--runs-dir", str(tmp_path), "--curriculum", str(tmp_path / "bots.yaml")]
    assert main(["train", "stage_toys:Staged", *where, *SMALL]) == 0
    told = capfd.readouterr().err
    assert re.search(r"curriculum +1 alone +bots=1; until 64 steps", told)
    assert re.search(r"2 crowd +bots=3; until the end; for evaluations", told)
    assert "stage 2 of 2 from step 64: crowd (stage 1: 64 steps)" in told
    assert re.search(r"^stage +2 of 2: crowd", told, re.MULTILINE)


def test_reading_commands_show_stages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ask(folder, "runs", "show", "staged", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == {"number": 2, "of": 2, "name": "crowd"}
    assert main(ask(folder, "runs", "show", "staged")) == 0
    assert re.search(r"stage +2 of 2: crowd", capsys.readouterr().out)
    assert main(ask(folder, "config", "staged", "--json")) == 0
    stored = json.loads(capsys.readouterr().out)["env.curriculum"]
    assert stored["source"] == "flag --curriculum"
    assert [stage["name"] for stage in stored["value"]["stages"]] == ["alone", "crowd"]
    for stage, bots in ((None, 3), ("alone", 1)):
        more = [] if stage is None else ["--eval-stage", stage]
        assert main(ask(folder, "eval", "staged", "--episodes", "2", "--json", *more)) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["stage"] == (stage or "crowd")
        assert told["return_mean"] % bots == 0
    assert main(ask(folder, "eval", "staged", "--eval-stage", "crwd")) == 2
    assert "eval_stage=crwd is not a stage (did you mean 'crowd'?)" in capsys.readouterr().err


def test_the_report_marks_stages(folder: Path) -> None:
    page = folder / "report.html"
    assert main(ask(folder, "report", "staged", "--out", str(page))) == 0
    text = page.read_text()
    assert text.count('<line class="beginning"') == 8, "two stages in each of four charts"
    assert len(re.findall(r'<text class="tick"[^>]*>(?:alone|crowd)</text>', text)) == 8


def test_a_branch_and_a_config_file_may_leave_the_curriculum(folder: Path, tmp_path: Path) -> None:
    (run,) = [run for run in list_runs(folder / "runs") if run.name.startswith("staged")]
    command = ["branch", str(run.path), "--no-curriculum", "--env-kwargs", "bots=2", "--timesteps", "256"]
    assert main([*command, "--runs-dir", str(tmp_path)]) == 0
    again = ["train", "--config", str(run.config_yaml), "--no-curriculum", "--timesteps", "64"]
    assert main([*again, "--runs-dir", str(tmp_path)]) == 0
    configs = [read_config(made.config_yaml).config for made in list_runs(tmp_path)]
    assert [config.env.curriculum for config in configs] == [None, None]
    assert {"bots": 2} in [config.env.env_kwargs for config in configs]


def test_job_files_have_curricula(tmp_path: Path) -> None:
    (tmp_path / "bots.yaml").write_text(FILE)
    text = f"""defaults: {{env: stage_toys:Staged}}
jobs:
- {{name: a, curriculum: {tmp_path}/bots.yaml}}
- {{name: b, curriculum: {{stages: [{{kwargs: {{bots: 1}}, until: {{steps: 5}}}}, {{kwargs: {{bots: 2}}}}]}}}}
- {{name: c, curriculum: none}}
- {{name: d, curriculum: false}}
"""
    path = tmp_path / "q.yaml"
    path.write_text(text)
    file = read_job_file(path, list_flag_names(), find_problems)
    words = [make_arguments(draft.values)[1:] for draft in file.drafts]
    assert words[0] == (f"--curriculum={tmp_path}/bots.yaml",)
    assert words[2:] == [("--curriculum=none",), ("--no-curriculum",)]
    given = resolve_values({"set": [words[1][0].removeprefix("--set=")]}).config.env.curriculum
    assert given == resolve_values(file.drafts[1].values).config.env.curriculum
