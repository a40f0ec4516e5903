"""Environments in worker processes: several in each, steps through shared memory, one message per step.

In: as SerialVec, and how many workers. Out: the same transitions as SerialVec, bit for bit, for the same
actions. A worker that dies is replaced: its rows lose one transition and begin new episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mission_gym.data import Array, EnvSpec, Episode, StepBatch
from mission_gym.env.factory import Factory
from mission_gym.env.resume import SlotState
from mission_gym.env.stages import Stages
from mission_gym.procs import BoundedLog, Carver, Region, Spares, dump_object, usable_cores
from mission_gym.vector import SERVICE
from mission_gym.vector.base import Options, RowVector, SeedOf
from mission_gym.vector.board import carve_shared_arrays
from mission_gym.vector.crew import Lost, WorkerPool
from mission_gym.vector.gauges import GaugeReader, Waiting
from mission_gym.vector.restarts import Limits
from mission_gym.vector.rows import join_axes, rows_of, split_parts, split_rows
from mission_gym.vector.serial import SerialVec
from mission_gym.vector.worker import WorkerSetup

_WAIT_S = 60.0


class WorkersVec(RowVector):
    """A vector of environments in worker processes.

    kind: how each worker steps its environments. unit: environments that must share a worker. first_ready:
    `recv` gives the rows of the workers that are ready instead of all that were sent. service, extra, carve:
    what another room adds to the workers; what `carve` makes of the shared memory behind the board is in
    `shared`. spares: children of the service that were started before. stages: of a curriculum.
    """

    def __init__(
        self,
        factory: Factory | Sequence[Factory],
        spec: EnvSpec,
        num_envs: int,
        seed_of: SeedOf,
        infos: bool = False,
        autoreset: bool = True,
        late_reset: bool = False,
        *,
        num_workers: int | None = None,
        kind: type[SerialVec] = SerialVec,
        limits: Limits | None = None,
        log: BoundedLog | None = None,
        unit: int = 1,
        first_ready: bool = False,
        service: str = SERVICE,
        extra: Any = None,
        carve: Callable[[Carver], Any] = lambda carver: None,
        spares: Spares | None = None,
        stages: Stages | None = None,
    ) -> None:
        super().__init__(spec, num_envs, seed_of)
        factories = [factory] * num_envs if callable(factory) else list(factory)
        limits = limits or Limits()
        self.env_ids = split_rows(num_envs, num_workers or usable_cores(), unit)
        self.side_by_side = kind.side_by_side
        self.parts = [split_parts(len(ids), unit, alone=self.side_by_side) for ids in self.env_ids]
        self._autoreset = autoreset or late_reset
        self._first_ready = first_ready
        self._num_steps = 0
        self._numbers = [0] * num_envs  # of the running episodes
        self._worker_of = [w for w, ids in enumerate(self.env_ids) for _ in ids]
        self._sent: dict[int, list[int] | None] = {}  # worker -> rows sent, None for all of its own
        self._arrived: dict[int, Any] = {}  # replies that were not handed over yet
        self._objects = [i for i, leaf in enumerate(spec.leaves) if leaf.kind == "object"]
        resets = {"autoreset": autoreset, "late_reset": late_reset}
        options: dict[str, Any] = {
            "infos": infos,
            "max_restarts": limits.max_restarts,
            "stages": stages,
            **resets,
        }
        if self.side_by_side:
            options |= {"timeout_s": limits.timeout_s, "reset_timeout_s": limits.reset_timeout_s}
        setups = [
            WorkerSetup(
                spec, factories[ids[0] : ids[-1] + 1], ids[0], ids[-1] + 1, num_envs,
                options, usable_cores() > len(self.env_ids), kind, extra,
            )
            for ids in self.env_ids
        ]  # fmt: skip
        packed = [dump_object(setup) for setup in setups]
        size = Carver()
        carve_shared_arrays(size, spec, num_envs)
        carve(size)
        self._region = Region() if spares is None else spares.region
        self._region.grow(size.size)
        carver = self._region.carver()
        self.board = carve_shared_arrays(carver, spec, num_envs)
        self._gauges, self._now = GaugeReader(self.board.gauges), self.board.stage
        self.shared = carve(carver)
        try:
            self.crew = WorkerPool(
                service, packed, self._region, self.board, self.env_ids, limits, log or BoundedLog(None),
                kind=kind, spares=spares,
            )  # fmt: skip
        except BaseException:
            self._region.close()
            raise

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: Options
    ) -> StepBatch:
        ids = self._all if env_ids is None else env_ids
        position = {env_id: row for row, env_id in enumerate(ids)}
        packed = dump_object(self._seed_of)
        parts = self._split(ids)
        each = []
        for worker, rows in parts.items():
            places = [position[row + self.env_ids[worker][0]] for row in rows]
            mine = None if seeds is None else [seeds[place] for place in places]
            given = [options[place] for place in places] if isinstance(options, list) else options
            each.append((None if env_ids is None else rows, mine, given, packed))
        for env_id in ids:
            self._numbers[env_id] = 0 if env_ids is None else self._numbers[env_id] + 1
        self._watch_over_episodes()
        replies = self.crew.ask(parts, "reset", each=each)
        infos: dict[int, Any] = {}
        for worker, reply in zip(parts, replies, strict=True):
            local = parts[worker] if env_ids is not None else list(range(len(self.env_ids[worker])))
            given, objects = reply
            infos |= {position[local[row] + self.env_ids[worker][0]]: info for row, info in given.items()}
            self._take_objects([self.env_ids[worker][0] + row for row in local], objects)
        return self.show(ids, infos)

    def _watch_over_episodes(self) -> None:
        """From now on a worker that is replaced begins the episodes after those that were lost."""
        self.crew.begin_message = self.begin_message
        self.crew.take_begun = lambda worker, objects: self._take_objects(self.env_ids[worker], objects)

    def _take_objects(self, env_ids: Sequence[int], objects: list[tuple[Array, Array]]) -> None:
        """Put what came with a reply instead of the board into our own copy of it."""
        for leaf, (shown, last) in zip(self._objects, objects, strict=True):
            self.board.rows.obs[leaf][env_ids] = shown
            first = self.env_ids[self._worker_of[env_ids[0]]][0]
            self.board.rows.final_obs[leaf][first : first + len(last)] = last

    def begin_message(self, worker: int) -> tuple[Any, ...]:
        """The command by which a new worker begins the episodes after those that were lost."""
        for env_id in self.env_ids[worker]:
            self._numbers[env_id] += 1
        numbers = [self._numbers[env_id] for env_id in self.env_ids[worker]]
        return ("begin", numbers, dump_object(self._seed_of))

    def _is_under_way(self, ids: list[int]) -> bool:
        return any(self._worker_of[env_id] in self._sent for env_id in ids)

    def _send(self, actions: Array, ids: list[int]) -> None:
        whole = ids is self._all
        parts = dict.fromkeys(range(len(self.env_ids))) if whole else self._split(ids)
        if self.spec.agents:
            actions = actions.reshape(-1, *self.spec.step_shape)
        self.board.actions[slice(None) if whole else ids] = actions
        for leaf in self._objects:
            self.board.last[leaf][ids] = self.board.rows.obs[leaf][ids]
        for worker, rows in parts.items():
            if rows == list(range(len(self.env_ids[worker]))):
                rows = None  # all of its own, which is faster
            self._sent[worker] = rows
            own = self.board.actions[self.env_ids[worker][0] : self.env_ids[worker][-1] + 1]
            objects = (own if rows is None else own[rows],) if own.dtype == object else ()
            self.crew.send(worker, "step", rows, *objects)

    def _recv(self) -> StepBatch:
        replies = self._arrived
        while len(replies) < len(self._sent) and not (self._first_ready and replies):
            waiting = [worker for worker in self._sent if worker not in replies]
            replies.update(self.crew.wait(waiting, _WAIT_S))
        self._arrived = {}
        return self._gather(replies)

    def is_ready(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while waiting := [worker for worker in self._sent if worker not in self._arrived]:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            self._arrived.update(self.crew.wait(waiting, left_s))
        return True

    def poll(self, timeout_s: float) -> bool:
        """Whether there are replies to what was sent, after waiting for so long at most."""
        self._arrived = self._arrived or dict(self.crew.wait(self._sent, timeout_s))
        return len(self._arrived) > 0

    def _state(self, ids: list[int]) -> list[SlotState]:
        parts = self._split(ids)
        replies = self.crew.ask(parts, "state", each=[(rows,) for rows in parts.values()])
        states = [state for reply in replies for state in reply]
        for env_id, why in sorted(self.abandoned.items()):
            states.insert(env_id, SlotState("boundary", self._numbers[env_id], None, 0, 0.0, (), reason=why))
        return states

    def _rebuild(self) -> None:
        self.crew.budget.forget_all()
        self.crew.ask(range(self.crew.size), "rebuild")

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        # The replays of the workers run side by side, each within the budget.
        packed = dump_object(self._seed_of)
        each = [(list(states[ids[0] : ids[-1] + 1]), budget_s, packed) for ids in self.env_ids]
        self._numbers = [state.episode for state in states]
        self._watch_over_episodes()
        replies = self.crew.ask(range(self.crew.size), "restore", each=each)
        self._numbers = [number for _, numbers in replies for number in numbers]
        return self.show(self._all, {}), [way for ways, _ in replies for way in ways]

    def episode_numbers(self) -> list[int]:
        return list(self._numbers)

    def count(self, episodes: Sequence[Episode]) -> None:
        """Take note of episodes that ended."""
        for episode in episodes:
            self._num_episodes += 1
            if self._autoreset:
                self._numbers[episode.env_id] = episode.number + 1
            if not episode.failed:
                self.crew.budget.forget(episode.env_id)

    def visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        args_of = dict(zip(ids, each, strict=True))
        parts = self._split(ids)
        asked = [
            (rows, [args_of[row + self.env_ids[worker][0]] for row in rows]) for worker, rows in parts.items()
        ]
        replies = self.crew.ask(parts, "visit", function, each=asked)
        found = {
            row + self.env_ids[worker][0]: item
            for (worker, rows), reply in zip(parts.items(), replies, strict=True)
            for row, item in zip(rows, reply, strict=True)
        }
        return [found[env_id] for env_id in ids]

    def pids(self) -> list[int]:
        return self.crew.pids()

    def measure_waiting(self, seconds: float) -> Waiting | None:
        return self._gauges.read(seconds)

    def _statistics(self) -> dict[str, Any]:
        return {
            "num_workers": self.crew.size,
            "steps": self._num_steps,
            "worker_restarts": self.crew.num_restarts,
        }

    def _close(self) -> list[str]:
        self.board.pause[0] = 1  # a worker that collects hears nothing before
        errors = self.crew.close()
        self._region.close()
        return errors

    def show(self, ids: list[int], infos: dict[int, Any]) -> StepBatch:
        """Return the named rows as the board has them: what their last steps or resets gave."""
        rows = self.board.rows
        rows = rows if len(ids) == self.num_envs else rows.take(ids)
        return rows.as_batch(np.array(ids, np.int64), 0, infos)

    def _split(self, ids: Sequence[int]) -> dict[int, list[int]]:
        """By worker, the places of environments in it."""
        parts: dict[int, list[int]] = {}
        for env_id in ids:
            worker = self._worker_of[env_id]
            parts.setdefault(worker, []).append(env_id - self.env_ids[worker][0])
        return parts

    def _gather(self, replies: dict[int, Any]) -> StepBatch:
        """Make one batch of the replies, in the order of the environments."""
        rows, per_env, last = self.board.rows, self.per_env, self.board.last
        if self.spec.agents:
            last = tuple(join_axes(leaf) for leaf in last)
        ids: list[int] = []
        ended: list[int] = []
        finals: list[Any] = []
        episodes: list[Episode] = []
        infos: dict[int, Any] = {}
        final_infos: dict[int, Any] = {}
        for worker in sorted(replies):
            first, sent, reply = self.env_ids[worker][0], self._sent.pop(worker), replies[worker]
            local = range(len(self.env_ids[worker])) if sent is None else sent
            base = len(ids)
            ids += [first + row for row in local]
            if isinstance(reply, Lost):
                mine = ids[base:]
                rows.reward[mine] = 0.0
                rows.valid[mine] = rows.terminated[mine] = False
                rows.truncated[mine] = True
                ended += range(base * per_env, len(ids) * per_env)
                finals.append((last, rows_of(mine, per_env)))
                episodes += [lost_episode(env_id, self._numbers[env_id] - 1) for env_id in mine]
            elif reply is not None:
                over, done, new_infos, last_infos, objects = reply
                self._take_objects(ids[base:], objects)
                ended += [base * per_env + row for row in over]
                place = first * per_env
                finals.append((rows.final_obs, np.arange(place, place + len(over))))
                self.count(done)
                episodes += done
                infos |= {base + row: info for row, info in new_infos.items()}
                final_infos |= {base + row: info for row, info in last_infos.items()}
        self._num_steps += len(ids)
        batch = self.show(ids, infos)
        if ended:
            batch.ended = np.array(ended, np.int64)
            batch.final_obs = tuple(
                np.concatenate([source[leaf][at] for source, at in finals]) for leaf in range(len(rows.obs))
            )
            if rows.final_mask is not None:
                masks = rows.final_mask  # of lost rows: whatever is there, nothing is played from them
                batch.final_mask = np.concatenate([masks[at] for _, at in finals])
        batch.episodes, batch.final_infos = episodes, final_infos
        return batch


def lost_episode(env_id: int, number: int) -> Episode:
    """An episode that went with its worker; nothing is known of its return."""
    return Episode(env_id, number, -1, 0.0, 0, None, False, {}, failed=True)
