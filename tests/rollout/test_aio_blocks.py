"""Collecting on event loops: the same blocks as in one process, and what faults cost them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors import assert_equal_blocks, final_places, make_weights, remote, serial
from coroutine_toys import AsyncHazard, Awaited
from mission_gym.data import Weights
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.rollout.blocks import clear_block, make_block, pack_block, unpack_block
from mission_gym.vector import pool as pool_module
from mission_gym.vector.aio import AioVec
from timeouts import LONG_S, scale_timeout

SPEC = probe(make_factory(AsyncHazard), "hazard")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_INSPECT_S", 0.05)
    monkeypatch.setattr(AioVec, "grace_s", scale_timeout(0.5))


@pytest.mark.parametrize("env", ["CartPole-v1", "toys:Identity"])
@pytest.mark.parametrize(("num_workers", "rows"), [(1, 7), (1, 2), (2, 3)])
def test_blocks_are_those_of_the_plain_form(env: str, num_workers: int, rows: int) -> None:
    awaited, plain = make_factory(partial(Awaited, env)), make_factory(EnvRequest(env))
    spec = probe(plain, env)
    with (
        remote(awaited, spec, 7, 30, rows, num_workers, step_kind=AioVec) as one,
        serial(plain, spec, 7, rows) as two,
    ):
        block = make_block(spec, 30, 7)
        for collector in (one, two):
            collector.start()
        weights = make_weights(spec)
        for number in range(2):
            other = {name: array * np.float32(1.5**number) for name, array in weights.arrays.items()}
            for collector in (one, two):
                collector.load(Weights(number, other))
            assert one.fill(one.blocks[0], number, lambda: False)
            assert two.fill(block, number, lambda: False)
            assert_equal_blocks(one.blocks[0], block)
            clear_block(one.blocks[0])
            clear_block(block)


class Gate(Awaited):
    """At its 40th step it says so, and waits until it may go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__("CartPole-v1")
        self.folder, self.count = folder, 0

    async def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 40:
            (self.folder / "reached").touch()
            while not (self.folder / "go on").exists():
                await asyncio.sleep(0.001)
        return await super().step(action)


def test_segments_that_stand_at_different_rows_go_on_in_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless, plain = make_factory(partial(Awaited, "CartPole-v1")), make_factory(EnvRequest("CartPole-v1"))
    gate = make_factory(partial(Gate, tmp_path))
    spec = probe(plain, "CartPole-v1")
    with remote([gate, *[harmless] * 3], spec, 4, 120, 2, 1, step_kind=AioVec) as one:
        wait, board, block = one.vec.pool.wait, one.vec.shared, one.blocks[0]

        def let_go_once_stopped(*arguments: Any) -> Any:
            if board.pause[0]:
                (tmp_path / "go on").touch()
            return wait(*arguments)

        monkeypatch.setattr(one.vec.pool, "wait", let_go_once_stopped)
        one.start()
        assert not one.fill(block, 0, lambda: (tmp_path / "reached").exists() and block.filled[2] == 120)
        assert block.filled.tolist() == [40, 40, 120, 120]
        packed = pack_block(block)
        episodes, states = block.episodes, one.vec.state()
    with (
        remote(harmless, spec, 4, 120, 2, 2, step_kind=AioVec) as two,
        serial(plain, spec, 4, 2) as straight,
    ):
        two.vec.restore(states)
        block = two.blocks[0]
        unpack_block(block, packed)
        block.episodes = episodes
        assert two.fill(block, 0, lambda: False)
        wanted = make_block(spec, 120, 4)
        straight.start()
        straight.fill(wanted, 0, lambda: False)
        assert_equal_blocks(block, wanted)


@pytest.mark.parametrize("kind", ["raise", "hang", "cancelled", "block", "kill"])
def test_a_fault_costs_a_row_of_the_block(kind: str, tmp_path: Path) -> None:
    hazard = partial(AsyncHazard, kind, at=12, once=str(tmp_path / "x"))
    factories = [make_factory(each) for each in (AsyncHazard, hazard, AsyncHazard, AsyncHazard)]
    timeout_s = scale_timeout(1.0) if kind in ("hang", "block") else LONG_S
    with remote(factories, SPEC, 4, 40, 2, 1, step_kind=AioVec, timeout_s=timeout_s) as collector:
        collector.start()
        block = collector.blocks[0]
        assert collector.fill(block, 0, lambda: False)
        lost = (~block.valid).sum(0)
        failed = sorted(episode.env_id for episode in block.episodes if episode.failed)
        ends_process = kind in ("block", "kill")
        assert collector.vec.num_restarts == ends_process
        assert lost[1] == 1
        if ends_process:
            assert failed == [0, 1, 2, 3]
            assert lost.max() == 1
        else:
            assert failed == [1]
            assert lost.sum() == 1
        for t, row in np.argwhere(~block.valid).tolist():
            assert (t, row) in final_places(block)
            np.testing.assert_array_equal(block.obs[0][t + 1, row], [0, 0])
