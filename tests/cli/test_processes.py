"""The command as a process: exit codes, signals, pure stdout, readers that leave."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from mission_gym.cli import eval as commands
from mission_gym.cli.main import main
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.resolve import find_run, list_runs
from timeouts import LONG_S

NOISY = """
import os
from toys import Identity

class Noisy(Identity):
    def step(self, action):
        print("noise")
        os.write(1, b"raw noise")
        return super().step(action)

class Interrupts(Identity):
    made = 0

    def step(self, action):
        Interrupts.made += 1
        if Interrupts.made == 2000:
            raise KeyboardInterrupt
        return super().step(action)
"""
SMALL = ["--n-envs", "4", "--n-steps", "16", "--network-arch", "8", "--vector", "serial", "--no-tensorboard"]
ENDLESS = ["train", "toys:Identity", *SMALL, "--timesteps", "50M", "--eval-freq", "64", "--no-tune"]


def start(*args, cwd, module="mission_gym", **pipes):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")
    }
    command = [sys.executable, "-m", module, *args]
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes)


@pytest.fixture
def noisy(tmp_path, monkeypatch):
    """A folder with environments of the user's own, and the folder is the current one."""
    (tmp_path / "noisy_envs.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_prints_the_resume_command(number, tmp_path, capsys):
    process = start(*ENDLESS, "--run-name", "long", cwd=tmp_path, stderr=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("evaluation at"):
            break
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(LONG_S) == 130
    run = find_run("long", tmp_path / "runs").run
    status = run.read_status()
    assert (status["state"], status["cause"]) == ("stopped", number.name)
    assert f"stopped: {number.name}; saved at step {status['step']:,}" in rest
    assert f"  mission-gym resume {run.name}  # continue training" in rest
    assert "\x1b" not in rest
    more = ["--timesteps", str(status["step"] + 1), "--runs-dir", str(tmp_path / "runs")]
    assert main(["resume", "long", *more]) == 0


def test_a_second_interrupt_ends_at_once_with_130(noisy, capsys):
    args = ["--timesteps", "100k", "--n-envs", "1", "--n-steps", "64", "--eval-freq", "0", "--no-tensorboard"]
    args += ["--vector", "serial", "--no-tune"]  # no steps are made before training but those that prime
    assert main(["train", "noisy_envs:Interrupts", *args, "--run-name", "twice"]) == 130
    assert "continue from the last checkpoint: mission-gym resume twice-" in capsys.readouterr().err
    assert find_run("twice", noisy / "runs").run.read_status()["state"] == "stopped"


def test_a_failing_environment_is_exit_3_with_its_own_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # a width that somebody set would fold the lines
    fault = ["--env-kwargs", "fail=raise", "at=5", "after=40"]
    args = ["--n-envs", "1", "--n-steps", "64", "--timesteps", "1k", "--no-tensorboard"]
    args += ["--max-restarts", "0"]
    assert main(["train", "toys:Faulty", *args, *fault]) == 3
    message = "environment 0, seed .* step 4: step\\(\\) raised RuntimeError: the simulator fell over"
    err = capsys.readouterr().err
    assert re.search(f"^mission-gym: {message}", err, re.MULTILINE)
    assert re.search(r"^failed at step \d+$", err, re.MULTILINE)
    assert "steps/s of training" not in err
    assert re.search(f"^mission-gym: {message}", err, re.MULTILINE)


def test_stdout_holds_one_document_whatever_the_environment_prints(noisy):
    process = start(
        "baselines", "noisy_envs:Noisy", "--episodes", "2", "--json",
        cwd=noisy, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(out).keys() == {"random", "noop"}


def test_evaluate_as_a_module_takes_a_model(family, tmp_path):
    model = find_run("parent", family).run.path
    process = start(
        "--model", str(model), "--episodes", "3", "--json",
        cwd=tmp_path, module="mission_gym.scripts.evaluate", stdout=subprocess.PIPE,
    )  # fmt: skip
    assert json.loads(process.communicate()[0])["episodes"] == 3


@pytest.mark.parametrize(("algo", "flag"), [("ppo", "--gae-lambda"), ("dqn", "--replay-ratio")])
def test_train_as_a_module_is_train(algo, flag, tmp_path):
    module = f"mission_gym.scripts.train_{algo}"
    process = start(flag, "-2", cwd=tmp_path, module=module, stderr=subprocess.PIPE)
    err = process.communicate()[1]
    assert process.returncode == 2
    assert f"[flag {flag}]" in err


@pytest.mark.parametrize("args", [["runs", "list", "--json"], ["runs", "list"]])
def test_a_reader_of_stdout_that_leaves_is_no_error(args, family, tmp_path):
    read, write = os.pipe()
    os.close(read)
    process = start(*args, "--runs-dir", str(family), cwd=tmp_path, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_a_reader_of_stderr_that_leaves_does_not_end_the_training(tmp_path):
    args = [*SMALL, "--timesteps", "512", "--eval-freq", "128", "--run-name", "alone"]
    process = start("train", "toys:Identity", *args, cwd=tmp_path, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(LONG_S) == 0
    assert find_run("alone", tmp_path / "runs").run.read_status()["state"] == "done"


def run_briefly(*args, cwd, **pipes):
    process = start(*args, cwd=cwd, stderr=subprocess.PIPE, **pipes)
    return process.communicate()[1], process.returncode


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"], ["runs", "--help"], ["--version"]])
def test_help_for_a_reader_that_leaves_is_quiet(args, tmp_path):
    read, write = os.pipe()
    os.close(read)
    assert run_briefly(*args, cwd=tmp_path, stdout=write) == ("", 0)
    os.close(write)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_told_and_behind_stderr_is_not(tmp_path):
    with open("/dev/full", "w") as full:
        err, code = run_briefly("runs", "list", "--json", cwd=tmp_path, stdout=full)
        assert code == 3
        assert "mission-gym: the result is lost: No space left on device [stdout]" in err
        process = start("runs", "list", "--json", cwd=tmp_path, stdout=subprocess.PIPE, stderr=full)
        assert json.loads(process.communicate()[0]) == []
        assert process.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_stderr_does_not_end_the_training(tmp_path):
    args = ["--timesteps", "64", "--n-envs", "4", "--n-steps", "16", "--no-tensorboard", "--eval-freq", "0"]
    with open("/dev/full", "w") as full:
        process = start("train", "CartPole-v1", *args, "--run-name", "on", cwd=tmp_path, stderr=full)
        assert process.wait(LONG_S) == 0
    assert find_run("on", tmp_path / "runs").run.read_status()["state"] == "done"


def test_closed_streams_are_no_error(tmp_path):
    command = f"{sys.executable} -m mission_gym runs list <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path).returncode == 0


def test_too_few_descriptors_are_reported(tmp_path):
    command = f"ulimit -n 16; exec {sys.executable} -m mission_gym train toys:Identity --timesteps 2k"
    done = subprocess.run(command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3
    assert "Too many open files" in done.stderr
    assert "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_removed_folder_is_reported(tmp_path):
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m mission_gym train CartPole-v1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "mission-gym: the current folder was removed; change to an existing folder\n"


def test_an_evaluation_that_can_not_be_stored_is_printed(family, tmp_path, capsys):
    shutil.copytree(family, tmp_path / "runs")
    run = find_run("parent", tmp_path / "runs").run
    shutil.rmtree(run.eval)
    run.eval.touch()
    args = ["eval", "parent", "--episodes", "3", "--json", "--runs-dir", str(tmp_path / "runs")]
    assert main(args) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["episodes"] == 3
    first, *_, last = err.splitlines()
    assert re.match(
        r"the result will be printed, but can't be stored: can't write .*eval: File exists", first
    )
    assert re.match(r"mission-gym: can't write .*eval: File exists; check the disk", last)


@pytest.mark.slow
def test_the_demo_reaches_its_goal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(commands, "_DEMO_WIDTH", 160)
    assert main(["demo", "--runs-dir", str(tmp_path), "--max-time", "1h"]) == 0  # the goal ends it
    out, err = capsys.readouterr()
    assert "the goal was reached" in err
    (run,) = list_runs(tmp_path)
    assert len(list_checkpoints(run.checkpoints)) >= 3
    assert all((run.path / f"learning{ending}").stat().st_size > 10_000 for ending in (".gif", ".mp4"))
    assert all(name in out for name in ("trained", "random", "noop"))
