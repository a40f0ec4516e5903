"""Collecting segments inside a worker process, each part of its rows at its own pace.

In: weights, then a command per segment. Out: a Segment when it is done, and before that a few times a second
what is new in it. Any further command to a worker of one part breaks the segment off, `halt` those of all.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from mission_gym.data import Block, Weights
from mission_gym.procs import Link, describe_error
from mission_gym.rollout.collector import part_of
from mission_gym.rollout.worker import REPORT_S, CollectService, Report, take_report
from mission_gym.vector.worker import WorkerSetup, serve

HALTED = "halted"


class Segment(NamedTuple):
    """What is new in the segment of a part, by its number in the worker."""

    part: int
    report: Report


class SegmentService(CollectService):
    """A worker whose parts are told one by one to make a segment."""

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        super().__init__(link, setup)
        self._weights: Weights | None = None
        self._halting = False
        self._running: dict[int, Future[None]] = {}

    def load(self, weights: Weights) -> None:
        """Take the weights of the segments to come."""
        self._weights = weights

    def segment(self, part: int, number: int, filled: int, num_steps: int) -> Segment | None:
        """Make a segment of a part from row `filled` on; where there are several parts, in the background."""
        assert self._weights is not None, "load weights first"
        self.go_on()
        self._collectors[part].policy.load(self._weights)
        first, rows = self.setup.first, self._parts[part]
        block = part_of(self._blocks[0], num_steps, first + rows[0], first + rows[-1] + 1)
        block.filled = filled
        if self._pool is None:
            return self._make(part, block, number)
        self._running[part] = self._pool.submit(self._make_aside, part, block, number)
        return None

    def halt(self) -> str:
        """Break off the segments under way, each after its running step."""
        self._halting = True
        wait(self._running.values())
        self._halting = False
        return HALTED

    def close(self) -> list[str]:
        self.halt()
        return super().close()

    def _make(self, part: int, block: Block, number: int) -> Segment:
        reported = time.monotonic()

        def is_over() -> bool:
            nonlocal reported
            if self._pool is not None:
                return self._halting
            now = time.monotonic()
            if now - reported >= REPORT_S:
                reported = now
                self.link.send(("ok", Segment(part, take_report(block))))
            return self.link.has_command()

        collector = self._collectors[part]
        done = collector.fill(block, number, is_over)
        seconds = collector.clock.take().seconds
        act_s, env_s, cpu_s = (seconds["collector", name] for name in ("act", "env", "cpu"))
        return Segment(part, take_report(block)._replace(done=done, act_s=act_s, env_s=env_s, cpu_s=cpu_s))

    def _make_aside(self, part: int, block: Block, number: int) -> None:
        try:
            reply: tuple[Any, ...] = ("ok", self._make(part, block, number))
        except Exception as error:  # noqa: BLE001  border: a thread; raised in the parent
            reply = ("error", *describe_error(error))
        self.link.send(reply)


def serve_segments(link: Link, setup: Any) -> None:
    """What a worker process runs whose parts go at their own pace."""
    serve(link, setup, SegmentService)
