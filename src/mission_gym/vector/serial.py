"""All environments in this process, one after the other: the reference every other vector must equal.

In: a factory, the EnvSpec, seeds by (environment, episode). Out: StepBatch. `send` notes the actions and
`recv` makes the steps, so a call can't be interrupted half-way. An environment that raises is rebuilt: its
transition is not valid, its episode has failed, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mission_gym.bridge.pool import EnginePool
from mission_gym.data import Array, EnvSpec, Episode, StepBatch
from mission_gym.env.agents_slot import AgentsSlot, make_slot
from mission_gym.env.coroutines import find_instance
from mission_gym.env.factory import Env, Factory
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.env.stages import Stages, Staging, change_factories
from mission_gym.errors import EnvContractError, EnvFailure, MissionGymError, WrongValue, describe
from mission_gym.vector.base import Options, RowVector, SeedOf
from mission_gym.vector.endings import Ended, keep_last
from mission_gym.vector.restarts import RestartBudget
from mission_gym.vector.rows import Rows, make_rows, write_row

_ALONE = (
    "another one in the same process could be built: if a process can hold only one, give each a worker of "
    "its own, such as --vector workers --n-envs 4 --num-workers 4"
)


class SerialVec(RowVector):
    """A vector of environments in process.

    What is done with environments outside of `recv` goes through `_do`, so that a vector that steps them side
    by side does all of it so.

    factory: one for all, or one for each environment. infos: whether batches carry the info dicts.
    autoreset: off leaves an ended row at its last observation until it is reset by name, or, with
    `late_reset`, until its next step, which resets it instead (Gymnasium's next-step).
    max_restarts: of an environment that raises, without a finished episode in between.
    rows, first_id: the arrays to write to and the id of the first environment, for a part of a vector.
    watch: told of every step before it is made.
    stages, now: of a curriculum, and where the one that the run is in is kept, for a part of a vector.
    Games over a bridge share processes, and are stepped in one message.
    """

    side_by_side = False
    grace_s = 0.0  # that is left to the vector, beyond a deadline, to break off what is late by itself

    def __init__(
        self,
        factory: Factory | Sequence[Factory],
        spec: EnvSpec,
        num_envs: int,
        seed_of: SeedOf,
        infos: bool = False,
        autoreset: bool = True,
        late_reset: bool = False,
        max_restarts: int = 0,
        rows: Rows | None = None,
        first_id: int = 0,
        watch: Callable[[EnvSlot, Any], None] | None = None,
        stages: Stages | None = None,
        now: Array | None = None,
    ) -> None:
        super().__init__(spec, num_envs, seed_of)
        self._now = self._now if now is None else now
        factories = [factory] * num_envs if callable(factory) else list(factory)
        if not self.side_by_side:  # where games that share a process would wait for each other
            factories, stages = change_factories(EnginePool().share, factories, stages)
        staging = None if stages is None else Staging(stages, self._now)
        self._infos = infos
        self._autoreset = autoreset
        self._late_reset = late_reset
        self._slots: list[EnvSlot] = []
        self._all_ids = np.arange(first_id, first_id + num_envs)
        self._restarts = RestartBudget(max_restarts, self._pause)
        self._watch = watch
        self._first_id = first_id
        self.use(rows or make_rows(spec, num_envs))
        try:
            for env_id, make in enumerate(factories, first_id):
                self._slots.append(make_slot(make, spec, env_id, self._bind(env_id), staging))
            self._refuse_shared()
        except EnvContractError as error:
            built = len(self._slots)
            self.close()
            if not built:
                raise
            raise EnvContractError(f"{error}; {_ALONE}") from error.__cause__
        except BaseException:
            self.close()
            raise

    def _refuse_shared(self) -> None:
        """Rows that share an instance would step one another's episode."""
        first: dict[int, int] = {}
        for slot in self._slots:
            other = first.setdefault(id(find_instance(slot.env)), slot.env_id)
            if other != slot.env_id:
                raise WrongValue(
                    f"environments {other} and {slot.env_id} are one and the same instance; each needs its "
                    "own: let the callable build a new one every time it is called"
                )

    @property
    def envs(self) -> list[Env]:
        """The environments themselves."""
        return [slot.env for slot in self._slots]

    def use(self, rows: Rows) -> None:
        """Write to these arrays from now on."""
        self._rows = rows
        self._rewards: Any = rows.reward.data if rows.reward.ndim == 1 else rows.reward
        self._has_flags = True
        self._quiet: StepBatch | None = None  # of all rows, when none has ended
        # Between two steps of other code each NumPy function costs ten times what it does in a loop. So the
        # short way, for observations of one array, takes few: the rows are written through views kept here.
        self._views: list[Array] | None = None
        if len(rows.obs) == 1 and rows.obs[0].ndim > 1 and rows.mask is None and not self.spec.agents:
            self._views = list(rows.obs[0])

    def _pause(self, seconds: float) -> None:
        """Wait before another attempt at an environment that failed."""
        time.sleep(seconds)

    def seed_with(self, seed_of: SeedOf) -> None:
        """Take the seeds of the episodes to come from another function."""
        self._seed_of = seed_of

    def _bind(self, env_id: int) -> Callable[[int], int | None]:
        return lambda episode: self._seed_of(env_id, episode)

    def _do(self, ids: list[int], work: Callable[[EnvSlot, int], Any]) -> list[Any]:
        """What work for some rows gives, in their order. work: of a slot, and its place among these."""
        return [work(self._slots[env_id], row) for row, env_id in enumerate(ids)]

    def visit(self, function: Callable[..., Any], ids: list[int], each: Sequence[Any]) -> list[Any]:
        return self._do(ids, lambda slot, row: function(slot.env, *each[row]))

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: Options
    ) -> StepBatch:
        ids = self._all if env_ids is None else env_ids
        numbers = [0 if env_ids is None else self._slots[env_id].episode + 1 for env_id in ids]
        return self.begin(numbers, ids, seeds, options)

    def begin(
        self,
        numbers: Sequence[int],
        env_ids: list[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: Options = None,
    ) -> StepBatch:
        """Begin episodes by their numbers."""
        ids = self._all if env_ids is None else env_ids
        self._sent, self._ready = None, False
        how: list[dict[str, Any]] = [
            {"episode": number, "options": options[row] if isinstance(options, list) else options}
            for row, number in enumerate(numbers)
        ]
        for row, seed in enumerate(seeds or ()):
            how[row]["seed"] = seed
        self._do(ids, lambda slot, row: self._begin(slot, **how[row]))
        self._ready = True
        return self._show(ids)

    def _send(self, actions: Array, ids: list[int]) -> None:
        self._sent = (action_rows(self.spec, actions), ids)

    def _recv(self) -> StepBatch:
        (actions, ids), self._sent = self._sent, None
        slots = self._slots if ids is self._all else [self._slots[env_id] for env_id in ids]
        rows, views, watch, rewards = self._rows, self._views, self._watch, self._rewards
        if self._has_flags:
            rows.terminated.fill(False)
            rows.truncated.fill(False)
            rows.valid.fill(True)
        self._has_flags = True  # until it is known that no row has ended
        ended: dict[int, Ended] = {}
        if self.spec.agents:
            for row, slot in enumerate(slots):
                if (over := self._step_agents(slot, row, actions[row], rows)) is not None:
                    ended[row] = over
            return self._finish(ids, rows, ended)
        if len(slots) > 1 and slots[0].announces and not self.side_by_side:
            for slot, action in zip(slots, actions, strict=True):
                slot.announce(action)
        late_reset = self._late_reset
        for row, slot in enumerate(slots):
            if late_reset and slot.ended:
                self._begin(slot, slot.episode + 1)
                rewards[row] = 0.0
                if views is None:
                    write_row(slot, row, rows.obs, rows.mask)
                continue
            if watch is not None:
                watch(slot, actions[row])
            try:
                reward, terminated, truncated = slot.step(actions[row])
            except EnvFailure as failure:
                reward = 0.0
                ended[row] = self._lose(slot, failure, rows, row)
            else:
                if terminated or truncated:
                    rows.terminated[row], rows.truncated[row] = terminated, truncated
                    ended[row] = self._end(slot, slot.finish(terminated), None)
            rewards[row] = reward
            if views is None:
                write_row(slot, row, rows.obs, rows.mask)
        if views is not None:
            for view, slot in zip(views, slots, strict=False):
                view[...] = slot.obs[0]
        self._has_flags = bool(ended)
        return self._finish(ids, rows, ended)

    def _step_agents(self, slot: EnvSlot, row: int, actions: Array, rows: Rows) -> Ended | None:
        """Step an environment of several agents into its rows."""
        assert isinstance(slot, AgentsSlot)
        if self._watch is not None:
            self._watch(slot, actions)
        rows.valid[row] = live = slot.live
        over: Ended | None = None
        try:
            rows.reward[row], rows.terminated[row], rows.truncated[row] = slot.step(actions)
        except EnvFailure as failure:
            rows.reward[row], rows.valid[row], rows.truncated[row] = 0.0, False, live
            agents = np.flatnonzero(live).tolist()
            mask = None if slot.mask is None else slot.mask[agents]
            last = (tuple(leaf[agents] for leaf in slot.obs), mask, slot.info, agents)
            episode = slot.finish(False, failed=True)
            self._revive(slot, failure, slot.episode + 1)
            over = Ended(episode, *last)
        else:
            if slot.over:
                episode_or_none = slot.finish(not slot.is_cut) if slot.ended else None
                over = Ended(episode_or_none, slot.last_obs, slot.last_mask, slot.info, slot.over)
            if slot.ended:
                self._restarts.forget(slot.env_id)
                self._begin(slot, slot.episode + 1)
        write_row(slot, row, rows.obs, rows.mask)
        return over

    def _lose(self, slot: EnvSlot, failure: EnvFailure, rows: Rows, row: int) -> Ended:
        """Mark a transition as lost; the observation shown is still that before the step."""
        rows.valid[row], rows.truncated[row] = False, True
        return self._end(slot, slot.finish(False, failed=True), failure)

    def _end(self, slot: EnvSlot, episode: Episode, failure: EnvFailure | None) -> Ended:
        """Keep what an episode ended with, and begin the next: in a new environment if the old one failed."""
        leaves = tuple(leaf.copy() if type(leaf) is np.ndarray else leaf for leaf in slot.obs)
        ended = Ended(episode, leaves, slot.mask, slot.info)
        if failure is None:
            self._restarts.forget(slot.env_id)
            if self._autoreset:
                self._begin(slot, slot.episode + 1)
        else:
            self._revive(slot, failure, slot.episode + 1 if self._autoreset else None)
        return ended

    def _finish(self, ids: list[int], rows: Rows, ended: dict[int, Ended]) -> StepBatch:
        """Put a batch together once its rows are written."""
        if not ended:
            if ids is not self._all or rows is not self._rows or self._infos:
                return self._batch(ids, 0, rows)
            self._quiet = self._quiet or self._batch(ids, 0, rows)
            return self._quiet
        positions = list(ended)
        if self.spec.agents:
            positions = [row * self.per_env + agent for row, over in ended.items() for agent in over.agents]
        keep_last(rows, ended.values())
        batch = self._batch(ids, len(positions), rows)
        batch.ended = np.array(positions, np.int64)
        batch.episodes = [over.episode for over in ended.values() if over.episode is not None]
        self._num_episodes += len(batch.episodes)
        if self._infos and self._autoreset:
            batch.final_infos = {row: over.info for row, over in ended.items()}
        return batch

    def _begin(self, slot: EnvSlot, episode: int, **how: Any) -> None:
        if self._watch is not None:
            self._watch(slot, None)
        try:
            slot.reset(episode, **how)
        except EnvFailure as failure:
            self._revive(slot, failure, episode, **how)

    def _revive(self, slot: EnvSlot, failure: MissionGymError, episode: int | None, **how: Any) -> None:
        """Rebuild an environment until it resets, or its restarts are used up."""
        while True:
            self._restarts.spend(slot.env_id, failure)
            if self._watch is not None:
                self._watch(slot, None)  # it may take as long as a reset
            try:
                slot.rebuild()
                if episode is not None:
                    slot.reset(episode, **how)
                return
            except MissionGymError as again:
                failure = again

    def _rebuild(self) -> None:
        self._restarts.forget_all()
        self._do(self._all, self._rebuild_row)

    def _rebuild_row(self, slot: EnvSlot, row: int) -> None:
        if self._watch is not None:
            self._watch(slot, None)
        slot.rebuild()

    def _state(self, ids: list[int]) -> list[SlotState]:
        return self._do(ids, lambda slot, row: slot.state())

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        self._sent = None
        how = self._restore_rows(states, budget_s)
        return self._show(self._all), how

    def _restore_rows(self, states: Sequence[SlotState], budget_s: float) -> list[str]:
        how = []
        for slot, state in zip(self._slots, states, strict=True):
            how.append(slot.restore(state, budget_s))
            if how[-1] == "replay":
                budget_s -= state.replay_s
        return how

    def episode_numbers(self) -> list[int]:
        return [slot.episode for slot in self._slots]

    def _statistics(self) -> dict[str, Any]:
        steps = sum(slot.total_steps for slot in self._slots)
        seconds = sum(slot.mean_step_s * slot.total_steps for slot in self._slots)
        return {
            "steps": steps,
            "mean_step_s": seconds / steps if steps else 0.0,
            "env_failures": self._restarts.total,
        }

    def _close(self) -> list[str]:
        ids = list(range(len(self._slots)))  # those that were built
        errors = [error for error in self._do(ids, _close_slot) if error is not None]
        self._slots = []
        return errors

    def _show(self, ids: list[int]) -> StepBatch:
        """Return a batch in which nothing happened, with what the named rows show now."""
        for row, env_id in enumerate(ids):
            write_row(self._slots[env_id], row, self._rows.obs, self._rows.mask)
        rows, count = self._rows, len(ids)
        rows.reward[:count] = 0.0
        rows.terminated[:count] = rows.truncated[:count] = False
        rows.valid[:count] = True
        return self._batch(ids, 0, rows)

    def _batch(self, ids: list[int], num_ended: int, rows: Rows) -> StepBatch:
        if len(ids) < self.num_envs:
            rows = rows.take(slice(0, len(ids)))
        env_ids = self._all_ids if ids is self._all else np.array(ids, np.int64) + self._first_id
        return rows.as_batch(env_ids, num_ended, self._show_infos(ids) if self._infos else {})

    def _show_infos(self, ids: list[int]) -> dict[int, dict[str, Any]]:
        """The infos that say something, by row."""
        slots = self._slots if ids is self._all else [self._slots[env_id] for env_id in ids]
        infos = [slot.info for slot in slots]
        return {row: info for row, info in enumerate(infos) if info} if any(infos) else {}


def _close_slot(slot: EnvSlot, row: int) -> str | None:
    try:
        slot.env.close()
    except Exception as error:  # noqa: BLE001  border: the user's close
        return f"environment {slot.env_id}: {describe(error)}"
    return None
