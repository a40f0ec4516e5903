"""Collecting inside a worker process: it acts for its own rows and fills its part of a shared block.

In: weights and a block number. Out: reports of the rows that are done, with their episodes and final
observations, a few times a second, so that the death of the process costs almost nothing; then the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mission_gym.data import Array, Block, EnvSpec, Episode, Leaves, StepBatch, Weights
from mission_gym.policy import PolicySpec, make_numpy_policy
from mission_gym.procs import Link
from mission_gym.rollout.collector import Collector, make_block, part_of
from mission_gym.vector.rows import Allocate, split_parts
from mission_gym.vector.threaded import ThreadedVec
from mission_gym.vector.worker import Service, WorkerSetup, serve

REPORT_S = 0.1


@dataclass(frozen=True, slots=True)
class CollectSetup:
    """What a collecting worker needs beside its rows."""

    policy: PolicySpec
    seed: int
    acting_rows: int
    num_steps: int
    num_blocks: int = 1


class Shared(NamedTuple):
    """What a collecting worker and its parent have in common, behind the board."""

    blocks: tuple[Block, ...]
    weights: dict[str, Array]  # of the block under way, copied by workers before they begin


def carve_shared(spec: EnvSpec, setup: CollectSetup, num_envs: int) -> Callable[[Allocate], Shared]:
    """How the shared memory is laid out, alike on both sides."""

    def carve(allocate: Allocate) -> Shared:
        blocks = [make_block(spec, setup.num_steps, num_envs, allocate) for _ in range(setup.num_blocks)]
        shapes = make_numpy_policy(setup.policy).shapes()
        weights = {name: allocate(shape, dtype) for name, (shape, dtype) in shapes.items()}
        return Shared(tuple(blocks), weights)

    return carve


class Report(NamedTuple):
    """What is new of a part: rows of T below `filled` are done; places in `final_at` are the part's own. The
    last one of a worker has `done`, and the seconds of all its parts."""

    filled: int
    episodes: list[Episode]
    final_at: list[tuple[int, int]]
    final_obs: list[Leaves]
    final_mask: list[Array]
    part: int = 0
    done: bool = False
    act_s: float = 0.0
    env_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0  # of all threads


class CollectService(Service):
    """A worker that also collects: all its rows together, or with threads each acting group on its own."""

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        super().__init__(link, setup)
        extra: CollectSetup = setup.extra
        self._blocks, self._shared = carve_shared(setup.spec, extra, setup.num_envs)(self.carver)
        self._edition = 0  # of the weights that the policies hold
        count = setup.last - setup.first
        self._parts = split_parts(count, extra.acting_rows, threads=setup.threads)
        self._pool = ThreadPoolExecutor(len(self._parts)) if len(self._parts) > 1 else None
        self._collectors = [
            Collector(
                self.vec.part(rows[0], rows[-1] + 1) if isinstance(self.vec, ThreadedVec) else self.vec,
                make_numpy_policy(extra.policy),
                setup.spec,
                extra.seed,
                extra.acting_rows,
                first_row=setup.first + rows[0],
            )
            for rows in self._parts
        ]

    def collect(
        self, version: int, edition: int, number: int, place: int, filled: list[int], num_steps: int
    ) -> Report:
        """Fill rows `filled`, a number for each part, to `num_steps` of this worker's columns of the block at
        `place`, or up to where the parent asks to stop. Shared weights of a new edition are copied first."""
        start, cpu_before = time.perf_counter(), time.process_time()
        first, whole = self.setup.first, self._blocks[place]
        blocks = [part_of(whole, num_steps, first + rows[0], first + rows[-1] + 1) for rows in self._parts]
        self.go_on()
        if edition != self._edition:
            weights = Weights(version, {name: array.copy() for name, array in self._shared.items()})
            for collector in self._collectors:
                collector.policy.load(weights)
            self._edition = edition
        for block, done in zip(blocks, filled, strict=True):
            block.filled = done
        meeting = _Meeting(self.link, self.board.pause, blocks)

        def fill(place: int) -> None:
            try:
                self._collectors[place].fill(blocks[place], number, lambda: meeting.is_over(place))
            finally:
                meeting.leave(place)

        if self._pool is None:
            fill(0)
        else:
            list(self._pool.map(fill, range(len(blocks))))
        for part, block in enumerate(blocks[1:], 1):
            self.link.send(("report", take_report(block, part)))
        seconds = [collector.clock.take().seconds for collector in self._collectors]
        return take_report(blocks[0])._replace(
            done=True,
            act_s=sum(each["collector", "act"] for each in seconds) / len(seconds),
            env_s=sum(each["collector", "env"] for each in seconds) / len(seconds),
            wall_s=time.perf_counter() - start,
            cpu_s=time.process_time() - cpu_before,
        )

    def go_on(self) -> None:
        """Hand on what the rows show after a reset or a restore."""
        if self.shown is not None:
            for collector, rows in zip(self._collectors, self._parts, strict=True):
                collector.go_on(_rows_of(self.shown, rows))
        self.shown = None


class _Meeting:
    """Brings the parts of a worker, and through the parent all workers, to the same row when a stop is
    asked for; reports the rows of each part, from its own thread."""

    def __init__(self, link: Link, pause: Array, blocks: list[Block]) -> None:
        self._link, self._pause, self._blocks = link, pause, blocks
        self._changed = threading.Condition()
        self._at_work = set(range(len(blocks)))
        self._waiting: set[int] = set()
        self._limit: int | None = None
        self._reported = [time.monotonic()] * len(blocks)

    def is_over(self, place: int) -> bool:
        """Whether a part has come to the row where all stop."""
        block = self._blocks[place]
        now = time.monotonic()
        if now - self._reported[place] >= REPORT_S:
            self._reported[place] = now
            self._link.send(("report", take_report(block, place)))
        if self._limit is None and self._pause[0]:
            with self._changed:
                self._waiting.add(place)
                self._agree()
                self._changed.wait_for(lambda: self._limit is not None)
        return self._limit is not None and block.filled >= self._limit

    def leave(self, place: int) -> None:
        """A part is through with its block."""
        with self._changed:
            self._at_work.discard(place)
            self._agree()

    def _agree(self) -> None:
        """Once all that are at work wait, ask the parent how far to go."""
        if self._limit is None and self._waiting and self._waiting >= self._at_work:
            self._link.send(("paused", max(block.filled for block in self._blocks)))
            _, self._limit = self._link.recv()
            self._changed.notify_all()


def _rows_of(batch: StepBatch, rows: range) -> StepBatch:
    """What some rows of a batch show."""
    cut = slice(rows[0], rows[-1] + 1)
    mask = None if batch.mask is None else batch.mask[cut]
    return replace(batch, obs=tuple(leaf[cut] for leaf in batch.obs), mask=mask)


def take_report(block: Block, part: int = 0) -> Report:
    """What is new in the block of a part since the last report."""
    report = Report(block.filled, block.episodes, block.final_at, block.final_obs, block.final_mask, part)
    block.episodes, block.final_at, block.final_obs, block.final_mask = [], [], [], []
    return report


def serve_collecting(link: Link, setup: Any) -> None:
    """What a collecting worker process runs."""
    serve(link, setup, CollectService)
