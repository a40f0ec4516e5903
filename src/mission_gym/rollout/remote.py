"""The collector whose acting is done by worker processes: an order per segment, no barrier per step.

Every part of the environments (all of a worker, or an acting group where they are stepped side by side) makes
one segment after the other, at its own pace. Blocks take them in one of two ways:

- all: a segment of every part, in place in shared memory. They are bit for bit those of a serial Collector,
  however many workers there are: the noise and the batch of an acting group do not depend on its process.
- first_ready: the first columns that are finished, copied in the order in which they came. A part begins its
  next segment, with the newest weights, as soon as all its columns are in blocks. A slow one stalls only
  itself: its segment goes on over the updates, with its older version. Those of an environment are in order.

What a worker reports is kept; its death costs its parts the rows since then, and a new one goes on with them.
A stop ends each segment after its running step, where it stands; what a step delays beyond STOP_S is emptied.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, Weights
from mission_gym.rollout.blocks import (
    clear_columns,
    copy_columns,
    cut_row,
    lose_row,
    make_block,
    part_of,
    sort_episodes,
    sort_finals,
    take_lists,
)
from mission_gym.rollout.collector import STOP_S, BlockCollector
from mission_gym.rollout.worker import Order, Report, Shared
from mission_gym.vector.crew import Lost, Note
from mission_gym.vector.workers import WorkersVec, lost_episode

SERVICE = "mission_gym.rollout.worker:serve_collecting"
_POLL_S = 0.05  # how soon a stop request is seen


def tell_shares(num_segments: Array) -> dict[str, float]:
    """The least and the most that an environment has given to first-ready blocks, by its segments in them;
    nothing where there are none."""
    total = num_segments.sum()
    if not total:
        return {}
    shares = num_segments / total
    least = int(shares.argmin())
    return {
        "rollout/share_min": float(shares[least]),
        "rollout/share_max": float(shares.max()),
        "rollout/share_min_env": float(least),
    }


class Mailbox:
    """The weights of the segments to come; the policies are in the workers."""

    def __init__(self) -> None:
        self.version = -1
        self.weights: Weights | None = None
        self.edition = 0  # counts them: others may have the same version

    def load(self, weights: Weights) -> None:
        if weights is not self.weights:
            self.weights, self.version, self.edition = weights, weights.version, self.edition + 1


@dataclass(slots=True, eq=False)
class _Part:
    """Environments that are stepped together, with their segment in shared memory."""

    worker: int
    index: int  # in the worker
    columns: slice  # of a block of all
    segment: Block  # the columns under way, with lists of their own
    place: int = 0  # of the block that they are in
    number: int = 0  # of the noise
    weights: Weights | None = None
    edition: int = 0  # of the weights
    at_work: bool = False
    num_taken: int = 0  # columns of a finished segment that are in a first-ready block


class RemoteCollector(BlockCollector):
    """Collects through a WorkersVec that was made with `SERVICE`, a CollectSetup and `carve_shared`.

    blocks: those that it can fill; workers know shared ones by their places.
    """

    vec: WorkersVec

    def __init__(self, vec: WorkersVec, spec: EnvSpec, *, first_ready: bool = False) -> None:
        self._shared: Shared = vec.shared
        super().__init__(self._shared.memory, self._shared.initial)
        self.vec = vec
        self.spec = spec
        self.policy = Mailbox()
        self.blocks = self._shared.blocks
        self.num_segments = np.zeros(vec.num_envs, np.int64)  # in first-ready blocks so far, by environment
        self._first_ready = first_ready
        self._told_at = time.monotonic()
        self._parts = {
            (worker, index): _Part(
                worker,
                index,
                slice(ids[envs[0]] * vec.per_env, (ids[envs[-1]] + 1) * vec.per_env),
                self._shared.blocks[0],
            )
            for worker, ids in enumerate(vec.env_ids)
            for index, envs in enumerate(vec.parts[worker])
        }
        self._finished: deque[_Part] = deque()  # parts of first-ready blocks, in the order they came in
        self._written = 0  # the edition of the weights in shared memory
        self._held: dict[int, int] = {}  # that of those that each worker holds
        if first_ready:
            self.blocks = (
                make_block(spec, self.blocks[0].num_steps, vec.num_rows, state=self._shared.initial),
            )
            # Environments are never all between two steps: a checkpoint only notes their episodes' numbers.
            reason = "segments of first-ready blocks were under way"
            vec.abandoned = dict.fromkeys(range(vec.num_envs), reason)

    def start(self) -> None:
        self._halt()
        self.vec.reset()
        self.forget(slice(None))
        self.num_segments[:] = 0

    def make_short(self, num_steps: int) -> Block:
        """The first rows of a block that workers know: empty it before that one is filled."""
        return part_of(self.blocks[0], num_steps, slice(0, self.vec.num_rows))

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """Of one of `blocks`.

        After a stop each segment of `all` has its own fill count; if some step takes too long, its segment is
        emptied and its episodes are given up. `first_ready` keeps the columns that are in the block, and the
        segments under way go on.
        """
        self._prepare(block, number)
        stopped_at: float | None = None
        waited_s, done = 0.0, list[Report]()
        while not block.is_full:
            if stopped_at is None:
                self._begin(block, number)
                if self._finished:
                    self._take(block)
                    continue
                if stop():
                    stopped_at = time.monotonic()
                    if self._first_ready:
                        break
                    self.vec.board.pause[0] = 1
            elif time.monotonic() - stopped_at > STOP_S:
                self._give_up(block)
                break
            if not self._workers():
                break
            before = time.perf_counter()
            heard = self._listen()
            waited_s += time.perf_counter() - before
            for worker, reply in heard:
                if isinstance(reply, Lost):
                    self._lose(worker, go_on=stopped_at is None)
                elif isinstance(reply, Note):
                    done += [report for report in reply.content if self._hear(worker, report).done]
        if not self._first_ready:
            for part in self._parts.values():
                if not part.at_work:
                    columns = slice(0, part.segment.num_rows)
                    take_lists(part.segment, columns, block, part.columns.start)
            sort_finals(block)
            sort_episodes(block)
        self.torn = False
        self._filling_s += waited_s
        self._count_time(done, waited_s)
        return block.is_full

    def metrics(self) -> dict[str, float]:
        """As every collector's; and the least and the most that an environment has given to first-ready
        blocks so far."""
        if self._first_ready:  # environments are stepped all the time
            now, before = time.monotonic(), self._told_at
            self._told_at, self._filling_s = now, now - before
        return super().metrics() | tell_shares(self.num_segments)

    def _prepare(self, block: Block, number: int) -> None:
        """Lay a block of all out as the parts' segments, and bring the newest weights to where workers find
        them. Nobody is at work then, so both may be written."""
        weights = self.policy.weights
        assert weights is not None, "load weights first"
        if self._first_ready:
            return
        self._halt()  # what an earlier stop gave up may still be under way
        self.vec.abandoned = {}
        self.torn = True
        if self._written != self.policy.edition:
            for name, array in self._shared.weights.items():
                array[...] = weights.arrays[name]
            self._written = self.policy.edition
        (place,) = (
            i for i, whole in enumerate(self.blocks) if np.may_share_memory(whole.reward, block.reward)
        )
        block.version[:] = weights.version
        for part in self._parts.values():
            part.segment, part.place = part_of(block, block.num_steps, part.columns), place
            part.number = number

    def _begin(self, block: Block, number: int) -> None:
        """Order a segment of every part that rests and has one to make, with the newest weights."""
        free = [part for part in self._parts.values() if not part.at_work and part not in self._finished]
        for part in free if self._first_ready else ():
            part.segment = part_of(self._shared.blocks[0], block.num_steps, part.columns)
            part.segment.filled[:], part.segment.version[:] = 0, self.policy.version
            # Unique for (block, segment): the one before is in this block, or was begun for another one.
            taken = block.env_ids[block.filled == block.num_steps]
            part.number = number * (block.num_rows + 1) + int((taken == part.segment.env_ids[0]).sum())
        begun = [part for part in free if not part.segment.is_full]
        for part in begun:
            part.weights, part.edition = self.policy.weights, self.policy.edition
        self._order(begun)

    def _order(self, parts: list[_Part]) -> None:
        """Let parts make their segments from where they stand: one message to a worker for equal weights.

        Segments under way have other weights than those that begin, so first-ready ones are not shared: they
        go with the first order that needs them.
        """
        orders: dict[tuple[int, int], list[Order]] = {}
        weights: dict[int, Weights] = {}
        for part in parts:
            part.at_work = True
            filled, num_steps = int(part.segment.filled[0]), part.segment.num_steps
            order = Order(part.index, part.place, part.number, filled, num_steps)
            orders.setdefault((part.worker, part.edition), []).append(order)
            assert part.weights is not None
            weights[part.edition] = part.weights
        for (worker, edition), mine in orders.items():
            sent = weights[edition]
            if not self._first_ready or self._held.get(worker) == edition:
                sent = Weights(sent.version, {})
            self.vec.crew.send(worker, "collect", edition, sent, mine)
            self._held[worker] = edition

    def _parts_of(self, worker: int) -> list[_Part]:
        return [part for part in self._parts.values() if part.worker == worker]

    def _workers(self) -> set[int]:
        """The workers that have a part at work."""
        return {part.worker for part in self._parts.values() if part.at_work}

    def _listen(self) -> list[tuple[int, Any]]:
        """What workers tell, or how they ended; empty after a while."""
        crew, workers = self.vec.crew, self._workers()
        heard = crew.wait(workers, _POLL_S)
        if self.vec.side_by_side and not any(isinstance(reply, Lost) for _, reply in heard):
            heard += crew.inspect(workers)  # one part may hang while others report
        return heard

    def _hear(self, worker: int, report: Report) -> Report:
        """Add what is new to a segment."""
        part = self._parts[worker, report.part]
        mine = part.segment
        mine.filled[:] = report.filled
        mine.episodes += report.episodes
        mine.finals += report.finals
        self.vec.count(report.episodes)
        if report.done:
            self._rest(part)
        return report

    def _rest(self, part: _Part) -> None:
        part.at_work = False
        if self._first_ready:
            self._finished.append(part)

    def _take(self, block: Block) -> None:
        """Copy the columns of the part that finished first into the block, as far as there is room."""
        part = self._finished[0]
        first = int((block.filled == block.num_steps).sum())
        last = min(part.num_taken + block.num_rows - first, part.segment.num_rows)
        columns = slice(part.num_taken, last)
        copy_columns(part.segment, columns, block, first)
        take_lists(part.segment, columns, block, first)
        sort_finals(block)
        self.num_segments[part.segment.env_ids[columns]] += 1
        part.num_taken = last
        if last == part.segment.num_rows:
            self._finished.popleft()
            part.num_taken = 0

    def _lose(self, worker: int, *, go_on: bool) -> None:
        """Go on in a worker that was replaced: the rows under way are lost, their episodes have failed."""
        self._held.pop(worker, None)
        numbers = self.vec.episode_numbers()
        parts = self._parts_of(worker)
        for part in parts:
            mine, t = part.segment, int(part.segment.filled[0])
            for column in range(mine.num_rows):
                if part.at_work:
                    lose_row(mine, t, column)
                else:  # what comes next is another episode
                    cut_row(mine, t, column)
            mine.filled[:] = t + part.at_work
            lost = dict.fromkeys(mine.env_ids.tolist())  # once, however many agents each has
            mine.episodes += [lost_episode(env_id, numbers[env_id] - 1) for env_id in lost]
            self.forget(part.columns)
            if part.at_work and (mine.is_full or not go_on):
                self._rest(part)
        self._order([part for part in parts if part.at_work])

    def _give_up(self, block: Block) -> None:
        """Empty the segments whose parts do not come to the end of a step; they are dropped when they do."""
        for part in [part for part in self._parts.values() if part.at_work]:
            clear_columns(block, part.columns)
            reason = f"a step took over {STOP_S} s when the run was stopped"
            self.vec.abandoned |= dict.fromkeys(part.segment.env_ids.tolist(), reason)

    def _halt(self) -> None:
        """Break every segment off, and forget those that no block has."""
        while self._workers():
            self.vec.board.pause[0] = 1
            for worker, reply in self._listen():
                if isinstance(reply, Lost):
                    self._held.pop(worker, None)
                    for part in self._parts_of(worker):
                        part.at_work = False
                        self.forget(part.columns)
                elif isinstance(reply, Note):
                    for report in reply.content:
                        self.vec.count(report.episodes)
                        self._parts[worker, report.part].at_work &= not report.done
        self._finished.clear()
        for part in self._parts.values():
            part.num_taken = 0
        self.vec.board.pause[0] = 0

    def _count_time(self, done: list[Report], waited_s: float) -> None:
        """Count the seconds of segments that are done: of `all` those of the mean part, which waits for the
        slowest; of `first_ready` what was waited for, divided as the segments' own time."""
        act_s, env_s = sum(report.act_s for report in done), sum(report.env_s for report in done)
        if not act_s + env_s:
            return
        share = cpu_share = waited_s / (act_s + env_s)
        if not self._first_ready:
            share, cpu_share = 1 / len(done), 1 / self.vec.crew.size
            walls = [report.wall_s for report in done]
            self.clock.add("wait", max(walls) - sum(walls) / len(walls))
        self.clock.add("act", act_s * share)
        self.clock.add("env", env_s * share)
        self.clock.add("cpu", sum(report.cpu_s for report in done) * cpu_share)
