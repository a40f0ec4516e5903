"""What `backend="auto"` chooses by the pace of a step."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

import gymnasium as gym
import pytest
from gymnasium import spaces

from mission_gym.env.factory import make_factory
from mission_gym.env.pace import Pace
from mission_gym.vector import pool
from mission_gym.vector.backends import BACKENDS, load_backend, probe_in_child
from mission_gym.vector.make_vec import choose_for_pace, make_vec
from mission_gym.vector.record import Backend, Source
from timeouts import scale_timeout


class Waiting(gym.Env):
    """Waits in every step; `seconds` may be longer than anybody looks."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)
    seconds = 0.02

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        time.sleep(self.seconds)
        return 0, 0.0, False, False, {}


class VerySlow(Waiting):
    seconds = 30.0


class Raising(Waiting):
    def step(self, action):
        raise ValueError("a broken step")


class Dying(Waiting):
    def step(self, action):
        os._exit(3)


@pytest.mark.parametrize(
    ("step_s", "cpu_share", "num_envs", "expected"),
    [
        (10e-6, 1.0, 8, "serial"),
        (10e-6, 1.0, 32, "serial"),  # a message costs more than is gained
        (100e-6, 1.0, 8, "workers"),
        (1e-3, 1.0, 32, "workers"),
        (1e-3, 1.0, 1, "serial"),
        (20e-3, 0.01, 64, "threads"),
        (20e-3, 0.01, 8, "threads"),
        (6e-3, 0.3, 64, "workers"),  # one process could not compute for all of them
    ],
)
def test_the_least_time_is_chosen(step_s: float, cpu_share: float, num_envs: int, expected: str) -> None:
    assert choose(Pace(100, step_s, 0.1, cpu_share), num_envs)[0].name == expected


def test_environments_that_wait_and_compute_get_more_workers_than_cores() -> None:
    mixed = Pace(100, 6e-3, 0.1, 0.25)
    assert choose(mixed, 64)[1] == 8
    assert choose(Pace(100, 6e-3, 0.1, 1 / 6), 32)[1] == 32  # 12 would make one wait for two others
    assert choose(Pace(100, 6e-3, 0.1, 1.0), 64, num_workers=3)[1] == 3
    assert choose(Pace(100, 6e-3, 0.1, 1.0), 64)[1] == 2


@pytest.mark.parametrize(
    ("pace", "awaited", "num_envs", "expected"),
    [
        ((20e-3, 0.01), (20e-3, 0.01), 64, ("aio", 1)),
        ((20e-3, 0.01), (20e-3, 0.01), 512, ("aio", 2)),  # a core is full
        ((20e-3, 0.001), (20e-3, 0.001), 256, ("aio", 1)),
        ((20e-3, 0.01), (40e-3, 0.01), 64, ("threads", 1)),  # its plain form is quicker
        ((20e-3, 0.01), (20e-3, 1.0), 64, ("threads", 1)),  # coroutines that compute, or block
        ((10e-6, 1.0), (40e-6, 1.0), 8, ("serial", 1)),
    ],
)
def test_coroutines_share_event_loops_if_that_is_faster(
    pace: tuple[float, float], awaited: tuple[float, float], num_envs: int, expected: tuple[str, int]
) -> None:
    plain, other = (Pace(100, step_s, 0.1, share) for step_s, share in (pace, awaited))
    record, processes = choose(plain, num_envs, awaited=other)
    assert (record.name, processes if record.for_coroutines else 1) == expected


class AwaitedNap:
    """As Waiting, without holding anybody up."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    async def reset(self, *, seed=None, options=None):
        return 0, {}

    async def step(self, action):
        await asyncio.sleep(0.02)
        return 0, 0.0, False, False, {}


class BothNap(Waiting):
    """Its coroutine form is quicker than its plain one."""

    seconds = 0.05

    def coroutine_form(self):
        return AwaitedNap()


class BlockingNap(AwaitedNap):
    async def step(self, action):
        time.sleep(0.02)
        return 0, 0.0, False, False, {}


def test_coroutines_that_block_do_not_count_as_waiting() -> None:
    awaited, blocking = look(AwaitedNap), look(BlockingNap)
    assert awaited is not None
    assert blocking is not None
    assert awaited.waits
    assert not blocking.waits


@pytest.mark.parametrize("env", [AwaitedNap, BothNap])
def test_coroutines_that_wait_get_an_event_loop(env: type) -> None:
    vec = make_vec(env, 4)
    assert vec.inner.is_concurrent
    assert "CoroutineEnv" in vec.inner.layers()[0][0]
    vec.reset(seed=0)
    assert vec.step([0] * 4)[1].tolist() == [0.0] * 4
    vec.close()


def test_one_core_has_no_use_for_workers() -> None:
    assert choose(Pace(100, 1e-3, 0.1, 1.0), 32, cores=1)[0].runs_here
    assert choose(Pace(100, 1e-3, 0.1, 0.01), 32, cores=1)[0].for_waiting


def test_a_step_that_failed_does_not_run_here() -> None:
    assert not choose(None, 1)[0].runs_here


def test_a_backend_that_is_added_to_the_table_can_be_chosen() -> None:
    lean = replace(load_backend("workers"), name="lean", processes=1, for_waiting=True, turn_s=1e-6)
    backends = [*map(load_backend, BACKENDS), lean]
    pace = Pace(100, 20e-3, 0.1, 0.01)
    assert choose_for_pace(backends, pace, None, 64, None, 2) == (lean, 1)


def choose(
    pace: Pace | None,
    num_envs: int,
    num_workers: int | None = None,
    awaited: Pace | None = None,
    cores: int = 2,
) -> tuple[Backend, int | None]:
    return choose_for_pace(map(load_backend, BACKENDS), pace, awaited, num_envs, num_workers, cores)


def test_environments_that_wait_become_threads() -> None:
    vec = make_vec(Waiting, 4)
    assert vec.inner.is_concurrent
    vec.close()


def look(env: type) -> Pace | None:
    return probe_in_child(Source(env.__name__, make_factory(env)), 0.05, bare=True)[1]


def test_the_look_tells_waiting_from_computing() -> None:
    pace = look(Waiting)
    assert pace is not None
    assert pace.waits
    assert pace.step_s >= 0.02


def test_a_step_longer_than_the_look_is_known_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_CLOSE_S", scale_timeout(0.3))
    begun = time.monotonic()
    pace = look(VerySlow)
    assert pace is not None
    assert pace.waits
    assert pace.num_steps == 0
    assert time.monotonic() - begun < VerySlow.seconds


@pytest.mark.parametrize("env", [Raising, Dying])
def test_a_step_that_fails_has_no_pace(env: type[Waiting]) -> None:
    assert look(env) is None
