"""All environments in this process, one after the other: the reference every other vector must equal.

In: a factory, the EnvSpec, seeds by (environment, episode). Out: StepBatch. `send` notes the actions and
`recv` makes the steps, so a call can't be interrupted half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from mission_gym.data import Array, EnvSpec, Episode, Leaves, StepBatch
from mission_gym.env.factory import Env, Factory
from mission_gym.env.resume import SlotState
from mission_gym.env.slot import REPLAY_BUDGET_S, EnvSlot, action_rows
from mission_gym.errors import UsageError

SeedOf = Callable[[int, int], int | None]


class SerialVec:
    """A vector of environments in process.

    factory: one for all, or one for each environment. infos: whether batches carry the info dicts.
    autoreset: off leaves an ended row at its last observation until it is reset by name.
    """

    rows_step_alone = True

    def __init__(
        self,
        factory: Factory | Sequence[Factory],
        spec: EnvSpec,
        num_envs: int,
        seed_of: SeedOf,
        infos: bool = False,
        autoreset: bool = True,
    ) -> None:
        factories = [factory] * num_envs if callable(factory) else list(factory)
        self.spec = spec
        self.num_envs = num_envs
        self._infos = infos
        self._autoreset = autoreset
        self._sent: tuple[list[Any], list[int]] | None = None
        self._ready = False
        self._num_episodes = 0
        self._close_errors: list[str] = []
        self._slots: list[EnvSlot] = []
        self._all = list(range(num_envs))
        self._obs = self._empty_leaves(num_envs)
        self._mask = np.ones((num_envs, spec.mask_size), np.bool_) if spec.mask_source else None
        self._final_obs = self._empty_leaves(num_envs)
        self._final_mask = None if self._mask is None else self._mask.copy()
        one_array = len(self._obs) == 1 and self._mask is None
        self._plain = self._obs[0] if one_array else None  # the short way to write a row
        self._reward = np.zeros(num_envs)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._valid = np.ones(num_envs, np.bool_)
        try:
            for env_id, make in enumerate(factories):
                self._slots.append(EnvSlot(make, spec, env_id, _bind(seed_of, env_id)))
        except BaseException:
            self.close()
            raise

    @property
    def envs(self) -> list[Env]:
        """The environments themselves, for adapters."""
        return [slot.env for slot in self._slots]

    def reset(
        self,
        env_ids: Sequence[int] | None = None,
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> StepBatch:
        """Begin episode 0 of all environments, or the next episode of those named.

        seeds: one for each environment reset, instead of those of `seed_of`.
        """
        self._check_open()
        if self._sent is not None:
            raise UsageError("reset() between send() and recv(); receive the steps under way first")
        if env_ids is not None and not self._ready:
            raise UsageError("reset() of single environments before a first reset() of all; reset all first")
        ids = self._all if env_ids is None else list(env_ids)
        self._ready = False
        for row, env_id in enumerate(ids):
            slot = self._slots[env_id]
            episode = 0 if env_ids is None else slot.episode + 1
            if seeds is None:
                slot.reset(episode, options=options)
            else:
                slot.reset(episode, seeds[row], options)
        self._ready = True
        return self._show(ids)

    def send(self, actions: Array, env_ids: Sequence[int] | None = None) -> None:
        """Give actions [B, *shape] in the environment's units to all environments, or to those named."""
        self._check_open()
        if self._sent is not None:
            raise UsageError("send() twice without recv(); receive the steps under way first")
        if not self._ready:
            raise UsageError("send() before reset(), or after a failure; reset or restore the vector first")
        ids = self._all if env_ids is None else list(env_ids)
        expected = (len(ids), *self.spec.action.shape)
        if np.shape(actions) != expected:
            raise UsageError(
                f"actions have shape {np.shape(actions)}, expected {expected}: one row for each environment"
            )
        self._sent = (action_rows(self.spec, actions), ids)

    def recv(self, deadline_s: float | None = None) -> StepBatch:
        """Make the steps that were sent and return them; a deadline can't be kept in process."""
        self._check_open()
        if self._sent is None:
            raise UsageError("recv() without send(); send actions first")
        (actions, ids), self._sent = self._sent, None
        slots = self._slots if ids is self._all else [self._slots[env_id] for env_id in ids]
        self._ready = False  # until every row is done
        self._terminated[: len(ids)] = self._truncated[: len(ids)] = False
        rewards, masks, plain = self._reward, self._mask, self._plain
        ended: list[int] = []
        episodes: list[Episode] = []
        final_infos: dict[int, dict[str, Any]] = {}
        for row, slot in enumerate(slots):
            reward, terminated, truncated = slot.step(actions[row])
            rewards[row] = reward
            if slot.ended:
                self._terminated[row], self._truncated[row] = terminated, truncated
                episodes.append(slot.finish(terminated))
                _write(slot, len(ended), self._final_obs, self._final_mask)
                ended.append(row)
                if self._autoreset:
                    if self._infos:
                        final_infos[row] = slot.info
                    slot.reset(slot.episode + 1)
            if plain is not None:
                plain[row] = slot.obs[0]
            else:
                _write(slot, row, self._obs, masks)
        self._ready = True
        self._num_episodes += len(episodes)
        batch = self._batch(ids, len(ended))
        batch.ended = np.array(ended, np.int64)
        batch.episodes, batch.final_infos = episodes, final_infos
        return batch

    def step(self, actions: Array) -> StepBatch:
        """Send to all environments and receive."""
        self.send(actions)
        return self.recv()

    def state(self) -> list[SlotState]:
        """Return what `restore` needs, one entry for each environment."""
        if not self._ready or self._sent is not None:
            raise UsageError("state() before reset() or between send() and recv(); take it between steps")
        return [slot.state() for slot in self._slots]

    def restore(
        self, states: Sequence[SlotState], budget_s: float = REPLAY_BUDGET_S
    ) -> tuple[StepBatch, list[str]]:
        """Go on from `states`; return what every row shows now, and how it came back.

        budget_s: predicted seconds for all replays together.
        """
        self._check_open()
        if len(states) != self.num_envs:
            raise UsageError(
                f"{len(states)} saved environments can't go on in {self.num_envs}; use the same number"
            )
        self._sent, self._ready = None, False
        how = []
        for slot, state in zip(self._slots, states, strict=True):
            how.append(slot.restore(state, budget_s))
            if how[-1] == "replay":
                budget_s -= state.replay_s
        self._ready = True
        return self._show(self._all), how

    def statistics(self) -> dict[str, Any]:
        """Return counts, the mean seconds of a step, and what `close` met."""
        steps = sum(slot.total_steps for slot in self._slots)
        seconds = sum(slot.total_step_s for slot in self._slots)
        return {
            "num_envs": self.num_envs,
            "steps": steps,
            "episodes": self._num_episodes,
            "mean_step_s": seconds / steps if steps else 0.0,
            "close_errors": list(self._close_errors),
        }

    def close(self) -> None:
        """Close every environment; one that raises is noted in the statistics."""
        slots, self._slots = self._slots, []
        for slot in slots:
            try:
                slot.env.close()
            except Exception as error:  # noqa: BLE001  border: the user's close
                self._close_errors.append(f"environment {slot.env_id}: {type(error).__name__}: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self, ids: list[int]) -> StepBatch:
        """Return a batch in which nothing happened, with what the named rows show now."""
        for row, env_id in enumerate(ids):
            _write(self._slots[env_id], row, self._obs, self._mask)
        count = len(ids)
        self._reward[:count] = 0.0
        self._terminated[:count] = self._truncated[:count] = False
        return self._batch(ids, 0)

    def _batch(self, ids: list[int], num_ended: int) -> StepBatch:
        count = len(ids)
        return StepBatch(
            env_ids=np.array(ids, np.int64),
            obs=tuple(array[:count] for array in self._obs),
            reward=self._reward[:count],
            terminated=self._terminated[:count],
            truncated=self._truncated[:count],
            valid=self._valid[:count],
            mask=None if self._mask is None else self._mask[:count],
            ended=np.empty(0, np.int64),
            final_obs=tuple(array[:num_ended] for array in self._final_obs),
            final_mask=None if self._final_mask is None else self._final_mask[:num_ended],
            infos={row: self._slots[env_id].info for row, env_id in enumerate(ids)} if self._infos else {},
        )

    def _empty_leaves(self, count: int) -> Leaves:
        return tuple(np.zeros((count, *leaf.shape), leaf.dtype) for leaf in self.spec.leaves)

    def _check_open(self) -> None:
        if not self._slots:
            raise UsageError("the vector is closed; make a new one")


def _write(slot: EnvSlot, row: int, obs: Leaves, mask: Array | None) -> None:
    """Copy what a slot shows into row arrays; the environment may reuse its own."""
    for array, leaf in zip(obs, slot.obs, strict=True):
        array[row] = leaf
    if mask is not None:
        mask[row] = slot.mask


def _bind(seed_of: SeedOf, env_id: int) -> Callable[[int], int | None]:
    return lambda episode: seed_of(env_id, episode)
