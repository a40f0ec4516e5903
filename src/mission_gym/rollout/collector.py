"""Fills segments: T steps of the columns of a block that are stepped together, with their own fill count.

A block is one segment of every part of the environments (one part here, several in `central` and `remote`),
or the first columns that are finished. Acting is done in groups of a fixed number of columns: bits depend on
the shape of a batch. The noise of a group is a function of (seed, group, block number): a segment that was
stopped goes on later with the same numbers, and it does not matter which process acts, nor how many do.
Observations are stored raw; values are not computed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.data import ActOut, Array, Block, EnvSpec, Leaves, StepBatch, Weights
from mission_gym.policy.sampling import draw_noise
from mission_gym.rollout.blocks import (
    keep_final,
    keep_state,
    make_block,
    sort_episodes,
    sort_finals,
    truncate_column,
)
from mission_gym.rollout.frames import copy_obs
from mission_gym.streams import NumberedStreams

STOP_S = 2.5  # what a stop request may wait for slow steps; the run must be saved within five seconds


class ActingPolicy(Protocol):
    """Either form of a policy."""

    version: int

    def act(self, obs: Leaves, mask: Array | None, noise: Array | None, state: Leaves = ()) -> ActOut: ...

    def initial_state(self, num_rows: int) -> Leaves: ...

    def load(self, weights: Weights) -> None: ...


class SteppingVector(Protocol):
    """What a collector needs of a vector."""

    num_rows: int

    def reset(self) -> StepBatch: ...

    def step(self, actions: Array) -> StepBatch: ...


class BlockCollector(ABC):
    """What the loop needs of a collector, here or in workers.

    torn: a fill was broken off by an error, so the environments stand at unknown steps. memory: the policy's
    running state, each [B, ...], for a checkpoint, between two fills. initial: what it is at the beginning.
    stage_of: with a curriculum, from the number of a block to the stage that its episodes begin in.
    """

    vec: Any
    policy: Any

    def __init__(self, memory: Leaves, initial: Leaves) -> None:
        self.clock = PhaseClock("collector")
        self.torn = False
        self._filling_s = 0.0  # since metrics were asked for
        self.memory, self._initial = memory, initial
        self.stage_of: Callable[[int], int] | None = None

    @abstractmethod
    def start(self) -> None:
        """Begin every environment's first episode; what is under way is broken off and dropped."""

    @abstractmethod
    def make_short(self, num_steps: int) -> Block:
        """A block of all environments that `fill` takes, of at most the steps of the others."""

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """Fill the block from where it stands; False if a stop was asked for before its end: it is asked
        before each step, and what was filled until then is kept."""
        if self.stage_of is not None:
            self.vec.enter_stage(self.stage_of(number))
        return self._fill(block, number, stop)

    @abstractmethod
    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool: ...

    def go_on(self, batch: StepBatch) -> None:  # noqa: B027  nothing to do where they are in workers
        """Go on from restored environments."""

    def forget(self, rows: Any) -> None:
        """Let the policy begin anew in rows whose episodes do; only while they rest."""
        for mine, initial in zip(self.memory, self._initial, strict=True):
            mine[rows] = initial[rows]

    def take_notes(self) -> list[str]:
        """What the user should hear of the collecting, once."""
        return []

    def metrics(self) -> dict[str, float]:
        """What a row of metrics tells of the collecting since the last one."""
        seconds, self._filling_s = self._filling_s, 0.0
        waiting = self.vec.measure_waiting(seconds)
        return {} if waiting is None else waiting.metrics()


class Collector(BlockCollector):
    """Steps one vector with one policy. `start` or `go_on` first, then `fill` block after block.

    acting_rows: of a group; all rows by default. first_row: of this vector, where it is a part of one.
    memory: where the policy's running state is kept, in arrays of its own by default.
    """

    def __init__(
        self,
        vec: SteppingVector,
        policy: ActingPolicy,
        spec: EnvSpec,
        seed: int,
        acting_rows: int | None = None,
        first_row: int = 0,
        memory: Leaves | None = None,
    ) -> None:
        initial = policy.initial_state(vec.num_rows)
        super().__init__(policy.initial_state(vec.num_rows) if memory is None else memory, initial)
        self.vec = vec
        self.policy = policy
        self.spec = spec
        self._batch: StepBatch | None = None
        size = acting_rows or vec.num_rows
        self._columns = np.arange(vec.num_rows)
        starts = range(0, vec.num_rows, size)
        self._groups = [
            ((first_row + start) // size, slice(start, min(start + size, vec.num_rows))) for start in starts
        ]
        self._streams = [NumberedStreams(seed, "act", group) for group, _ in self._groups]

    def start(self) -> None:
        self._batch = self.vec.reset()
        self.forget(slice(None))

    def go_on(self, batch: StepBatch) -> None:
        self._batch = batch

    def make_short(self, num_steps: int) -> Block:
        return make_block(self.spec, num_steps, self.vec.num_rows, state=self.memory)

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """The block is one segment here."""
        assert self._batch is not None, "start or go_on comes first"
        self.torn = True
        batch, action_spec, filled = self._batch, self.spec.action, block.filled
        begun = int(filled[0])
        noise = self._draw_noise(block, number)
        block.version[:] = self.policy.version
        act_s = env_s = 0.0
        cpu_before = time.thread_time()
        if not begun:
            keep_state(block, self.memory, slice(None))
        copy_obs(block, begun, batch)
        for t in range(begun, block.num_steps):
            if stop():
                break
            before = time.perf_counter()
            self._act(block, t, batch, noise)
            between = time.perf_counter()
            batch = self.vec.step(action_spec.to_env(block.action[t]))
            act_s += between - before
            env_s += time.perf_counter() - between
            block.reward[t] = batch.reward
            block.terminated[t], block.truncated[t] = batch.terminated, batch.truncated
            block.valid[t] = batch.valid
            if len(batch.ended):
                block.episodes += batch.episodes
                self._keep_finals(block, np.full(len(batch.reward), t), self._columns, batch)
            if self.memory:
                self.forget(batch.terminated | batch.truncated | ~batch.valid)
            copy_obs(block, t + 1, batch)
            filled.fill(t + 1)
        sort_finals(block)
        if self.spec.agents:
            sort_episodes(block)
        self._batch = batch
        self.torn = False
        self._filling_s += act_s + env_s
        self.clock.add("act", act_s)
        self.clock.add("env", env_s)
        self.clock.add("cpu", time.thread_time() - cpu_before)
        return block.is_full

    def _draw_noise(self, block: Block, number: int) -> list[Array]:
        """The noise [T, B, K] of each group for a whole block."""
        return [
            draw_noise(self.spec.action, stream.at(number), block.num_steps, rows.stop - rows.start)
            for stream, (_, rows) in zip(self._streams, self._groups, strict=True)
        ]

    def _act(self, block: Block, t: int, batch: StepBatch, noise: list[Array]) -> None:
        """Choose the actions of row t, group by group."""
        for (_, rows), drawn in zip(self._groups, noise, strict=True):
            mask = None if batch.mask is None else batch.mask[rows]
            self._act_group(block, t, rows, tuple([leaf[rows] for leaf in batch.obs]), mask, drawn)

    def _act_group(
        self, block: Block, t: int, rows: slice, obs: Leaves, mask: Array | None, noise: Array
    ) -> None:
        out = self.policy.act(obs, mask, noise[t], tuple([mine[rows] for mine in self.memory]))
        block.action[t, rows], block.log_prob[t, rows] = out.action, out.log_prob
        for mine, after in zip(self.memory, out.state, strict=True):
            mine[rows] = after

    @staticmethod
    def _keep_finals(block: Block, t: Array, columns: Array, batch: StepBatch) -> None:
        """Keep what episodes ended with; row i of the batch is (t[i], columns[i]) of the block."""
        for position, row in enumerate(batch.ended.tolist()):
            if batch.truncated[row] and not batch.terminated[row]:
                at, column = int(t[row]), int(columns[row])
                if not batch.valid[row]:  # lost in a failure: the step before is the last good one
                    truncate_column(block, at, column)
                mask = None if batch.final_mask is None else batch.final_mask[position]
                keep_final(block, at, column, tuple(leaf[position] for leaf in batch.final_obs), mask)
