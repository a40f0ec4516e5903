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

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mission_gym.data import Block, EnvSpec, Leaves
from mission_gym.ray.share import ShareOrder, ShareReport, unpack_report
from mission_gym.ray.vector import ClusterVec
from mission_gym.rollout.blocks import (
    clear_columns,
    invalidate_transition,
    make_block,
    move_episodes,
    pack_block,
    part_of,
    truncate_column,
)
from mission_gym.rollout.collector import STOP_S
from mission_gym.rollout.segments import POLL_S, SegmentCollector
from mission_gym.vector.crew import Lost
from mission_gym.vector.workers import lost_episode

IN_FLIGHT = 2  # calls of a share that are not in a block yet: one at work, one behind it or delivered


@dataclass(slots=True, eq=False)
class _Part:
    """The columns of a share."""

    columns: slice  # of a block of all
    serials: list[int] = field(default_factory=list)  # of the orders under way
    is_fresh: bool = True  # its actor has the policy's memory from us with the next order
    at_work: Block | None = None  # of all: the segment that was ordered
    num_ordered: int = 0  # orders for the block in hand


class ClusterCollector(SegmentCollector):
    """Collects through a ClusterVec whose actors are Shares. state: what a policy's memory is at first."""

    vec: ClusterVec
    blocks: list[Block]
    patience_s = STOP_S + 1.0  # and for what ended then to get here

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
        memory = tuple(array.copy() for array in state)
        super().__init__(vec, spec, memory, state, first_ready=first_ready)
        self.blocks = [make_block(spec, num_steps, vec.num_rows, state=state) for _ in range(num_blocks)]
        self._parts = [_Part(slice(ids[0] * vec.per_env, (ids[-1] + 1) * vec.per_env)) for ids in vec.shares]
        self._serial = 0
        self._stored: tuple[int, Any] = (0, None)  # the edition of the weights, and Ray's reference to them
        self._stage: int | None = None

    def start(self) -> None:
        super().start()
        self._refresh()

    def go_on(self, batch: Any) -> None:
        self._refresh()

    def make_short(self, num_steps: int) -> Block:
        return make_block(self.spec, num_steps, self.vec.num_rows, state=self.memory)

    def metrics(self) -> dict[str, float]:
        """As of workers; and how many shares have an actor."""
        up, squeezed = self.vec.crew.count_up()
        told = {"machine/actors": float(up), "machine/actors_squeezed": float(squeezed)}
        return super().metrics() | told

    def take_notes(self) -> list[str]:
        notes, self.vec.crew.notes = self.vec.crew.notes, []
        return notes

    def _prepare(self, block: Block, number: int) -> None:
        """Weights are stored once for all nodes; shares move to where there is room."""
        if self._first_ready:
            self.vec.crew.check()
        if self._stored[0] != self.policy.edition:
            self._stored = self.policy.edition, self.vec.crew.ray.put(self.policy.weights)
        self._stage = None if self.stage_of is None else self.stage_of(number)
        for part in self._parts:
            part.num_ordered = 0
        for share in [] if self._first_ready else self.vec.grow():
            self._parts[share].is_fresh = True

    def _order(self, block: Block, number: int) -> None:
        for share, part in enumerate(self._parts):
            if self._first_ready:
                waiting = sum(owner is part for owner, _ in self._finished)
                while self.vec.crew.is_up(share) and len(part.serials) + waiting < IN_FLIGHT:
                    # Unique for (block, order): calls of an earlier block have its number.
                    own = number * (IN_FLIGHT + block.num_columns) + part.num_ordered
                    self._send(share, own, block.num_steps, None)
                    part.num_ordered += 1
            elif not part.serials:
                mine = part.at_work = part.at_work or _cut_out(block, part.columns)
                if mine.is_full:
                    self._put_back(part, block)
                else:
                    self._send(share, number, block.num_steps, mine if mine.num_filled else None)

    def _is_at_work(self) -> bool:
        return any(part.serials for part in self._parts)

    def _listen(self) -> list[tuple[int, Any]]:
        return self.vec.hear(POLL_S)

    def _hear(self, teller: int, told: Any, block: Block, *, go_on: bool) -> list[ShareReport]:
        if isinstance(told, Lost):
            self._lose(teller, block)
        elif told.serial in self._parts[teller].serials:  # else of what was given up
            self._add(teller, told, block)
            return [told]
        return []

    def _send(self, share: int, number: int, num_steps: int, begun: Block | None) -> None:
        part, self._serial = self._parts[share], self._serial + 1
        edition, weights = self._stored
        memory = tuple(array[part.columns] for array in self.memory) if part.is_fresh else None
        packed = None if begun is None else pack_block(begun)
        order = ShareOrder(self._serial, number, num_steps, edition, self._stage, packed, memory)
        part.serials.append(self._serial)
        part.is_fresh = False
        self.vec.crew.call(share, "collect", weights, order)

    def _add(self, share: int, report: ShareReport, block: Block) -> None:
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
            self._finished.append((part, segment))
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
        move_episodes(mine, slice(0, mine.num_columns), block, part.columns.start)

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
                invalidate_transition(mine, t, column)
                mine.filled[column] = t + 1
            else:  # what comes next is another episode
                truncate_column(mine, t, column)

    def _pause(self) -> None:
        for share, part in enumerate(self._parts):
            if part.serials:
                self.vec.crew.pause(share, part.serials[-1])

    def _give_up(self, block: Block) -> None:
        for share, part in enumerate(self._parts):
            if part.serials:
                clear_columns(block, part.columns)
                part.at_work = None
                reason = f"a step took over {STOP_S} s when the run was stopped"
                self.vec.abandoned |= dict.fromkeys(self.vec.shares[share], reason)

    def _halt(self) -> None:
        self.vec.crew.check()
        self._pause()
        while self._is_at_work():
            for share, reply in self._listen():
                part = self._parts[share]
                if isinstance(reply, Lost):
                    part.serials.clear()
                    part.is_fresh = True
                elif reply.serial in part.serials:
                    part.serials.remove(reply.serial)
                    self.vec.count(reply.episodes)
        self._drop_finished()
        for part in self._parts:
            part.at_work = None

    def _refresh(self) -> None:
        for part in self._parts:
            part.is_fresh = True


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
