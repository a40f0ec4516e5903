"""Acting here for environments in workers: for the rows of whichever worker is ready, while others step.

The rows of a worker are a part: its columns are a segment with a fill count of their own, which only grows by
whole steps. The groups of acting belong to workers, so what a block holds does not depend on who was ready
first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, StepBatch
from mission_gym.rollout.blocks import clear_columns, keep_state, sort_episodes, sort_finals
from mission_gym.rollout.collector import STOP_S, ActingPolicy, Collector
from mission_gym.rollout.frames import copy_rows, read_obs
from mission_gym.vector.workers import WorkersVec

_POLL_S = 0.05  # how soon a stop request is seen


class ReadyCollector(Collector):
    """A Collector over a vector of workers that gives the rows of those that are ready (`first_ready`)."""

    vec: WorkersVec

    def __init__(
        self, vec: WorkersVec, policy: ActingPolicy, spec: EnvSpec, seed: int, acting_rows: int
    ) -> None:
        super().__init__(vec, policy, spec, seed, acting_rows)
        self._own = [  # columns of each worker
            slice(ids[0] * vec.per_env, (ids[-1] + 1) * vec.per_env) for ids in vec.env_ids
        ]
        sizes = [columns.stop - columns.start for columns in self._own]
        self._worker_of = np.repeat(np.arange(len(sizes)), sizes)
        self._groups_of = [  # of each worker: numbers of its groups
            [number for number, (_, rows) in enumerate(self._groups) if self._worker_of[rows.start] == worker]
            for worker in range(len(sizes))
        ]
        self._under_way = np.zeros(len(vec.env_ids), np.bool_)

    def start(self) -> None:
        """As the Collector's."""
        self._drain()
        super().start()

    def _fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """A stop ends each worker's segment after its running step; if that takes too
        long, the segment is emptied and its episodes are given up."""
        self._drain()
        self.torn = True
        noise = self._draw_noise(block, number)
        block.version[:] = self.policy.version
        keep_state(block, self.memory, block.filled == 0)
        copy_rows(block, block.filled, self.vec.show(list(range(self.vec.num_envs)), {}))
        under_way, ready = self._under_way, np.arange(len(self._under_way))
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
            has_replies = self.vec.poll(_POLL_S)
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
        self.torn = False
        self._filling_s += act_s + env_s
        self.clock.add("act", act_s)
        self.clock.add("env", env_s)
        self.clock.add("cpu", time.thread_time() - cpu_before)
        return block.is_full

    def _send(self, block: Block, worker: int, noise: list[Array]) -> bool:
        """Choose the actions of a worker's rows from what the block shows, and let it step; False if its
        segment is full."""
        columns = self._own[worker]
        t = int(block.filled[columns.start])
        if t == block.num_steps:
            return False
        for number in self._groups_of[worker]:
            rows = self._groups[number][1]
            mask = None if block.mask is None else block.mask[t, rows]
            self._act_group(block, t, rows, read_obs(block, t, rows), mask, noise[number])
        actions: Any = self.spec.action.to_env(block.action[t, columns])
        self.vec.send(actions, self.vec.env_ids[worker])
        return True

    def _write(self, block: Block, batch: StepBatch) -> None:
        """Put a batch into the rows that its workers stand at."""
        ids = batch.env_ids
        t = block.filled[ids]
        block.reward[t, ids] = batch.reward
        block.terminated[t, ids], block.truncated[t, ids] = batch.terminated, batch.truncated
        block.valid[t, ids] = batch.valid
        block.episodes += batch.episodes
        self._keep_finals(block, t, ids, batch)
        if self.memory:
            self.forget(ids[batch.terminated | batch.truncated | ~batch.valid])
        copy_rows(block, t + 1, batch)
        block.filled[ids] = t + 1

    def _give_up(self, block: Block) -> None:
        """Empty the segments of workers that do not come to the end of a step."""
        for worker in np.flatnonzero(self._under_way).tolist():
            clear_columns(block, self._own[worker])
            reason = f"a step took over {STOP_S} s when the run was stopped"
            self.vec.abandoned |= dict.fromkeys(self.vec.env_ids[worker], reason)

    def _drain(self) -> None:
        """Drop steps that an earlier stop gave up: their segments were emptied."""
        while self._under_way.any():
            batch = self.vec.recv()
            self.forget(batch.env_ids[batch.terminated | batch.truncated | ~batch.valid])
            self._under_way[np.unique(self._worker_of[batch.env_ids])] = False
        self.vec.abandoned = {}
