"""Real processes, really interrupted: Ctrl-C, SIGTERM and kill -9, then resumed to the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir
from runs import assert_equal_arrays, drain, last_checkpoint, rows
from timeouts import LONG_S

FLAGS: dict[str, Any] = {
    "n_envs": 4, "n_steps_per_env": 32, "batch_size": 32, "n_epochs": 4, "timesteps": 128 * 30,
    "eval_freq": 1000, "eval_episodes": 2, "checkpoint_freq": 500, "network_arch": "16", "seed": 3,
    "tensorboard": False, "vector": "serial", "precision": "float32",
}  # fmt: skip
# Says every update, so that the parent knows where it is without waiting by the clock.
CHILD = """
import json, sys
import mission_gym as mg
env, flags = sys.argv[1], json.loads(sys.argv[2])
for item in mg.iterate(env, **flags):
    print(item.step, flush=True)
"""


def start_child(env: str, runs_dir: Path, flags: dict[str, Any]) -> subprocess.Popen[str]:
    document = json.dumps(flags | {"runs_dir": str(runs_dir)})
    return subprocess.Popen([sys.executable, "-c", CHILD, env, document], stdout=subprocess.PIPE, text=True)


def wait_for_step(child: subprocess.Popen[str], step: int) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= step:
            return
    raise AssertionError(f"the child ended early with {child.wait()}")


def read_end(run: RunDir) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    last = last_checkpoint(run)
    return last.policy | last.state, rows(run)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of CartPole that nothing interrupts, in this process."""
    return run_straight("CartPole-v1", tmp_path_factory.mktemp("straight"), FLAGS)


def run_straight(env: str, runs_dir: Path, flags: dict[str, Any]) -> RunDir:
    with start_run(resolve(env, flags | {"runs_dir": str(runs_dir)}), lambda event: None) as session:
        drain(session)
    return session.run


# Every signal, and every kind of environment; which environments come back exactly is in test_exact_resume.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "number"),
    [("CartPole-v1", number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)]
    + [("LunarLander-v3", signal.SIGTERM), ("toys:DictMask", signal.SIGKILL)],
)
def test_interrupted_and_resumed_equals_straight(
    env: str, number: signal.Signals, tmp_path: Path, straight: RunDir
) -> None:
    flags = FLAGS | ({"timesteps": 128 * 12} if "DictMask" in env else {})
    child = start_child(env, tmp_path / "runs", flags)
    wait_for_step(child, 700)
    child.send_signal(number)
    child.communicate(timeout=LONG_S)
    (run,) = list_runs(tmp_path / "runs")
    status = run.read_status()
    if number == signal.SIGKILL:
        assert (status["state"], status["cause"]) == ("failed", "the process was killed")
    else:
        assert (status["state"], status["cause"]) == ("stopped", number.name)
        assert status["step"] < flags["timesteps"]
    with resume_run(run, lambda event: None) as session:
        drain(session)
    assert not list(run.path.rglob(".tmp*"))

    other = straight if env == "CartPole-v1" else run_straight(env, tmp_path / "straight", flags)
    (arrays, metrics), (expected, expected_metrics) = read_end(run), read_end(other)
    assert_equal_arrays(arrays, expected)
    assert metrics == expected_metrics


# Takes the terminal on its standard input for its own, as a shell's child has it.
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "mission_gym", *sys.argv[1:]])
"""


def test_a_terminal_that_closes_stops_the_run_with_a_checkpoint(tmp_path: Path, straight: RunDir) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in FLAGS.items() if name != "tensorboard"]
    args = ["train", "CartPole-v1", *flags, "--no-tensorboard", "--runs-dir", str(tmp_path)]
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *args],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    while not (runs := list_runs(tmp_path)) or runs[0].read_status().get("step", 0) < 700:
        assert os.read(ours, 1 << 16)  # what it shows; an error if it ended
    os.close(ours)
    assert child.wait(LONG_S) == 130
    (run,) = runs
    status = run.read_status()
    assert (status["state"], status["cause"]) == ("stopped", "SIGHUP")
    heard: list[dict[str, Any]] = []
    with resume_run(run, heard.append) as session:
        drain(session)
    assert "the resume is exact" in heard[0]["notes"]
    (arrays, rows), (expected, expected_rows) = read_end(run), read_end(straight)
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    assert rows == expected_rows


def test_a_hangup_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with start_run(
            resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path), "timesteps": 512}), lambda event: None
        ) as session:
            for _ in session.updates():
                os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert session.run.read_status()["cause"] == "all steps made"


def test_a_second_ctrl_c_ends_at_once_with_the_last_checkpoint_intact(tmp_path: Path) -> None:
    child = start_child(
        "CartPole-v1", tmp_path, FLAGS | {"timesteps": 10**7, "eval_freq": 10**6, "tune": False}
    )
    wait_for_step(child, 1000)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=LONG_S)
    (run,) = list_runs(tmp_path)
    assert run.read_status()["state"] == "stopped"
    load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)


@pytest.mark.slow
def test_sigterm_in_a_long_update_saves_within_seconds(tmp_path: Path) -> None:
    """`heavy` on two cores updates for half a minute; the update is abandoned and made again on resume."""
    flags = {
        "preset": "heavy",
        "timesteps": 16384,
        "eval_freq": 0,
        "tensorboard": False,
        "seed": 1,
        "precision": "float32",
    }
    code = CHILD.replace("print(item.step, flush=True)", "pass")
    document = json.dumps(flags | {"runs_dir": str(tmp_path)})
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen([sys.executable, "-c", code, "CartPole-v1", document], env=environ)
    try:
        while not (runs := list_runs(tmp_path)) or runs[0].read_status().get("state") != "running":
            with contextlib.suppress(subprocess.TimeoutExpired):  # without taking the child's core
                raise AssertionError(f"the child ended early with {child.wait(0.05)}")
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=LONG_S)
    finally:
        child.kill()
    status = runs[0].read_status()
    assert (status["state"], status["cause"]) == ("stopped", "SIGTERM")
    assert list_checkpoints(runs[0].checkpoints)
