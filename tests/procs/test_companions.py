"""Companions: started once, shared, ended with who holds them or is killed, begun again when they die."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

import mission_gym as mg
from companion_toys import LOG, read_starts
from mission_gym.check.environment import check_environment
from mission_gym.check.findings import has_errors
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import WorkerDied
from mission_gym.procs import Companion, start_companion
from timeouts import is_alive, wait_until


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    """Where companions note that they were started."""
    monkeypatch.setenv(LOG, str(tmp_path / "log"))


def wait_gone(pid):
    wait_until(lambda: not is_alive(pid))


def test_equal_companions_are_one_and_end_with_the_last_who_holds_it():
    first, same = (start_companion(Companion("companion_toys:serve")) for _ in range(2))
    other = start_companion(Companion("companion_toys:serve", {"word": "other"}))
    assert first is same
    assert (first.kwargs, other.kwargs) == ({"word": "hello"}, {"word": "other"})
    pid = first.pid
    del first
    assert psutil.pid_exists(pid)
    del same
    wait_gone(pid)
    assert psutil.pid_exists(other.pid)
    assert len(read_starts()) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork")
def test_a_fork_that_lets_go_of_it_does_not_end_it():
    code = (
        "from mission_gym.procs import Companion, start_companion; import os, sys; "
        "held = start_companion(Companion('companion_toys:serve')); forked = os.fork(); "
        "forked or sys.exit(); os.waitpid(forked, 0); print(held._service.child.is_gone())"
    )
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout == "False\n"


def test_one_that_dies_begins_again_as_it_was():
    companion = start_companion(Companion("companion_toys:serve"))
    os.kill(companion.pid, signal.SIGKILL)
    wait_until(lambda: len(read_starts()) == 2)
    assert [told for _, told in read_starts()] == ["None", "hello"]


def test_it_ends_when_the_process_that_started_it_is_killed():
    code = (
        "from mission_gym.procs import Companion, start_companion; import time; "
        "held = start_companion(Companion('companion_toys:serve')); print(held.pid, flush=True); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        parent.kill()
    wait_gone(pid)


def test_one_that_can_not_start_says_its_last_words():
    with pytest.raises(
        WorkerDied, match=r"companion companion_toys:fail ended with code 1; .*\n[^$]*port is taken"
    ):
        start_companion(Companion("companion_toys:fail"))


@pytest.mark.parametrize("backend", ["serial", "workers", "threads", "auto"])
def test_a_vector_starts_it_once_and_ends_it_when_it_is_closed(backend):
    vec = mg.make_vec("companion_toys:Attended", 3, backend=backend)
    vec.reset(seed=0)
    vec.step(vec.action_space.sample())
    ((pid, _),) = read_starts()
    assert psutil.pid_exists(int(pid))
    vec.close()
    wait_gone(int(pid))


def test_a_run_and_its_evaluation_start_it_once_each_and_leave_nothing(tmp_path):
    run = mg.train(
        "companion_toys:Attended", progress=False, runs_dir=str(tmp_path / "runs"),
        vector="workers", num_workers=2, n_envs=2, n_steps_per_env=32, timesteps=64, batch_size=64,
        n_epochs=1, network_arch="8", eval_freq=64, eval_episodes=2, tensorboard=False, trust=True,
    )  # fmt: skip
    assert len(read_starts()) == 1
    run.evaluate(episodes=2)
    starts = read_starts()
    assert len(starts) == 2
    for pid, _ in starts:
        wait_gone(int(pid))


def test_the_doctor_starts_it_once():
    findings = check_environment(EnvRequest("companion_toys:Attended"), num_episodes=4)
    assert not has_errors(findings)
    ((pid, _),) = read_starts()
    wait_gone(int(pid))
