"""Coroutines on event loops: equal to serial, and every fault contained and blamed on whose it is."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_toys import Lives
from coroutine_toys import AsyncHazard, Awaited, Napping
from mission_gym.data import EnvSpec, StepBatch
from mission_gym.env.factory import EnvRequest, Factory, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import EnvFailure, UsageError, WorkerDied, WorkerTimeout
from mission_gym.procs import BoundedLog
from mission_gym.vector import pool as pool_module
from mission_gym.vector import record
from mission_gym.vector.aio import AioVec
from mission_gym.vector.arrays import BLOCKED_NS, NUM_STEPS, rows_of
from mission_gym.vector.concurrent import LatencyReader
from mission_gym.vector.make_vec import make_vec
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.workers import WorkersVec
from timeouts import LONG_S, scale_timeout
from toys import seed_of
from vectors import assert_equal, own, play


def build(plain: str) -> Any:
    return make_factory(EnvRequest(plain))()


HARMLESS = make_factory(AsyncHazard)
SPEC = probe(HARMLESS, "hazard")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_CLOSE_S", scale_timeout(1.0))
    monkeypatch.setattr(pool_module, "_INSPECT_S", 0.05)
    monkeypatch.setattr(AioVec, "grace_s", scale_timeout(0.5))


def make(hazards: dict[int, Any], num_envs: int = 4, num_workers: int = 1, **limits: Any) -> WorkersVec:
    """Harmless environments but for those named."""
    factories = [make_factory(partial(AsyncHazard, **hazards.get(env_id, {}))) for env_id in range(num_envs)]
    limits = {"timeout_s": LONG_S} | limits
    options = VectorOptions(num_workers=num_workers, limits=Limits(**limits))
    return WorkersVec(factories, SPEC, num_envs, seed_of, options, AioVec)


def choose(batch: StepBatch, spec: EnvSpec, rng: np.random.Generator) -> Any:
    if spec.mask_source:
        assert batch.mask is not None
        legal = [int(row[:3].argmax()) for row in batch.mask]
        return np.stack([legal, rng.integers(0, 2, len(legal))], 1)
    return np.stack([spec.action_space.sample() for _ in batch.reward])


class AwaitedLives(Lives):
    """Several agents behind coroutines."""

    async def reset(self, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(seed, options)

    async def step(self, actions: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(actions)


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    **{
        name: (partial(Awaited, name), partial(build, name))
        for name in ("CartPole-v1", "Pendulum-v1", "toys:DictMask")
    },
    "agents": (AwaitedLives, Lives),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_transitions_are_those_of_the_plain_form(pair: str, num_workers: int) -> None:
    awaited, plain = (make_factory(each) for each in PAIRS[pair])
    spec, rng = probe(awaited, pair), np.random.default_rng(0)
    with (
        WorkersVec(awaited, spec, 5, seed_of, VectorOptions(num_workers=num_workers), kind=AioVec) as one,
        SerialVec(plain, spec, 5, seed_of) as two,
    ):
        mine, theirs = one.reset(), two.reset()
        for number in range(40):
            assert_equal(mine, theirs)
            actions = choose(theirs, spec, rng)
            ids = None if number % 4 else [4, 1, 2]
            rows = None if ids is None else rows_of(ids, spec.num_agents)
            for vec in (one, two):
                vec.send(actions if rows is None else actions[rows], ids)
            mine, theirs = one.recv(), two.recv()
            if ids is not None:
                (mine, ways), (theirs, _) = one.restore(one.state()), two.restore(two.state())
                assert set(ways) <= {"replay", "boundary: its episode was over"}


class Saved(AsyncHazard):
    """Can be saved, through a coroutine; its steps pay what its generator draws."""

    np_random = np.random.default_rng(0)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.np_random = np.random.default_rng(seed)
        return await super().reset()

    async def step(self, action: Any) -> Any:
        obs, _, *rest = await super().step(action)
        return obs, self.np_random.random(), *rest

    async def get_state(self) -> Any:
        await asyncio.sleep(0)
        return {"steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.steps = state["steps"]


def test_one_that_can_be_saved_goes_on_exactly() -> None:
    actions = np.arange(3) % 2
    with WorkersVec(make_factory(Saved), SPEC, 3, seed_of, VectorOptions(num_workers=1), kind=AioVec) as vec:
        vec.reset()
        vec.step(actions)
        states = vec.state()
        assert {state.how for state in states} == {"state"}
        straight = [own(vec.step(actions)) for _ in range(25)]
        assert vec.restore(states)[1] == ["state"] * 3
        for batch in straight:
            assert_equal(own(vec.step(actions)), batch)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_auto_reset_modes_are_those_of_serial(mode: str) -> None:
    made = partial(Awaited, "toys:Identity")
    one, two = (make_vec(made, 3, backend=backend, autoreset_mode=mode) for backend in ("aio", "serial"))
    (mine, _), (theirs, _) = one.reset(seed=4), two.reset(seed=4)
    for _ in range(45 if mode != "disabled" else 15):
        np.testing.assert_array_equal(mine, theirs)
        mine, *mine_rest, mine_infos = one.step(np.array([0, 1, 2]))
        theirs, *their_rest, their_infos = two.step(np.array([0, 1, 2]))
        np.testing.assert_array_equal(np.array(mine_rest, float), np.array(their_rest, float))
        assert mine_infos.keys() == their_infos.keys()
    assert one.call("turns") == (2, 2, 2)
    one.set_attr("turns", [1, 2, 3])
    assert one.get_attr("turns") == (1, 2, 3)
    one.close()
    two.close()


def test_one_instance_in_several_rows_is_refused() -> None:
    env = AsyncHazard()
    with pytest.raises(ValueError, match="environments 0 and 1 are one and the same instance"):
        make_vec([lambda: env] * 3, backend="aio")


def test_a_plain_environment_is_refused_with_threads_named() -> None:
    for make_it in ("CartPole-v1", "toys:Identity"):
        with pytest.raises(UsageError, match=r"is a plain environment.*use --vector threads"):
            make_vec(make_it, 2, backend="aio")


@pytest.mark.parametrize("kind", ["raise", "hang", "exit", "odd", "cancelled"])
def test_a_fault_of_one_costs_its_episode_alone(kind: str, tmp_path: Path) -> None:
    limits = {"timeout_s": scale_timeout(0.5)} if kind == "hang" else {}
    with make({2: {"kind": kind, "once": str(tmp_path / "x")}}, **limits) as vec:
        batches = play(vec, 6)
        assert batches[2].valid.tolist() == [True, True, False, True]
        assert [episode.env_id for episode in batches[2].episodes if episode.failed] == [2]
        assert batches[5].obs[0][:, 0].tolist() == [6, 6, 3, 6]
        assert vec.num_restarts == 0


def test_one_that_cancels_all_tasks_harms_at_most_the_steps_under_way(tmp_path: Path) -> None:
    with make({1: {"kind": "cancel all", "once": str(tmp_path / "x")}}) as vec:
        batches = play(vec, 8)
        assert not batches[2].valid[1]
        assert all(batch.valid.all() for batch in batches[3:])
        assert vec.num_restarts == 0


@pytest.mark.parametrize("kind", ["stop", "child exits"])
def test_the_loop_is_not_theirs_to_end(kind: str) -> None:
    with make({1: {"kind": kind}}) as vec:
        assert all(batch.valid.all() for batch in play(vec, 6))


WHERE = r"environment 2, seed 2000, episode 0, step 2: "


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("raise", EnvFailure, WHERE + r"step\(\) raised RuntimeError: the site fell over; the action was 0"),
        ("cancelled", EnvFailure, WHERE + r"step\(\) raised CancelledCall: it was cancelled"),
        ("exit", EnvFailure, WHERE + r"step\(\) raised RuntimeError: it raised SystemExit"),
        (
            "hang",
            EnvFailure,
            WHERE + r"step\(\) raised TimeoutError: it did not return within [\d.]+ s \[--env-timeout\], "
            r"waiting in fail at coroutine_toys.py:\d+; the action was 0",
        ),
        ("stubborn", WorkerTimeout, WHERE + r"step\(\) did not return within \d+ s \[--env-timeout\]"),
        (
            "block",
            WorkerTimeout,
            WHERE + r"step\(\) did not return within \d+ s, and blocked the event loop.*coroutine_toys.py",
        ),
        ("kill", WorkerDied, WHERE + r"the worker process \d+ was killed by SIGKILL; the action was 0"),
    ],
)
def test_every_fault_is_blamed_on_whose_it_is(kind: str, error: type[Exception], text: str) -> None:
    waits = kind in ("hang", "stubborn", "block")
    limits: dict[str, Any] = {"timeout_s": scale_timeout(1.2)} if waits else {}
    with make({2: {"kind": kind}}, max_restarts=0, **limits) as vec:
        with pytest.raises(error, match="(?s)" + text) as raised:
            play(vec, 5)
        assert raised.value.facts["env_index"] == 2
        assert raised.value.facts["actions"] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["stubborn", "block", "kill"])
def test_a_loop_that_is_lost_is_replaced(kind: str, tmp_path: Path) -> None:
    limits = {} if kind == "kill" else {"timeout_s": scale_timeout(1.2)}
    with make({2: {"kind": kind, "once": str(tmp_path / "x")}}, num_workers=2, **limits) as vec:
        batches = play(vec, 6)
        lost = batches[2]
        assert lost.valid.tolist() == [True, True, False, False]
        assert lost.truncated.tolist() == [False, False, True, True]
        assert batches[5].obs[0][:, 0].tolist() == [6, 6, 3, 3]
        assert vec.num_restarts == 1


def test_a_loop_process_that_somebody_kills() -> None:
    with make({}) as vec:
        vec.reset()
        vec.send(np.zeros(4, np.int64))
        os.kill(vec.pids()[0], signal.SIGKILL)
        assert not vec.recv().valid.any()
        assert vec.step(np.zeros(4, np.int64)).valid.all()
        assert vec.episode_numbers() == [1] * 4


def test_a_reset_that_hangs_is_broken_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(record, "FIRST_TIMEOUT_S", scale_timeout(1.2))
    hazard = {"kind": "reset hangs", "at": 0, "once": str(tmp_path / "x")}
    with make({1: hazard}, timeout_s=scale_timeout(0.1)) as vec:
        assert vec.reset().obs[0].tolist() == [[0, 0]] * 4
        assert vec.num_restarts == 0


def test_what_goes_wrong_at_the_end_is_told() -> None:
    with make({0: {"kind": "close raises"}}) as vec:
        play(vec, 1)
    assert vec.close_errors == ["environment 0: RuntimeError: the session is gone"]


def test_an_environment_that_blocks_the_loop_is_named(tmp_path: Path) -> None:
    factories: list[Factory] = [make_factory(Napping if i == 1 else Quiet) for i in range(3)]
    spec, log = probe(factories[0], "napping"), tmp_path / "log.txt"
    with WorkersVec(
        factories, spec, 3, seed_of, VectorOptions(num_workers=1, log=BoundedLog(log)), kind=AioVec
    ) as vec:
        reader = LatencyReader(vec.shared.counters)
        vec.reset()
        while not log.exists() or "\n" not in log.read_text():
            vec.step(np.zeros(3, np.int64))
        assert vec.shared.counters[:, BLOCKED_NS].nonzero()[0].tolist() == [1]
        told = reader.read(1.0)
        assert told is not None
        assert (told.blocked > 0, told.blocked_env) == (True, 1)
    text = r"environment 1 blocks the event loop.*, at coroutine_toys.py:\d+ in step: time.sleep\(0.01\)"
    assert re.search(text, log.read_text())


class Quiet(Napping):
    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0)
        return 0, 0.0, False, False, {}


def test_steps_are_counted_with_their_latency() -> None:
    with make({}) as vec:
        reader = LatencyReader(vec.shared.counters)
        play(vec, 25)
        assert vec.shared.counters[:, NUM_STEPS].tolist() == [25] * 4
        assert not vec.shared.counters[:, BLOCKED_NS].any()
        told = reader.read(10.0)
        assert told is not None
        assert 0.001 <= told.latency_s < LONG_S
        assert told.in_flight == pytest.approx(100 * told.latency_s / 10.0)
        assert reader.read(1.0) is None
