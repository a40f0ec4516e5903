"""The collector of first-ready blocks: the first S segments that are finished, of whichever environments.

Every part of the rows (all of a worker, or with threads an acting group) makes one segment after the other,
each with the weights that were newest when it began. A slow part stalls only itself: its segment goes on over
the updates and counts in a later block, with its older version. Those of an environment are in order of time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.data import Block, EnvSpec, Leaves, StepBatch, Weights
from mission_gym.rollout.collector import copy_segments, cut_row, lose_row, make_block, part_of, sort_finals
from mission_gym.rollout.remote import Mailbox
from mission_gym.rollout.segments import HALTED, Segment
from mission_gym.vector.crew import Lost
from mission_gym.vector.workers import WorkersVec, lost_episode

SERVICE = "mission_gym.rollout.segments:serve_segments"
_POLL_S = 0.05  # how soon a stop request is seen


@dataclass(slots=True, eq=False)
class _Part:
    """Rows that are stepped together, with their segment in shared memory. A part that has finished it rests
    until the rows are in a block."""

    worker: int
    index: int  # in the worker
    rows: range
    block: Block
    weights: Weights | None = None
    number: int = 0  # of the noise
    begun: int = 0  # segments, since the last block was full
    state: Literal["free", "at work", "finished"] = "free"
    taken: int = 0  # rows of the finished segment that are in a block


class FirstReadyCollector:
    """Collects through a WorkersVec that was made with `SERVICE`, a CollectSetup and `carve_shared`."""

    def __init__(self, vec: WorkersVec, spec: EnvSpec) -> None:
        self.vec = vec
        self.spec = spec
        self.policy = Mailbox()
        self.clock = PhaseClock("collector")
        self.torn = False  # states of environments are never asked for
        (self._shared,) = vec.shared.blocks
        self.num_segments = np.zeros(vec.num_envs, np.int64)  # in blocks so far, by environment
        self._parts = [
            _Part(worker, index, range(ids[rows[0]], ids[rows[-1]] + 1), self._shared)
            for worker, ids in enumerate(vec.env_ids)
            for index, rows in enumerate(vec.parts[worker])
        ]
        self._finished: deque[_Part] = deque()  # in the order in which they came in
        self._loaded: dict[int, Weights] = {}  # what each worker holds
        self._filled = 0  # segments of the block in hand
        # Environments are never all between two steps: a checkpoint can only note their episodes' numbers.
        vec.abandon("segments of first-ready blocks were under way")

    def start(self) -> None:
        """Begin every environment's first episode; what is under way is broken off and dropped."""
        self._halt()
        self.vec.reset()

    def go_on(self, batch: StepBatch) -> None:
        """Nothing to do: restored environments are in the workers."""

    def prime(self, num_steps: int) -> Leaves:
        """As Collector.prime."""
        block = make_block(self.spec, num_steps, self.vec.num_envs)
        self.start()
        self.fill(block, -1, lambda: False)
        self.start()
        self.num_segments[:] = 0
        self.clock.take()  # no part of the run's phases
        return tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in block.obs)

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """Fill the block with the segments that are finished first; False if a stop was asked for before.

        Then those that it has are kept for the next call, and those under way go on.
        """
        act_s = env_s = cpu_s = waited_s = 0.0
        while block.filled < block.num_steps:
            for part in self._parts:
                if part.state == "free":
                    self._begin(part, block, number)
            if self._finished:
                self._take(block)
                continue
            if stop():
                break
            before = time.perf_counter()
            workers = range(self.vec.crew.size)
            heard = self.vec.crew.wait(workers, _POLL_S)
            waited_s += time.perf_counter() - before
            if self.vec.threads and not any(isinstance(reply, Lost) for _, reply in heard):
                heard += self.vec.crew.inspect(workers)  # one part may hang while others reply
            for worker, reply in heard:
                if isinstance(reply, Segment):
                    self._hear(worker, reply)
                    act_s += reply.report.act_s
                    env_s += reply.report.env_s
                    cpu_s += reply.report.cpu_s
                elif isinstance(reply, Lost):
                    self._lose(worker)
        if act_s + env_s:  # what was waited for is divided as the segments' own time was
            self.clock.add("act", waited_s * act_s / (act_s + env_s))
            self.clock.add("env", waited_s * env_s / (act_s + env_s))
            self.clock.add("cpu", waited_s * cpu_s / (act_s + env_s))
        return block.filled == block.num_steps

    def metrics(self) -> dict[str, float]:
        """The least and the most that an environment has given to the blocks so far."""
        total = self.num_segments.sum()
        if not total:
            return {}
        shares = self.num_segments / total
        least = int(shares.argmin())
        return {
            "rollout/share_min": float(shares[least]),
            "rollout/share_max": float(shares.max()),
            "rollout/share_min_env": float(least),
        }

    def _begin(self, part: _Part, block: Block, number: int) -> None:
        """Hand a part its next segment, with the newest weights."""
        assert self.policy.weights is not None, "load weights first"
        part.block = part_of(self._shared, block.num_steps, part.rows[0], part.rows[-1] + 1)
        part.block.version[:] = self.policy.version
        part.weights = self.policy.weights
        # Unique for (block, segment of the part in it): a part can't finish more than S of them.
        part.number = number * (block.num_rows + 1) + part.begun
        part.begun += 1
        self._command(part)

    def _command(self, part: _Part) -> None:
        """Let a part make its segment from where it stands."""
        crew, weights = self.vec.crew, part.weights
        assert weights is not None
        if self._loaded.get(part.worker) is not weights:
            crew.send(part.worker, "load", weights)
            self._loaded[part.worker] = weights
        crew.send(part.worker, "segment", part.index, part.number, part.block.filled, part.block.num_steps)
        part.state = "at work"

    def _hear(self, worker: int, segment: Segment) -> None:
        """Add what is new to a segment."""
        part = next(each for each in self._parts if (each.worker, each.index) == (worker, segment.part))
        report, mine = segment.report, part.block
        mine.filled = report.filled
        mine.episodes += report.episodes
        mine.final_at += report.final_at
        mine.final_obs += report.final_obs
        self.vec.count(report.episodes)
        if report.done:
            part.state = "finished"
            self._finished.append(part)

    def _take(self, block: Block) -> None:
        """Copy the rows of the segment that was finished first into the block, as far as there is room."""
        part = self._finished[0]
        mine, first = part.block, self._filled
        rows = slice(part.taken, min(part.taken + block.num_rows - first, mine.num_rows))
        copy_segments(mine, rows, block, first)
        for (t, row), leaves in zip(mine.final_at, mine.final_obs, strict=True):
            if rows.start <= row < rows.stop:
                block.final_at.append((t, first + row - rows.start))
                block.final_obs.append(leaves)
        block.episodes += mine.episodes
        mine.episodes = []
        self.num_segments[part.rows[rows.start : rows.stop]] += 1
        self._filled += rows.stop - rows.start
        part.taken = rows.stop
        if part.taken == mine.num_rows:
            self._finished.popleft()
            part.state, part.taken = "free", 0
        if self._filled == block.num_rows:
            self._filled = 0
            for each in self._parts:
                each.begun = 0
            block.filled = block.num_steps
            sort_finals(block)

    def _lose(self, worker: int) -> None:
        """Go on in a worker that was replaced: the row under way is lost, its episodes have failed."""
        self._loaded.pop(worker, None)
        numbers = self.vec.episode_numbers()
        for part in self._parts:
            if part.worker != worker:
                continue
            t, mine = part.block.filled, part.block
            for row, env_id in enumerate(part.rows):
                if part.state == "at work":
                    lose_row(mine, t, row)
                else:  # the next segment will begin with another episode
                    cut_row(mine, t, row)
                mine.episodes.append(lost_episode(env_id, numbers[env_id] - 1))
            if part.state == "at work":
                mine.filled = t + 1
                self._command(part)

    def _halt(self) -> None:
        """Break off every segment, and forget those that no block has."""
        waiting = set(range(self.vec.crew.size))
        for worker in waiting:
            self.vec.crew.send(worker, "halt")
        while waiting:
            for worker, reply in self.vec.crew.wait(waiting, _POLL_S):
                if isinstance(reply, Lost):
                    self._loaded.pop(worker, None)
                if isinstance(reply, Lost) or reply == HALTED:
                    waiting.discard(worker)
        self._finished.clear()
        self._filled = 0
        for part in self._parts:
            part.state, part.taken, part.begun = "free", 0, 0
