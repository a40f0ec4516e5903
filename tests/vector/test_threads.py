"""Threads of environments that wait: on one core while that is enough, and never their children."""

import os
import subprocess
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from mission_gym.env.probe import probe
from mission_gym.vector.threads import ThreadedVec

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores, and Linux to move threads",
)


class Where(gym.Env):
    """Notes the cores of its steps, and of a process that each reset starts; a step burns `burn_s`."""

    def __init__(self, burn_s=0.0):
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.burn_s, self.steps, self.cores, self.child_cores = burn_s, 0, [], []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        code = "import os; print(len(os.sched_getaffinity(0)), os.sched_getscheduler(0))"
        self.child_cores.append(subprocess.check_output([sys.executable, "-c", code], text=True).split())
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.cores.append(len(os.sched_getaffinity(0)))
        end = time.thread_time() + self.burn_s
        while time.thread_time() < end:
            pass
        return np.zeros(1, np.float32), 0.0, False, self.steps >= 5, {}


def run(num_steps, **kwargs):
    """In a thread of its own, which the vector may keep on one core."""
    envs = []

    def make():
        envs.append(Where(**kwargs))
        return envs[-1]

    def work():
        spec = probe(make, "where")
        del envs[:]
        with ThreadedVec(make, spec, 3, lambda env_id, number: number) as vec:
            vec.reset()
            for _ in range(num_steps):
                vec.step(np.zeros(3, np.int64))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return envs


def test_steps_share_one_core_and_processes_of_environments_have_all():
    everything = str(len(os.sched_getaffinity(0)))
    for env in run(12):
        assert set(env.cores) == {1}
        assert env.child_cores == [[everything, "0"]] * 3  # and the usual scheduling
    assert len(os.sched_getaffinity(0)) > 1


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def monotonic(self):
        return self.now

    def process_time(self):
        return 0.0

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.mark.parametrize(("size", "slept"), [(2, [0.2, 0.2]), (8, [])])
def test_the_starts_of_groups_are_spread_over_the_time_of_a_step(monkeypatch, size, slept):
    clock = Clock()
    monkeypatch.setattr("mission_gym.vector.threads.time", clock)
    spec = probe(Waits, "waits")
    with ThreadedVec(Waits, spec, 8, lambda env_id, number: number) as vec:
        vec.reset()
        groups = [vec.group(first, first + size) for first in range(0, 8, size)]
        for group in groups:
            group.step(np.zeros(size, np.int64))
        vec._step_s = 1.0
        for group in groups[:3]:
            batch = group.step(np.zeros(size, np.int64))
            vec._step_s = 1.0  # here no step takes any time
            assert batch.obs[0][:, 0].tolist() == [2.0] * size
    assert clock.slept == slept


class Waits(gym.Env):
    """Shows its steps."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 0.0, False, False, {}


class LoadsLate(Waits):
    """Takes a while over whatever it does for the first time, and can't have it done twice at once."""

    loading, loaded = set(), set()

    def load(self, what):
        if what in self.loaded:
            return
        assert what not in self.loading, f"{what} is not loaded yet"
        self.loading.add(what)
        time.sleep(0.05)
        self.loaded.add(what)

    def reset(self, *, seed=None, options=None):
        self.load("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self.load("step")
        return super().step(action)

    def render(self):
        self.load("render")


def test_whatever_is_done_first_is_done_by_one_thread():
    """Modules that load when they are used (`importlib.util.LazyLoader`, as in pygame) break otherwise."""
    spec = probe(Waits, "waits")
    with ThreadedVec(LoadsLate, spec, 4, lambda env_id, number: number) as vec:
        vec.reset()
        for expected in (1.0, 2.0):
            batch = vec.step(np.zeros(4, np.int64))
            assert batch.valid.all()
            assert batch.obs[0][:, 0].tolist() == [expected] * 4
        assert vec.call("render") == [None] * 4


def test_a_busy_process_gets_all_cores_back(monkeypatch):
    monkeypatch.setattr("mission_gym.vector.threads._BUSY", 0.1)  # other tests may need the core as well
    for env in run(140, burn_s=0.001):
        assert env.cores[0] == 1
        assert env.cores[-1] == len(os.sched_getaffinity(0))
