"""All environments in this process, one after the other: the reference that every other vector must equal.

`send` stores the actions and `recv` makes the steps, so a call can't be interrupted half-way. An environment
that raises is rebuilt: its transition is not valid, its episode has failed, and the others continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mission_gym.bridge import EnginePool
from mission_gym.data import Array, EnvSpec, Episode, StepBatch
from mission_gym.env.agents_slot import AgentsSlot, make_slot
from mission_gym.env.coroutines import find_instance
from mission_gym.env.factory import Env, Factory
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.env.stages import Staging, change_factories
from mission_gym.errors import (
    EnvContractError,
    EnvFailure,
    MissionGymError,
    TargetSilent,
    WrongValue,
    describe,
)
from mission_gym.vector.arrays import StepArrays, ValueWatch, make_step_arrays, write_row
from mission_gym.vector.base import ResetOptions, RowVector, SeedOf
from mission_gym.vector.failures import RestartBudget
from mission_gym.vector.record import VectorOptions

_ONE_PER_PROCESS = (
    "another one in the same process could be built: if a process can hold only one, give each environment "
    "its own worker, for example --vector workers --n-envs 4 --num-workers 4"
)


Ended = tuple[Episode | None, dict[str, Any]]  # a finished episode, and the last info; None if agents remain


@dataclass(frozen=True, slots=True)
class WorkerShard:
    """The part of a vector that a worker holds, and its connection to the parent."""

    arrays: StepArrays  # where steps are written
    first_id: int  # number of the first environment
    stage: Array  # int64 [1]: the current stage of the curriculum
    counters: Array  # see `arrays`
    on_start: Callable[[EnvSlot, Any], None]  # before each step (with its action) and reset (with None)
    on_end: Callable[[EnvSlot], None]  # afterwards, if environments are stepped concurrently
    on_failure: Callable[[MissionGymError], None]


class SerialVec(RowVector):
    """A vector of environments in this process.

    factory: one for all environments, or one for each. shard: set if this is a part of a larger vector.
    Everything outside `recv` that calls environments goes through `_for_each`, so that concurrent vectors can
    run it concurrently. Games over a bridge share processes and are stepped in one message.
    """

    is_concurrent = False
    grace_s = 0.0  # additional time for the vector to cancel a late step by itself

    def __init__(
        self,
        factory: Factory | Sequence[Factory],
        spec: EnvSpec,
        num_envs: int,
        seed_of: SeedOf,
        options: VectorOptions | None = None,
        shard: WorkerShard | None = None,
    ) -> None:
        super().__init__(spec, num_envs, seed_of)
        options = options or VectorOptions()
        self._limits, self._shard = options.limits, shard
        if shard is not None:
            self._stage = shard.stage
        factories, stages = [factory] * num_envs if callable(factory) else list(factory), options.stages
        if not self.is_concurrent:  # games that share a process would wait for each other
            factories, stages = change_factories(EnginePool().share, factories, stages)
        staging = None if stages is None else Staging(stages, self._stage)
        self._infos = options.infos
        self._autoreset = options.autoreset == "same_step"
        self._late_reset = options.autoreset == "next_step"
        self._slots: list[EnvSlot] = []
        self._first_id = first_id = 0 if shard is None else shard.first_id
        self._all_ids = np.arange(first_id, first_id + num_envs)
        report = options.on_failure if shard is None else shard.on_failure
        self._restarts = RestartBudget(options.limits.max_restarts, self._pause, report)
        self._on_start = None if shard is None else shard.on_start
        self._arrays = arrays = make_step_arrays(spec, num_envs) if shard is None else shard.arrays
        self._rewards: Any = arrays.reward.data if arrays.reward.ndim == 1 else arrays.reward
        self._watch = ValueWatch(spec)
        self._has_flags = True
        self._quiet_batch: StepBatch | None = None  # of all rows, if none has ended
        # Between two steps of other code each NumPy function is ten times as slow as in a loop. So the fast
        # path, for observations of one array, uses few: it writes rows through the views kept here.
        self._views: list[Array] | None = None
        is_plain = arrays.mask is None and not spec.agents
        if len(arrays.obs) == 1 and arrays.obs[0].ndim > 1 and is_plain:
            self._views = list(arrays.obs[0])
        try:
            for env_id, make in enumerate(factories, first_id):
                self._slots.append(make_slot(make, spec, env_id, self._bind(env_id), staging))
            self._refuse_shared_instances()
        except EnvContractError as error:
            built = len(self._slots)
            self.close()
            if not built:
                raise
            raise EnvContractError(f"{error}; {_ONE_PER_PROCESS}") from error.__cause__
        except BaseException:
            self.close()
            raise

    def _refuse_shared_instances(self) -> None:
        """Rows that share an instance would step one another's episode."""
        first: dict[int, int] = {}
        for slot in self._slots:
            other = first.setdefault(id(find_instance(slot.env)), slot.env_id)
            if other != slot.env_id:
                raise WrongValue(
                    f"environments {other} and {slot.env_id} are one and the same instance; each needs its "
                    "own: the callable must build a new one every time it is called"
                )

    @property
    def envs(self) -> list[Env]:
        """The environments themselves."""
        return [slot.env for slot in self._slots]

    def _pause(self, seconds: float) -> None:
        """Wait before another attempt at an environment that failed."""
        time.sleep(seconds)

    def set_seeds(self, seed_of: SeedOf) -> None:
        """Take the seeds of the next episodes from another function."""
        self._seed_of = seed_of

    def _bind(self, env_id: int) -> Callable[[int], int | None]:
        return lambda episode: self._seed_of(env_id, episode)

    def _for_each(self, ids: list[int], work: Callable[[EnvSlot, int], Any]) -> list[Any]:
        """The results of `work(slot, index in ids)` for some environments, in order."""
        return [work(self._slots[env_id], row) for row, env_id in enumerate(ids)]

    def visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        return self._for_each(ids, lambda slot, row: function(slot.env, *each[row]))

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: ResetOptions
    ) -> StepBatch:
        ids = self._all if env_ids is None else env_ids
        numbers = [0 if env_ids is None else self._slots[env_id].episode + 1 for env_id in ids]
        return self.begin(numbers, ids, seeds, options)

    def begin(
        self,
        numbers: Sequence[int],
        env_ids: list[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: ResetOptions = None,
    ) -> StepBatch:
        """Begin episodes with these numbers."""
        ids = self._all if env_ids is None else env_ids
        self._sent, self._ready = None, False
        how: list[dict[str, Any]] = [
            {"episode": number, "options": options[row] if isinstance(options, list) else options}
            for row, number in enumerate(numbers)
        ]
        for row, seed in enumerate(seeds or ()):
            how[row]["seed"] = seed
        self._for_each(ids, lambda slot, row: self._begin(slot, **how[row]))
        self._ready = True
        return self._show(ids)

    def _send(self, actions: Array, ids: list[int]) -> None:
        self._sent = (action_rows(self.spec, actions), ids)

    def _recv(self) -> StepBatch:
        (actions, ids), self._sent = self._sent, None
        slots, arrays, views, rewards = self._slots, self._arrays, self._views, self._rewards
        if ids is not self._all:
            slots = [slots[env_id] for env_id in ids]
            views = None if views is None else [views[env_id] for env_id in ids]
        if self._has_flags:
            arrays.terminated.fill(False)
            arrays.truncated.fill(False)
            arrays.valid.fill(True)
        self._has_flags = True  # until it is known that no row has ended
        ended: dict[int, Ended] = {}
        if self.spec.agents:
            for row, slot, action in zip(ids, slots, actions, strict=True):
                if (end := self._step_agents(slot, row, action, arrays)) is not None:
                    ended[row] = end
            return self._make_batch(ids, ids, arrays, ended)
        if len(slots) > 1 and slots[0].announces and not self.is_concurrent:
            for slot, action in zip(slots, actions, strict=True):
                slot.announce(action)
        on_start, late_reset = self._on_start, self._late_reset
        for row, slot, action in zip(ids, slots, actions, strict=True):
            if late_reset and slot.ended:
                self._begin(slot, slot.episode + 1)
                rewards[row] = 0.0
                if views is None:
                    write_row(slot, row, arrays.obs, arrays.mask)
                continue
            if on_start is not None:
                on_start(slot, action)
            try:
                reward, terminated, truncated = slot.step(action)
            except EnvFailure as failure:
                reward = 0.0
                ended[row] = self._fail(slot, row, arrays, failure)
            else:
                if terminated or truncated:
                    arrays.terminated[row], arrays.truncated[row] = terminated, truncated
                    ended[row] = self._end(slot, row, arrays, terminated)
            rewards[row] = reward
            if views is None:
                write_row(slot, row, arrays.obs, arrays.mask)
        if views is not None:
            for view, slot in zip(views, slots, strict=True):
                view[...] = slot.obs[0]
        if self._watch.suspects(arrays.obs):
            self._check_values(slots)
        self._has_flags = bool(ended)
        return self._make_batch(ids, ids, arrays, ended)

    def _check_values(self, slots: Sequence[EnvSlot]) -> None:
        for slot in slots:
            slot.check_values()

    def _step_agents(self, slot: EnvSlot, row: int, actions: Array, arrays: StepArrays) -> Ended | None:
        """Step an environment of several agents into its rows."""
        assert isinstance(slot, AgentsSlot)
        if self._on_start is not None:
            self._on_start(slot, actions)
        arrays.valid[row] = live = slot.live
        ended: Ended | None = None
        try:
            arrays.reward[row], arrays.terminated[row], arrays.truncated[row] = slot.step(actions)
        except EnvFailure as failure:
            arrays.reward[row], arrays.valid[row], arrays.truncated[row] = 0.0, False, live
            ended = self._end(slot, row, arrays, False, failure)
        else:
            if slot.over:
                for array, leaf in zip(arrays.final_obs, slot.last_obs, strict=True):
                    array[row, slot.over] = leaf
                if arrays.final_mask is not None:
                    arrays.final_mask[row, slot.over] = slot.last_mask
                ended = slot.finish(not slot.is_cut) if slot.ended else None, slot.info
            if slot.ended:
                self._restarts.forget(slot.env_id)
                self._begin(slot, slot.episode + 1)
        write_row(slot, row, arrays.obs, arrays.mask)
        return ended

    def _fail(self, slot: EnvSlot, row: int, arrays: StepArrays, failure: EnvFailure) -> Ended:
        """Mark a transition as lost; the slot still shows the observation before the step."""
        arrays.valid[row], arrays.truncated[row] = False, True
        return self._end(slot, row, arrays, False, failure)

    def _end(
        self, slot: EnvSlot, row: int, arrays: StepArrays, terminated: bool, failure: EnvFailure | None = None
    ) -> Ended:
        """Store the last observation of an episode and begin the next, in a new environment if it failed."""
        if failure is None and not terminated:
            slot.check_values()  # the value of a last observation is learned from if it was truncated
        ended = slot.finish(terminated, failed=failure is not None), slot.info
        write_row(slot, row, arrays.final_obs, arrays.final_mask)
        following = slot.episode + 1 if self._autoreset else None
        if failure is not None:
            self._revive(slot, failure, following)
        else:
            self._restarts.forget(slot.env_id)
            if following is not None:
                self._begin(slot, following)
        return ended

    def _make_batch(
        self, ids: list[int], rows: list[int], arrays: StepArrays, ended: dict[int, Ended]
    ) -> StepBatch:
        """The batch of a step. rows: of the environments in the arrays, by which `ended` goes, too."""
        if not ended and ids is self._all and not self._infos:
            self._quiet_batch = self._quiet_batch or self._batch(ids, rows, arrays)
            return self._quiet_batch
        batch = self._batch(ids, rows, arrays, has_ended=bool(ended))
        batch.episodes = [episode for episode, _ in ended.values() if episode is not None]
        if self._infos and self._autoreset:
            batch.final_infos = {rows.index(row): info for row, (_, info) in ended.items()}
        return batch

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        if self._on_start is not None:
            self._on_start(slot, None)
        try:
            slot.reset(episode, **how)
        except EnvFailure as failure:
            self._revive(slot, failure, episode, **how)

    def _revive(self, slot: EnvSlot, failure: MissionGymError, episode: int | None, **how: Any) -> None:
        """Rebuild an environment until it resets, or its restarts are used up."""
        while True:
            self._restarts.spend(slot.env_id, failure)
            try:
                self._rebuild_env(slot, 0)
                if episode is not None:
                    slot.reset(episode, **how)
                return
            except TargetSilent:
                raise
            except MissionGymError as again:
                failure = again

    def _rebuild(self) -> None:
        self._restarts.clear()
        self._for_each(self._all, self._rebuild_env)

    def _rebuild_env(self, slot: EnvSlot, row: int) -> None:
        if self._on_start is not None:
            self._on_start(slot, None)  # it may take as long as a reset
        slot.rebuild()

    def _state(self, ids: list[int]) -> list[SlotState]:
        return self._for_each(ids, lambda slot, row: slot.state())

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        self._sent = None
        how = self._restore_slots(states, budget_s)
        return self._show(self._all), how

    def _restore_slots(self, states: Sequence[SlotState], budget_s: float) -> list[str]:
        how = []
        for slot, state in zip(self._slots, states, strict=True):
            how.append(slot.restore(state, budget_s))
            if how[-1] == "replay":
                budget_s -= state.replay_s
        return how

    def episode_numbers(self) -> list[int]:
        return [slot.episode for slot in self._slots]

    def _close(self) -> list[str]:
        built = list(range(len(self._slots)))
        errors = [error for error in self._for_each(built, _close_slot) if error is not None]
        self._slots = []
        return errors

    def _show(self, ids: list[int]) -> StepBatch:
        """A batch without steps, with the current observations of some environments."""
        arrays = self._arrays
        for env_id in ids:
            self._slots[env_id].check_values()
            write_row(self._slots[env_id], env_id, arrays.obs, arrays.mask)
        arrays.reward[ids] = 0.0
        arrays.terminated[ids] = arrays.truncated[ids] = False
        arrays.valid[ids] = True
        return self._batch(ids, ids, arrays)

    def _batch(
        self, ids: list[int], rows: list[int], arrays: StepArrays, *, has_ended: bool = False
    ) -> StepBatch:
        if len(rows) < len(arrays.reward):
            arrays = arrays.take(rows)
        env_ids = self._all_ids if ids is self._all else np.array(ids, np.int64) + self._first_id
        infos: dict[int, dict[str, Any]] = {}
        if self._infos:
            infos = {place: info for place, env_id in enumerate(ids) if (info := self._slots[env_id].info)}
        return arrays.as_batch(env_ids, infos, has_ended=has_ended)


def _close_slot(slot: EnvSlot, row: int) -> str | None:
    try:
        slot.env.close()
    except Exception as error:  # noqa: BLE001  border: the user's close
        return f"environment {slot.env_id}: {describe(error)}"
    return None
