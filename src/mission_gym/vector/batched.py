"""Adapts a user's `gymnasium.vector.VectorEnv` to `Vector`, without Python code per row.

Seeds: rows are seeded at the first reset only, with one number if the environment takes no list. Later
episodes have no seeds, so after a restart all rows begin new ones, unless it has get_state and set_state.
Auto-reset: same-step and disabled follow our rule. In next-step mode an ended row shows its last observation,
and the reset step that follows is not valid.
Stages: options of each reset, if the environment leaves its resets to us (disabled). Arguments can't change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from mission_gym.data import Array, EnvSpec, Episode, Leaves, StepBatch
from mission_gym.env.contract import TERMS, check_outcome, read_metrics
from mission_gym.env.factory import VectorEnv
from mission_gym.env.resume import SlotState, copy_plain, has_state, read_generator, restore_generator
from mission_gym.env.spaces import make_action_decoder
from mission_gym.env.stages import Stages
from mission_gym.errors import EnvContractError, EnvFailure, UsageError, describe
from mission_gym.vector.arrays import make_step_arrays
from mission_gym.vector.base import ResetOptions, SeedOf, Vector
from mission_gym.vector.batch_reader import BatchReader


class BatchedVec(Vector):
    """The adapter. `seed_of(row, 0)` seeds the rows; after a restart `seed_of(row, n)` of a later one."""

    rows_step_alone = False

    def __init__(
        self, vector_env: VectorEnv, spec: EnvSpec, seed_of: SeedOf, stages: Stages | None = None
    ) -> None:
        super().__init__(spec, vector_env.num_envs, seed_of)
        self._env = vector_env
        self._stages = stages
        self._stage_of = np.zeros(self.num_envs, np.int64)  # of the running episode, by row
        self._reader = BatchReader(spec, self.num_envs)
        self._blank = make_step_arrays(spec, self.num_envs)
        self._blank.valid[:] = True
        none = make_step_arrays(spec, 0)
        self._no_finals = none.final_obs, none.final_mask
        self._form = make_action_decoder(spec.action_space)
        self._takes_seed_lists = True  # until it refuses one
        self._mode = _read_mode(vector_env, spec)
        if stages is not None and len(stages.variants) > 1 and self._mode != AutoresetMode.DISABLED:
            raise UsageError(
                f"{spec.env_id} resets its rows by itself (autoreset_mode {self._mode.value}), so they can't"
                " enter stages one by one; set the vector environment's autoreset_mode to disabled, or use"
                " another vector [--vector with --curriculum]"
            )
        self._shown: tuple[Leaves, Array | None]
        self._numbers: Array  # of the running episode, by row
        self._lengths: Array
        self._returns: Array
        self._terms: dict[str, Array]
        self._resetting: Array  # rows whose next step is only a reset

    def _reset(
        self, env_ids: list[int] | None, seeds: Sequence[int | None] | None, options: ResetOptions
    ) -> StepBatch:
        if env_ids is not None or seeds is not None or options is not None:
            raise UsageError("a batched environment resets all its rows at once, with its own seeds")
        return self._reset_all(np.zeros(self.num_envs, np.int64))

    def _send(self, actions: Array, ids: list[int]) -> None:
        if ids != self._all:
            raise UsageError("a batched environment steps all its rows at once; send without env_ids")
        rows = np.array(actions, self.spec.action.dtype)
        self._sent = (rows if self._form is None else self._form(rows),)

    def _recv(self) -> StepBatch:
        (actions,), self._sent = self._sent, None
        read = self._reader
        obs, reward, terminated, truncated, infos = self._guard("step", lambda: self._env.step(actions))
        valid = ~self._resetting
        reward = np.where(valid, read.column("reward", reward, np.float64), 0.0)
        terminated = read.column("terminated", terminated, np.bool_) & valid
        truncated = read.column("truncated", truncated, np.bool_) & valid
        self._returns += reward
        self._lengths += valid
        done = terminated | truncated
        self._add_terms(infos, valid, done)
        ended = np.flatnonzero(done)
        episodes: list[Episode] = []
        final_obs, final_mask = self._no_finals
        same_step = self._mode == AutoresetMode.SAME_STEP
        if ended.size:
            last = infos.get("final_info", infos) if same_step else infos
            episodes = [self._finish(int(row), bool(terminated[row]), last) for row in ended]
            # Nothing is bootstrapped from the last observation of a terminated row, so it may be missing.
            has_final = same_step and ("final_obs" in infos or bool(truncated.any()))
            final_obs, final_mask = (
                read.read_final(infos, last, ended) if has_final else read.read_shown(obs, last, ended)
            )
        mask = read.masks(obs, infos, np.zeros_like(done) if same_step else done)
        self._resetting = done if self._mode == AutoresetMode.NEXT_STEP else np.zeros_like(done)
        if ended.size and self._mode == AutoresetMode.DISABLED:
            self._choose_stages(done, self._numbers)
            for begun, options in self._group(done):
                obs, mask = self._reset_rows(begun, options, mask)
        leaves = read.leaves(obs)
        self._shown = (leaves, mask)
        return StepBatch(
            np.arange(self.num_envs), leaves, reward, terminated, truncated, valid, mask, ended, final_obs,
            final_mask, episodes,
        )  # fmt: skip

    def _state(self, ids: list[int]) -> list[SlotState]:
        # The environment's own state, if it has one, is in the first entry.
        saved, reason = None, "a batched environment without get_state() and set_state() can't be replayed"
        if has_state(self._env):
            try:
                saved = copy_plain(
                    {
                        "env": self._env.get_state(),  # type: ignore[attr-defined]
                        "generator": read_generator(self._env),
                        "resetting": self._resetting,
                    }
                )
            except Exception as error:  # noqa: BLE001  border: the user's get_state
                reason = f"get_state() can't be used ({describe(error)})"
        leaves, mask = self._shown
        return [
            SlotState(
                how="boundary" if saved is None else "state",
                episode=int(self._numbers[row]),
                seed=None,
                steps=int(self._lengths[row]),
                ret=float(self._returns[row]),
                obs=tuple(leaf[row].copy() for leaf in leaves),
                mask=None if mask is None else mask[row].copy(),
                terms={name: float(sums[row]) for name, sums in self._terms.items()},
                saved=saved if row == 0 else None,
                reason=reason if saved is None else "",
                stage=int(self._stage_of[row]),
            )
            for row in range(self.num_envs)
        ]

    def _restore(self, states: Sequence[SlotState], budget_s: float) -> tuple[StepBatch, list[str]]:
        self._sent = None
        numbers = np.array([state.episode for state in states])
        batch = self._reset_all(numbers + 1)
        first = states[0]
        if first.how != "state":
            return batch, [f"boundary: {state.reason}" for state in states]
        if not has_state(self._env):
            return batch, ["boundary: the environment has no set_state() any more"] * self.num_envs
        try:
            self._env.set_state(copy_plain(first.saved["env"]))  # type: ignore[attr-defined]
            restore_generator(self._env, first.saved["generator"])
        except Exception as error:  # noqa: BLE001  border: the user's set_state
            # The environment may be half-way between two states: only a new reset is safe.
            self._reset_all(numbers + 1)
            return self._show(), [f"boundary: set_state() raised {describe(error)}"] * self.num_envs
        self._numbers = numbers
        self._stage_of = np.array([state.stage for state in states])
        self._lengths = np.array([state.steps for state in states])
        self._returns = np.array([state.ret for state in states])
        self._terms = {name: np.array([state.terms[name] for state in states]) for name in first.terms}
        self._resetting = np.array(first.saved["resetting"])
        leaves = tuple(np.stack(rows) for rows in zip(*(state.obs for state in states), strict=True))
        masks = [state.mask for state in states if state.mask is not None]
        self._shown = (leaves, np.stack(masks) if masks else None)
        return self._show(), ["state"] * self.num_envs

    def episode_numbers(self) -> list[int]:
        return [int(number) for number in self._numbers]

    def _close(self) -> list[str]:
        try:
            self._env.close()
        except Exception as error:  # noqa: BLE001  border: the user's close
            return [describe(error)]
        return []

    def _reset_all(self, numbers: Array) -> StepBatch:
        every_row = np.ones(self.num_envs, np.bool_)
        self._choose_stages(every_row, numbers)
        (_, first), *others = self._group(every_row)
        obs, infos = self._guard("reset", lambda: self._reset_seeded(numbers, first))
        mask = self._reader.masks(obs, infos, ~every_row)
        for rows, options in others:
            obs, mask = self._reset_rows(rows, options, mask)
        self._numbers = numbers
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._returns = np.zeros(self.num_envs)
        self._terms = {}
        self._resetting = np.zeros(self.num_envs, np.bool_)
        self._shown = (self._reader.leaves(obs), mask)
        return self._show()

    def _reset_seeded(self, numbers: Array, options: dict[str, Any] | None) -> Any:
        """Reset with a seed for each row if the environment takes a list, else with the first row's seed."""
        seeds = [self._seed_of(row, int(number)) for row, number in enumerate(numbers)]
        given: dict[str, Any] = {} if options is None else {"options": options}
        if self._takes_seed_lists and None not in seeds:
            try:
                return self._env.reset(seed=seeds, **given)  # type: ignore[arg-type]
            except Exception:  # noqa: BLE001  border: any other error is raised again below
                self._takes_seed_lists = False
        return self._env.reset(seed=seeds[0], **given)

    def _reset_rows(
        self, rows: Array, options: dict[str, Any] | None, mask: Array | None
    ) -> tuple[Any, Array | None]:
        """Begin the next episodes of some rows, bool [B]; returns the observations and masks of all."""
        whole = {**(options or {}), "reset_mask": rows.copy()}
        obs, infos = self._guard("reset", lambda: self._env.reset(options=whole))
        first = self._reader.masks(obs, infos, ~rows)
        return obs, mask if mask is None or first is None else np.where(rows[:, None], first, mask)

    def _choose_stages(self, rows: Array, numbers: Array) -> None:
        """Choose the stages of the episodes that begin in some rows, by the seeds of single environments."""
        if self._stages is not None:
            for row in np.flatnonzero(rows).tolist():
                seed = self._seed_of(row, int(numbers[row]))
                self._stage_of[row] = self._stages.choose(seed, int(self._stage[0]))

    def _group(self, rows: Array) -> list[tuple[Array, dict[str, Any] | None]]:
        """Some rows by stage, with the reset options of each stage."""
        if self._stages is None:
            return [(rows, None)]
        groups = [(stage, rows & (self._stage_of == stage)) for stage in range(len(self._stages.variants))]
        return [(own, self._stages.variants[stage].options) for stage, own in groups if own.any()]

    def _show(self) -> StepBatch:
        """A batch without steps, with the current observations."""
        leaves, mask = self._shown
        return replace(self._blank, obs=leaves, mask=mask).as_batch(np.arange(self.num_envs), {})

    def _finish(self, row: int, terminated: bool, infos: dict[str, Any]) -> Episode:
        """Return the episode of a row that ended, and start counting the next one."""
        outcome = check_outcome(
            _at(infos, "outcome", row), self.spec, partial(self._reader.refuse, row), is_due=terminated
        )
        given = infos.get("episode_metrics", {})
        own = {name: _at(given, name, row) for name in given if not name.startswith("_")}
        metrics = read_metrics(own, partial(self._reader.refuse, row))
        for name, sums in self._terms.items():
            metrics[f"{TERMS}{name}"] = float(sums[row])
            sums[row] = 0.0
        number, ret, length = int(self._numbers[row]), float(self._returns[row]), int(self._lengths[row])
        self._numbers[row] += 1
        self._returns[row] = self._lengths[row] = 0
        stage = int(self._stage_of[row])
        return Episode(row, number, -1, ret, length, outcome, terminated, metrics, stage=stage)

    def _add_terms(self, infos: dict[str, Any], valid: Array, done: Array) -> None:
        """Sum the reward terms; those of a row that ended in same-step mode are in its final info."""
        final = infos.get("final_info", {})
        moved = done if final else np.zeros_like(done)
        for source, rows in ((infos, valid & ~moved), (final, moved)):
            terms = source.get("reward_terms", {})
            for name, values in terms.items():
                if not name.startswith("_"):
                    given = np.asarray(terms.get(f"_{name}", True)) & rows
                    sums = self._terms.setdefault(name, np.zeros(self.num_envs))
                    np.add(sums, np.asarray(values, np.float64), out=sums, where=given)

    def _guard(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # border: the user's vector
            raise EnvFailure(
                f"{name}() of the batched environment {self.spec.env_id} raised {describe(error)}"
            ) from error


def _read_mode(vector_env: VectorEnv, spec: EnvSpec) -> AutoresetMode:
    mode = vector_env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvContractError(
            f'{spec.env_id}: metadata["autoreset_mode"] is {mode!r}; a vector environment must declare one '
            "of Gymnasium's AutoresetMode"
        ) from None


def _at(infos: dict[str, Any], name: str, row: int) -> Any:
    """A row's entry in batched infos, None if it has none."""
    present = infos.get(f"_{name}")
    if name not in infos or (present is not None and not present[row]):
        return None
    return infos[name][row]
