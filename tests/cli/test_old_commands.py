"""Command lines of an earlier trainer of the capture mission: they start, and mean what they meant."""

import shlex
import subprocess
import sys

import pytest

from mission_gym.cli.main import main
from mission_gym.cli.train import parse_train, resolve_flags
from mission_gym.config.rules import apply_rules
from mission_gym.plan import tuner
from mission_gym.store.resolve import list_runs
from mission_gym_missions import CAPTURE_ID

SCRIPT = "python -m mission_gym.scripts.train_ppo"
FAST, HEAVY, BEAST = (16, 256, 2048, 15), (32, 256, 4096, 20), (64, 512, 8192, 30)
# Environments, steps of each, batch, epochs; then the backend and the steps in all, before rounding.
LINES = {
    "--preset fast --timesteps 50000000": (*FAST, "batched", 50_000_000),
    "--preset heavy --timesteps 50000000": (*HEAVY, "batched", 50_000_000),
    "--preset beast --timesteps 50000000": (*BEAST, "batched", 50_000_000),
    "--timesteps 50000000 --n-envs 32 --n-steps 256 --batch-size 4096 --n-epochs 20"
    ' --network-arch "1024,512,256" --subproc --run-name my-heavy-run': (*HEAVY, "workers", 50_000_000),
    "--preset heavy --run-name job1": (*HEAVY, "batched", None),
    "--preset fast --timesteps 1000000 --run-name test": (*FAST, "batched", 1_000_000),
    "--preset heavy --timesteps 50000000 --run-name production": (*HEAVY, "batched", 50_000_000),
    '--preset heavy --timesteps 50000000 --run-name "parallel-1"': (*HEAVY, "batched", 50_000_000),
    "--preset heavy --batch-size 2048 --network-arch \"512,512,256\"": (32, 256, 2048, 20, "batched", None),
    "--preset heavy --batch-size auto": (32, 256, 2048, 20, "batched", None),
    '--timesteps 50000000 --n-envs 32 --n-steps-per-env 256 --subproc --network-arch "512,512,256"'
    " --n-epochs 20 --run-name my-experiment": (32, 256, 2048, 20, "workers", 50_000_000),
    "--timesteps 50M --n-envs 64 --subproc": (64, None, None, None, "workers", 50_000_000),
    "--timesteps 50M --n-envs 64 --n-steps-per-env 256 --subproc": (
        64, 256, None, None, "workers", 50_000_000
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_the_line_means_what_it_says(line):
    config = apply_rules(resolve_flags(parse_train(shlex.split(line))))[0].config
    vector, ppo, total = config.vector, config.algorithm, config.run.timesteps
    found = (vector.n_envs, ppo.n_steps_per_env, ppo.batch_size, ppo.n_epochs, vector.vector)
    expected = LINES[line]
    assert config.env.env_id == CAPTURE_ID
    assert all(want in (None, got) for got, want in zip(found, expected[:5], strict=True))
    assert config.rollout_size % ppo.batch_size == 0
    wanted = expected[5]
    assert wanted is None or wanted <= total < wanted + config.rollout_size


SHORT = ["--max-time", "0.001s", "--eval-freq", "0"]


def test_a_line_is_planned_and_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tuner, "RUN_MAX_S", 2.0)
    monkeypatch.chdir(tmp_path)
    assert main(["train", *shlex.split("--preset fast --timesteps 50M"), *SHORT]) == 0
    assert "tuned in" in capsys.readouterr().err
    check_started(tmp_path)


def test_a_line_starts_as_a_process(tmp_path):
    line = "--timesteps 50M --n-envs 8 --subproc --no-tune"  # measured once is enough
    command = [*shlex.split(SCRIPT)[1:], *shlex.split(line), *SHORT]
    ended = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "max_time reached" in ended.stderr
    check_started(tmp_path)


def check_started(folder):
    (run,) = list_runs(folder / "runs")
    assert run.read_status()["cause"] == "max_time reached"
    assert run.read_status()["total"] >= 50_000_000
