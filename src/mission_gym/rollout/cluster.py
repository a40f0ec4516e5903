"""The collector whose segments are made on the nodes of a cluster: one call for each, columns by reference.

A share of the environments is acted for and stepped by an actor on its node, by our workers there. Blocks
take what shares deliver in one of two ways, as `rollout/remote.py` does for workers:

- all: a segment of every share, in place. They are bit for bit those of workers here, wherever they are made.
- first_ready: the first columns that are finished, in the order in which they came. Shares go on by
  themselves, IN_FLIGHT calls ahead at most, each with the newest weights when it was asked for.

Weights are stored once for each version, and fetched by every node once. A share that is lost with its node
costs its running segments: a row of theirs counts nowhere, its episodes have failed, and another actor makes
the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mission_gym.data import Block, EnvSpec, Leaves
from mission_gym.rollout.blocks import (
    clear_columns,
    copy_columns,
    cut_row,
    lose_row,
    make_block,
    pack_block,
    part_of,
    sort_episodes,
    sort_finals,
    take_lists,
)
from mission_gym.rollout.collector import STOP_S, BlockCollector
from mission_gym.rollout.remote import Mailbox, tell_shares
from mission_gym.rollout.share import ShareOrder, ShareReport, unpack_report
from mission_gym.vector.cluster import ClusterVec
from mission_gym.vector.crew import Lost
from mission_gym.vector.workers import lost_episode

IN_FLIGHT = 2  # calls of a share that are not in a block yet: one at work, one behind it or delivered
_POLL_S = 0.05  # how soon a stop request is seen
_REPLY_S = 1.0  # for what ended at a stop to get here


@dataclass(slots=True, eq=False)
class _Part:
    """The columns of a share."""

    columns: slice  # of a block of all
    serials: list[int] = field(default_factory=list)  # of the orders under way
    is_fresh: bool = True  # its actor has the policy's memory from us with the next order
    at_work: Block | None = None  # of all: the segment that was ordered
    num_ordered: int = 0  # orders for the block in hand


class ClusterCollector(BlockCollector):
    """Collects through a ClusterVec whose actors are Shares. state: what a policy's memory is at first."""

    vec: ClusterVec

    def __init__(
        self,
        vec: ClusterVec,
        spec: EnvSpec,
        num_steps: int,
        num_blocks: int,
        state: Leaves,
        *,
        first_ready: bool,
    ) -> None:
        super().__init__(tuple(array.copy() for array in state), state)
        self.vec, self.spec, self.policy = vec, spec, Mailbox()
        self.num_segments = np.zeros(vec.num_envs, np.int64)  # in first-ready blocks so far, by environment
        self._first_ready = first_ready
        self.blocks = [make_block(spec, num_steps, vec.num_rows, state=state) for _ in range(num_blocks)]
        self._parts = [_Part(slice(ids[0] * vec.per_env, (ids[-1] + 1) * vec.per_env)) for ids in vec.shares]
        self._serial = 0
        self._stored: tuple[int, Any] = (0, None)  # the edition of the weights, and Ray's reference to them
        self._finished: deque[tuple[int, Block]] = deque()  # of first-ready blocks, in the order they came in
        self._taken = 0  # columns of the first of them
        self._stage: int | None = None
        self._told_at = time.monotonic()
        if first_ready:
            reason = "segments of first-ready blocks were under way"
            vec.abandoned = dict.fromkeys(range(vec.num_envs), reason)

    def start(self) -> None:
        self._halt()
        self.vec.reset()
        self.forget(slice(None))
        self.num_segments[:] = 0
        self._refresh()

    def go_on(self, batch: Any) -> None:
        self._refresh()

    def make_short(self, num_steps: int) -> Block:
        return make_block(self.spec, num_steps, self.vec.num_rows, state=self.memory)

    def metrics(self) -> dict[str, float]:
        """As every collector's; what environments gave to first-ready blocks, and how many shares have an
        actor."""
        if self._first_ready:
            now, before = time.monotonic(), self._told_at
            self._told_at, self._filling_s = now, now - before
        up, squeezed = self.vec.crew.count_up()
        told = {"machine/actors": float(up), "machine/actors_squeezed": float(squeezed)}
        return super().metrics() | tell_shares(self.num_segments) | told

    def take_notes(self) -> list[str]:
        notes, self.vec.crew.notes = self.vec.crew.notes, []
        return notes

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """After a stop each segment of `all` has its own fill count; a share that does not answer is emptied,
        and its episodes are given up. `first_ready` keeps the columns that are in the block."""
        self._prepare(number)
        stopped_at: float | None = None
        waited_s, done = 0.0, list[ShareReport]()
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
            elif time.monotonic() - stopped_at > STOP_S + _REPLY_S:
                self._give_up(block)
                break
            if not self._first_ready and not any(part.serials for part in self._parts):
                break
            before = time.perf_counter()
            heard = self.vec.hear(_POLL_S)
            waited_s += time.perf_counter() - before
            for share, reply in heard:
                if isinstance(reply, Lost):
                    self._lose(share, block)
                elif reply.serial in self._parts[share].serials:  # else of what was given up
                    done.append(reply)
                    self._hear(share, reply, block)
        if not self._first_ready:
            sort_finals(block)
            sort_episodes(block)
        self.torn = False
        self._filling_s += waited_s
        self._count_time(done, waited_s)
        return block.is_full

    def _prepare(self, number: int) -> None:
        """Store new weights for all nodes, and let shares move to where there is room."""
        weights = self.policy.weights
        assert weights is not None, "load weights first"
        self.vec.crew.check()
        if self._stored[0] != self.policy.edition:
            self._stored = self.policy.edition, self.vec.crew.ray.put(weights)
        self._stage = None if self.stage_of is None else self.stage_of(number)
        for part in self._parts:
            part.num_ordered = 0
        if self._first_ready:
            return
        self._halt()  # what an earlier stop gave up may still be under way
        self.vec.abandoned = {}
        self.torn = True
        for share in self.vec.grow():
            self._parts[share].is_fresh = True

    def _order(self, block: Block, number: int) -> None:
        """Ask every share that has nothing to do for a segment, with the newest weights."""
        for share, part in enumerate(self._parts):
            if self._first_ready:
                waiting = sum(owner == share for owner, _ in self._finished)
                while self.vec.crew.is_up(share) and len(part.serials) + waiting < IN_FLIGHT:
                    # Unique for (block, order): calls of an earlier block have its number.
                    own = number * (IN_FLIGHT + block.num_rows) + part.num_ordered
                    self._send(share, own, block.num_steps, None)
                    part.num_ordered += 1
            elif not part.serials:
                mine = part.at_work = part.at_work or _cut_out(block, part.columns)
                if mine.is_full:
                    self._put_back(part, block)
                else:
                    self._send(share, number, block.num_steps, mine if mine.num_filled else None)

    def _send(self, share: int, number: int, num_steps: int, begun: Block | None) -> None:
        part, self._serial = self._parts[share], self._serial + 1
        edition, weights = self._stored
        memory = tuple(array[part.columns] for array in self.memory) if part.is_fresh else None
        packed = None if begun is None else pack_block(begun)
        order = ShareOrder(self._serial, number, num_steps, edition, self._stage, packed, memory)
        part.serials.append(self._serial)
        part.is_fresh = False
        self.vec.crew.call(share, "collect", weights, order)

    def _hear(self, share: int, report: ShareReport, block: Block) -> None:
        """Put a segment into its block, or where blocks find it."""
        part, vec = self._parts[share], self.vec
        part.serials.remove(report.serial)
        vec.count(report.episodes)
        vec.note_restarts(share, report.num_restarts)
        vec.crew.forgive(share)
        for mine, given in zip(self.memory, report.memory, strict=True):
            mine[part.columns] = given
        if self._first_ready:
            num_steps, num_rows = report.columns["block/reward"].shape
            segment = make_block(self.spec, num_steps, num_rows, np.empty, self.memory)
            unpack_report(report, segment)
            self._finished.append((share, segment))
            return
        assert part.at_work is not None
        vec.abandoned |= report.abandoned
        unpack_report(report, part.at_work)
        self._put_back(part, block)

    @staticmethod
    def _put_back(part: _Part, block: Block) -> None:
        """Bring the lists of a segment of all to its block."""
        mine, part.at_work = part.at_work, None
        assert mine is not None
        take_lists(mine, slice(0, mine.num_rows), block, part.columns.start)

    def _take(self, block: Block) -> None:
        """Copy the columns of the segment that came first into the block, as far as there is room."""
        _, segment = self._finished[0]
        first = int((block.filled == block.num_steps).sum())
        last = min(self._taken + block.num_rows - first, segment.num_rows)
        columns = slice(self._taken, last)
        copy_columns(segment, columns, block, first)
        take_lists(segment, columns, block, first)
        sort_finals(block)
        self.num_segments[segment.env_ids[columns]] += 1
        self._taken = last
        if last == segment.num_rows:
            self._finished.popleft()
            self._taken = 0

    def _lose(self, share: int, block: Block) -> None:
        """Go on with an actor that replaces another: what was under way is lost, its episodes have failed."""
        part, numbers = self._parts[share], self.vec.episode_numbers()
        part.serials.clear()
        part.is_fresh = True
        self.forget(part.columns)
        lost = [lost_episode(env_id, numbers[env_id] - 1) for env_id in self.vec.shares[share]]
        mine = part.at_work
        if mine is None:
            block.episodes += lost
            return
        mine.episodes += lost
        for column, t in enumerate(mine.filled.tolist()):
            if t < mine.num_steps:
                lose_row(mine, t, column)
                mine.filled[column] = t + 1
            else:  # what comes next is another episode
                cut_row(mine, t, column)

    def _pause(self) -> None:
        for share, part in enumerate(self._parts):
            if part.serials:
                self.vec.crew.pause(share, part.serials[-1])

    def _give_up(self, block: Block) -> None:
        """Empty the segments that do not come to the end of a step; they are dropped when they do."""
        for share, part in enumerate(self._parts):
            if part.serials:
                clear_columns(block, part.columns)
                part.at_work = None
                reason = f"a step took over {STOP_S} s when the run was stopped"
                self.vec.abandoned |= dict.fromkeys(self.vec.shares[share], reason)

    def _halt(self) -> None:
        """Break every segment off, and forget those that no block has."""
        self._pause()
        while any(part.serials for part in self._parts):
            for share, reply in self.vec.hear(_POLL_S):
                part = self._parts[share]
                if isinstance(reply, Lost):
                    part.serials.clear()
                    part.is_fresh = True
                elif reply.serial in part.serials:
                    part.serials.remove(reply.serial)
                    self.vec.count(reply.episodes)
        self._finished.clear()
        self._taken = 0
        for part in self._parts:
            part.at_work = None

    def _refresh(self) -> None:
        for part in self._parts:
            part.is_fresh = True

    def _count_time(self, done: list[ShareReport], waited_s: float) -> None:
        """As for workers: of `all` the seconds of the mean share, which waits for the slowest; of
        `first_ready` what was waited for, divided as the segments' own time."""
        act_s, env_s = sum(report.act_s for report in done), sum(report.env_s for report in done)
        if not act_s + env_s:
            return
        share = waited_s / (act_s + env_s)
        if not self._first_ready:
            share = 1 / len(done)
            walls = [report.wall_s for report in done]
            self.clock.add("wait", max(walls) - sum(walls) / len(walls))
        self.clock.add("act", act_s * share)
        self.clock.add("env", env_s * share)
        self.clock.add("cpu", sum(report.cpu_s for report in done) * share)


def _cut_out(block: Block, columns: slice) -> Block:
    """A segment of a block, with the finals that the block has of it: they come back with it."""
    mine = part_of(block, block.num_steps, columns)
    mine.finals = [
        each._replace(column=each.column - columns.start)
        for each in block.finals
        if columns.start <= each.column < columns.stop
    ]
    block.finals = [each for each in block.finals if not columns.start <= each.column < columns.stop]
    return mine
