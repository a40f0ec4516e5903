"""Collectors whose segments are filled elsewhere, by worker processes or on the nodes of a cluster.

Every part of the environments fills one segment after the other, at its own pace. Blocks take them in one of
two ways:

- all: a segment of every part, in place. The contents equal those of a serial Collector, bit for bit, because
  the noise and the batch of an acting group do not depend on its process.
- first_ready: the first columns that are finished. A part begins its next segment, with the newest weights,
  when its columns are in blocks. A slow one delays only itself: its segment continues over the updates.

The steps in reports are kept. The death of a worker costs its parts the steps since then, and another one
continues. A stop ends each segment after its current step; one that takes longer than STOP_S is emptied.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from mission_gym.data import Block, EnvSpec, Leaves, Weights
from mission_gym.rollout import collector
from mission_gym.rollout.blocks import (
    clear_columns,
    copy_columns,
    lose_segment,
    make_block,
    move_episodes,
    slice_block,
    sort_episodes,
    sort_finals,
)
from mission_gym.rollout.collector import POLL_S, BlockCollector, explain_abandoned
from mission_gym.rollout.worker import SegmentOrder, SegmentReport, SegmentTime, SharedRollout
from mission_gym.vector.pool import LostReply, Notice
from mission_gym.vector.workers import WorkersVec, failed_episode


@dataclass(slots=True, eq=False)
class RemotePart:
    """Environments that are stepped together elsewhere, and the segment that they fill."""

    owner: int  # the worker or actor that has them
    env_ids: range
    columns: slice  # in a block of all environments
    segment: Block | None = None  # the columns being filled, with their own finals and episodes
    num_pending: int = 0  # orders under way


P = TypeVar("P", bound=RemotePart)


class RemoteCollector(BlockCollector, Generic[P]):
    """A collector that orders segments and receives reports.

    parts: of each owner. blocks: those that it can fill. Reports name their `part` of the owner, have
    `episodes`, and the `time` of an order that is done.
    """

    blocks: Sequence[Block]
    transfer_s = 0.0  # additional time, after a stop, for the last reports to arrive

    def __init__(
        self,
        vec: Any,
        spec: EnvSpec,
        parts: list[list[P]],
        memory: Leaves,
        initial: Leaves,
        *,
        first_ready: bool,
    ) -> None:
        super().__init__(memory, initial)
        self.vec, self.spec = vec, spec
        self.num_segments = np.zeros(vec.num_envs, np.int64)  # in first-ready blocks so far, by environment
        self._by_owner, self._parts = parts, [part for own in parts for part in own]
        self._weights: Weights | None = None
        self._serial = 0  # counts the weights: different ones may have the same version
        self._first_ready = first_ready
        self._finished: deque[tuple[P, Block]] = deque()  # segments in the order in which they finished
        self._num_taken = 0  # columns of the first of them that are in a block
        self._metrics_at = time.monotonic()
        if first_ready:
            # Environments are never all between two steps, so a checkpoint stores only their episode numbers.
            reason = "segments of first-ready blocks were under way"
            vec.abandoned = dict.fromkeys(range(vec.num_envs), reason)

    @abstractmethod
    def _prepare(self, block: Block, number: int) -> None:
        """Make the newest weights available before a block is filled."""

    @abstractmethod
    def _order(self, block: Block, number: int) -> None:
        """Order a segment from every idle part that has one to fill."""

    @abstractmethod
    def _receive(self) -> list[tuple[int, Any]]:
        """Wait a moment for reports, with their owners; LostReply for an owner that was replaced."""

    @abstractmethod
    def _add(self, part: P, report: Any) -> None:
        """Add a report to its segment."""

    @abstractmethod
    def _pause(self) -> None:
        """Stop every segment after its current step."""

    def _release(self, owner: int) -> list[tuple[P, bool]]:
        """Reset the parts of an owner that was replaced; returns whether each was working."""
        released = [(part, part.num_pending > 0) for part in self._by_owner[owner]]
        for part, _ in released:
            part.num_pending = 0
            self.reset_memory(part.columns)
        return released

    def _count(self, owner: int, report: Any) -> P:
        """Count the episodes of a report, and its order if it is done; returns its part."""
        part: P = self._by_owner[owner][report.part]
        self.vec.count(report.episodes)
        part.num_pending -= report.time is not None
        return part

    def _is_working(self) -> bool:
        return any(part.num_pending for part in self._parts)

    def load(self, weights: Weights) -> None:
        if weights is not self._weights:
            self._weights, self._serial = weights, self._serial + 1

    def start(self) -> None:
        self._halt()
        self.vec.reset()
        self.reset_memory(slice(None))
        self.num_segments[:] = 0

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """After a stop each segment of `all` has its own fill count; if a step takes too long, its segment is
        emptied and its episodes are abandoned. `first_ready` keeps the finished columns, and the segments
        under way continue."""
        assert self._weights is not None, "load weights first"
        if not self._first_ready:
            self._halt()  # segments that an earlier stop gave up may still be under way
            self.vec.abandoned = {}
            self.interrupted_mid_step = True
            block.version[:] = self._weights.version
            for part in self._parts:
                part.segment = slice_block(block, block.num_steps, part.columns)
        self._prepare(block, number)
        stopped_at: float | None = None
        waited_s, times = 0.0, list[SegmentTime]()
        while not block.is_full:
            if stopped_at is None:
                self._order(block, number)
                if self._finished:
                    self._take(block)
                    continue
                if stop():
                    stopped_at = time.monotonic()
                    if self._first_ready:
                        break
                    self._pause()
            elif time.monotonic() - stopped_at > collector.STOP_S + self.transfer_s:
                self._give_up(block)
                break
            if not self._first_ready and not self._is_working():
                break
            before = time.perf_counter()
            received = self._receive()
            waited_s += time.perf_counter() - before
            for owner, report in received:
                if isinstance(report, LostReply):
                    self._lose(owner, block)
                else:
                    self._add(self._count(owner, report), report)
                    times += [] if report.time is None else [report.time]
        if not self._first_ready:
            for part in self._parts:
                if part.segment is not None:
                    move_episodes(part.segment, slice(0, part.segment.num_columns), block, part.columns.start)
            sort_finals(block)
            sort_episodes(block)
        self.interrupted_mid_step = False
        self._filling_s += waited_s
        self.clock.add("lost", self._take_lost_s())
        self._count_time(times, waited_s)
        return block.is_full

    def _take(self, block: Block) -> None:
        """Copy the columns of the segment that finished first into the block, as far as there is room."""
        _, segment = self._finished[0]
        first = int((block.filled == block.num_steps).sum())
        last = min(self._num_taken + block.num_columns - first, segment.num_columns)
        columns = slice(self._num_taken, last)
        copy_columns(segment, columns, block, first)
        move_episodes(segment, columns, block, first)
        sort_finals(block)
        self.num_segments[segment.env_ids[columns]] += 1
        self._num_taken = last
        if last == segment.num_columns:
            self._finished.popleft()
            self._num_taken = 0

    def _lose(self, owner: int, block: Block) -> None:
        """Continue after a worker or actor was replaced: transitions under way are lost, episodes failed."""
        numbers = self.vec.episode_numbers()
        for part, under_way in self._release(owner):
            failed = [failed_episode(env_id, numbers[env_id] - 1) for env_id in part.env_ids]
            if part.segment is None:
                block.episodes += failed
                continue
            part.segment.episodes += failed
            state = tuple(array[part.columns] for array in self._initial)
            lose_segment(part.segment, state, under_way=under_way)
            if under_way and part.segment.is_full and self._first_ready:
                self._finished.append((part, part.segment))

    def _give_up(self, block: Block) -> None:
        """Empty the segments whose step does not end; their reports are dropped later."""
        for part in self._parts:
            if part.num_pending:
                clear_columns(block, part.columns)
                part.segment = None
                self.vec.abandoned |= dict.fromkeys(part.env_ids, explain_abandoned())

    def _halt(self) -> None:
        """End every segment and drop those that are in no block."""
        if self._is_working():
            self._pause()
        while self._is_working():
            for owner, report in self._receive():
                if isinstance(report, LostReply):
                    self._release(owner)
                else:
                    self._count(owner, report)
        self._finished.clear()
        self._num_taken = 0
        for part in self._parts:
            part.segment = None

    def metrics(self) -> dict[str, float]:
        """Also the smallest and the largest share of an environment in first-ready blocks."""
        if self._first_ready:  # environments are stepped all the time
            now, before = time.monotonic(), self._metrics_at
            self._metrics_at, self._filling_s = now, now - before
        values, total = super().metrics(), self.num_segments.sum()
        if total:
            shares = self.num_segments / total
            least = int(shares.argmin())
            values |= {"rollout/share_min": float(shares[least]), "rollout/share_max": float(shares.max())}
            values["rollout/share_min_env"] = float(least)
        return values

    def _take_lost_s(self) -> float:
        """Seconds, since the last call, of waiting for calls that did not return."""
        return 0.0

    def _count_time(self, times: Sequence[SegmentTime], waited_s: float) -> None:
        """Count the phases of finished segments: of `all` the mean over parts, which wait for the slowest; of
        `first_ready` the time waited, divided like the segments' own time."""
        act_s, env_s = sum(each.act_s for each in times), sum(each.env_s for each in times)
        if not act_s + env_s:
            return
        share = cpu_share = waited_s / (act_s + env_s)
        if not self._first_ready:
            share, cpu_share = 1 / len(times), 1 / self.vec.pool.size
            walls = [each.wall_s for each in times]
            self.clock.add("wait", max(walls) - sum(walls) / len(walls))
        cpu_s = sum(each.cpu_s for each in times) * cpu_share
        for phase, seconds in (("act", act_s * share), ("env", env_s * share), ("cpu", cpu_s)):
            self.clock.add(phase, seconds)


@dataclass(slots=True, eq=False)
class _WorkerPart(RemotePart):
    """A part in a worker process; its segment is in shared memory."""

    index: int = 0  # in the worker
    block: int = 0  # index of the shared block
    number: int = 0  # of the noise
    weights: Weights | None = None
    serial: int = 0  # of the weights


class WorkerCollector(RemoteCollector[_WorkerPart]):
    """Collects through a WorkersVec that was made with `extend_workers`."""

    vec: WorkersVec

    def __init__(self, vec: WorkersVec, spec: EnvSpec, *, first_ready: bool = False) -> None:
        assert isinstance(vec.extra, SharedRollout)
        self._shared = vec.extra
        memory, initial = self._shared.memory, self._shared.initial
        parts = [
            [_make_part(worker, ids[envs.start : envs.stop], vec.per_env, i) for i, envs in enumerate(groups)]
            for worker, (ids, groups) in enumerate(zip(vec.env_ids, vec.groups, strict=True))
        ]
        super().__init__(vec, spec, parts, memory, initial, first_ready=first_ready)
        self.blocks = self._shared.blocks
        self._written = 0  # serial number of the weights in shared memory
        self._known: dict[int, int] = {}  # serial number of the weights of each worker
        if first_ready:
            self.blocks = (make_block(spec, self.blocks[0].num_steps, vec.num_columns, state=initial),)

    def make_short(self, num_steps: int) -> Block:
        """The first steps of a shared block: empty it before the whole one is filled."""
        return slice_block(self.blocks[0], num_steps, slice(0, self.vec.num_columns))

    def _prepare(self, block: Block, number: int) -> None:
        assert self._weights is not None
        if self._first_ready:
            return
        if self._written != self._serial:
            for name, array in self._shared.weights.items():
                array[...] = self._weights.arrays[name]
            self._written = self._serial
        blocks = enumerate(self.blocks)
        index = next(i for i, whole in blocks if np.may_share_memory(whole.reward, block.reward))
        for part in self._parts:
            part.block, part.number, part.weights, part.serial = index, number, self._weights, self._serial

    def _order(self, block: Block, number: int) -> None:
        """Segments under way have other weights than those that begin, so weights of first-ready segments are
        not shared: they are sent with the first order that needs them."""
        waiting = [part for part, _ in self._finished]
        orders: dict[tuple[int, int], list[SegmentOrder]] = {}
        weights: dict[int, Weights | None] = {}
        for part in self._parts:
            if part.num_pending or part in waiting:
                continue
            if self._first_ready and (part.segment is None or part.segment.is_full):
                self._begin_segment(part, block, number)
            assert part.segment is not None
            if not part.segment.is_full:
                part.num_pending = 1
                filled, num_steps = int(part.segment.filled[0]), part.segment.num_steps
                order = SegmentOrder(part.index, part.block, part.number, filled, num_steps)
                orders.setdefault((part.owner, part.serial), []).append(order)
                weights[part.serial] = part.weights
        for (worker, serial), own in orders.items():
            sent = weights[serial]
            assert sent is not None
            if not self._first_ready or self._known.get(worker) == serial:
                sent = replace(sent, arrays={})
            self.vec.pool.send(worker, "collect", serial, sent, own)
            self._known[worker] = serial

    def _begin_segment(self, part: _WorkerPart, block: Block, number: int) -> None:
        """Begin a first-ready segment with the newest weights."""
        assert self._weights is not None
        part.segment = slice_block(self._shared.blocks[0], block.num_steps, part.columns)
        part.segment.filled[:], part.segment.version[:] = 0, self._weights.version
        # Unique for (block, segment): the one before is in this block, or was begun for another one.
        taken = block.env_ids[block.filled == block.num_steps]
        part.number = number * (block.num_columns + 1) + int((taken == part.env_ids[0]).sum())
        part.weights, part.serial = self._weights, self._serial

    def _receive(self) -> list[tuple[int, Any]]:
        pool, workers = self.vec.pool, {part.owner for part in self._parts if part.num_pending}
        found = pool.wait(workers, POLL_S)
        if self.vec.is_concurrent and not any(isinstance(reply, LostReply) for _, reply in found):
            found += pool.inspect(workers)  # one part may hang while others report
        return [
            (worker, report)
            for worker, reply in found
            for report in (reply.content if isinstance(reply, Notice) else [reply])
        ]

    def _add(self, part: _WorkerPart, report: SegmentReport) -> None:
        if part.segment is not None:
            part.segment.filled[:] = report.filled
            part.segment.episodes += report.episodes
            part.segment.finals += report.finals
            if report.time is not None and self._first_ready:
                self._finished.append((part, part.segment))

    def _take_lost_s(self) -> float:
        lost_s, self.vec.pool.lost_s = self.vec.pool.lost_s, 0.0
        return lost_s

    def _release(self, owner: int) -> list[tuple[_WorkerPart, bool]]:
        self._known.pop(owner, None)
        return super()._release(owner)

    def _pause(self) -> None:
        self.vec.shared.pause[0] = 1

    def _halt(self) -> None:
        super()._halt()
        self.vec.shared.pause[0] = 0


def _make_part(worker: int, env_ids: range, per_env: int, index: int) -> _WorkerPart:
    columns = slice(env_ids.start * per_env, env_ids.stop * per_env)
    return _WorkerPart(worker, env_ids, columns, index=index)
