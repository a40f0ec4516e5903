"""The collector whose acting is done by worker processes: one command per block and worker, no barrier
per step. Blocks are equal to those of a serial Collector bit for bit, however many workers there are.

A worker that dies costs the rows it had not reported; its place in the block is filled by a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

import numpy as np

from mission_gym.clock import PhaseClock
from mission_gym.data import Block, EnvSpec, Episode, Leaves, StepBatch, Weights
from mission_gym.rollout.collector import clear_block, cut_row, lose_row, part_of, sort_finals
from mission_gym.rollout.worker import CollectSetup, Report, carve_shared
from mission_gym.vector.crew import Lost
from mission_gym.vector.workers import WorkersVec, lost_episode

SERVICE = "mission_gym.rollout.worker:serve_collecting"
_POLL_S = 0.05  # how soon a stop request is seen
_STOP_S = 2.5  # what a stop request may wait for slow steps; the run must be saved within five seconds


class Mailbox:
    """The weights for the next block; the policies are in the workers."""

    def __init__(self) -> None:
        self.version = -1
        self.weights: Weights | None = None

    def load(self, weights: Weights) -> None:
        self.weights, self.version = weights, weights.version


class RemoteCollector:
    """Collects through a WorkersVec that was made with `SERVICE`, a CollectSetup and `carve_shared`."""

    def __init__(self, vec: WorkersVec, spec: EnvSpec) -> None:
        self.vec = vec
        self.spec = spec
        self.policy = Mailbox()
        self.clock = PhaseClock("collector")
        self.torn = False
        self.blocks: tuple[Block, ...]  # workers know them by their places
        self.blocks, self._weights = vec.shared
        self._written: Weights | None = None
        self._edition = 0  # of what is written: another Weights may have the same version

    def start(self) -> None:
        """Begin every environment's first episode."""
        self.vec.reset()

    def go_on(self, batch: StepBatch) -> None:
        """Nothing to do: restored environments are in the workers."""

    def prime(self, num_steps: int) -> Leaves:
        """As Collector.prime."""
        short = part_of(self.blocks[0], num_steps, 0, self.vec.num_envs)
        self.start()
        self.fill(short, -1, lambda: False)
        self.start()
        self.clock.take()  # no part of the run's phases
        return tuple(leaf.reshape((-1, *leaf.shape[2:])) for leaf in short.obs)

    def fill(self, block: Block, number: int, stop: Callable[[], bool]) -> bool:
        """As Collector.fill, for one of `blocks`; after a stop all workers have filled the same rows."""
        self.torn = True
        (place,) = (
            i for i, whole in enumerate(self.blocks) if np.may_share_memory(whole.reward, block.reward)
        )
        round_ = _Round(self.vec, block, (*self._write_weights(), number, place))
        reports = round_.run(stop)
        block.version[:] = self.policy.version
        self.torn = False
        for report in reports:  # seconds are those of the mean worker, which waits for the slowest
            self.clock.add("act", report.act_s / len(reports))
            self.clock.add("env", report.env_s / len(reports))
            self.clock.add("cpu", report.cpu_s / len(reports))
        if reports:
            walls = [report.wall_s for report in reports]
            self.clock.add("wait", max(walls) - sum(walls) / len(walls))
        return block.filled == block.num_steps

    def metrics(self) -> dict[str, float]:
        """As Collector.metrics."""
        return {}

    def _write_weights(self) -> tuple[int, int]:
        """Bring the newest weights to where workers find them; no worker is at work now."""
        weights = self.policy.weights
        assert weights is not None, "load weights first"
        if weights is not self._written:
            for name, array in self._weights.items():
                array[...] = weights.arrays[name]
            self._written, self._edition = weights, self._edition + 1
        return weights.version, self._edition


class _Round:
    """One block in the making."""

    def __init__(self, vec: WorkersVec, block: Block, order: tuple[int, int, int, int]) -> None:
        self._vec, self._block = vec, block
        self._order = order  # version and edition of the weights, number and place of the block
        self._rows = {  # done, by worker and part
            worker: [block.filled] * len(parts) for worker, parts in enumerate(vec.parts)
        }
        self._waiting = set(self._rows)
        self._paused: dict[int, int] = {}
        self._reports: list[Report] = []

    def run(self, stop: Callable[[], bool]) -> list[Report]:
        """Give the commands and take reports until every worker is done; returns their last ones.

        If a stop was asked for and some step takes too long, the block and its episodes are given up.
        """
        vec, limit, asked = self._vec, None, 0.0
        vec.board.pause[0] = 0
        for worker in self._rows:
            self._command(worker)
        while self._waiting:
            if not asked and stop():
                asked = time.monotonic()
                vec.board.pause[0] = 1
            for worker, reply in vec.crew.wait(self._waiting, _POLL_S):
                if isinstance(reply, Report):
                    self._take(worker, reply)
                elif isinstance(reply, Lost):
                    self._lose(worker)
                elif reply[0] == "report":
                    self._take(worker, reply[1])
                else:
                    self._paused[worker] = reply[1]
                    if limit is not None:  # a worker that was replaced after the others had agreed
                        vec.crew.send(worker, "until", limit)
            if asked and self._waiting and time.monotonic() - asked > _STOP_S:
                vec.abandon(f"a step took over {_STOP_S} s when the run was stopped")
                clear_block(self._block)
                return self._reports
            if asked and limit is None and self._paused.keys() >= self._waiting:
                limit = max([*self._paused.values(), *chain.from_iterable(self._rows.values())])
                for worker in self._waiting:
                    vec.crew.send(worker, "until", limit)
        stand = set(chain.from_iterable(self._rows.values()))
        assert len(stand) == 1, f"workers stand at different rows: {self._rows}"
        (self._block.filled,) = stand
        sort_finals(self._block)
        self._sort_episodes()
        return self._reports

    def _sort_episodes(self) -> None:
        """Bring the episodes into the order in which a serial collector meets them: by row of T, then by
        environment; reports come in any order."""
        block = self._block
        queues: dict[int, list[Episode]] = {}
        for episode in sorted(block.episodes, key=lambda episode: (episode.env_id, episode.number)):
            queues.setdefault(episode.env_id, []).append(episode)
        ended = (block.terminated | block.truncated)[: block.filled]
        ordered = [queues[row].pop(0) for _, row in np.argwhere(ended).tolist() if queues.get(row)]
        block.episodes = ordered + [episode for queue in queues.values() for episode in queue]

    def _command(self, worker: int) -> None:
        self._vec.crew.send(worker, "collect", *self._order, self._rows[worker], self._block.num_steps)

    def _take(self, worker: int, report: Report) -> None:
        """Add a worker's report to the block."""
        first = self._vec.env_ids[worker][self._vec.parts[worker][report.part][0]]
        self._rows[worker][report.part] = report.filled
        self._block.episodes += report.episodes
        self._block.final_at += [(t, first + row) for t, row in report.final_at]
        self._block.final_obs += report.final_obs
        self._block.final_mask += report.final_mask
        self._vec.count(report.episodes)
        if report.done:
            self._waiting.discard(worker)
            self._reports.append(report)

    def _lose(self, worker: int) -> None:
        """Go on in a worker that was replaced: the row under way is lost, its episodes have failed."""
        block, ids, done = self._block, self._vec.env_ids[worker], self._rows[worker]
        self._paused.pop(worker, None)
        for part, rows in enumerate(self._vec.parts[worker]):
            t = done[part]
            for env_id in ids[rows.start : rows.stop]:
                if t < block.num_steps:
                    lose_row(block, t, env_id)
                else:
                    cut_row(block, t, env_id)
                block.episodes.append(lost_episode(env_id, self._vec.episode_numbers()[env_id] - 1))
            done[part] = min(t + 1, block.num_steps)
        self._command(worker)


__all__ = ["SERVICE", "CollectSetup", "RemoteCollector", "carve_shared"]
