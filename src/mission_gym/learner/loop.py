"""The training loops: collect a block, learn from it, report; one after the other, or overlapping.

Blocks and the fill counts of their columns are part of a loop's state. A stop request leaves a block partly
filled, each segment as far as it got, or an update not started. A checkpoint of that state resumes exactly
there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager

from mission_gym.data import Block, Phases, Progress, UpdateStats
from mission_gym.learner.contract import Learner
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import BlockCollector

_LEAVE_S = 3.0  # how long a second Ctrl-C waits for a collector that does not stop


def run(
    collector: BlockCollector,
    learner: Learner,
    blocks: list[Block],
    total_steps: int,
    stop: Callable[[], bool],
) -> Iterator[Progress]:
    """Yield one Progress per update until `total_steps` are learned from, or `stop` returns True."""
    (block,) = blocks
    while learner.step < total_steps:
        with collector.clock.phase("collect"):
            collector.load(learner.weights())
            if not collector.fill(block, learner.version, stop):
                return
        with learner.clock.phase("update"):
            stats = learner.update(block, stop)
            if stats is None:
                return
        yield make_progress(learner, block, stats, collector.clock.take() | learner.clock.take())


def make_progress(learner: Learner, block: Block, stats: UpdateStats, phases: Phases) -> Progress:
    """The report of an update; its block is cleared for the next one."""
    num_cut = learner.encoder.count_cut(tuple(leaf[: block.num_steps] for leaf in block.obs))
    episodes = block.episodes
    clear_block(block)
    return Progress(
        step=learner.step,
        update=learner.version,
        gradient_steps=learner.gradient_steps,
        metrics=stats.metrics,
        episodes=episodes,
        phases=phases,
        num_cut=num_cut,
    )


def current_block(blocks: Sequence[Block]) -> Block:
    """The block that is being filled: the first one that is not full, else the last one."""
    return next((block for block in blocks[:-1] if not block.is_full), blocks[-1])


class StopFlag:
    """A stop request that the loop polls: set by a signal, never cleared."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self) -> bool:
        return self.reason is not None


def run_overlapping(
    collector: BlockCollector,
    learner: Learner,
    blocks: list[Block],
    total_steps: int,
    stop: Callable[[], bool],
) -> Iterator[Progress]:
    """As `run`, with two blocks, the one to learn from first: block k + 1 is collected with weights k during
    update k, then both sides wait and the blocks are swapped.

    This lock-step makes a block lag by exactly one update (the first by none), so equal runs are equal. A
    stop request, or an error on either side, ends both and leaves the state before update k: the learner as
    it was, the full block k, and the filled part of block k + 1.
    """
    while learner.step < total_steps:
        ready, spare = blocks
        if not ready.is_full:  # at the start, when there is nothing to learn from yet
            collector.load(learner.previous_weights() or learner.weights())
            with collector.clock.phase("collect"):
                if not collector.fill(ready, learner.version, stop):
                    return
        collector.load(learner.weights())
        is_last = learner.step + ready.reward.size >= total_steps
        with _filling(collector, None if is_last else spare, learner.version + 1, stop) as filling:
            with learner.clock.phase("update"):
                stats = learner.update(ready, lambda: stop() or _has_failed(filling))
            wait([filling])
        is_full = not _has_failed(filling) and filling.result()
        if stats is None or not (is_full or learner.keeps_updates):
            if stats is not None:
                learner.undo()  # block k + 1 is not full, and only weights k may continue it
            filling.result()  # raises the error that ended the collecting
            return
        blocks.reverse()  # a partly filled block k + 1 continues with the previous weights
        yield make_progress(learner, ready, stats, collector.clock.take() | learner.clock.take())
        filling.result()


@contextmanager
def _filling(
    collector: BlockCollector, block: Block | None, number: int, stop: Callable[[], bool]
) -> Iterator[Future[bool]]:
    """Fill the block, if there is one, in a thread while the body runs. An error in the body stops it
    first."""
    filling: Future[bool] = Future()
    halted = threading.Event()

    def fill() -> None:
        assert block is not None
        try:
            with collector.clock.phase("collect"):
                is_full = collector.fill(block, number, lambda: halted.is_set() or stop())
        except BaseException as error:  # noqa: BLE001  border: a thread; raised by `filling.result()`
            filling.set_exception(error)
        else:
            filling.set_result(is_full)

    if block is None:
        filling.set_result(True)
        yield filling
        return
    thread = threading.Thread(target=fill, name="collector", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system refuses a thread: the block is filled before the update
        fill()
        yield filling
        return
    try:
        yield filling
    except BaseException as error:
        halted.set()
        thread.join(None if isinstance(error, Exception) else _LEAVE_S)
        raise
    thread.join()


def _has_failed(filling: Future[bool]) -> bool:
    return filling.done() and filling.exception() is not None
