"""Collecting in workers: the same blocks as in one process, and blocks that survive every kind of death."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from collectors import assert_equal_blocks, final_places, make_weights, remote, serial
from hazards import Hazard
from mission_gym.data import Weights
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import WorkerDied
from mission_gym.rollout import collector as collector_module
from mission_gym.rollout.blocks import clear_block, make_block, pack_block, unpack_block
from timeouts import LONG_S, scale_timeout


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "toys:Identity"])
@pytest.mark.parametrize(("num_workers", "rows"), [(1, 2), (2, 2), (3, 2), (2, 3), (0, 2)])
def test_blocks_are_equal_whatever_the_number_of_workers(env: str, num_workers: int, rows: int) -> None:
    factory = make_factory(EnvRequest(env))
    spec = probe(factory, env)
    with remote(factory, spec, 7, 30, rows, num_workers) as one, serial(factory, spec, 7, rows) as two:
        block = make_block(spec, 30, 7)
        for collector in (one, two):
            collector.start()
        weights = make_weights(spec)
        for number in range(3):  # with others each time, of which two have one version
            other = {name: array * np.float32(1.5**number) for name, array in weights.arrays.items()}
            for collector in (one, two):
                collector.load(Weights(number // 2, other))
            assert one.fill(one.blocks[0], number, lambda: False)
            assert two.fill(block, number, lambda: False)
            assert_equal_blocks(one.blocks[0], block)
            clear_block(one.blocks[0])
            clear_block(block)


class Gate(gym.Wrapper[Any, Any, Any, Any]):
    """At its 40th step it says so, and waits until it may go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.folder, self.count = folder, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 40:
            (self.folder / "reached").touch()
            while not (self.folder / "go on").exists():
                time.sleep(0.001)
        return super().step(action)


@pytest.mark.parametrize("num_workers", [2, 0])
def test_a_stopped_block_goes_on_as_if_it_had_not_been_stopped(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = partial(Gate, tmp_path)
    spec = probe(factory, "gate")
    with remote(factory, spec, 4, 120, 2, num_workers) as one, serial(factory, spec, 4, 2) as two:
        wait, board = one.vec.pool.wait, one.vec.shared

        def let_go_once_stopped(*arguments: Any) -> Any:
            if board.pause[0]:
                (tmp_path / "go on").touch()
            return wait(*arguments)

        monkeypatch.setattr(one.vec.pool, "wait", let_go_once_stopped)
        one.start()
        two.start()
        assert not one.fill(one.blocks[0], 0, (tmp_path / "reached").exists)
        assert one.blocks[0].filled.max() == 40
        assert not one.blocks[0].is_full
        assert one.fill(one.blocks[0], 0, lambda: False)
        block = make_block(spec, 120, 4)
        two.fill(block, 0, lambda: False)
        assert_equal_blocks(one.blocks[0], block)


@pytest.mark.parametrize("num_workers", [2, 0])
def test_segments_that_stand_at_different_rows_go_on_in_other_processes(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_factory(EnvRequest("CartPole-v1"))
    spec = probe(plain, "CartPole-v1")
    with remote([partial(Gate, tmp_path), *[plain] * 3], spec, 4, 120, 2, num_workers) as one:
        wait, board, block = one.vec.pool.wait, one.vec.shared, one.blocks[0]

        def let_go_once_stopped(*arguments: Any) -> Any:
            if board.pause[0]:
                (tmp_path / "go on").touch()
            return wait(*arguments)

        monkeypatch.setattr(one.vec.pool, "wait", let_go_once_stopped)
        one.start()
        assert not one.fill(block, 0, lambda: (tmp_path / "reached").exists() and block.filled[2] == 120)
        assert block.filled.tolist() == [40, 40, 120, 120]
        assert block.num_filled == 320
        packed = pack_block(block)
        episodes, states = block.episodes, one.vec.state()
    with remote(plain, spec, 4, 120, 2, num_workers) as two, serial(plain, spec, 4, 2) as straight:
        two.vec.restore(states)
        block = two.blocks[0]
        unpack_block(block, packed)
        block.episodes = episodes
        assert two.fill(block, 0, lambda: False)
        wanted = make_block(spec, 120, 4)
        straight.start()
        straight.fill(wanted, 0, lambda: False)
        assert_equal_blocks(block, wanted)


@pytest.mark.parametrize("num_workers", [2, 0])
@pytest.mark.parametrize("kind", ["raise", "exit", "hang"])
def test_a_failure_costs_one_row_of_the_block(kind: str, num_workers: int, tmp_path: Path) -> None:
    spec = probe(Hazard, "hazard")
    factories = [Hazard, partial(Hazard, kind=kind, at=12, once=str(tmp_path / "x")), Hazard, Hazard]
    timeout_s = scale_timeout(0.5) if kind == "hang" else LONG_S
    with remote(factories, spec, 4, 40, 2, num_workers, timeout_s=timeout_s) as collector:
        collector.start()
        assert collector.fill(collector.blocks[0], 0, lambda: False)
        block = collector.blocks[0]
        hurt = [1] if kind == "raise" else [0, 1] if num_workers else [0, 1, 2, 3]
        for row in range(4):
            lost = np.flatnonzero(~block.valid[:, row]).tolist()
            if row < 2 or row not in hurt:
                assert len(lost) == (row in hurt)
            else:  # a segment that was whole and reported has lost nothing, and all were when one hung
                assert len(lost) <= (kind == "exit")
            if lost:
                t = lost[0]
                assert t <= 11 or row > 1  # rows that were not reported are lost with their worker
                assert (t, row) in final_places(block)
                if t:
                    assert block.truncated[t - 1, row]
                    assert (t - 1, row) in final_places(block)
                np.testing.assert_array_equal(block.obs[0][t + 1, row], [0, 0])
                place = final_places(block).index((t, row))
                np.testing.assert_array_equal(block.finals[place].obs[0], block.obs[0][t, row])
        assert final_places(block) == sorted(final_places(block))
        failed = [episode.env_id for episode in block.episodes if episode.failed]
        assert sorted(failed) == hurt
        ended = ((block.truncated | block.terminated) & block.valid)[:, 2:].sum()
        whole = [episode for episode in block.episodes if episode.env_id >= 2 and not episode.failed]
        if 2 not in hurt:
            assert len(whole) == ended == 4


@pytest.mark.parametrize("num_workers", [2, 0])
def test_a_step_that_hangs_at_a_stop_costs_its_segment_alone(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "STOP_S", scale_timeout(1.0))
    spec = probe(Hazard, "hazard")
    factories = [Hazard, partial(Hazard, kind="hang", at=15)]
    with (
        remote(factories, spec, 2, 40, 1, num_workers, timeout_s=60.0) as collector,
        serial(Hazard, spec, 2, 1) as straight,
    ):
        wanted = make_block(spec, 40, 2)
        straight.start()
        straight.fill(wanted, 0, lambda: False)
        collector.start()
        block = collector.blocks[0]
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


@pytest.mark.parametrize("num_workers", [1, 0])
def test_a_fault_of_our_own_costs_what_the_death_of_its_worker_costs(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_ONCE", str(tmp_path / "x"))
    spec, service = probe(Hazard, "hazard"), "collectors:serve_faulty"
    with remote(Hazard, spec, 2, 40, 1, num_workers, service) as collector:
        collector.start()
        block = collector.blocks[0]
        assert collector.fill(block, 0, lambda: False)
        assert block.valid[1:].all()
        assert not block.valid[0].all()
        assert collector.vec.num_restarts == 1


def test_too_many_failures_end_the_collection() -> None:
    spec = probe(Hazard, "hazard")
    factories = [Hazard, partial(Hazard, kind="segfault")]
    with remote(factories, spec, 2, 40, 1, 2, max_restarts=1) as collector:
        collector.start()
        with pytest.raises(WorkerDied, match=r"environment 1, .*was killed by SIGSEGV"):
            collector.fill(collector.blocks[0], 0, lambda: False)


def test_workers_load_no_torch() -> None:
    from mission_gym.procs import BoundedLog, Child

    child = Child("hazards:report_modules", None, on_output=BoundedLog(None))
    try:
        assert child.wait(LONG_S) == [[]]
    finally:
        child.end()
