"""The code of a worker process: it holds some environments of a vector and executes commands. It never loads
torch.

A worker receives a WorkerSetup, then commands by name. It sends one reply per command; steps are written to
shared memory.
"""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

from mission_gym.data import EnvSpec, StepBatch
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Env, Factory
from mission_gym.env.probe import probe_env
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import EnvSlot
from mission_gym.errors import MissionGymError
from mission_gym.procs import Link, describe_error
from mission_gym.vector.arrays import RESETTING, carve_shared_arrays, join_axes
from mission_gym.vector.record import VectorOptions
from mission_gym.vector.serial import SerialVec, WorkerShard

NO_REPLY = object()  # returned by a command whose reply comes later, or not at all
_HEARTBEAT = struct.Struct("<6q")
_OBJECTS_PER_ENV = 30  # allocations per environment between two garbage collections


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The environments of a worker, and how to build them."""

    spec: EnvSpec
    factories: Sequence[Factory]  # of this worker's environments
    env_ids: range
    num_envs: int  # of the whole vector
    options: VectorOptions
    spin: bool  # poll for the next command instead of sleeping
    kind: type[SerialVec] = SerialVec  # how the environments are stepped
    extra: Any = None  # for services of other packages


class Service:
    """The commands of a worker: its public methods, and those of its vector."""

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        self.link = link
        self.setup = setup
        self.carver = link.regions[0].carver()
        self.shared = carve_shared_arrays(self.carver, setup.spec, setup.num_envs)
        own, num_envs = slice(setup.env_ids.start, setup.env_ids.stop), len(setup.env_ids)
        self._arrays = self.shared.steps.take(own)
        self._previous_obs = tuple(leaf[own] for leaf in self.shared.previous_obs)
        self._actions = self.shared.actions[own]
        self._heartbeats = [memoryview(row).cast("B") for row in self.shared.heartbeats]
        self._numbers = count(1)  # drawing the next number can't be interrupted
        self._journal = self.shared.journal
        self._reported: set[Any] = set()  # kinds of failures
        shard = WorkerShard(
            self._arrays,
            own.start,
            self.shared.stage,
            self.shared.counters[own],
            self._on_start,
            self._on_end,
            self._on_failure,
        )
        self.vec = setup.kind(setup.factories, setup.spec, num_envs, _no_seed, setup.options, shard)
        if setup.kind.is_concurrent:
            _collect_garbage_less(num_envs)
        self.shown: StepBatch | None = None  # the batch of the last reset or restore

    def begin(self, numbers: Sequence[int], seed_of: bytes) -> None:
        """Begin the episodes with these numbers, one per environment."""
        self.vec.set_seeds(pickle.loads(seed_of))
        self.shown = self.vec.begin(list(numbers))

    def reset(self, env_ids: list[int] | None, seeds: Any, options: Any, seed_of: bytes) -> dict[int, Any]:
        """Reset all environments, or some by their index in this worker; returns the infos."""
        self.vec.set_seeds(pickle.loads(seed_of))
        batch = self.vec.reset(env_ids, seeds, options)
        if env_ids is None:
            self.shown = batch
        return batch.infos

    def step(self, rows: list[int] | None) -> Any:
        """Step all environments, or some by their index; None if no episode ended and there are no infos."""
        for previous, leaf in zip(self._previous_obs, self._arrays.obs, strict=True):
            previous[:] = leaf
        actions = self._actions if rows is None else self._actions[rows]
        self.vec.send(join_axes(actions) if self.setup.spec.agents else actions, rows)
        batch = self.vec.recv()
        if not len(batch.ended) and not batch.infos:
            return None
        return batch.episodes, batch.infos, batch.final_infos

    def restore(
        self, states: list[SlotState], budget_s: float, seed_of: bytes
    ) -> tuple[list[str], list[int]]:
        """Continue from states; returns how each environment was restored, and its episode number."""
        self.vec.set_seeds(pickle.loads(seed_of))
        self.shown, ways = self.vec.restore(states, budget_s)
        return ways, self.vec.episode_numbers()

    def close(self) -> list[str]:
        self.vec.close()
        return self.vec.close_errors

    def _on_start(self, slot: EnvSlot, action: Any) -> None:
        """Write the heartbeat and the action of a step or reset, for the parent if it is the last one."""
        step = RESETTING if action is None else slot.steps
        seed = -1 if slot.seed is None else slot.seed
        env_id = slot.env_id
        stage = -1 if slot.curriculum_stage is None else slot.stage
        heartbeat = (next(self._numbers), env_id, slot.episode, seed, step, stage)
        _HEARTBEAT.pack_into(self._heartbeats[env_id], 0, *heartbeat)
        if action is not None and step < self._journal.shape[1]:
            self._journal[env_id, step] = action

    def _on_failure(self, failure: MissionGymError) -> None:
        """Send a failure to the parent; later ones of a kind without actions and traceback."""
        sent = type(failure)(str(failure))
        facts = failure.facts or {}
        kind = (facts.get("kind"), facts.get("line"))
        left_out = ("actions", "trace") if kind in self._reported else ()
        self._reported.add(kind)
        sent.facts = {name: value for name, value in facts.items() if name not in left_out} or None
        self.link.send(("failure", sent))

    def _on_end(self, slot: EnvSlot) -> None:
        """Mark an environment as idle. Only concurrent vectors do so; else the newest one counts."""
        self.shared.heartbeats[slot.env_id, 0] = 0


def serve(link: Link, setup: bytes, make: Callable[[Link, WorkerSetup], Service] = Service) -> None:
    """Build the environments, reply, and execute commands until `close` or until the parent is gone.

    Any unexpected error ends the process: the parent replaces it and shows the traceback.
    """
    try:
        service = make(link, pickle.loads(setup))
    except Exception as error:  # noqa: BLE001  border: worker main
        link.send(("error", *describe_error(error)))
        return
    link.send(("ok", None))
    spin = service.setup.spin
    name = ""
    while name != "close":
        name, *args = link.recv(spin)
        try:
            command = getattr(service, name, None) or getattr(service.vec, name)
            reply: tuple[Any, ...] = ("ok", command(*args))
        except Exception as error:
            # `visit` calls the user's code, which may raise anything.
            if name != "visit" and not isinstance(error, MissionGymError):
                raise
            reply = ("error", *describe_error(error))
        if reply[1] is not NO_REPLY:
            link.send(reply)


def serve_probe(link: Link, setup: bytes) -> None:
    """Probe one throw-away environment: send its EnvSpec, then, if requested, the pace of its steps.

    Both are sent before the environment is closed: a close() that hangs or ends the process does no harm.
    """
    with ExitStack() as stack:
        try:
            factory, env_id, seconds, bare, max_sequence = pickle.loads(setup)
            env = factory()
            stack.callback(env.close)
            spec = probe_env(env, env_id, bare, max_sequence)
            link.send(("ok", spec))
            if seconds:
                link.send(("ok", _measure_pace(env, spec, seconds)))
        except Exception as error:  # noqa: BLE001  border: worker main
            link.send(("error", *describe_error(error)))


def _measure_pace(env: Env, spec: EnvSpec, seconds: float) -> Any:
    """The pace of random steps for about `seconds`; None if the environment failed."""
    from mission_gym.env.pace import measure_pace

    slot = make_slot(lambda: env, spec, 0, lambda episode: episode)
    try:
        slot.reset(0)
        return measure_pace(slot, spec, seconds)
    except Exception:  # noqa: BLE001  border: it fails again in the vector, which reports it
        return None


def _collect_garbage_less(num_envs: int) -> None:
    """A coroutine's running step holds a dozen objects. A thousand of them trigger collections all the time,
    which took a quarter of the time and found nothing."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _OBJECTS_PER_ENV * num_envs), *older)
    gc.freeze()


def _no_seed(env_id: int, episode: int) -> None:
    """The first reset sends the seeds."""
