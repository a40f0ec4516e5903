"""Environments in worker processes: several in each, steps through shared memory, one message per step.

Transitions equal those of SerialVec, bit for bit, for the same actions. A worker that dies is replaced: its
rows lose one transition and begin new episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mission_gym.data import Array, EnvSpec, Episode, StepBatch
from mission_gym.env.factory import Factory
from mission_gym.env.resume import SlotState
from mission_gym.procs import Carver, Region, dump_object, usable_cores
from mission_gym.vector.arrays import carve_shared_arrays
from mission_gym.vector.base import ResetOptions, RowVector, SeedOf
from mission_gym.vector.concurrent import LatencyReader, StepLatency
from mission_gym.vector.pool import LostReply, WorkerPool
from mission_gym.vector.record import VectorOptions, split_envs, split_groups
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.worker import WorkerSetup

_WAIT_S = 60.0


class WorkersVec(RowVector):
    """A vector of environments in worker processes.

    kind: how each worker steps its environments. `env_ids` are the environments of each worker, `groups`
    those that are stepped together, by index in the worker. `extra` is the shared memory of the options'
    extension.
    """

    def __init__(
        self,
        factory: Factory | Sequence[Factory],
        spec: EnvSpec,
        num_envs: int,
        seed_of: SeedOf,
        options: VectorOptions | None = None,
        kind: type[SerialVec] = SerialVec,
    ) -> None:
        super().__init__(spec, num_envs, seed_of)
        options = options or VectorOptions()
        self.env_ids = split_envs(num_envs, options.num_workers or usable_cores(), options.group_size)
        self.is_concurrent = kind.is_concurrent
        self.groups = [
            split_groups(len(ids), options.group_size if self.is_concurrent else len(ids))
            for ids in self.env_ids
        ]
        self._autoreset = options.autoreset != "disabled"
        self._first_ready = options.first_ready
        self._numbers = [0] * num_envs  # of the running episodes
        self._worker_of = [worker for worker, ids in enumerate(self.env_ids) for _ in ids]
        self._sent: dict[int, list[int] | None] = {}  # worker -> its rows that were sent, None for all
        self._arrived: dict[int, Any] = {}  # replies that were not returned yet
        factories = [factory] * num_envs if callable(factory) else list(factory)
        extension, spin = options.extension, usable_cores() > len(self.env_ids)
        extra = None if extension is None else extension.setup
        sent = replace(options, log=None, on_failure=None, extension=None, spares=None)
        setups = [
            WorkerSetup(spec, factories[ids.start : ids.stop], ids, num_envs, sent, spin, kind, extra)
            for ids in self.env_ids
        ]
        packed = [dump_object(setup) for setup in setups]
        carve = (lambda carver: None) if extension is None else extension.carve
        size = Carver()
        carve_shared_arrays(size, spec, num_envs)
        carve(size)
        self._region = Region() if options.spares is None else options.spares.region
        self._region.grow(size.size)
        carver = self._region.carver()
        self.shared = carve_shared_arrays(carver, spec, num_envs)
        self._latency, self._stage = LatencyReader(self.shared.counters), self.shared.stage
        self.extra = carve(carver)
        try:
            self.pool = WorkerPool(packed, self.env_ids, self._region, self.shared, options, kind)
        except BaseException:
            self._region.close()
            raise

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: ResetOptions
    ) -> StepBatch:
        ids = self._all if env_ids is None else env_ids
        seed_of, parts = dump_object(self._seed_of), self._split(ids)
        each = []
        for worker, own in parts.items():
            rows = None if env_ids is None else self._rows(worker, ids, own)
            own_seeds = None if seeds is None else [seeds[place] for place in own]
            own_options = [options[place] for place in own] if isinstance(options, list) else options
            each.append((rows, own_seeds, own_options, seed_of))
        for env_id in ids:
            self._numbers[env_id] = 0 if env_ids is None else self._numbers[env_id] + 1
        self.pool.begin_message = self.begin_message
        replies = self.pool.ask(parts, "reset", each=each)
        infos: dict[int, Any] = {}
        for own, reply in zip(parts.values(), replies, strict=True):
            infos |= {own[place]: info for place, info in reply.items()}
        return self.show(ids, infos)

    def begin_message(self, worker: int) -> tuple[Any, ...]:
        """The command with which a new worker begins the episodes after those that were lost."""
        for env_id in self.env_ids[worker]:
            self._numbers[env_id] += 1
        numbers = [self._numbers[env_id] for env_id in self.env_ids[worker]]
        return ("begin", numbers, dump_object(self._seed_of))

    def _is_under_way(self, ids: list[int]) -> bool:
        return any(self._worker_of[env_id] in self._sent for env_id in ids)

    def _send(self, actions: Array, ids: list[int]) -> None:
        whole = ids is self._all
        if self.spec.agents:
            actions = actions.reshape(-1, *self.spec.step_shape)
        self.shared.actions[slice(None) if whole else ids] = actions
        parts = dict.fromkeys(range(self.pool.size)) if whole else self._split(ids)
        for worker, own in parts.items():
            rows = None if own is None else self._rows(worker, ids, own)
            if rows == list(range(len(self.env_ids[worker]))):
                rows = None  # all of them, which is faster
            self._sent[worker] = rows
            self.pool.send(worker, "step", rows)

    def _recv(self) -> StepBatch:
        wait = self.poll if self._first_ready else self.is_ready
        while not wait(_WAIT_S):
            pass
        replies, self._arrived = self._arrived, {}
        return self._gather(replies)

    def is_ready(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while waiting := [worker for worker in self._sent if worker not in self._arrived]:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            self._arrived.update(self.pool.wait(waiting, left_s))
        return True

    def poll(self, timeout_s: float) -> bool:
        """Whether some replies have arrived, after waiting for at most `timeout_s`."""
        self._arrived = self._arrived or dict(self.pool.wait(self._sent, timeout_s))
        return len(self._arrived) > 0

    def _state(self, ids: list[int]) -> list[SlotState]:
        parts = self._split(ids)
        each = [(self._rows(worker, ids, own),) for worker, own in parts.items()]
        states = [state for reply in self.pool.ask(parts, "state", each=each) for state in reply]
        for env_id, why in sorted(self.abandoned.items()):
            states.insert(env_id, SlotState("boundary", self._numbers[env_id], None, 0, 0.0, (), reason=why))
        return states

    def _rebuild(self) -> None:
        self.pool.budget.clear()
        self.pool.ask(range(self.pool.size), "rebuild")

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        # The replays of the workers run concurrently, each within the budget.
        packed = dump_object(self._seed_of)
        each = [(list(states[ids.start : ids.stop]), budget_s, packed) for ids in self.env_ids]
        self._numbers = [state.episode for state in states]
        self.pool.begin_message = self.begin_message
        replies = self.pool.ask(range(self.pool.size), "restore", each=each)
        self._numbers = [number for _, numbers in replies for number in numbers]
        return self.show(self._all, {}), [way for ways, _ in replies for way in ways]

    def episode_numbers(self) -> list[int]:
        return list(self._numbers)

    def count(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that ended."""
        for episode in episodes:
            if self._autoreset:
                self._numbers[episode.env_id] = episode.number + 1
            if not episode.failed:
                self.pool.budget.forget(episode.env_id)

    def visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        parts = self._split(ids)
        asked = [(self._rows(worker, ids, own), [each[i] for i in own]) for worker, own in parts.items()]
        found: dict[int, Any] = {}
        for own, reply in zip(
            parts.values(), self.pool.ask(parts, "visit", function, each=asked), strict=True
        ):
            found |= zip(own, reply, strict=True)
        return [found[place] for place in range(len(ids))]

    def pids(self) -> list[int]:
        return self.pool.pids()

    def measure_latency(self, seconds: float) -> StepLatency | None:
        return self._latency.read(seconds)

    @property
    def num_restarts(self) -> int:
        return self.pool.num_restarts

    def _close(self) -> list[str]:
        self.shared.pause[0] = 1  # a worker that is collecting does not read commands
        errors = self.pool.close()
        self._region.close()
        return errors

    def show(self, ids: list[int], infos: dict[int, Any], *, has_ended: bool = False) -> StepBatch:
        """The results of the last steps or resets of some environments."""
        steps = self.shared.steps
        steps = steps if len(ids) == self.num_envs else steps.take(ids)
        return steps.as_batch(np.array(ids, np.int64), infos, has_ended=has_ended)

    def _split(self, ids: Sequence[int]) -> dict[int, list[int]]:
        """The places of environments in `ids`, by worker."""
        parts: dict[int, list[int]] = {}
        for place, env_id in enumerate(ids):
            parts.setdefault(self._worker_of[env_id], []).append(place)
        return parts

    def _rows(self, worker: int, ids: Sequence[int], own: list[int]) -> list[int]:
        """The indices in a worker of the environments at some places in `ids`."""
        return [ids[place] - self.env_ids[worker][0] for place in own]

    def _gather(self, replies: dict[int, Any]) -> StepBatch:
        """One batch from the replies, in the order of the environments."""
        steps = self.shared.steps
        ids: list[int] = []
        episodes: list[Episode] = []
        infos: dict[int, Any] = {}
        final_infos: dict[int, Any] = {}
        for worker in sorted(replies):
            rows, reply, base = self._sent.pop(worker), replies[worker], len(ids)
            own = list(self.env_ids[worker])
            own = own if rows is None else [own[row] for row in rows]
            ids += own
            if isinstance(reply, LostReply):
                for final, previous in zip(steps.final_obs, self.shared.previous_obs, strict=True):
                    final[own] = previous[own]
                steps.reward[own] = 0.0
                steps.valid[own] = steps.terminated[own] = False
                steps.truncated[own] = True
                episodes += [failed_episode(env_id, self._numbers[env_id] - 1) for env_id in own]
            elif reply is not None:
                self.count(reply[0])
                episodes += reply[0]
                infos |= {base + place: info for place, info in reply[1].items()}
                final_infos |= {base + place: info for place, info in reply[2].items()}
        batch = self.show(ids, infos, has_ended=any(reply is not None for reply in replies.values()))
        batch.episodes, batch.final_infos = episodes, final_infos
        return batch


def failed_episode(env_id: int, number: int) -> Episode:
    """An episode that was lost with its worker; its return is unknown."""
    return Episode(env_id, number, -1, 0.0, 0, None, False, {}, failed=True)
