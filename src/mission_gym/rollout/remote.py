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

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mission_gym.data import Block, EnvSpec, Weights
from mission_gym.rollout.blocks import (
    clear_columns,
    invalidate_transition,
    make_block,
    move_episodes,
    part_of,
    truncate_column,
)
from mission_gym.rollout.collector import STOP_S
from mission_gym.rollout.segments import POLL_S, SegmentCollector
from mission_gym.rollout.worker import Order, Report, Shared
from mission_gym.vector.crew import Lost, Note
from mission_gym.vector.workers import WorkersVec, lost_episode

SERVICE = "mission_gym.rollout.worker:serve_collecting"


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


class RemoteCollector(SegmentCollector):
    """Collects through a WorkersVec that was made with `SERVICE`, a CollectSetup and `carve_shared`.

    blocks: those that it can fill; workers know shared ones by their places.
    """

    vec: WorkersVec
    patience_s = STOP_S

    def __init__(self, vec: WorkersVec, spec: EnvSpec, *, first_ready: bool = False) -> None:
        self._shared: Shared = vec.shared
        super().__init__(vec, spec, self._shared.memory, self._shared.initial, first_ready=first_ready)
        self.blocks = self._shared.blocks
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
        self._written = 0  # the edition of the weights in shared memory
        self._held: dict[int, int] = {}  # that of those that each worker holds
        if first_ready:
            self.blocks = (
                make_block(spec, self.blocks[0].num_steps, vec.num_rows, state=self._shared.initial),
            )

    def make_short(self, num_steps: int) -> Block:
        """The first rows of a block that workers know: empty it before that one is filled."""
        return part_of(self.blocks[0], num_steps, slice(0, self.vec.num_rows))

    def _prepare(self, block: Block, number: int) -> None:
        """Weights go to shared memory, and a block of all is laid out as the parts' segments."""
        if self._first_ready:
            return
        weights = self.policy.weights
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

    def _order(self, block: Block, number: int) -> None:
        waiting = [part for part, _ in self._finished]
        free = [part for part in self._parts.values() if not part.at_work and part not in waiting]
        for part in free if self._first_ready else ():
            part.segment = part_of(self._shared.blocks[0], block.num_steps, part.columns)
            part.segment.filled[:], part.segment.version[:] = 0, self.policy.version
            # Unique for (block, segment): the one before is in this block, or was begun for another one.
            taken = block.env_ids[block.filled == block.num_steps]
            part.number = number * (block.num_columns + 1) + int((taken == part.segment.env_ids[0]).sum())
        begun = [part for part in free if not part.segment.is_full]
        for part in begun:
            part.weights, part.edition = self.policy.weights, self.policy.edition
        self._send(begun)

    def _send(self, parts: list[_Part]) -> None:
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
                sent = replace(sent, arrays={})
            self.vec.crew.send(worker, "collect", edition, sent, mine)
            self._held[worker] = edition

    def _parts_of(self, worker: int) -> list[_Part]:
        return [part for part in self._parts.values() if part.worker == worker]

    def _workers(self) -> set[int]:
        """The workers that have a part at work."""
        return {part.worker for part in self._parts.values() if part.at_work}

    def _is_at_work(self) -> bool:
        return any(part.at_work for part in self._parts.values())

    def _listen(self) -> list[tuple[int, Any]]:
        """What workers tell, or how they ended."""
        crew, workers = self.vec.crew, self._workers()
        heard = crew.wait(workers, POLL_S)
        if self.vec.side_by_side and not any(isinstance(reply, Lost) for _, reply in heard):
            heard += crew.inspect(workers)  # one part may hang while others report
        return heard

    def _hear(self, teller: int, told: Any, block: Block, *, go_on: bool) -> list[Report]:
        if isinstance(told, Lost):
            self._lose(teller, go_on=go_on)
        elif isinstance(told, Note):
            for report in told.content:
                self._add(teller, report)
            return [report for report in told.content if report.done]
        return []

    def _add(self, worker: int, report: Report) -> None:
        """Add what is new to a segment."""
        part = self._parts[worker, report.part]
        mine = part.segment
        mine.filled[:] = report.filled
        mine.episodes += report.episodes
        mine.finals += report.finals
        self.vec.count(report.episodes)
        if report.done:
            self._rest(part)

    def _rest(self, part: _Part) -> None:
        part.at_work = False
        if self._first_ready:
            self._finished.append((part, part.segment))

    def _gather(self, block: Block) -> None:
        for part in self._parts.values():
            if not part.at_work:
                move_episodes(part.segment, slice(0, part.segment.num_columns), block, part.columns.start)

    def _lose(self, worker: int, *, go_on: bool) -> None:
        """Go on in a worker that was replaced: the rows under way are lost, their episodes have failed."""
        self._held.pop(worker, None)
        numbers = self.vec.episode_numbers()
        parts = self._parts_of(worker)
        for part in parts:
            mine, t = part.segment, int(part.segment.filled[0])
            for column in range(mine.num_columns):
                if part.at_work:
                    invalidate_transition(mine, t, column)
                else:  # what comes next is another episode
                    truncate_column(mine, t, column)
            mine.filled[:] = t + part.at_work
            lost = dict.fromkeys(mine.env_ids.tolist())  # once, however many agents each has
            mine.episodes += [lost_episode(env_id, numbers[env_id] - 1) for env_id in lost]
            self.forget(part.columns)
            if part.at_work and (mine.is_full or not go_on):
                self._rest(part)
        self._send([part for part in parts if part.at_work])

    def _pause(self) -> None:
        self.vec.board.pause[0] = 1

    def _give_up(self, block: Block) -> None:
        for part in [part for part in self._parts.values() if part.at_work]:
            clear_columns(block, part.columns)
            reason = f"a step took over {STOP_S} s when the run was stopped"
            self.vec.abandoned |= dict.fromkeys(part.segment.env_ids.tolist(), reason)

    def _halt(self) -> None:
        while self._is_at_work():
            self._pause()
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
        self._drop_finished()
        self.vec.board.pause[0] = 0
