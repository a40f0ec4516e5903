"""A share of the environments on a node of a cluster: our workers there, and the collector that drives them.

It lives in a process of the cluster's, an actor. In: orders, one for each segment of all its columns. Out: a
report with these columns, packed. Nothing here knows of the engine that carries them. Environments have
numbers of their own here; seeds, noise and what is told are those of the whole vector.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mission_gym.data import Array, Block, Episode, Leaves, Weights
from mission_gym.env.resume import SlotState
from mission_gym.ray.cluster import node_versions
from mission_gym.ray.vector import Beginning, Begun
from mission_gym.rollout.blocks import clear_block, pack_block, unpack_block
from mission_gym.rollout.remote import RemoteCollector
from mission_gym.vector.base import SeedOf
from mission_gym.vector.workers import WorkersVec


@dataclass(slots=True)
class ShiftedSeeds:
    """The seeds of environments that have the numbers from `first` on elsewhere."""

    first: int
    seed_of: SeedOf

    def __call__(self, env_id: int, episode: int) -> int | None:
        return self.seed_of(self.first + env_id, episode)


MakeShare = Callable[[ShiftedSeeds], tuple[WorkersVec, RemoteCollector]]


class ShareOrder(NamedTuple):
    """The segment that a share is to make, or to go on with."""

    serial: int  # by which it may be paused
    number: int  # of its noise
    num_steps: int
    edition: int  # of the weights
    stage: int | None = None  # of the curriculum, in which episodes begin
    begun: dict[str, Array] | None = None  # what there is of it, packed
    memory: Leaves | None = None  # the policy's running state, where it is not the share's own


class ShareReport(NamedTuple):
    """A segment, as far as it came."""

    serial: int
    columns: dict[str, Array]  # packed; environments have the numbers of the whole vector
    episodes: list[Episode]
    memory: Leaves
    abandoned: dict[int, str]  # environments that nobody could wait for, and why
    num_restarts: int  # of workers, so far
    act_s: float
    env_s: float
    cpu_s: float
    wall_s: float


class Share:
    """The environments from `first` on. `begin` comes first, then orders, one after the other; `pause` may
    come at any time, from another thread."""

    def __init__(self, first: int, make: MakeShare) -> None:
        self._first, self._make = first, make
        self._paused = -1  # orders up to this one end after their running step
        self._edition: int | None = None
        self._vec: WorkersVec | None = None

    def greet(self) -> dict[str, str]:
        """The versions that it computes with, once there is a process for it."""
        return node_versions()

    def begin(self, beginning: Beginning) -> Begun:
        """Build the environments, unless they are there, and begin or restore their episodes."""
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

    def collect(self, weights: Weights, order: ShareOrder) -> ShareReport:
        """Make a segment. It ends early where it is paused."""
        collector, vec = self._collector, self._vec
        assert vec is not None
        begun_at = time.perf_counter()
        if order.edition != self._edition:
            collector.policy.load(weights)
            self._edition = order.edition
        block = collector.blocks[0]
        if order.num_steps < block.num_steps:
            block = collector.make_short(order.num_steps)
        clear_block(block)
        if order.begun is not None:
            unpack_block(block, _shift(order.begun, -self._first))
        for mine, given in zip(collector.memory, order.memory or (), strict=False):
            mine[...] = given
        if order.stage is not None:
            vec.enter_stage(order.stage)
        collector.fill(block, order.number, lambda: order.serial <= self._paused)
        seconds = collector.clock.take().seconds
        return ShareReport(
            order.serial,
            _shift(pack_block(block), self._first),
            [episode._replace(env_id=episode.env_id + self._first) for episode in block.episodes],
            tuple(array.copy() for array in collector.memory),
            {self._first + env_id: why for env_id, why in vec.abandoned.items()},
            vec.crew.num_restarts,
            act_s=seconds.get(("collector", "act"), 0.0),
            env_s=seconds.get(("collector", "env"), 0.0),
            cpu_s=seconds.get(("collector", "cpu"), 0.0),
            wall_s=time.perf_counter() - begun_at,
        )

    def pause(self, serial: int) -> None:
        """End the order of this number, and those before it, after the running step."""
        self._paused = serial

    def state(self) -> list[SlotState]:
        """Of all its environments, between two orders."""
        assert self._vec is not None
        return self._vec.state()

    def close(self) -> list[str]:
        """End the workers; returns what went wrong."""
        if self._vec is None:
            return []
        self._vec.close()
        return list(self._vec.statistics()["close_errors"])


def _shift(columns: dict[str, Array], by: int) -> dict[str, Array]:
    """The same columns with other numbers of the environments."""
    return columns | {"block/env_ids": columns["block/env_ids"] + by}


def unpack_report(report: ShareReport, into: Block) -> None:
    """Put a report's columns into the segment of as many, with their lists."""
    into.finals = []
    unpack_block(into, report.columns)
    into.episodes += report.episodes
