"""The overlapped loop: equal to a loop written out by hand, and clean when either side ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mission_gym.algorithms.ppo.learner import PpoLearner
from mission_gym.config.rules import apply_rules
from mission_gym.data import Array, Block, Progress
from mission_gym.errors import NotFiniteError, WorkerDied
from mission_gym.learner import loop
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.build import make_collector, make_learner, one_blas_thread
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import settle
from mission_gym.streams import TrainingSeeds
from timeouts import LONG_S

T, S, UPDATES = 16, 4, 5
SMALL = {
    "n_envs": S, "n_steps_per_env": T, "batch_size": 16, "n_epochs": 2, "timesteps": T * S * UPDATES,
    "network_arch": "16", "seed": 3, "overlap": "on",
}  # fmt: skip
BACKENDS: dict[str, dict[str, Any]] = {
    "serial": {"vector": "serial"},
    "workers": {"vector": "workers", "num_workers": 2},
    "threads": {"vector": "threads"},
}


@dataclass
class Parts:
    """What a loop is given."""

    collector: BlockCollector
    learner: PpoLearner
    blocks: list[Block]

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        return loop.run_overlapping(self.collector, self.learner, self.blocks, T * S * UPDATES, stop)


@contextmanager
def parts(env: str = "CartPole-v1", **flags: Any) -> Iterator[Parts]:
    resolved, _ = apply_rules(resolve(env, SMALL | {"vector": "serial"} | flags))
    environment = open_environment(resolved.config, {})
    config = settle(resolved, environment)[0].settled
    seeds = TrainingSeeds(config.run.seed)
    vec, collector, blocks = make_collector(config, environment, seeds)
    with vec, one_blas_thread():
        learner = make_learner(config, environment.spec)
        collector.start()
        yield Parts(collector, learner, blocks)


def bits(learner: PpoLearner) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in learner.arrays().items()}


def collector_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "collector"]


def copy_of(block: Block) -> dict[str, Array]:
    return {f"obs{i}": leaf.copy() for i, leaf in enumerate(block.obs)} | {
        name: getattr(block, name).copy() for name in ("action", "log_prob", "reward", "version")
    }


@pytest.fixture(scope="module")
def by_hand() -> tuple[list[dict[str, float]], dict[str, bytes]]:
    """Rows and last state of the loop without threads: collect with weights k, then make update k."""
    rows = []
    with parts(acting_rows=2) as made:
        collector, learner, (ready, spare) = made.collector, made.learner, made.blocks
        collector.load(learner.weights())
        collector.fill(ready, 0, lambda: False)
        for k in range(UPDATES):
            collector.load(learner.weights())
            if k + 1 < UPDATES:
                collector.fill(spare, k + 1, lambda: False)
            stats = learner.update(ready)
            assert stats is not None
            rows.append(stats.metrics | {"step": learner.step})
            clear_block(ready)
            ready, spare = spare, ready
        return rows, bits(learner)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_collecting_with_weights_k_and_then_update_k(
    backend: str, by_hand: tuple[list[dict[str, float]], dict[str, bytes]]
) -> None:
    with parts(**BACKENDS[backend], acting_rows=2) as made:
        rows = [progress.metrics | {"step": progress.step} for progress in made.run()]
        assert (rows, bits(made.learner)) == by_hand
    assert [row["train/lag"] for row in rows] == [0, 1, 1, 1, 1]
    assert [row["train/lag_gradient_steps"] for row in rows] == [0, 8, 8, 8, 8]
    assert rows[0]["train/importance_mean"] == 1.0
    assert all(0.5 < row["train/importance_mean"] < 1.0 for row in rows[1:])


def test_one_block_makes_the_synchronous_loop() -> None:
    with parts(overlap="off") as made:
        assert len(made.blocks) == 1
        rows = [
            progress.metrics
            for progress in loop.run(
                made.collector, made.learner, made.blocks, T * S * UPDATES, lambda: False
            )
        ]
    assert {row["train/lag"] for row in rows} == {0.0}
    assert {row["train/importance_mean"] for row in rows} == {1.0}


def test_collecting_and_learning_run_at_the_same_time() -> None:
    """Each side waits for the other to be at work: one after the other would never end."""
    with parts() as made:
        meeting = threading.Barrier(2, timeout=LONG_S)
        fill, update = made.collector.fill, made.learner.update

        def meeting_fill(block: Block, number: int, stop: Callable[[], bool]) -> bool:
            if number:
                meeting.wait()
            return fill(block, number, stop)

        def meeting_update(block: Block, stop: Callable[[], bool]) -> Any:
            if made.learner.version < UPDATES - 1:
                meeting.wait()
            return update(block, stop)

        made.collector.fill = meeting_fill  # type: ignore[method-assign]
        made.learner.update = meeting_update  # type: ignore[method-assign, assignment]
        assert len(list(made.run())) == UPDATES


@pytest.mark.parametrize(
    ("backend", "slow_side"),
    [("serial", "collector"), ("serial", "learner"), ("workers", "learner"), ("threads", "learner")],
)
def test_a_stop_leaves_the_state_before_the_update(
    backend: str, slow_side: str, by_hand: tuple[list[dict[str, float]], dict[str, bytes]]
) -> None:
    """Whichever side sees the stop first: the learner, the full block and the part of the next one."""
    with parts(**BACKENDS[backend], acting_rows=2) as made:
        asked = threading.Event()
        updates = made.run(asked.is_set)
        next(updates)
        before, ready = bits(made.learner), copy_of(made.blocks[0])
        fill, update = made.collector.fill, made.learner.update

        def late_fill(block: Block, number: int, stop: Callable[[], bool]) -> bool:
            asked.wait(LONG_S)
            return fill(block, number, stop)

        def asking_update(block: Block, stop: Callable[[], bool]) -> Any:
            if slow_side == "learner":
                asked.set()
            stats = update(block, stop)
            asked.set()
            return stats

        if slow_side == "collector":
            made.collector.fill = late_fill  # type: ignore[method-assign]
        made.learner.update = asking_update  # type: ignore[method-assign, assignment]
        assert list(updates) == []
        assert bits(made.learner) == before
        for name, array in copy_of(made.blocks[0]).items():
            np.testing.assert_array_equal(array, ready[name], err_msg=name)
        assert made.blocks[0].is_full
        assert not made.collector.interrupted_mid_step
        # It goes on as if it had not been stopped.
        made.collector.fill, made.learner.update = fill, update  # type: ignore[method-assign]
        assert [progress.update for progress in made.run()] == [2, 3, 4, 5]
        assert bits(made.learner) == by_hand[1]


def test_a_failing_learner_stops_the_collector_first() -> None:
    with parts() as made:
        updates = made.run()
        next(updates)
        made.blocks[0].reward[3, 1] = np.nan
        with pytest.raises(NotFiniteError, match="reward of environment 1 is nan at step 3 of update 1"):
            next(updates)
        assert not collector_threads()
        assert not made.collector.interrupted_mid_step
        assert made.learner.version == 1


@pytest.mark.parametrize("first", ["collector", "learner"])
def test_a_failing_collector_puts_the_learner_back(first: str) -> None:
    """Also where the update was already made: its block is still there to be learned from again."""
    with parts() as made:
        updates = made.run()
        next(updates)
        before = bits(made.learner)
        step, update = made.collector.vec.step, made.learner.update
        done = threading.Event()

        def broken_step(actions: Array) -> Any:
            if (made.blocks[1].filled == 5).all():
                assert first == "collector" or done.wait(LONG_S)
                raise WorkerDied("the machine caught fire")
            return step(actions)

        def telling_update(block: Block, stop: Callable[[], bool]) -> Any:
            stats = update(block, stop)
            done.set()
            return stats

        made.collector.vec.step = broken_step
        made.learner.update = telling_update  # type: ignore[method-assign, assignment]
        with pytest.raises(WorkerDied, match="caught fire"):
            next(updates)
        assert bits(made.learner) == before
        assert [block.filled.tolist() for block in made.blocks] == [[T] * S, [5] * S]
        assert made.collector.interrupted_mid_step


def test_the_caller_may_leave_between_updates() -> None:
    with parts(**BACKENDS["workers"]) as made:
        updates = made.run()
        next(updates)
        updates.close()  # type: ignore[attr-defined]
        assert not collector_threads()
        assert [block.filled.tolist() for block in made.blocks] == [[T] * S, [0] * S]
