"""Collecting inside a worker process: its parts fill their columns of a shared block, each at its own pace.

A part is what is acted for and stepped together: all rows of the worker, or where they are stepped side by
side an acting group.
In: orders, one for each segment. Out: notes, each with all reports since the one before: when segments are
done, and a few times a second, so that the death of the process costs almost nothing. A part stops after its
running step when `pause` on the board is not 0; nobody waits for another part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from mission_gym.data import Array, Block, EnvSpec, Episode, Final, Leaves, StepBatch, Weights
from mission_gym.errors import MissionGymError
from mission_gym.policy.encoding import Shapes
from mission_gym.procs import Link, describe_error, exit_with_traceback
from mission_gym.rollout.blocks import make_block, part_of
from mission_gym.rollout.collector import ActingPolicy, Collector
from mission_gym.vector.rows import Allocate, split_parts
from mission_gym.vector.side_by_side import SideBySideVec
from mission_gym.vector.worker import UNANSWERED, Service, WorkerSetup, serve

_REPORT_S = 0.1


class WorkerPolicy(ActingPolicy, Protocol):
    """A policy that says which arrays it loads, so that they can be shared."""

    def shapes(self) -> Shapes: ...


@dataclass(frozen=True, slots=True)
class CollectSetup:
    """What a collecting worker needs beside its rows."""

    make_policy: Callable[[], WorkerPolicy]
    seed: int
    acting_rows: int
    num_steps: int
    num_blocks: int = 1
    first_ready: bool = False  # a block takes the columns that are finished first, so they are told at once
    first_row: int = 0  # of these rows in a larger vector: the noise is that of all


class Shared(NamedTuple):
    """What collecting workers and their parent have in common, behind the board.

    Columns of a block and rows of `memory` belong to the worker from an order to the report that it is done,
    and to the parent in between. `weights` are the parent's; workers copy them when an order names a new
    edition, and the parent changes them only while no part is at work.
    """

    blocks: tuple[Block, ...]
    weights: dict[str, Array]
    memory: Leaves  # the policy's running state, each [B, ...]
    initial: Leaves  # not shared: what `memory` is where episodes begin


def carve_shared(spec: EnvSpec, setup: CollectSetup, num_envs: int) -> Callable[[Allocate], Shared]:
    """How the shared memory is laid out, alike on both sides."""

    def carve(allocate: Allocate) -> Shared:
        policy = setup.make_policy()
        num_rows = num_envs * spec.num_agents
        initial = policy.initial_state(num_rows)
        blocks = [
            make_block(spec, setup.num_steps, num_rows, allocate, initial) for _ in range(setup.num_blocks)
        ]
        weights = {name: allocate(shape, dtype) for name, (shape, dtype) in policy.shapes().items()}
        memory = tuple(allocate(array.shape, array.dtype) for array in initial)
        return Shared(tuple(blocks), weights, memory, initial)

    return carve


class Order(NamedTuple):
    """The segment that a part is to make, or to go on with."""

    part: int  # in the worker
    place: int  # of the block in shared memory
    number: int  # of its noise
    filled: int  # rows that it has
    num_steps: int


class Report(NamedTuple):
    """What is new in the segment of a part; columns in `finals` are the part's own.

    It promises that all rows below `filled` are written and that their episodes and finals are in this report
    or in one before. So a parent that goes by reports alone never has half of anything.
    """

    part: int
    filled: int
    episodes: list[Episode]
    finals: list[Final]
    done: bool = False  # the part rests until its next order, and what follows is said
    act_s: float = 0.0
    env_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0  # of the whole process, since the last part was done


class CollectService(Service):
    """A worker that also collects."""

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        super().__init__(link, setup)
        extra: CollectSetup = setup.extra
        self._shared = carve_shared(setup.spec, extra, setup.num_envs)(self.carver)
        per_env, count = setup.spec.num_agents, setup.last - setup.first
        self._parts = split_parts(count, extra.acting_rows // per_env, alone=setup.kind.side_by_side)
        self._columns = [
            slice((setup.first + envs[0]) * per_env, (setup.first + envs[-1] + 1) * per_env)
            for envs in self._parts
        ]
        self._collectors = [
            Collector(
                self.vec.part(envs[0], envs[-1] + 1) if isinstance(self.vec, SideBySideVec) else self.vec,
                extra.make_policy(),
                setup.spec,
                extra.seed,
                extra.acting_rows,
                first_row=extra.first_row + columns.start,
                memory=tuple(array[columns] for array in self._shared.memory),
            )
            for envs, columns in zip(self._parts, self._columns, strict=True)
        ]
        self._weights: tuple[int, Weights] | None = None  # with their edition
        self._loaded = [0] * len(self._parts)  # editions
        self._lock = threading.Lock()  # of what follows
        self._reports: list[Report] = []  # to be sent
        self._num_at_work = 0
        self._cpu_s = 0.0
        self._callers = self.vec if isinstance(self.vec, SideBySideVec) else None
        self._under_way: dict[int, Future[None]] = {}
        if self._callers is not None:
            threading.Thread(target=self._send_often, daemon=True).start()

    def collect(self, edition: int, weights: Weights, orders: list[Order]) -> object:
        """Make segments; several side by side. Weights of a new edition without arrays are the shared ones.

        There is no reply: notes tell how far the parts are.
        """
        if self.shown is not None:  # after a reset or a restore
            first = self._columns[0].start
            for collector, columns in zip(self._collectors, self._columns, strict=True):
                collector.go_on(_cut(self.shown, slice(columns.start - first, columns.stop - first)))
            self.shown = None
        if self._weights is None or self._weights[0] != edition:
            arrays = weights.arrays or {name: array.copy() for name, array in self._shared.weights.items()}
            self._weights = edition, replace(weights, arrays=arrays)
        with self._lock:
            if not self._num_at_work:
                self._cpu_s = time.process_time()
            self._num_at_work += len(orders)
        for order in orders:
            if self._loaded[order.part] != edition:
                self._collectors[order.part].policy.load(self._weights[1])
                self._loaded[order.part] = edition
            if self._callers is None:
                self._make(order)
            else:
                self._under_way[order.part] = self._callers.spawn(self._make_aside, order)
        return UNANSWERED

    def close(self) -> list[str]:
        wait(self._under_way.values())  # each ends after its running step: the parent has set `pause`
        return super().close()

    def _make(self, order: Order) -> None:
        """Fill the segment up to its end or to where the parent asks for a pause; report on the way."""
        collector, pause = self._collectors[order.part], self.board.pause
        block = part_of(self._shared.blocks[order.place], order.num_steps, self._columns[order.part])
        block.filled[:] = order.filled
        begun, reported = time.perf_counter(), time.monotonic()

        def is_over() -> bool:
            nonlocal reported
            now = time.monotonic()
            if now - reported >= _REPORT_S:
                reported = now
                with self._lock:
                    self._reports.append(take_report(block, order.part))
                if self._callers is None:
                    self._send()
            return bool(pause[0])

        collector.fill(block, order.number, is_over)
        seconds = collector.clock.take().seconds
        with self._lock:
            before, self._cpu_s = self._cpu_s, time.process_time()
            self._reports.append(
                take_report(block, order.part)._replace(
                    done=True,
                    act_s=seconds["collector", "act"],
                    env_s=seconds["collector", "env"],
                    wall_s=time.perf_counter() - begun,
                    cpu_s=self._cpu_s - before,
                )
            )
            self._num_at_work -= 1
            is_last = not self._num_at_work
        # A block of all needs the last part, so the parent is not woken for each.
        if is_last or self.setup.extra.first_ready:
            self._send()

    def _make_aside(self, order: Order) -> None:
        try:
            self._make(order)
        except MissionGymError as error:
            self.link.send(("error", *describe_error(error)))
        except BaseException:  # noqa: BLE001  border: a thread
            exit_with_traceback()

    def _send(self) -> None:
        """Send all reports in one note. Under the lock: those of a part must arrive in their order."""
        with self._lock:
            reports, self._reports = self._reports, []
            if reports:
                self.link.send(("note", reports))

    def _send_often(self) -> None:
        """What a thread does where there are several parts: one that hangs must not hold back the others'."""
        try:
            while True:
                time.sleep(_REPORT_S)
                self._send()
        except OSError:  # the parent is gone
            return
        except Exception:  # noqa: BLE001  border: a thread
            exit_with_traceback()


def _cut(batch: StepBatch, cut: slice) -> StepBatch:
    """What some rows of a batch show."""
    mask = None if batch.mask is None else batch.mask[cut]
    return replace(batch, obs=tuple(leaf[cut] for leaf in batch.obs), mask=mask)


def take_report(block: Block, part: int) -> Report:
    """What is new in the segment of a part since the last report."""
    filled = int(block.filled[0])
    report = Report(part, filled, block.episodes, block.finals)
    block.episodes, block.finals = [], []
    return report


def serve_collecting(link: Link, setup: Any) -> None:
    """What a collecting worker process runs."""
    serve(link, setup, CollectService)
