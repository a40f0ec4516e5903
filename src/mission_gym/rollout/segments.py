"""What collectors share whose segments are made elsewhere, by workers or on the nodes of a cluster.

A block is filled by what comes in. `all` takes a segment of every part, in place. `first_ready` takes the
first columns that are finished, in the order in which they came.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mission_gym.data import Block, EnvSpec, Leaves, Weights
from mission_gym.rollout.blocks import copy_columns, move_episodes, sort_episodes, sort_finals
from mission_gym.rollout.collector import BlockCollector

POLL_S = 0.05  # how soon a stop request is seen


class Timed(Protocol):
    """What a finished segment took: its phases, and the processor time of its process."""

    @property
    def act_s(self) -> float: ...

    @property
    def env_s(self) -> float: ...

    @property
    def wall_s(self) -> float: ...

    @property
    def cpu_s(self) -> float: ...


class Mailbox:
    """The weights of the segments to come; the policies are where they are made."""

    def __init__(self) -> None:
        self.version = -1
        self.weights: Weights | None = None
        self.edition = 0  # counts them: others may have the same version

    def load(self, weights: Weights) -> None:
        if weights is not self.weights:
            self.weights, self.version, self.edition = weights, weights.version, self.edition + 1


class SegmentCollector(BlockCollector):
    """A collector that orders segments, and hears of them. blocks: those that it can fill."""

    blocks: Sequence[Block]
    patience_s: float  # after a stop, for a step to end

    def __init__(
        self, vec: Any, spec: EnvSpec, memory: Leaves, initial: Leaves, *, first_ready: bool
    ) -> None:
        super().__init__(memory, initial)
        self.vec, self.spec, self.policy = vec, spec, Mailbox()
        self.num_segments = np.zeros(vec.num_envs, np.int64)  # in first-ready blocks so far, by environment
        self._first_ready = first_ready
        self._finished: deque[tuple[Any, Block]] = deque()  # a part and its segment, in the order they came
        self._num_taken = 0  # columns of the first of them that are in a block
        self._told_at = time.monotonic()
        if first_ready:
            # Environments are never all between two steps: a checkpoint only notes their episodes' numbers.
            reason = "segments of first-ready blocks were under way"
            vec.abandoned = dict.fromkeys(range(vec.num_envs), reason)

    @abstractmethod
    def _prepare(self, block: Block, number: int) -> None:
        """Bring the newest weights to where they are found; of `all` nobody is at work afterwards."""

    @abstractmethod
    def _order(self, block: Block, number: int) -> None:
        """Order a segment of every part that rests and has one to make, with the newest weights."""

    @abstractmethod
    def _is_at_work(self) -> bool:
        """Whether some part makes a segment."""

    @abstractmethod
    def _listen(self) -> list[tuple[int, Any]]:
        """What was told, and by whom; empty after a while."""

    @abstractmethod
    def _hear(self, teller: int, told: Any, block: Block, *, go_on: bool) -> Sequence[Timed]:
        """Take note of it; the segments that are done. go_on: no stop was asked for."""

    @abstractmethod
    def _pause(self) -> None:
        """Let every segment end after its running step."""

    @abstractmethod
    def _give_up(self, block: Block) -> None:
        """Empty the segments that do not come to the end of a step; they are dropped when they do."""

    @abstractmethod
    def _halt(self) -> None:
        """Break every segment off, and forget those that no block has."""

    def _gather(self, block: Block) -> None:
        """Bring the lists of the segments of `all` to their block, where they are not there yet."""

    def start(self) -> None:
        self._halt()
        self.vec.reset()
        self.forget(slice(None))
        self.num_segments[:] = 0

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """After a stop each segment of `all` has its own fill count; if a step takes too long, its segment is
        emptied and its episodes are given up. `first_ready` keeps the columns that are in the block, and the
        segments under way go on."""
        assert self.policy.weights is not None, "load weights first"
        if not self._first_ready:
            self._halt()  # what an earlier stop gave up may still be under way
            self.vec.abandoned = {}
            self.torn = True
        self._prepare(block, number)
        stopped_at: float | None = None
        waited_s, done = 0.0, list[Timed]()
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
            elif time.monotonic() - stopped_at > self.patience_s:
                self._give_up(block)
                break
            if not self._first_ready and not self._is_at_work():
                break
            before = time.perf_counter()
            heard = self._listen()
            waited_s += time.perf_counter() - before
            for teller, told in heard:
                done += self._hear(teller, told, block, go_on=stopped_at is None)
        if not self._first_ready:
            self._gather(block)
            sort_finals(block)
            sort_episodes(block)
        self.torn = False
        self._filling_s += waited_s
        self._count_time(done, waited_s)
        return block.is_full

    def _take(self, block: Block) -> None:
        """Copy the columns of the segment that came first into the block, as far as there is room."""
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

    def _drop_finished(self) -> None:
        self._finished.clear()
        self._num_taken = 0

    def metrics(self) -> dict[str, float]:
        """As every collector's; and the least and the most that an environment has given to first-ready
        blocks so far, by its segments in them."""
        if self._first_ready:  # environments are stepped all the time
            now, before = time.monotonic(), self._told_at
            self._told_at, self._filling_s = now, now - before
        told, total = super().metrics(), self.num_segments.sum()
        if total:
            shares = self.num_segments / total
            least = int(shares.argmin())
            told["rollout/share_min"], told["rollout/share_max"] = float(shares[least]), float(shares.max())
            told["rollout/share_min_env"] = float(least)
        return told

    def _count_time(self, done: Sequence[Timed], waited_s: float) -> None:
        """Count the seconds of segments that are done: of `all` those of the mean part, which waits for the
        slowest; of `first_ready` what was waited for, divided as the segments' own time."""
        act_s, env_s = sum(each.act_s for each in done), sum(each.env_s for each in done)
        if not act_s + env_s:
            return
        share = cpu_share = waited_s / (act_s + env_s)
        if not self._first_ready:
            share, cpu_share = 1 / len(done), 1 / self.vec.crew.size
            walls = [each.wall_s for each in done]
            self.clock.add("wait", max(walls) - sum(walls) / len(walls))
        self.clock.add("act", act_s * share)
        self.clock.add("env", env_s * share)
        self.clock.add("cpu", sum(each.cpu_s for each in done) * cpu_share)
