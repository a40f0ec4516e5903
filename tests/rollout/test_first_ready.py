"""First-ready blocks: a slow environment stalls only itself, and nothing of what it shows is lost."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector_toys import Counter, Gate
from collectors import collecting, final_places, make_weights, never
from hazards import Hazard
from mission_gym.data import Block, EnvSpec
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import EnvFailure, WorkerTimeout
from mission_gym.plan.costs import measure_collect
from mission_gym.rollout.blocks import clear_block, make_block, pack_block, unpack_block
from mission_gym.rollout.remote import WorkerCollector
from timeouts import scale_timeout

T = 10


@contextmanager
def first_ready(
    factory: Any, spec: EnvSpec, num_envs: int, rows: int, num_workers: int, **limits: Any
) -> Iterator[WorkerCollector]:
    """No workers stands for threads."""
    kind = "first_ready" if num_workers else "first_ready, threads"
    own = {"group": rows, "num_workers": num_workers or 1} | limits
    with collecting(kind, factory, spec, num_envs, T, **own) as (collector, _):
        collector.start()
        yield collector


@contextmanager
def serial(factory: Any, spec: EnvSpec, num_envs: int, rows: int) -> Iterator[Any]:
    with collecting("serial", factory, spec, num_envs, T, group=rows) as (collector, _):
        yield collector


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(str(tmp_path / "gate"))
    yield made
    made.close()


@contextmanager
def counters(gate: Gate, num_envs: int, rows: int, num_workers: int) -> Iterator[WorkerCollector]:
    """Counting environments of which number 0 stands before the gate."""
    factories = [partial(Counter, gate.path), *[Counter] * (num_envs - 1)]
    with first_ready(factories, probe(Counter, "counter"), num_envs, rows, num_workers) as collector:
        try:
            yield collector
        finally:
            gate.open()


class Reader:
    """Fills blocks, each with weights of the next version, and holds every segment against the counter."""

    def __init__(self, collector: WorkerCollector) -> None:
        self.collector = collector
        self.block = make_block(collector.spec, T, collector.vec.num_envs)
        self.number = 0
        self.steps = dict.fromkeys(range(collector.vec.num_envs), 0)  # read so far, by environment

    def read(self) -> Block:
        collector, block = self.collector, self.block
        clear_block(block)
        collector.load(replace(make_weights(collector.spec), version=self.number))
        assert collector.fill(block, self.number, never)
        self.number += 1
        assert block.is_full
        for row, env_id in enumerate(block.env_ids.tolist()):
            before = self.steps[env_id]
            np.testing.assert_array_equal(block.reward[:, row], before + 1 + np.arange(T))
            np.testing.assert_array_equal(block.obs[0][:, row, 0], before + np.arange(T + 1))
            ended = (before + 1 + np.arange(T)) % 7 == 0
            np.testing.assert_array_equal(block.truncated[:, row], ended)
            finals = [t for t, place in final_places(block) if place == row]
            assert finals == np.flatnonzero(ended).tolist()
            for t in finals:
                kept = block.finals[final_places(block).index((t, row))].obs[0]
                np.testing.assert_array_equal(kept, [before + t + 1, 7])
            self.steps[env_id] += T
        assert final_places(block) == sorted(final_places(block))
        assert block.valid.all()
        return block


def test_blocks_are_filled_by_the_others_while_one_environment_waits(gate: Gate) -> None:
    with counters(gate, 4, 2, 2) as collector:  # the first worker has environments 0 and 1
        reader = Reader(collector)
        episodes = 0
        for number in range(3):
            block = reader.read()
            assert block.env_ids.tolist() == [2, 3, 2, 3]
            assert block.version.tolist() == [number] * 4
            episodes += len(block.episodes)
        assert episodes == 2 * (60 // 7)
        assert collector.metrics() == {
            "rollout/share_min": 0.0,
            "rollout/share_max": 0.5,
            "rollout/share_min_env": 0.0,
        }
        gate.open()
        while 0 not in reader.read().env_ids:
            pass
        row = reader.block.env_ids.tolist().index(0)
        assert reader.block.version[row] == 0  # it went on with the weights that it had begun with
        assert reader.block.version.max() > 0
        numbers = [episode.number for episode in reader.block.episodes if episode.env_id == 0]
        assert numbers == list(range(len(numbers)))
        while reader.steps[0] < 3 * T:
            reader.read()
        assert sum(collector.num_segments) == 4 * reader.number


def test_with_threads_a_slow_environment_stalls_only_its_group(gate: Gate) -> None:
    with counters(gate, 4, 1, 0) as collector:
        reader = Reader(collector)
        for number in range(4):
            block = reader.read()
            assert 0 not in block.env_ids
            assert set(block.version.tolist()) <= {number, number - 1}
        assert collector.metrics()["rollout/share_min"] == 0.0
        gate.open()
        while 0 not in reader.read().env_ids:
            pass
        assert reader.block.version[reader.block.env_ids.tolist().index(0)] == 0
        assert collector.metrics()["rollout/share_min"] > 0.0


class Masked(Counter):
    """Forbids action 1 after steps 1, 4 and 7 of an episode, the last of them."""

    def mask(self) -> dict[str, Any]:
        return {"action_mask": np.array([1, self.steps % 3 != 1], np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0], self.mask()

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], self.mask()


@pytest.mark.parametrize(("num_envs", "num_workers"), [(4, 2), (3, 2), (3, 0)])
def test_final_observations_have_their_masks(num_envs: int, num_workers: int) -> None:
    with first_ready(Masked, probe(Masked, "masked"), num_envs, 1, num_workers) as collector:
        reader = Reader(collector)
        for _ in range(4):
            block = reader.read()
            assert len(block.finals) > 0
            assert {tuple(final.mask.tolist()) for final in block.finals} == {(True, False)}


def test_rows_that_do_not_fit_come_first_in_the_next_block(gate: Gate) -> None:
    with counters(gate, 3, 1, 2) as collector:  # one environment, and two
        reader = Reader(collector)
        assert reader.read().env_ids.tolist() == [1, 2, 1]
        block = reader.read()
        assert block.env_ids.tolist() == [2, 1, 2]
        assert block.version.tolist() == [0, 1, 1]


@pytest.mark.parametrize(("num_workers", "rows"), [(2, 2), (0, 1)])
def test_a_segment_is_what_a_collector_in_this_process_makes(num_workers: int, rows: int) -> None:
    factory = make_factory(EnvRequest("CartPole-v1"))
    spec = probe(factory, "CartPole-v1")
    with first_ready(factory, spec, 4, rows, num_workers) as one, serial(factory, spec, 4, rows) as two:
        theirs, mine = make_block(spec, T, 4), make_block(spec, T, 4)
        two.start()
        two.fill(theirs, 0, never)
        assert one.fill(mine, 0, never)
        rows_of = {env_id: row for row, env_id in reversed(list(enumerate(mine.env_ids.tolist())))}
        for env_id, row in rows_of.items():  # the first segment of each that is in it
            for name in ("action", "log_prob", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(mine, name)[:, row], getattr(theirs, name)[:, env_id])
            np.testing.assert_array_equal(mine.obs[0][:, row], theirs.obs[0][:, env_id])


def test_a_worker_killed_inside_a_segment_goes_on_with_it(gate: Gate) -> None:
    with counters(gate, 2, 1, 2) as collector:
        reader = Reader(collector)
        assert reader.read().env_ids.tolist() == [1, 1]
        os.kill(collector.vec.pool.pids()[0], signal.SIGKILL)
        while not collector.vec.num_restarts:
            assert reader.read().env_ids.tolist() == [1, 1]
        gate.open()
        block = reader.block
        while 0 not in block.env_ids:
            clear_block(block)
            assert collector.fill(block, reader.number, never)
            reader.number += 1
        row = block.env_ids.tolist().index(0)
        (lost,) = np.flatnonzero(~block.valid[:, row]).tolist()
        assert lost < 3  # the gate is at the third step
        np.testing.assert_array_equal(block.obs[0][lost + 1 :, row, 0], np.arange(T - lost))
        assert block.version[row] == 0
        assert (lost, row) in final_places(block)
        assert [episode.env_id for episode in block.episodes if episode.failed] == [0]


def test_a_process_that_dies_costs_each_of_its_groups_one_row(tmp_path: Path) -> None:
    spec = probe(Hazard, "hazard")
    factories = [Hazard, partial(Hazard, kind="exit", at=12, once=str(tmp_path / "x")), Hazard, Hazard]
    with first_ready(factories, spec, 4, 2, 0) as collector:
        block, lost, failed = make_block(spec, T, 4), [], []
        for number in itertools.count():
            clear_block(block)
            assert collector.fill(block, number, never)
            failed += [episode.env_id for episode in block.episodes if episode.failed]
            for t, row in np.argwhere(~block.valid).tolist():
                lost.append(int(block.env_ids[row]))
                place = final_places(block).index((t, row))
                np.testing.assert_array_equal(block.finals[place].obs[0], block.obs[0][t, row])
                np.testing.assert_array_equal(block.obs[0][t + 1, row], [0, 0])
                if t:
                    assert block.truncated[t - 1, row]
            assert final_places(block) == sorted(final_places(block))
            if len(failed) >= 4 and len(lost) >= 4:
                break
        assert sorted(lost) == sorted(failed) == [0, 1, 2, 3]
        assert collector.vec.num_restarts == 1


def test_with_threads_the_one_that_hangs_is_found_while_the_others_go_on(tmp_path: Path) -> None:
    spec = probe(Hazard, "hazard")
    hanging = partial(Hazard, kind="hang", at=12, once=str(tmp_path / "x"))
    with first_ready(
        [Hazard, Hazard, hanging, Hazard], spec, 4, 1, 0, timeout_s=scale_timeout(1.0)
    ) as collector:
        block, failed = make_block(spec, T, 4), []
        number = 0
        while len(failed) < 4 or 2 not in block.env_ids:  # and it goes on
            clear_block(block)
            assert collector.fill(block, number, never)
            failed += [episode.env_id for episode in block.episodes if episode.failed]
            number += 1
            assert number < 100_000
        assert collector.vec.num_restarts == 1
        assert sorted(failed) == [0, 1, 2, 3]
    blamed = pytest.raises(WorkerTimeout, match=r"environment 2, .*step 11: step\(\) did not return")
    with first_ready(
        [Hazard, Hazard, partial(Hazard, kind="hang", at=12), Hazard], spec, 4, 1, 0,
        timeout_s=scale_timeout(1.0), max_restarts=0,
    ) as collector, blamed:  # fmt: skip
        for number in itertools.count():
            clear_block(block)
            collector.fill(block, number, never)


def test_an_environment_that_fails_too_often_ends_the_collection_from_its_thread() -> None:
    spec = probe(Hazard, "hazard")
    block = make_block(spec, T, 2)

    def collect_on(collector: WorkerCollector) -> None:
        for number in itertools.count():
            clear_block(block)
            collector.fill(block, number, never)

    with (
        first_ready([Hazard, partial(Hazard, kind="raise")], spec, 2, 1, 0, max_restarts=1) as collector,
        pytest.raises(EnvFailure, match=r"environment 1, .*the simulator fell over"),
    ):
        collect_on(collector)


@pytest.mark.parametrize("num_workers", [2, 0])
def test_a_stop_waits_for_no_step_and_a_start_drops_what_is_under_way(num_workers: int, gate: Gate) -> None:
    with counters(gate, 2, 1, num_workers) as collector:
        block = make_block(collector.spec, T, 2)
        assert not collector.fill(block, 0, lambda: True)
        assert {state.how for state in collector.vec.state()} == {"boundary"}
        gate.open()
        collector.start()
        collector.load(make_weights(collector.spec))
        assert collector.fill(block, 1, never)
        for env_id in set(block.env_ids.tolist()):  # from the first step of an episode on
            row = block.env_ids.tolist().index(env_id)
            np.testing.assert_array_equal(block.obs[0][:, row, 1], np.arange(T + 1) % 7)


def test_finished_columns_of_a_stopped_block_go_on_in_other_processes(gate: Gate) -> None:
    with counters(gate, 4, 2, 2) as collector:  # the first worker has environments 0 and 1
        block = collector.blocks[0]
        assert not collector.fill(block, 3, lambda: block.num_filled > 0)
        assert block.filled.tolist() == [T, T, 0, 0]
        assert block.env_ids[:2].tolist() == [2, 3]
        packed = pack_block(block)
    with counters(gate, 4, 2, 2) as collector:
        block = collector.blocks[0]
        unpack_block(block, packed)
        assert collector.fill(block, 3, never)
        np.testing.assert_array_equal(block.reward[:, :2], packed["block/reward"][:, :2])
        assert final_places(block) == sorted(final_places(block))
        assert [place for place in final_places(block) if place[1] < 2] == [(6, 0), (6, 1)]


def test_priming_leaves_no_trace(gate: Gate) -> None:
    gate.open()
    with counters(gate, 4, 2, 2) as collector:
        (obs,) = measure_collect(collector, make_weights(collector.spec), 5, num_blocks=2).obs
        assert obs.shape == (6 * 4, 2)
        assert not collector.blocks[0].filled.any()
        assert collector.num_segments.sum() == 0
        assert collector.vec.episode_numbers() == [0] * 4
