"""What a worker process does: it holds some rows of a vector and obeys commands. It never loads torch.

In: a WorkerSetup, then commands by name. Out: one reply per command; steps go through the board.
"""

from __future__ import annotations

import gc
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from mission_gym.data import Array, EnvSpec, StepBatch
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Env, Factory
from mission_gym.env.probe import probe_env
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import EnvSlot
from mission_gym.errors import MissionGymError
from mission_gym.procs import Link, describe_error
from mission_gym.vector.board import RESETTING, carve_shared_arrays
from mission_gym.vector.rows import COLUMNS, join_axes, make_rows
from mission_gym.vector.serial import SerialVec

UNANSWERED = object()  # returned by a command whose reply comes later, or not at all
_BEAT = struct.Struct("<6q")
_YOUNG = 30  # objects made for each environment between two collections of garbage


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The rows `first` up to `last` of a vector, and how to build them."""

    spec: EnvSpec
    factories: Sequence[Factory]  # of this worker's rows
    first: int
    last: int
    num_envs: int  # of the whole vector
    options: dict[str, Any]  # of its vector
    spin: bool
    kind: type[SerialVec] = SerialVec  # how its rows are stepped
    extra: Any = None  # for services of other rooms


class Service:
    """The commands of a worker: each public method is one, as are those of its vector."""

    def __init__(self, link: Link, setup: WorkerSetup) -> None:
        self.link = link
        self.setup = setup
        self.carver = link.regions[0].carver()
        self.board = carve_shared_arrays(self.carver, setup.spec, setup.num_envs)
        cut = slice(setup.first, setup.last)
        num_rows = setup.last - setup.first
        self._rows = self.board.rows.part(cut)
        self._last = tuple(leaf[cut] for leaf in self.board.last)
        self._scratch = make_rows(setup.spec, num_rows)  # steps of some of the rows
        self._beats = [memoryview(beat).cast("B") for beat in self.board.beats]
        self._num_beats = count(1)  # drawing the next number can't be interrupted
        self._objects = [i for i, leaf in enumerate(setup.spec.leaves) if leaf.kind == "object"]
        self._journal = self.board.journal
        options: dict[str, Any] = {
            "rows": self._rows,
            "first_id": setup.first,
            "watch": self._watch,
            "now": self.board.stage,
        } | setup.options
        if setup.kind.side_by_side:
            options |= {"rest": self._rest, "gauges": self.board.gauges[cut]}
        self.vec = setup.kind(setup.factories, setup.spec, num_rows, _no_seed, **options)
        if setup.kind.side_by_side:
            _collect_less(num_rows)
        self.shown: StepBatch | None = None  # what the rows showed after the last reset or restore

    def begin(self, numbers: Sequence[int], seed_of: bytes) -> Any:
        """Begin these episodes, one of each environment."""
        self.vec.seed_with(pickle.loads(seed_of))
        self.shown = self.vec.begin(list(numbers))
        return self._show_objects(None)

    def reset(self, env_ids: list[int] | None, seeds: Any, options: Any, seed_of: bytes) -> Any:
        """Reset all rows, or those named by their place in this worker."""
        self.vec.seed_with(pickle.loads(seed_of))
        if env_ids is None:
            batch = self.shown = self.vec.reset(None, seeds, options)
        else:
            with self._aside():
                batch = self.vec.reset(env_ids, seeds, options)
            self._scatter(env_ids)
        return batch.infos, self._show_objects(env_ids)

    def step(self, rows: list[int] | None, given: Array | None = None) -> Any:
        """Step all rows, or those named; None if nothing but numbers came of it.

        given: the actions, where they are objects; else they are on the board.
        """
        shared, first = self._rows, self.setup.first
        for kept, leaf in zip(self._last, shared.obs, strict=True):
            kept[:] = leaf
        actions = self.board.actions[first : self.setup.last]
        if rows is None:
            self.vec.send(self._split(actions) if given is None else given)
            batch = self.vec.recv()
        else:
            with self._aside():
                self.vec.send(self._split(actions[rows]) if given is None else given, rows)
                batch = self.vec.recv()
            self._scatter(rows)
            for array, leaf in zip(shared.final_obs, batch.final_obs, strict=True):
                array[: len(leaf)] = leaf
            if shared.final_mask is not None:
                shared.final_mask[: len(batch.ended)] = batch.final_mask
        infos = batch.infos
        if not len(batch.ended) and not infos and not self._objects:
            return None
        objects = self._show_objects(rows, len(batch.ended))
        return batch.ended.tolist(), batch.episodes, infos, batch.final_infos, objects

    def _split(self, actions: Array) -> Array:
        """The actions of environments as rows."""
        return join_axes(actions) if self.setup.spec.agents else actions

    def _show_objects(self, rows: list[int] | None, num_ended: int = 0) -> list[tuple[Array, Array]]:
        """What can't be on the board: of each leaf of objects, these rows and the last ones of episodes."""
        cut = slice(None) if rows is None else rows
        shared = self._rows
        return [(shared.obs[leaf][cut], shared.final_obs[leaf][:num_ended]) for leaf in self._objects]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Steps and resets of some rows go to compact ones meanwhile."""
        self.vec.use(self._scratch)
        try:
            yield
        finally:
            self.vec.use(self._rows)

    def _scatter(self, rows: list[int]) -> None:
        """Bring compact rows to their places on the board."""
        shared, scratch, count = self._rows, self._scratch, len(rows)
        for array, leaf in zip(shared.obs, scratch.obs, strict=True):
            array[rows] = leaf[:count]
        if shared.mask is not None and scratch.mask is not None:
            shared.mask[rows] = scratch.mask[:count]
        for name in COLUMNS:
            getattr(shared, name)[rows] = getattr(scratch, name)[:count]

    def restore(
        self, states: list[SlotState], budget_s: float, seed_of: bytes
    ) -> tuple[list[str], list[int]]:
        """Go on from states; returns how each row came back, and the numbers of the episodes."""
        self.vec.seed_with(pickle.loads(seed_of))
        self.shown, ways = self.vec.restore(states, budget_s)
        return ways, self.vec.episode_numbers()

    def close(self) -> list[str]:
        self.vec.close()
        errors: list[str] = self.vec.statistics()["close_errors"]
        return errors

    def _watch(self, slot: EnvSlot, action: Any) -> None:
        """Leave a note of what comes next, where the parent finds it if it is the last."""
        step = RESETTING if action is None else slot.steps
        seed = -1 if slot.seed is None else slot.seed
        env_id = slot.env_id
        stage = -1 if slot.curriculum_stage is None else slot.stage
        place = (slot.episode, seed, step, stage)
        _BEAT.pack_into(self._beats[env_id], 0, next(self._num_beats), env_id, *place)
        if action is not None and step < self._journal.shape[1]:
            self._journal[env_id, step] = action

    def _rest(self, slot: EnvSlot) -> None:
        """What was noted is over; only where rows step side by side, else the newest note counts."""
        self.board.beats[slot.env_id, 0] = 0


def serve(link: Link, setup: bytes, make: Callable[[Link, WorkerSetup], Service] = Service) -> None:
    """Build the rows, say so, and obey until the parent is gone or says `close`.

    What nobody expected ends the process: the parent replaces it, with the traceback as its last words.
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
            # Of `visit` anything is told: it calls what its caller named.
            if name != "visit" and not isinstance(error, MissionGymError):
                raise
            reply = ("error", *describe_error(error))
        if reply[1] is not UNANSWERED:
            link.send(reply)


def serve_probe(link: Link, setup: bytes) -> None:
    """Look at one throw-away environment: its EnvSpec, then, where asked for, the pace of its steps.

    All is told before it is closed: a close() that hangs, or ends the process, then harms nobody.
    """
    with ExitStack() as last:
        try:
            factory, env_id, seconds, bare, max_sequence = pickle.loads(setup)
            env = factory()
            last.callback(env.close)
            spec = probe_env(env, env_id, bare, max_sequence)
            link.send(("ok", spec))
            if seconds:
                link.send(("ok", _measure_pace(env, spec, seconds)))
        except Exception as error:  # noqa: BLE001  border: worker main
            link.send(("error", *describe_error(error)))


def _measure_pace(env: Env, spec: EnvSpec, seconds: float) -> Any:
    """Random steps for about `seconds`; None if the environment failed."""
    from mission_gym.env.pace import measure_pace

    slot = make_slot(lambda: env, spec, 0, lambda episode: episode)
    try:
        slot.reset(0)
        return measure_pace(slot, spec, seconds)
    except Exception:  # noqa: BLE001  border: what fails here fails again where it is told
        return None


def _collect_less(num_envs: int) -> None:
    """A coroutine's step under way holds a dozen objects, a thousand of them more than usually make Python
    look for garbage: a quarter of the time went into looking at what is in use."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _YOUNG * num_envs), *older)
    gc.freeze()


def _no_seed(env_id: int, episode: int) -> None:
    """Until the first reset brings the seeds."""
