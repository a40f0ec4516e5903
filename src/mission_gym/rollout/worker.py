"""Collecting inside a worker process: its parts fill their columns of a shared block, each at its own pace.

A part is stepped and acted for together: all environments of the worker, or, if they are stepped
concurrently, an acting group. The worker receives orders, one per segment. It sends reports when segments are
done and a few times per second, so that the death of the process costs little. A part stops after its current
step when the shared `pause` is not 0; no part waits for another one.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mission_gym.data import Array, Block, EnvSpec, Episode, Final, Leaves, StepBatch, Weights
from mission_gym.errors import MissionGymError
from mission_gym.procs import Link, describe_error, exit_with_traceback
from mission_gym.procs.start import explain_refusal
from mission_gym.rollout.blocks import make_block, slice_block
from mission_gym.rollout.collector import Collector
from mission_gym.rollout.make import CollectRequest
from mission_gym.vector.arrays import Allocate
from mission_gym.vector.concurrent import ConcurrentVec
from mission_gym.vector.record import WorkerExtension, split_groups
from mission_gym.vector.worker import NO_REPLY, Service, WorkerSetup, serve

_REPORT_S = 0.1


class SharedRollout(NamedTuple):
    """The shared memory of collecting workers and their parent.

    Columns of a block and of `memory` belong to the worker from an order to its last report, else to the
    parent. `weights` belong to the parent, who changes them only while no part is working; workers copy them
    when an order has a new serial number of weights.
    """

    blocks: tuple[Block, ...]
    weights: dict[str, Array]
    memory: Leaves  # the policy's running state, each [B, ...]
    initial: Leaves  # not shared: `memory` at the beginning of episodes


def extend_workers(spec: EnvSpec, request: CollectRequest) -> WorkerExtension:
    """The extension with which the workers of a vector collect."""
    carve = partial(_carve, spec, request)
    return WorkerExtension("mission_gym.rollout.worker:serve_collecting", request, carve)


def _carve(spec: EnvSpec, request: CollectRequest, allocate: Allocate) -> SharedRollout:
    policy, num_columns = request.make_policy(), request.num_envs * spec.num_agents
    initial = policy.initial_state(num_columns)
    blocks = [
        make_block(spec, request.num_steps, num_columns, allocate, initial) for _ in range(request.num_blocks)
    ]
    weights = {name: allocate(shape, dtype) for name, (shape, dtype) in policy.shapes().items()}
    memory = tuple(allocate(array.shape, array.dtype) for array in initial)
    return SharedRollout(tuple(blocks), weights, memory, initial)


class SegmentOrder(NamedTuple):
    """The segment that a part should fill or continue."""

    part: int  # in the worker
    block: int  # index of the shared block
    number: int  # of the noise
    filled: int  # steps that are done
    num_steps: int


class SegmentTime(NamedTuple):
    """Seconds that a finished order took. cpu_s: of the whole process, since its previous part was done."""

    act_s: float
    env_s: float
    wall_s: float
    cpu_s: float


class SegmentReport(NamedTuple):
    """The news of a part's segment; columns in `finals` count from the part's first one.

    All steps below `filled` are written, and their episodes and finals are in this report or an earlier one.
    So a parent that relies on reports never sees half of a step.
    """

    part: int
    filled: int
    episodes: list[Episode]
    finals: list[Final]
    time: SegmentTime | None = None  # set once the order is done


class CollectService(Service):
    """A worker that also collects."""

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        super().__init__(link, setup)
        request: CollectRequest = setup.extra
        self._rollout = _carve(setup.spec, request, self.carver)
        per_env, num_envs, first = setup.spec.num_agents, len(setup.env_ids), setup.env_ids.start
        concurrent = self.vec if isinstance(self.vec, ConcurrentVec) else None
        parts = split_groups(num_envs, request.acting_rows // per_env if concurrent else num_envs)
        self._columns = [
            slice((first + envs.start) * per_env, (first + envs.stop) * per_env) for envs in parts
        ]
        self._collectors = [
            Collector(
                self.vec if concurrent is None else concurrent.group(envs.start, envs.stop),
                request.make_policy(),
                setup.spec,
                request.seed,
                request.acting_rows,
                first_column=request.first_column + columns.start,
                memory=tuple(array[columns] for array in self._rollout.memory),
            )
            for envs, columns in zip(parts, self._columns, strict=True)
        ]
        self._weights: tuple[int, Weights] | None = None  # with their serial number
        self._loaded = [0] * len(parts)  # serial numbers
        self._lock = threading.Lock()  # of the next three
        self._reports: list[SegmentReport] = []  # to be sent
        self._num_working = 0
        self._cpu_s = 0.0
        self._concurrent = concurrent
        self._under_way: dict[int, Future[None]] = {}
        if concurrent is not None:
            with explain_refusal():
                threading.Thread(target=self._send_often, daemon=True).start()

    def collect(self, serial: int, weights: Weights, orders: list[SegmentOrder]) -> object:
        """Fill segments, concurrently if there are several. New weights without arrays are the shared ones.

        Reports show the progress; the command itself has no reply.
        """
        if self.shown is not None:  # after a reset or a restore
            first = self._columns[0].start
            for collector, columns in zip(self._collectors, self._columns, strict=True):
                collector.continue_from(
                    _slice_batch(self.shown, slice(columns.start - first, columns.stop - first))
                )
            self.shown = None
        if self._weights is None or self._weights[0] != serial:
            arrays = weights.arrays or {name: array.copy() for name, array in self._rollout.weights.items()}
            self._weights = serial, replace(weights, arrays=arrays)
        with self._lock:
            if not self._num_working:
                self._cpu_s = time.process_time()
            self._num_working += len(orders)
        for order in orders:
            if self._loaded[order.part] != serial:
                self._collectors[order.part].load(self._weights[1])
                self._loaded[order.part] = serial
            if self._concurrent is None:
                self._fill_segment(order)
            else:
                self._under_way[order.part] = self._concurrent.submit(self._fill_or_end, order)
        return NO_REPLY

    def close(self) -> list[str]:
        wait(self._under_way.values())  # each ends after its current step: the parent has set `pause`
        return super().close()

    def _fill_segment(self, order: SegmentOrder) -> None:
        """Fill a segment up to its end or a pause, and report on the way."""
        collector, pause = self._collectors[order.part], self.shared.pause
        block = slice_block(self._rollout.blocks[order.block], order.num_steps, self._columns[order.part])
        block.filled[:] = order.filled
        begun, reported = time.perf_counter(), time.monotonic()

        def must_stop() -> bool:
            nonlocal reported
            now = time.monotonic()
            if now - reported >= _REPORT_S:
                reported = now
                with self._lock:
                    self._reports.append(take_report(block, order.part))
                if self._concurrent is None:
                    self._send()
            return bool(pause[0])

        collector.fill(block, order.number, must_stop)
        seconds, wall_s = collector.clock.take().seconds, time.perf_counter() - begun
        with self._lock:
            before, self._cpu_s = self._cpu_s, time.process_time()
            took = SegmentTime(
                seconds["collector", "act"], seconds["collector", "env"], wall_s, self._cpu_s - before
            )
            self._reports.append(take_report(block, order.part)._replace(time=took))
            self._num_working -= 1
            is_last = not self._num_working
        # A block of all segments needs the last one, so the parent is not woken for each.
        if is_last or self.setup.extra.first_ready:
            self._send()

    def _fill_or_end(self, order: SegmentOrder) -> None:
        try:
            self._fill_segment(order)
        except MissionGymError as error:
            self.link.send(("error", *describe_error(error)))
        except BaseException:  # noqa: BLE001  border: a thread
            exit_with_traceback()

    def _send(self) -> None:
        """Send all reports at once. The lock keeps the reports of a part in order."""
        with self._lock:
            reports, self._reports = self._reports, []
            if reports:
                self.link.send(("note", reports))

    def _send_often(self) -> None:
        """Send reports from a thread, so that a part that hangs does not hold back those of the others."""
        try:
            while True:
                time.sleep(_REPORT_S)
                self._send()
        except OSError:  # the parent is gone
            return
        except Exception:  # noqa: BLE001  border: a thread
            exit_with_traceback()


def _slice_batch(batch: StepBatch, rows: slice) -> StepBatch:
    """The observations and masks of some rows."""
    mask = None if batch.mask is None else batch.mask[rows]
    return replace(batch, obs=tuple(leaf[rows] for leaf in batch.obs), mask=mask)


def take_report(block: Block, part: int) -> SegmentReport:
    """The news of a part's segment since the last report."""
    report = SegmentReport(part, int(block.filled[0]), block.episodes, block.finals)
    block.episodes, block.finals = [], []
    return report


def serve_collecting(link: Link, setup: Any) -> None:
    """The entry point of a collecting worker process."""
    serve(link, setup, CollectService)
