"""Fills segments: T steps of the columns of a block that are stepped together, with their own fill count.

A block is one segment of every part of the environments (one part in Collector, several in ReadyCollector and
`remote`), or the first columns that are finished. The policy acts for groups of a fixed number of columns,
because results depend on the shape of a batch. The noise of a group is a function of (seed, group, block
number): a segment that was stopped continues later with the same numbers, in any process. Observations are
stored raw; values are not computed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.data import ActOut, Array, Block, EnvSpec, Leaves, StepBatch, Weights, ends_episode
from mission_gym.policy.sampling import draw_noise
from mission_gym.rollout.blocks import (
    add_final,
    clear_columns,
    make_block,
    read_obs,
    sort_episodes,
    sort_finals,
    store_state,
    truncate_column,
    write_obs,
    write_obs_at,
)
from mission_gym.streams import Streams

if TYPE_CHECKING:
    from mission_gym.vector.workers import WorkersVec

STOP_S = 2.5  # how long a stop request waits for slow steps; the run must be saved within five seconds
POLL_S = 0.05  # how soon a stop request is noticed while waiting for workers


class ActingPolicy(Protocol):
    """Either form of a policy."""

    version: int

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut: ...

    def initial_state(self, num_rows: int) -> Leaves: ...

    def load(self, weights: Weights) -> None: ...


class SteppingVector(Protocol):
    """The methods of a vector that a Collector uses."""

    num_columns: int

    def reset(self) -> StepBatch: ...

    def step(self, actions: Array) -> StepBatch: ...


class BlockCollector(ABC):
    """The interface of a collector to the training loop.

    interrupted_mid_step: an error ended a fill, so the environments are at unknown steps. memory: the
    policy's running state, each [B, ...], valid between two fills. stage_of: with a curriculum, from the
    number of a block to the stage in which its episodes begin.
    """

    vec: Any

    def __init__(self, memory: Leaves, initial: Leaves) -> None:
        self.clock = PhaseClock("collector")
        self.interrupted_mid_step = False
        self._filling_s = 0.0  # since the last call of `metrics`
        self.memory, self._initial = memory, initial
        self.stage_of: Callable[[int], int] | None = None

    @abstractmethod
    def load(self, weights: Weights) -> None:
        """Act with these weights from the next segment on."""

    @abstractmethod
    def start(self) -> None:
        """Begin every environment's first episode; segments under way are dropped."""

    @abstractmethod
    def make_short(self, num_steps: int) -> Block:
        """A block of all environments that `fill` takes, with at most the steps of the other blocks."""

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """Fill the rest of the block. `stop` is called before each step; if it returns True, the steps so far
        are kept and the result is False."""
        if self.stage_of is not None:
            self.vec.enter_stage(self.stage_of(number))
        return self._fill(block, number, stop)

    @abstractmethod
    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool: ...

    def continue_from(self, batch: StepBatch) -> None:  # noqa: B027  workers know their own batches
        """Continue from restored environments."""

    def reset_memory(self, columns: Any) -> None:
        """Reset the policy's memory in columns whose episodes begin; only between steps."""
        for memory, initial in zip(self.memory, self._initial, strict=True):
            memory[columns] = initial[columns]

    def take_notes(self) -> list[str]:
        """Messages for the user since the last call."""
        return []

    def metrics(self) -> dict[str, float]:
        """Metrics of the collecting since the last call."""
        seconds, self._filling_s = self._filling_s, 0.0
        latency = self.vec.measure_latency(seconds)
        return {} if latency is None else latency.metrics()


class Collector(BlockCollector):
    """Steps one vector with one policy: `start` or `continue_from` first, then `fill` block after block.

    acting_rows: rows of a group; None for all. first_column: of this vector, if it is a part of another one.
    memory: arrays for the policy's running state; None to make them.
    """

    def __init__(
        self,
        vec: SteppingVector,
        policy: ActingPolicy,
        spec: EnvSpec,
        seed: int,
        acting_rows: int | None = None,
        first_column: int = 0,
        memory: Leaves | None = None,
    ) -> None:
        initial = policy.initial_state(vec.num_columns)
        super().__init__(policy.initial_state(vec.num_columns) if memory is None else memory, initial)
        self._previous_memory = policy.initial_state(vec.num_columns)  # before the last action
        self.vec = vec
        self.policy = policy
        self.spec = spec
        self._batch: StepBatch | None = None
        size = acting_rows or vec.num_columns
        self._columns = np.arange(vec.num_columns)
        starts = range(0, vec.num_columns, size)
        self._groups = [slice(start, min(start + size, vec.num_columns)) for start in starts]
        self._seed, self._group_ids = seed, [(first_column + start) // size for start in starts]
        self._streams = Streams()

    def load(self, weights: Weights) -> None:
        self.policy.load(weights)

    def start(self) -> None:
        self._batch = self.vec.reset()
        self.reset_memory(slice(None))

    def continue_from(self, batch: StepBatch) -> None:
        self._batch = batch

    def make_short(self, num_steps: int) -> Block:
        return make_block(self.spec, num_steps, self.vec.num_columns, state=self.memory)

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """The whole block is one segment."""
        assert self._batch is not None, "start or continue_from comes first"
        self.interrupted_mid_step = True
        batch, action_spec, filled = self._batch, self.spec.action, block.filled
        begun = int(filled[0])
        noise = self._draw_noise(block, number)
        block.version[:] = self.policy.version
        act_s = env_s = 0.0
        cpu_before = time.thread_time()
        if not begun:
            store_state(block, self.memory, slice(None))
        write_obs(block, begun, batch)
        for t in range(begun, block.num_steps):
            if stop():
                break
            before = time.perf_counter()
            for columns, drawn in zip(self._groups, noise, strict=True):
                mask = None if batch.mask is None else batch.mask[columns]
                self._act(block, t, columns, tuple([leaf[columns] for leaf in batch.obs]), mask, drawn)
            between = time.perf_counter()
            batch = self.vec.step(action_spec.to_env(block.action[t]))
            act_s += between - before
            env_s += time.perf_counter() - between
            block.reward[t] = batch.reward
            block.terminated[t], block.truncated[t] = batch.terminated, batch.truncated
            block.valid[t] = batch.valid
            if len(batch.ended):
                block.episodes += batch.episodes
                self._add_finals(block, np.full(len(batch.reward), t), self._columns, batch)
            if self.memory:
                self.reset_memory(ends_episode(batch.terminated, batch.truncated, batch.valid))
            write_obs(block, t + 1, batch)
            filled.fill(t + 1)
        sort_finals(block)
        if self.spec.agents:
            sort_episodes(block)
        self._batch = batch
        return self._finish_fill(block, act_s, env_s, cpu_before)

    def _finish_fill(self, block: Block, act_s: float, env_s: float, cpu_before: float) -> bool:
        self.interrupted_mid_step = False
        self._filling_s += act_s + env_s
        for phase, seconds in (("act", act_s), ("env", env_s), ("cpu", time.thread_time() - cpu_before)):
            self.clock.add(phase, seconds)
        return block.is_full

    def _draw_noise(self, block: Block, number: int) -> list[Array]:
        """The noise [T, B, K] of each group for a whole block."""
        return [
            draw_noise(
                self.spec.action,
                self._streams.begin(self._seed, "act", group, number),
                block.num_steps,
                columns.stop - columns.start,
            )
            for group, columns in zip(self._group_ids, self._groups, strict=True)
        ]

    def _act(
        self, block: Block, t: int, columns: slice, obs: Leaves, mask: Array | None, noise: Array
    ) -> None:
        """Choose the actions of a group at step t."""
        out = self.policy.act(obs, mask, noise[t], tuple([memory[columns] for memory in self.memory]))
        block.action[t, columns], block.log_prob[t, columns] = out.action, out.log_prob
        for memory, previous, after in zip(self.memory, self._previous_memory, out.state, strict=True):
            previous[columns] = memory[columns]
            memory[columns] = after

    def _add_finals(self, block: Block, t: Array, columns: Array, batch: StepBatch) -> None:
        """Add the final observations of a batch; its row i is (t[i], columns[i]) of the block."""
        for position, row in enumerate(batch.ended.tolist()):
            if batch.truncated[row] and not batch.terminated[row]:
                step, column = int(t[row]), int(columns[row])
                # After a failure the last good observation is the one before the step.
                memory = self.memory if batch.valid[row] else self._previous_memory
                state = tuple(array[column] for array in memory)
                if not batch.valid[row]:
                    truncate_column(block, step, column, state)
                mask = None if batch.final_mask is None else batch.final_mask[position]
                obs = tuple(leaf[position] for leaf in batch.final_obs)
                add_final(block, step, column, obs, mask, state)


class ReadyCollector(Collector):
    """Acts in this process for environments in workers: for those of the worker that is ready, while others
    step. The vector has `first_ready` set.

    The columns of a worker are a segment with its own fill count. The groups of acting belong to workers, so
    the contents of a block do not depend on which worker was ready first.
    """

    vec: WorkersVec

    def __init__(
        self, vec: WorkersVec, policy: ActingPolicy, spec: EnvSpec, seed: int, acting_rows: int
    ) -> None:
        super().__init__(vec, policy, spec, seed, acting_rows)
        self._own = [slice(ids.start * vec.per_env, ids.stop * vec.per_env) for ids in vec.env_ids]
        self._worker_of = np.repeat(np.arange(len(self._own)), [own.stop - own.start for own in self._own])
        self._under_way = np.zeros(len(self._own), np.bool_)  # workers

    def start(self) -> None:
        self._drain()
        super().start()

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """A stop ends each worker's segment after its current step. If that takes too long, the segment is
        emptied and its episodes are abandoned."""
        self._drain()
        self.interrupted_mid_step = True
        noise = self._draw_noise(block, number)
        block.version[:] = self.policy.version
        store_state(block, self.memory, block.filled == 0)
        write_obs_at(block, block.filled, self.vec.show(list(range(self.vec.num_envs)), {}))
        under_way, ready = self._under_way, np.arange(len(self._own))
        act_s, env_s, cpu_before = 0.0, 0.0, time.thread_time()
        stopped_at: float | None = None
        while True:
            if stopped_at is None and stop():
                stopped_at = time.monotonic()
            begun = time.perf_counter()
            for worker in ready.tolist() if stopped_at is None else ():
                under_way[worker] = self._send(block, worker, noise)
            between = time.perf_counter()
            act_s += between - begun
            if not under_way.any():
                break
            has_replies = self.vec.poll(POLL_S)
            env_s += time.perf_counter() - between
            if not has_replies:
                ready = ready[:0]
                if stopped_at is not None and time.monotonic() - stopped_at > STOP_S:
                    self._give_up(block)
                    break
                continue
            batch = self.vec.recv()
            self._write(block, batch)
            ready = np.unique(self._worker_of[batch.env_ids])
            under_way[ready] = False
        sort_finals(block)
        sort_episodes(block)
        lost_s, self.vec.pool.lost_s = min(self.vec.pool.lost_s, env_s), 0.0
        self.clock.add("lost", lost_s)
        return self._finish_fill(block, act_s, env_s - lost_s, cpu_before)

    def _send(self, block: Block, worker: int, noise: list[Array]) -> bool:
        """Choose the actions of a worker's columns from the block and send them; False if its segment is
        full."""
        own = self._own[worker]
        t = int(block.filled[own.start])
        if t == block.num_steps:
            return False
        for columns, drawn in zip(self._groups, noise, strict=True):
            if own.start <= columns.start < own.stop:
                mask = None if block.mask is None else block.mask[t, columns]
                self._act(block, t, columns, read_obs(block, t, columns), mask, drawn)
        self.vec.send(self.spec.action.to_env(block.action[t, own]), self.vec.env_ids[worker])
        return True

    def _write(self, block: Block, batch: StepBatch) -> None:
        """Write a batch at the steps that its workers are at."""
        ids = batch.env_ids
        t = block.filled[ids]
        block.reward[t, ids] = batch.reward
        block.terminated[t, ids], block.truncated[t, ids] = batch.terminated, batch.truncated
        block.valid[t, ids] = batch.valid
        block.episodes += batch.episodes
        self._add_finals(block, t, ids, batch)
        if self.memory:
            self.reset_memory(ids[ends_episode(batch.terminated, batch.truncated, batch.valid)])
        write_obs_at(block, t + 1, batch)
        block.filled[ids] = t + 1

    def _give_up(self, block: Block) -> None:
        """Empty the segments of workers whose step does not end."""
        for worker in np.flatnonzero(self._under_way).tolist():
            clear_columns(block, self._own[worker])
            self.vec.abandoned |= dict.fromkeys(self.vec.env_ids[worker], explain_abandoned())

    def _drain(self) -> None:
        """Receive and drop steps that an earlier stop gave up."""
        while self._under_way.any():
            batch = self.vec.recv()
            self.reset_memory(batch.env_ids[ends_episode(batch.terminated, batch.truncated, batch.valid)])
            self._under_way[np.unique(self._worker_of[batch.env_ids])] = False
        self.vec.abandoned = {}


def explain_abandoned() -> str:
    """Why an environment was not waited for."""
    return f"a step took over {STOP_S} s when the run was stopped"
