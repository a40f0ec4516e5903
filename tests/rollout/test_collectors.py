"""The contract of collectors: every kind fills the blocks of one process, continues a stopped block, and
loses one transition to a failure."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from collector_toys import Counter, Gate
from collectors import assert_equal_blocks, collecting, final_places, make_weights, never
from coroutine_toys import AsyncHazard, Awaited
from hazards import Hazard
from mission_gym.data import Weights
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import WorkerDied
from mission_gym.procs import BoundedLog, Child
from mission_gym.rollout import collector as collector_module
from mission_gym.rollout.blocks import clear_block, pack_block, unpack_block
from mission_gym.vector import pool as pool_module
from mission_gym.vector.aio import AioVec
from timeouts import LONG_S, scale_timeout

HAZARD = probe(Hazard, "hazard")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_INSPECT_S", 0.05)
    monkeypatch.setattr(AioVec, "grace_s", scale_timeout(0.5))


class Uneven(gym.Wrapper):
    """Steps take a random time, so that any worker may be ready first."""

    def step(self, action: Any) -> Any:
        time.sleep(float(np.random.default_rng().uniform(0, 2e-3)))
        return self.env.step(action)


def make_uneven() -> gym.Env:
    return Uneven(gym.make("CartPole-v1", max_episode_steps=15))


def make_env(env: str, kind: str = "serial") -> Any:
    """A factory of an environment, with coroutines for an event loop."""
    if env == "uneven":
        return make_uneven
    name, _, masked = env.partition(", ")
    request = EnvRequest(name, {"masked": True} if masked else {})
    return make_factory(partial(Awaited, name) if kind == "aio" else request)


EQUAL = [
    *((kind, env, num_workers, group)
      for env in ("CartPole-v1", "Pendulum-v1", "toys:Identity")
      for kind, num_workers, group in (
          ("workers", 1, 2), ("workers", 2, 2), ("workers", 3, 2), ("workers", 2, 3), ("threads", 1, 2))),
    *(("aio", env, num_workers, group)
      for env in ("CartPole-v1", "toys:Identity") for num_workers, group in ((1, 7), (1, 2), (2, 3))),
    *(("ready", "uneven", num_workers, 2) for num_workers in (1, 2, 3)),
    *((kind, f"agent_toys:Lives{masked}", 2, 2)
      for masked in ("", ", masked") for kind in ("workers", "threads", "ready")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "env", "num_workers", "group"), EQUAL)
def test_blocks_equal_those_of_one_process(kind: str, env: str, num_workers: int, group: int) -> None:
    spec = probe(make_env(env), env)
    size = {"num_envs": 7, "num_steps": 30, "group": group}
    with (
        collecting(kind, make_env(env, kind), spec, num_workers=num_workers, **size) as (one, mine),
        collecting("serial", make_env(env), spec, **size) as (other, theirs),
    ):
        for collector in (one, other):
            collector.start()
        weights = make_weights(spec)
        for number in range(3):  # with other weights each time, two of them with the same version
            scaled = {name: array * np.float32(1.5**number) for name, array in weights.arrays.items()}
            for collector, block in ((one, mine), (other, theirs)):
                clear_block(block)
                collector.load(Weights(number // 2, scaled))
                assert collector.fill(block, number, never)
            assert_equal_blocks(mine, theirs)


class FileGate(gym.Wrapper[Any, Any, Any, Any]):
    """Its 40th step makes a file `reached`, and waits for a file `open`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.folder, self.count = folder, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 40:
            (self.folder / "reached").touch()
            while not (self.folder / "open").exists():
                time.sleep(0.001)
        return super().step(action)


class AsyncFileGate(Awaited):
    """The same as a coroutine."""

    def __init__(self, folder: Path) -> None:
        super().__init__("CartPole-v1")
        self.folder, self.count = folder, 0

    async def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 40:
            (self.folder / "reached").touch()
            while not (self.folder / "open").exists():
                await asyncio.sleep(0.001)
        return await super().step(action)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in other processes"])
@pytest.mark.parametrize("kind", ["workers", "threads", "aio"])
def test_a_stopped_block_continues_as_if_it_had_not_been_stopped(
    kind: str, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segments were stopped at different steps."""
    env = "CartPole-v1"
    plain, gate = make_env(env, kind), AsyncFileGate if kind == "aio" else FileGate
    spec, size = probe(make_env(env), env), {"num_envs": 4, "num_steps": 120}
    with collecting("serial", make_env(env), spec, **size) as (straight, wanted):
        straight.start()
        straight.fill(wanted, 0, never)
    factories = [make_factory(partial(gate, tmp_path)), *[plain] * 3]
    with collecting(kind, factories, spec, num_workers=1 if kind == "aio" else 2, **size) as (one, block):
        wait, board = one.vec.pool.wait, one.vec.shared

        def open_once_stopped(*arguments: Any) -> Any:
            if board.pause[0]:
                (tmp_path / "open").touch()
            return wait(*arguments)

        monkeypatch.setattr(one.vec.pool, "wait", open_once_stopped)
        one.start()
        assert not one.fill(block, 0, lambda: (tmp_path / "reached").exists() and block.filled[2] == 120)
        assert block.filled.tolist() == [40, 40, 120, 120]
        assert block.num_filled == 320
        assert not block.is_full
        if not elsewhere:
            assert one.fill(block, 0, never)
            assert_equal_blocks(block, wanted)
            return
        packed, episodes, states = pack_block(block), block.episodes, one.vec.state()
    with collecting(kind, plain, spec, **size) as (two, block):
        two.vec.restore(states)
        unpack_block(block, packed)
        block.episodes = episodes
        assert two.fill(block, 0, never)
        assert_equal_blocks(block, wanted)


@pytest.mark.parametrize("env", ["uneven", "agent_toys:Lives"])
@pytest.mark.parametrize("polls", [0, 1, 7, 30])
@pytest.mark.parametrize("kind", ["ready", "workers"])
def test_a_stop_ends_each_segment_after_its_running_step(kind: str, polls: int, env: str) -> None:
    spec = probe(make_env(env), env)
    size = {"num_envs": 6, "num_steps": 40}
    with collecting("serial", make_env(env), spec, **size) as (straight, wanted):
        straight.start()
        assert straight.fill(wanted, 0, never)
    with collecting(kind, make_env(env), spec, num_workers=3, **size) as (collector, block):
        collector.start()
        asked, columns = iter(range(10**6)), 2 * spec.num_agents
        is_full = collector.fill(block, 0, lambda: next(asked) >= polls)
        assert is_full == block.is_full
        assert not is_full or kind == "workers"  # they may have been done before so many polls
        for first in range(0, block.num_columns, columns):  # the columns of a group are a segment
            (filled,) = set(block.filled[first : first + columns].tolist())
            cut = slice(0, filled + 1 if filled else 0), slice(first, first + columns)
            for leaf, expected in zip(block.obs, wanted.obs, strict=True):
                np.testing.assert_array_equal(leaf[cut], expected[cut])
        states = collector.vec.state()  # it would raise if a worker were in a step
        assert len(states) == 6
        if env != "uneven" and not is_full:
            _, ways = collector.vec.restore(states)
            assert set(ways) <= {"replay", "boundary: its episode was over"}
        assert is_full or collector.fill(block, 0, never)
        assert_equal_blocks(block, wanted)


FAULTS = [
    *((kind, fault) for kind in ("workers", "threads") for fault in ("raise", "exit", "hang")),
    *(("aio", fault) for fault in ("raise", "hang", "cancelled", "block", "kill")),
    ("ready", "exit"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fault"), FAULTS)
def test_a_failure_costs_one_transition_of_each_environment_that_it_ends(
    kind: str, fault: str, tmp_path: Path
) -> None:
    hazard = AsyncHazard if kind == "aio" else Hazard
    faulty = partial(hazard, fault, at=12, once=str(tmp_path / "x"))
    factories = [make_factory(each) for each in (hazard, faulty, hazard, hazard)]
    timeout_s = scale_timeout(1.0 if kind == "aio" else 0.5) if fault in ("hang", "block") else LONG_S
    own = {"num_workers": 1 if kind == "aio" else 2, "timeout_s": timeout_s}
    with collecting(kind, factories, HAZARD, **own) as (collector, block):
        collector.start()
        assert collector.fill(block, 0, never)
        ends_process = fault not in ("raise", "cancelled") and (kind, fault) != ("aio", "hang")
        hurt = [1] if not ends_process else [0, 1] if kind in ("workers", "ready") else [0, 1, 2, 3]
        assert collector.vec.num_restarts == ends_process
        for column in range(4):
            lost = np.flatnonzero(~block.valid[:, column]).tolist()
            if column < 2 or column not in hurt:
                assert len(lost) == (column in hurt) or (kind == "aio" and column == 0)
            # A segment that was whole and reported has lost nothing, and all were when one hung.
            assert len(lost) <= (column in hurt and (column < 2 or fault != "hang"))
            for t in lost:
                assert t <= 11 or column > 1 or kind == "aio"  # unreported steps are lost with their worker
                assert (t, column) in final_places(block)
                if t:
                    assert block.truncated[t - 1, column]
                    assert (t - 1, column) in final_places(block)
                np.testing.assert_array_equal(block.obs[0][t + 1, column], [0, 0])
                final = block.finals[final_places(block).index((t, column))]
                np.testing.assert_array_equal(final.obs[0], block.obs[0][t, column])
        assert not block.valid[:, 1].all()
        assert final_places(block) == sorted(final_places(block))
        assert sorted(episode.env_id for episode in block.episodes if episode.failed) == hurt
        if 2 not in hurt:
            ended = ((block.truncated | block.terminated) & block.valid)[:, 2:].sum()
            whole = [episode for episode in block.episodes if episode.env_id >= 2 and not episode.failed]
            assert len(whole) == ended == 4


@pytest.mark.parametrize("kind", ["serial", "workers"])
def test_an_environment_that_raises_costs_the_step_of_all_its_agents(kind: str) -> None:
    env = make_env("agent_toys:Breaking")
    with collecting(kind, env, probe(env, "agents"), 5, 30, max_restarts=50) as (collector, block):
        collector.start()
        assert collector.fill(block, 0, never)
        failed = [episode for episode in block.episodes if episode.failed]
        assert failed
        for episode in failed:
            assert (episode.seed % 3, episode.length) == (0, 3)
        lost = block.truncated & ~block.valid
        # At its step 3 all agents are there: the workers and the guest, who came before.
        assert lost.sum() == 3 * len(failed)
        for t, column in np.argwhere(lost).tolist():
            assert block.truncated[t - 1, column] == (t > 0)
            assert {(t, column), (t - 1, column)} <= set(final_places(block))


def test_the_death_of_a_worker_costs_one_step_of_all_its_agents() -> None:
    env = make_env("agent_toys:Lives")
    with collecting("workers", env, probe(env, "agents"), 5, 30) as (collector, block):
        collector.start()
        os.kill(collector.vec.pids()[0], signal.SIGKILL)
        assert collector.fill(block, 0, never)
        hurt = collector.vec.env_ids[0]
        columns = np.isin(block.env_ids, list(hurt))
        lost = block.truncated & ~block.valid
        assert lost[0, columns].all()
        assert not lost[:, ~columns].any()
        assert sorted(episode.env_id for episode in block.episodes if episode.failed) == list(hurt)


@pytest.mark.parametrize("kind", ["workers", "threads"])
def test_a_step_that_hangs_at_a_stop_costs_its_segment_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "STOP_S", scale_timeout(1.0))
    factories = [Hazard, partial(Hazard, kind="hang", at=15)]
    with (
        collecting(kind, factories, HAZARD, 2, group=1, timeout_s=60.0) as (collector, block),
        collecting("serial", Hazard, HAZARD, 2, group=1) as (straight, wanted),
    ):
        straight.start()
        straight.fill(wanted, 0, never)
        collector.start()
        hanging = collector.vec.shared.heartbeats[1]
        assert not collector.fill(block, 0, lambda: hanging[4] == 14 and block.filled[0] > 0)
        assert block.filled[0] > 0
        assert block.filled[1] == 0
        kept = slice(0, block.filled[0])
        for name in ("action", "log_prob", "reward", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(block, name)[kept, 0], getattr(wanted, name)[kept, 0])
        assert {column for _, column in final_places(block)} <= {0}
        assert {episode.env_id for episode in block.episodes} <= {0}
        one, other = collector.vec.state()
        assert (one.how, other.how) == ("replay", "boundary")
        assert (one.episode, one.steps) == divmod(int(block.filled[0]), 20)
        assert other.reason == f"a step took over {collector_module.STOP_S} s when the run was stopped"


def test_a_step_that_hangs_in_a_ready_worker_costs_its_segment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "STOP_S", scale_timeout(0.3))
    gate = Gate(str(tmp_path / "gate"))
    factories = [partial(Counter, gate.path), *[Counter] * 5]
    with collecting("ready", factories, probe(Counter, "counter"), 6, num_workers=3) as (collector, block):
        collector.start()
        try:  # the third step of environment 0 waits
            assert not collector.fill(block, 0, lambda: (block.filled[2:] > 20).all())
            assert block.filled[:2].tolist() == [0, 0]
            assert (block.filled[2:] > 20).all()
            assert [state.how for state in collector.vec.state()] == ["boundary"] * 2 + ["replay"] * 4
        finally:
            gate.close()
        # It continues without the steps that were given up.
        assert collector.fill(block, 0, never)
        assert (block.reward[0] == [4, 4, 1, 1, 1, 1]).all()
        assert not collector.interrupted_mid_step
        assert {state.how for state in collector.vec.state()} == {"replay"}


@pytest.mark.parametrize("kind", ["workers", "threads"])
def test_an_internal_error_costs_the_same_as_the_death_of_its_worker(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_ONCE", str(tmp_path / "x"))
    own = {"group": 1, "num_workers": 1, "service": "collectors:serve_faulty"}
    with collecting(kind, Hazard, HAZARD, 2, **own) as (collector, block):
        collector.start()
        assert collector.fill(block, 0, never)
        assert block.valid[1:].all()
        assert not block.valid[0].all()
        assert collector.vec.num_restarts == 1


def test_too_many_failures_end_the_collection() -> None:
    factories = [Hazard, partial(Hazard, kind="segfault")]
    with collecting("workers", factories, HAZARD, 2, group=1, max_restarts=1) as (collector, block):
        collector.start()
        with pytest.raises(WorkerDied, match=r"environment 1, .*was killed by SIGSEGV"):
            collector.fill(block, 0, never)


def test_workers_load_no_torch() -> None:
    child = Child("hazards:report_modules", None, on_output=BoundedLog(None))
    try:
        assert child.wait(LONG_S) == [[]]
    finally:
        child.end()
