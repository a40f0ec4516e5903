"""The actor's side of a cluster: the workers of a shard of the environments, and their collector.

A shard lives in an actor process on some node. It receives orders, one per segment of all its columns, and
returns reports with these columns, packed. Nothing here depends on Ray. Environments are numbered from 0
here; seeds, noise and reports use the numbers of the whole vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mission_gym.data import Array, Block, Episode, Leaves, Weights
from mission_gym.env.resume import SlotState
from mission_gym.ray.cluster import node_versions
from mission_gym.rollout.blocks import clear_block, pack_block, unpack_block
from mission_gym.rollout.remote import WorkerCollector
from mission_gym.rollout.worker import SegmentTime
from mission_gym.vector.base import SeedOf
from mission_gym.vector.workers import WorkersVec


@dataclass(slots=True)
class ShiftedSeeds:
    """The seeds of environments whose numbers in the whole vector begin with `first`."""

    first: int
    seed_of: SeedOf

    def __call__(self, env_id: int, episode: int) -> int | None:
        return self.seed_of(self.first + env_id, episode)


MakeShard = Callable[[ShiftedSeeds], tuple[WorkersVec, WorkerCollector]]


class Beginning(NamedTuple):
    """How the episodes of a shard begin: from these states, or new ones."""

    seed_of: SeedOf
    states: Sequence[SlotState] | None = None
    budget_s: float = 0.0  # for replays


class Begun(NamedTuple):
    """The reply of a shard whose episodes have begun."""

    ways: list[str]  # how each environment was restored, if it was
    numbers: list[int]  # of the episodes


class ShardOrder(NamedTuple):
    """The segment that a shard should fill or continue."""

    serial: int  # orders up to a serial number can be paused
    number: int  # of its noise
    num_steps: int
    weights_serial: int
    stage: int | None = None  # of the curriculum, for episodes that begin
    begun: dict[str, Array] | None = None  # the segment so far, packed
    memory: Leaves | None = None  # the policy's running state, if the shard does not have it


class ShardReport(NamedTuple):
    """A segment as far as it was filled."""

    columns: dict[str, Array]  # packed; environments have the numbers of the whole vector
    episodes: list[Episode]
    memory: Leaves
    abandoned: dict[int, str]  # environments whose step was not waited for, and why
    num_restarts: int  # of workers so far
    time: SegmentTime
    part: int = 0  # a shard has one part


class Shard:
    """The environments from `first` on. `begin` comes first, then orders one after the other. `pause` can be
    called at any time, from another thread."""

    def __init__(self, first: int, make: MakeShard) -> None:
        self._first, self._make = first, make
        self._paused = -1  # orders up to this one end after their current step
        self._weights_serial: int | None = None
        self._vec: WorkersVec | None = None

    def greet(self) -> dict[str, str]:
        """The versions on this node; a reply shows that the actor has a process."""
        return node_versions()

    def begin(self, beginning: Beginning) -> Begun:
        """Build the environments on the first call, and begin or restore their episodes."""
        if self._vec is None:
            self._seeds = ShiftedSeeds(self._first, beginning.seed_of)
            self._vec, self._collector = self._make(self._seeds)
        self._seeds.seed_of = beginning.seed_of
        ways: list[str] = []
        if beginning.states is None:
            self._collector.start()
        else:
            _, ways = self._vec.restore(beginning.states, beginning.budget_s)
        return Begun(ways, self._vec.episode_numbers())

    def collect(self, weights: Weights, order: ShardOrder) -> ShardReport:
        """Fill a segment. It ends early if it is paused."""
        collector, vec = self._collector, self._vec
        assert vec is not None
        start = time.perf_counter()
        if order.weights_serial != self._weights_serial:
            collector.load(weights)
            self._weights_serial = order.weights_serial
        block = collector.blocks[0]
        if order.num_steps < block.num_steps:
            block = collector.make_short(order.num_steps)
        clear_block(block)
        if order.begun is not None:
            unpack_block(block, _shift(order.begun, -self._first))
        for own, given in zip(collector.memory, order.memory or (), strict=False):
            own[...] = given
        if order.stage is not None:
            vec.enter_stage(order.stage)
        collector.fill(block, order.number, lambda: order.serial <= self._paused)
        seconds = collector.clock.take().seconds
        act_s, env_s, cpu_s = (seconds.get(("collector", phase), 0.0) for phase in ("act", "env", "cpu"))
        return ShardReport(
            _shift(pack_block(block), self._first),
            [episode._replace(env_id=episode.env_id + self._first) for episode in block.episodes],
            tuple(array.copy() for array in collector.memory),
            {self._first + env_id: why for env_id, why in vec.abandoned.items()},
            vec.pool.num_restarts,
            SegmentTime(act_s, env_s, time.perf_counter() - start, cpu_s),
        )

    def pause(self, serial: int) -> None:
        """End the order with this serial number, and earlier ones, after the current step."""
        self._paused = serial

    def state(self) -> list[SlotState]:
        """The states of all environments, between two orders."""
        assert self._vec is not None
        return self._vec.state()

    def close(self) -> list[str]:
        """End the workers; returns what went wrong."""
        if self._vec is None:
            return []
        self._vec.close()
        return self._vec.close_errors


def _shift(columns: dict[str, Array], by: int) -> dict[str, Array]:
    """The same columns with other numbers of the environments."""
    return columns | {"block/env_ids": columns["block/env_ids"] + by}


def unpack_report(report: ShardReport, segment: Block) -> None:
    """Write a report's columns, finals and episodes to a segment of the same size."""
    segment.finals = []
    unpack_block(segment, report.columns)
    segment.episodes += report.episodes
