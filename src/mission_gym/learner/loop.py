"""The synchronous training loop: collect a block, learn from it, report.

Blocks and the fill counts of their columns are part of the loop's state. A stop request leaves a block partly
filled, each segment as far as it got, or an update not started. A checkpoint of that state resumes exactly
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mission_gym.data import Block, Phases, Progress, UpdateStats
from mission_gym.learner.contract import Learner
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import BlockCollector


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


def newest(blocks: Sequence[Block]) -> Block:
    """The block that is being filled: the first one that is not full, else the last one."""
    return next((block for block in blocks[:-1] if not block.is_full), blocks[-1])


class StopFlag:
    """A stop request that the loop polls: set by a signal, never cleared."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __call__(self) -> bool:
        return self.reason is not None
