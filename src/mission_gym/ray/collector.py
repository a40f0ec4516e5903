"""Environments on the nodes of a cluster: their vector, and the collector of their segments.

An actor on a node steps and acts for a shard of the environments, with our workers there. Each segment is one
call, and its columns come back by reference. Blocks of `all` take a segment of every shard and equal those of
workers here, bit for bit. With `first_ready`, shards continue by themselves, at most IN_FLIGHT calls ahead,
each with the newest weights at the time of the call.

Weights are stored once per version, and each node fetches them once. A shard that is lost with its node loses
its segments under way: one step of theirs is not valid, its episodes failed, and another actor continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, Episode, StepBatch
from mission_gym.env.resume import SlotState
from mission_gym.errors import UsageError
from mission_gym.ray.actors import ActorPool
from mission_gym.ray.shard import Beginning, ShardOrder, ShardReport, unpack_report
from mission_gym.rollout.blocks import make_block, pack_block
from mission_gym.rollout.collector import POLL_S
from mission_gym.rollout.make import CollectRequest
from mission_gym.rollout.remote import RemoteCollector, RemotePart
from mission_gym.vector.arrays import make_step_arrays
from mission_gym.vector.base import ResetOptions, SeedOf, Vector
from mission_gym.vector.pool import LostReply

IN_FLIGHT = 2  # calls of a shard that are in no block yet: one running, one queued or delivered
_WAIT_S = 0.5
_NODE_LOST = "its node was lost"
_NO_STEPS = "environments on a cluster are stepped by their actors; collect segments of them"


class ClusterVec(Vector):
    """A vector whose environments are in the actors of a cluster, one shard each. It knows their states and
    episode numbers. Steps are never sent or received here, and observations stay on the nodes."""

    rows_step_alone = False

    def __init__(
        self, spec: EnvSpec, num_envs: int, seed_of: SeedOf, shards: list[range], pool: ActorPool
    ) -> None:
        super().__init__(spec, num_envs, seed_of)
        self.shards, self.pool = shards, pool
        self._numbers = [0] * num_envs  # of the running episodes
        self._ways: dict[int, list[str]] = {}  # how the environments of a shard were restored
        self._begun: set[int] = set()
        self._worker_restarts = [0] * len(shards)
        pool.begin = self._begin_again

    def receive(self, timeout_s: float) -> list[tuple[int, Any]]:
        """The reports of shards; LostReply if a shard's segments are gone and its next episodes begin."""
        received: list[tuple[int, Any]] = []
        for call, reply in self.pool.wait(timeout_s):
            if call.name == "begin" and not isinstance(reply, LostReply):
                ids = self.shards[call.shard]
                self._numbers[ids.start : ids.stop] = reply.numbers
                self._ways[call.shard] = reply.ways
                self._begun.add(call.shard)
            else:
                received.append((call.shard, reply))
        return received

    def count(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that ended."""
        for episode in episodes:
            self._numbers[episode.env_id] = episode.number + 1

    def note_restarts(self, shard: int, number: int) -> None:
        """Set the number of workers of a shard that were replaced on its node so far."""
        self._worker_restarts[shard] = number

    def move_shards(self) -> list[int]:
        """Move shards without their own CPUs, and their episodes, to nodes that have room now."""
        found = self.pool.find_room()
        states = self.pool.ask(found, "state") if found else {}
        moved = [shard for shard, reply in states.items() if not isinstance(reply, LostReply)]
        for shard in moved:
            self.pool.move(shard)
            self._begun.discard(shard)
            self.pool.call(shard, "begin", Beginning(self._seed_of, states[shard], float("inf")))
        return moved

    def episode_numbers(self) -> list[int]:
        return list(self._numbers)

    def _boundaries(self, ids: range) -> list[SlotState]:
        """States after which the next episodes begin."""
        reasons = {env_id: self.abandoned.get(env_id, _NODE_LOST) for env_id in ids}
        return [
            SlotState("boundary", self._numbers[env_id], None, 0, 0.0, (), reason=reason)
            for env_id, reason in reasons.items()
        ]

    def _begin_again(self, shard: int) -> tuple[Beginning]:
        """Begin the episodes after those that a shard lost."""
        self._begun.discard(shard)
        states = self._boundaries(self.shards[shard])
        for env_id in self.shards[shard]:
            self._numbers[env_id] += 1
        return (Beginning(self._seed_of, states),)

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: ResetOptions
    ) -> StepBatch:
        if env_ids is not None or seeds is not None or options is not None:
            raise UsageError("environments on a cluster are reset all at once, with their own seeds")
        self._numbers = [0] * self.num_envs
        return self._begin([Beginning(self._seed_of)] * len(self.shards))

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        self._numbers = [state.episode for state in states]
        batch = self._begin(
            [Beginning(self._seed_of, list(states[ids.start : ids.stop]), budget_s) for ids in self.shards]
        )
        late = ["boundary: its node has not joined yet"]
        ways = [self._ways.get(shard, late * len(ids)) for shard, ids in enumerate(self.shards)]
        return batch, [way for each in ways for way in each]

    def _begin(self, beginnings: list[Beginning]) -> StepBatch:
        """Begin the episodes of all shards; wait for one of them, or for all if all are needed."""
        self._begun.clear()
        self._ways.clear()
        for shard, beginning in enumerate(beginnings):
            self.pool.call(shard, "begin", beginning)
        while not self._begun or (self.pool.needs_all and len(self._begun) < len(beginnings)):
            self.receive(_WAIT_S)
        return make_step_arrays(self.spec, 0).as_batch(np.empty(0, np.int64), {})

    def _state(self, ids: list[int]) -> list[SlotState]:
        replies = self.pool.ask(
            [shard for shard, own in enumerate(self.shards) if set(ids).issuperset(own)], "state"
        )
        states: list[SlotState] = []
        for shard, own in enumerate(self.shards):
            reply = replies.get(shard)
            states += self._boundaries(own) if reply is None or isinstance(reply, LostReply) else reply
        return states

    def _send(self, actions: Array, ids: list[int]) -> None:
        raise UsageError(_NO_STEPS)

    def _recv(self) -> StepBatch:
        raise UsageError(_NO_STEPS)

    @property
    def num_restarts(self) -> int:
        return self.pool.num_restarts + sum(self._worker_restarts)

    def _close(self) -> list[str]:
        return self.pool.close()


@dataclass(slots=True, eq=False)
class _ShardPart(RemotePart):
    """The only part of a shard."""

    needs_memory: bool = True  # the next order carries the policy's memory
    num_ordered: int = 0  # orders for the current block


class ClusterCollector(RemoteCollector[_ShardPart]):
    """Collects through a ClusterVec whose actors are Shards."""

    vec: ClusterVec
    blocks: list[Block]
    transfer_s = 1.0

    def __init__(self, vec: ClusterVec, spec: EnvSpec, request: CollectRequest) -> None:
        initial = request.make_policy().initial_state(vec.num_columns)
        parts = [
            [_ShardPart(shard, ids, slice(ids.start * vec.per_env, ids.stop * vec.per_env))]
            for shard, ids in enumerate(vec.shards)
        ]
        memory = tuple(array.copy() for array in initial)
        super().__init__(vec, spec, parts, memory, initial, first_ready=request.first_ready)
        self.blocks = [self.make_short(request.num_steps) for _ in range(request.num_blocks)]
        self._last_order = 0
        self._stored: tuple[int, Any] = (0, None)  # serial number of the weights, and Ray's reference to them
        self._stage: int | None = None

    def start(self) -> None:
        super().start()
        self.continue_from(None)

    def continue_from(self, batch: Any) -> None:
        for part in self._parts:
            part.needs_memory = True

    def make_short(self, num_steps: int) -> Block:
        return make_block(self.spec, num_steps, self.vec.num_columns, state=self.memory)

    def metrics(self) -> dict[str, float]:
        """Also how many shards have an actor."""
        running, squeezed = self.vec.pool.count_running()
        values = {"machine/actors": float(running), "machine/actors_without_cpus": float(squeezed)}
        return super().metrics() | values

    def take_notes(self) -> list[str]:
        notes, self.vec.pool.notes = self.vec.pool.notes, []
        return notes

    def _prepare(self, block: Block, number: int) -> None:
        """Store the weights once for all nodes, and move shards to nodes with room."""
        if self._first_ready:
            self.vec.pool.check()
        if self._stored[0] != self._serial:
            self._stored = self._serial, self.vec.pool.ray.put(self._weights)
        self._stage = None if self.stage_of is None else self.stage_of(number)
        for part in self._parts:
            part.num_ordered = 0
        for shard in [] if self._first_ready else self.vec.move_shards():
            self._parts[shard].needs_memory = True

    def _order(self, block: Block, number: int) -> None:
        for part in self._parts:
            if part.segment is not None:  # of a block of all shards
                if not part.num_pending and not part.segment.is_full:
                    self._send(part, number, block.num_steps)
                continue
            waiting = sum(owner is part for owner, _ in self._finished)
            while self.vec.pool.is_running(part.owner) and part.num_pending + waiting < IN_FLIGHT:
                # Unique for (block, order): calls of an earlier block have its number.
                own = number * (IN_FLIGHT + block.num_columns) + part.num_ordered
                self._send(part, own, block.num_steps)
                part.num_ordered += 1

    def _send(self, part: _ShardPart, number: int, num_steps: int) -> None:
        self._last_order += 1
        serial, weights = self._stored
        memory = tuple(array[part.columns] for array in self.memory) if part.needs_memory else None
        begun = None
        if part.segment is not None and part.segment.num_filled:
            begun = pack_block(part.segment)
        order = ShardOrder(self._last_order, number, num_steps, serial, self._stage, begun, memory)
        part.num_pending += 1
        part.needs_memory = False
        self.vec.pool.call(part.owner, "collect", weights, order)

    def _receive(self) -> list[tuple[int, Any]]:
        return self.vec.receive(POLL_S)

    def _add(self, part: _ShardPart, report: ShardReport) -> None:
        """Write a report to its segment, or to a new one of first-ready blocks."""
        self.vec.note_restarts(part.owner, report.num_restarts)
        self.vec.pool.reset_failures(part.owner)
        for own, given in zip(self.memory, report.memory, strict=True):
            own[part.columns] = given
        if self._first_ready:
            num_steps, num_columns = report.columns["block/reward"].shape
            segment = make_block(self.spec, num_steps, num_columns, np.empty, self.memory)
            unpack_report(report, segment)
            self._finished.append((part, segment))
        elif part.segment is not None:
            self.vec.abandoned |= report.abandoned
            unpack_report(report, part.segment)

    def _release(self, owner: int) -> list[tuple[_ShardPart, bool]]:
        self._by_owner[owner][0].needs_memory = True
        return super()._release(owner)

    def _pause(self) -> None:
        for part in self._parts:
            if part.num_pending:
                self.vec.pool.pause(part.owner, self._last_order)

    def _halt(self) -> None:
        self.vec.pool.check()
        super()._halt()
