"""Acting here for environments in workers: for the rows of whichever worker is ready, while others step.

The groups of acting belong to workers, so what a block holds does not depend on who was ready first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mission_gym.data import Array, Block, EnvSpec, Episode, StepBatch
from mission_gym.rollout.collector import ActingPolicy, Collector, copy_obs, sort_finals
from mission_gym.vector.workers import WorkersVec


class ReadyCollector(Collector):
    """A Collector over a vector of workers that gives the rows of those that are ready (`first_ready`)."""

    vec: WorkersVec

    def __init__(
        self, vec: WorkersVec, policy: ActingPolicy, spec: EnvSpec, seed: int, acting_rows: int
    ) -> None:
        super().__init__(vec, policy, spec, seed, acting_rows)
        self._worker_of = np.repeat(np.arange(len(vec.env_ids)), [len(ids) for ids in vec.env_ids])
        self._groups_of = [  # of each worker: numbers of its groups
            [number for number, (_, rows) in enumerate(self._groups) if rows.start in ids]
            for ids in vec.env_ids
        ]

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """As the Collector's; a stop brings all workers to the same row."""
        assert self._batch is not None, "start or go_on comes first"
        self.torn = True
        noise = self._draw_noise(block, number)
        block.version[:] = self.policy.version
        copy_obs(block, block.filled, self._batch)
        at = np.full(len(self.vec.env_ids), block.filled)  # the row that each worker comes to next
        under_way = np.zeros(len(at), np.bool_)
        ready = np.arange(len(at))
        limit, act_s, env_s, cpu_before = block.num_steps, 0.0, 0.0, time.thread_time()
        ended: list[tuple[int, int, Episode]] = []
        while True:
            if limit == block.num_steps and stop():
                limit = int((at + under_way).max())
            begun = time.perf_counter()
            for worker in ready[at[ready] < limit].tolist():
                self._send(block, int(at[worker]), worker, noise)
                under_way[worker] = True
            between = time.perf_counter()
            act_s += between - begun
            if not under_way.any():
                break
            batch = self.vec.recv()
            env_s += time.perf_counter() - between
            self._write(block, at, batch, ended)
            ready = np.unique(self._worker_of[batch.env_ids])
            at[ready] += 1
            under_way[ready] = False
        block.filled = limit
        block.episodes += [episode for _, _, episode in sorted(ended, key=lambda each: each[:2])]
        sort_finals(block)
        self._batch = self.vec.show(list(range(self.vec.num_envs)), {})
        self.torn = False
        self.clock.add("act", act_s)
        self.clock.add("env", env_s)
        self.clock.add("cpu", time.thread_time() - cpu_before)
        return block.filled == block.num_steps

    def _send(self, block: Block, t: int, worker: int, noise: list[Array]) -> None:
        """Choose the actions of a worker's rows at t from what the block shows, and let it step."""
        for number in self._groups_of[worker]:
            rows = self._groups[number][1]
            obs = tuple(leaf[t, rows] for leaf in block.obs)
            self._act_group(
                block, t, rows, obs, None if block.mask is None else block.mask[t, rows], noise[number]
            )
        ids = self.vec.env_ids[worker]
        actions: Any = self.spec.action.to_env(block.action[t, ids[0] : ids[-1] + 1])
        self.vec.send(actions, ids)

    def _write(
        self, block: Block, at: Array, batch: StepBatch, ended: list[tuple[int, int, Episode]]
    ) -> None:
        """Put a batch into the rows that its workers stand at."""
        ids = batch.env_ids
        t = at[self._worker_of[ids]]
        block.reward[t, ids] = batch.reward
        block.terminated[t, ids], block.truncated[t, ids] = batch.terminated, batch.truncated
        block.valid[t, ids] = batch.valid
        row_of = dict(zip(ids.tolist(), t.tolist(), strict=True))
        ended += [(row_of[episode.env_id], episode.env_id, episode) for episode in batch.episodes]
        self._keep_finals(block, t, ids, batch)
        for stored, leaf in zip(block.obs, batch.obs, strict=True):
            stored[t + 1, ids] = leaf
        if block.mask is not None:
            block.mask[t + 1, ids] = batch.mask
