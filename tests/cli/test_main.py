"""Help, version, unknown names, and the flags of `train`."""

import re

import pytest

from mission_gym.cli.flags import given_values, parse, with_values
from mission_gym.cli.main import COMMANDS, main
from mission_gym.cli.train import TrainFlags
from mission_gym.run.config import read_config, schema
from mission_gym.store.resolve import list_runs

ENV_ID = "toys:Identity"
SMALL = ["--n-envs", "4", "--n-steps", "16", "--timesteps", "64", "--no-tensorboard", "--eval-freq", "0"]


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in COMMANDS)


def test_no_command_is_a_usage_error_with_the_help_on_stderr(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: mission-gym COMMAND" in err


@pytest.mark.parametrize("args", [["--version"], ["train", "--version"]])
def test_version(capsys, args):
    assert main(args) == 0
    assert re.fullmatch(r"mission-gym \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], r"'trian' is not a command \(did you mean 'train'\?\); the commands are demo, train"),
        (["runs", "shw"], r"'shw' is not a command of runs \(did you mean 'show'\?\)"),
        (["train", ENV_ID, "--n-env", "4"], r"unknown flag '--n-env' \(did you mean '--n-envs'\?\)"),
        (
            ["train", ENV_ID, "--no-curriculum", "--num-bots", "5"],
            r"flag '--num-bots'; for an argument of the environment, write --env-kwargs num_bots=5; `mis",
        ),
        (
            ["train", ENV_ID, "--map-size", "10", "--num-bots=5", "--no-render", "--fog"],
            r"write --env-kwargs map_size=10 num_bots=5 render=false fog=true;",
        ),
        (["train", ENV_ID, "--entropy", "1e-3"], r"unknown flag '--entropy'; for"),
        (["check", ENV_ID, "--bots=5"], r"write --env-kwargs bots=5;"),
        (
            ["train", ENV_ID, "--curriculum", "levels", "--no-curriculum"],
            r"--curriculum and --no-curriculum give the same value twice; keep one",
        ),
        (
            ["train", ENV_ID, "--curriculum", "levels", "--env-kwargs", "level=hard"],
            r"level=hard is given for all stages, .* or train without stages with --no-curriculum",
        ),
        (["train", ENV_ID, "--no-tensorbord"], r"unknown flag .* \(did you mean '--no-tensorboard'\?\)"),
        (["train", ENV_ID, "--no-runs-dir"], r"unknown flag .* \(did you mean '--runs-dir'\?\)"),
        (["eval", "x", "--epsiodes=3"], r"unknown flag '--epsiodes' \(did you mean '--episodes'\?\)"),
        (["train", ENV_ID, "another"], r"'another' is one argument too many; see `mission-gym train --help`"),
        (
            ["train", ENV_ID, "--subproc", "--vector", "serial"],
            r"--subproc means --vector workers, but --vector serial is given; keep one",
        ),
        (["train", "NoSuchEnv-v0"], r"NoSuchEnv"),
        (["train", ENV_ID, "--preset", "fats"], r"preset 'fats' is unknown \(did you mean 'fast'\?\)"),
        (["train", ENV_ID, "--set", "ppo.gama=1"], r"'ppo.gama' is not a known field"),
        (["resume", "nothing"], r"no run 'nothing': there are no runs in runs"),
        (["eval", "nothing", "--runs-dir", "elsewhere"], r"there are no runs in elsewhere"),
        (["runs", "compare", "one"], r"1 runs are given; a comparison needs two or more"),
        (["baselines", ENV_ID, "--episodes", "0"], r"episodes=0 is not a positive count \[--episodes\]"),
    ],
)
def test_wrong_input_is_one_message_and_exit_2(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(rf"mission-gym: .*{message}", err)
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())  # nothing was started


def test_all_problems_of_a_config_are_reported_at_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", ENV_ID, "--gamma", "2", "--n-envs", "none", "--device", "tpu"]) == 2
    err = capsys.readouterr().err
    assert all(flag in err for flag in ("--gamma", "--n-envs", "--device"))


def test_a_flag_without_its_value_is_exit_2(capsys):
    assert main(["train", ENV_ID, "--n-envs"]) == 2
    assert "--n-envs" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_own_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"usage: mission-gym {name}" in capsys.readouterr().out


def test_every_field_is_a_flag_with_its_description(capsys):
    main(["train", "--help-all"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in schema().fields:
        if field.name != "env_id":
            assert f"--{field.name.replace('_', '-')}" in words
            assert field.description in words


def test_only_given_flags_become_values():
    args = [ENV_ID, "--n-steps", "5", "--no-tensorboard", "--normalize-obs", "--log-std-init", "-0.5"]
    flags = parse(
        with_values(TrainFlags), [*args, "--env-kwargs", "a=1", "b=x", "--wrap", "m:f"], "train", ""
    )
    assert given_values(flags) == {
        "n_steps_per_env": "5",
        "tensorboard": False,
        "normalize_obs": True,
        "log_std_init": "-0.5",
        "env_kwargs": ("a=1", "b=x"),
        "wrap": ("m:f",),
    }
    assert flags.env_id == ENV_ID


def test_train_keeps_the_source_of_every_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("ppo: {gae_lambda: 0.8}\n")
    sets = ["--set", "ppo.vf_coef=0.25", "--set", "run.seed=3"]
    more = ["--config", "mine.yaml", "--preset", "quick", "--env-kwargs", "n=3"]
    assert main(["train", ENV_ID, *SMALL, *sets, *more]) == 0
    (run,) = list_runs(tmp_path / "runs")
    resolved = read_config(run.config_yaml)
    expected = {
        "vector.n_envs": (4, "flag --n-envs"),
        "ppo.n_steps_per_env": (16, "flag --n-steps-per-env"),
        "ppo.vf_coef": (0.25, "--set ppo.vf_coef"),
        "run.seed": (3, "--set run.seed"),
        "ppo.gae_lambda": (0.8, "config mine.yaml"),
        "run.tensorboard": (False, "flag --no-tensorboard"),
        "ppo.gamma": (0.99, "default"),
    }
    assert {path: (resolved.config.value(path), resolved.sources[path]) for path in expected} == expected
    assert not run.tensorboard.exists()
    assert run.read_status()["state"] == "done"


def test_the_help_of_train_begins_with_the_usual_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    flags = [line.split()[0] for line in short.splitlines() if line.startswith("  --")]
    assert flags[:3] == ["--timesteps", "--algo", "--seed"]
    assert len(flags) == 10
    assert "example: mission-gym train CartPole-v1" in short
    assert "--help-all lists all flags" in short
    assert main(["train", "--help-all"]) == 0
    everything = capsys.readouterr().out
    assert all(flag in everything for flag in (*flags, "--gae-lambda", "--via"))
