"""Collecting on a Ray cluster of three nodes: the blocks of workers here, and blocks that survive a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

from collectors import make_weights, policy_spec
from mission_gym.data import Block
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.policy import make_numpy_policy
from mission_gym.ray import actors
from mission_gym.ray import collector as cluster_module
from mission_gym.ray.cluster import Cluster, open_cluster
from mission_gym.rollout.blocks import clear_block, pack_block, unpack_block
from mission_gym.rollout.make import CollectRequest, make_collector
from mission_gym.vector.backends import load_backend
from mission_gym.vector.record import Source, VectorOptions
from mission_gym_bench.ray_nodes import SMALL, ray_nodes
from timeouts import LONG_S, wait_until
from toys import seed_of

FACTORY = make_factory(EnvRequest("CartPole-v1"))
SPEC = probe(FACTORY, "CartPole-v1")
WEIGHTS = make_weights(SPEC)
NUM_ENVS = 6


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with ray_nodes(1, 1, 1) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[Cluster]:
    opened = open_cluster(nodes.address)
    yield opened
    opened.close()


@contextmanager
def collecting(
    name: str,
    cluster: Cluster | None = None,
    num_steps: int = 32,
    *,
    num_shards: int = 3,
    first_ready: bool = False,
) -> Iterator[Any]:
    """A collector of a backend with weights, not started, and its block."""
    backend = load_backend(name)
    options = VectorOptions(num_workers=num_shards)
    source = Source("CartPole-v1", FACTORY, options=options, actor_workers=1, cluster=cluster)
    asked = CollectRequest(
        num_envs=2 * num_shards,
        num_steps=num_steps,
        num_blocks=1,
        acting_rows=2,
        seed=5,
        first_ready=first_ready,
        make_policy=partial(make_numpy_policy, policy_spec(SPEC)),
        is_portable=True,
    )
    vec, collector, blocks = make_collector(backend, source, SPEC, seed_of, asked)
    with vec:
        collector.load(WEIGHTS)
        yield collector, blocks[0]


def fill(collector: Any, block: Block, number: int, stop: Callable[[], bool] = lambda: False) -> Any:
    """What a block holds after it was filled from where it stands."""
    collector.fill(block, number, stop)
    return {name: array.copy() for name, array in pack_block(block).items()}, sorted(block.episodes)


def assert_equal(one: Any, other: Any) -> None:
    assert one[0].keys() == other[0].keys()
    for name, array in one[0].items():
        np.testing.assert_array_equal(array, other[0][name], err_msg=name)
    assert one[1] == other[1]


def fill_in_workers(num_blocks: int, **how: Any) -> list[Any]:
    """What blocks of workers here hold."""
    filled = []
    with collecting("workers", **how) as (collector, block):
        collector.start()
        for number in range(num_blocks):
            clear_block(block)
            filled.append(fill(collector, block, number))
    return filled


def test_lock_step_is_that_of_workers_bit_for_bit_and_resumes_exactly(cluster):
    expected = fill_in_workers(4)
    assert sorted(node.num_cpus for node in cluster.nodes()) == [1, 1, 1]
    with collecting("ray", cluster) as (collector, block):
        collector.start()
        for number in range(2):
            clear_block(block)
            assert_equal(fill(collector, block, number), expected[number])
        clear_block(block)
        asked = iter([False, True])
        (begun, _), episodes = fill(collector, block, 2, lambda: next(asked, True)), list(block.episodes)
        assert not collector.interrupted_mid_step
        states = collector.vec.state()
        assert collector.vec.pool.size == 3
        assert collector.metrics()["machine/actors"] == 3
    with collecting("ray", cluster) as (collector, block):
        unpack_block(block, begun)
        block.episodes = episodes
        batch, ways = collector.vec.restore(states)
        assert len(ways) == NUM_ENVS
        collector.continue_from(batch)
        assert_equal(fill(collector, block, 2), expected[2])
        clear_block(block)
        assert_equal(fill(collector, block, 3), expected[3])


def test_shares_go_on_by_themselves_and_never_pile_up(cluster):
    with collecting("ray", cluster, first_ready=True) as (collector, block):
        collector.start()
        for number in range(6):
            clear_block(block)
            assert collector.fill(block, number, lambda: False)
            under_way = [part.num_pending for part in collector._parts]
            assert max(under_way) <= cluster_module.IN_FLIGHT
            assert len(collector._finished) <= cluster_module.IN_FLIGHT * len(under_way)
        assert collector.num_segments.sum() == 6 * NUM_ENVS


@pytest.mark.parametrize("first_ready", [False, True])
def test_a_node_that_is_removed_costs_its_running_segments(nodes, cluster, first_ready):
    with collecting("ray", cluster, 20_000, first_ready=first_ready) as (collector, block):
        collector.start()
        wait_until(lambda: collector.vec.receive(0.1) or collector.vec.pool.count_running()[0] == 3)
        gone: list[Any] = []

        def remove_once() -> bool:
            if not gone:
                gone.append(next(iter(nodes.worker_nodes)))
                nodes.remove_node(gone[0], allow_graceful=False)
                nodes.add_node(num_cpus=1, **SMALL)
            return False

        assert collector.fill(block, 0, remove_once)
        failed = {episode.env_id for episode in block.episodes if episode.failed}
        assert len(failed) == 2
        assert collector.vec.num_restarts == 1
        lost = np.flatnonzero(~block.valid.all(axis=0))
        if first_ready:
            assert not len(lost)
        else:  # a row of each of its columns counts nowhere; the rest was made elsewhere
            assert set(block.env_ids[lost]) == failed
            assert (~block.valid).sum() == 2
        clear_block(block)
        assert collector.fill(block, 1, lambda: False)
        assert block.valid.all()


def test_a_share_without_room_runs_beside_others_and_moves_when_a_node_joins(nodes, cluster, monkeypatch):
    monkeypatch.setattr(actors, "PLACE_S", 0.5)
    expected = fill_in_workers(4, num_shards=4)
    with collecting("ray", cluster, num_shards=4) as (collector, block):
        collector.start()
        assert_equal(fill(collector, block, 0), expected[0])
        assert collector.metrics()["machine/actors_without_cpus"] == 1
        assert any("no node has room for shard" in note for note in collector.take_notes())
        nodes.add_node(num_cpus=1, **SMALL)
        monkeypatch.setattr(actors, "PLACE_S", LONG_S)  # its process may start slowly there
        wait_until(lambda: collector.vec.receive(0.1) or collector.vec.pool.find_room())
        for number in range(1, 4):
            clear_block(block)
            assert_equal(fill(collector, block, number), expected[number])
        assert collector.metrics()["machine/actors_without_cpus"] == 0
