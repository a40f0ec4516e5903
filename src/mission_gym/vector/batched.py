"""A `gymnasium.vector.VectorEnv` of the user's behind our protocol, without Python per row.

Seeds: the rows are seeded at the first reset only (one number for all where it takes no list); later
episodes have no seeds of their own, so after a restart all rows begin new ones, unless the vector has
get_state and set_state.
Auto-reset: same-step and disabled give our rule. A next-step vector can't: its ended row shows the last
observation, and the reset row that follows is not valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode

from mission_gym.data import Array, EnvSpec, Episode, Leaves, StepBatch
from mission_gym.env.factory import VectorEnv
from mission_gym.env.outcomes import check_outcome, read_metrics
from mission_gym.env.probe import MASK_KEY
from mission_gym.env.resume import SlotState, copy_plain, has_state, read_generator, restore_generator
from mission_gym.env.spaces import make_flattener, mask_parts
from mission_gym.errors import EnvContractError, EnvFailure, UsageError

SeedOf = Callable[[int, int], int | None]


class BatchedVec:
    """The adapter. `seed_of(row, 0)` seeds the rows; after a restart `seed_of(row, n)`, n a later episode."""

    rows_step_alone = False

    def __init__(self, vector_env: VectorEnv, spec: EnvSpec, seed_of: SeedOf) -> None:
        self.spec = spec
        self.num_envs = vector_env.num_envs
        self._env = vector_env
        self._takes_lists = True  # of seeds, until it refuses one
        self._seed_of = seed_of
        self._mode = _read_mode(vector_env, spec)
        self._mask_in_obs = spec.mask_source.startswith("obs:")
        self._flatten = make_flattener(spec.observation_space, MASK_KEY if self._mask_in_obs else None)
        self._mask_parts = mask_parts(spec.action)
        self._sent: Array | None = None
        self._ready = False
        self._closed = False
        self._num_steps = 0
        self._num_episodes = 0
        self._close_errors: list[str] = []
        self._shown: tuple[Leaves, Array | None]
        self._numbers: Array  # of the running episode, by row
        self._lengths: Array
        self._returns: Array
        self._terms: dict[str, Array]
        self._resetting: Array  # rows whose next step is only a reset

    def reset(self) -> StepBatch:
        """Begin episode 0 of all rows."""
        self._check_open()
        if self._sent is not None:
            raise UsageError("reset() between send() and recv(); receive the steps under way first")
        return self._reset_all(np.zeros(self.num_envs, np.int64))

    def send(self, actions: Array, env_ids: Sequence[int] | None = None) -> None:
        """Give actions [B, *shape] in the environment's units to all rows."""
        self._check_open()
        if env_ids is not None and list(env_ids) != list(range(self.num_envs)):
            raise UsageError("a batched environment steps all its rows at once; send without env_ids")
        if self._sent is not None:
            raise UsageError("send() twice without recv(); receive the steps under way first")
        if not self._ready:
            raise UsageError("send() before reset(), or after a failure; reset or restore the vector first")
        expected = (self.num_envs, *self.spec.action.shape)
        if np.shape(actions) != expected:
            raise UsageError(f"actions have shape {np.shape(actions)}, expected {expected}: one row for each")
        self._sent = np.array(actions, self.spec.action.dtype)

    def recv(self, deadline_s: float | None = None) -> StepBatch:
        """Make the steps that were sent and return them; a deadline can't be kept in process."""
        self._check_open()
        if self._sent is None:
            raise UsageError("recv() without send(); send actions first")
        actions, self._sent = self._sent, None
        self._ready = False
        obs, reward, terminated, truncated, infos = self._guard("step", lambda: self._env.step(actions))
        valid = ~self._resetting
        reward = np.where(valid, self._column("reward", reward, np.float64), 0.0)
        terminated = self._column("terminated", terminated, np.bool_) & valid
        truncated = self._column("truncated", truncated, np.bool_) & valid
        self._returns += reward
        self._lengths += valid
        done = terminated | truncated
        self._add_terms(infos, valid, done)
        ended = np.flatnonzero(done)
        episodes: list[Episode] = []
        final_obs, final_mask = self._no_final()
        if ended.size:
            same_step = self._mode == AutoresetMode.SAME_STEP
            last = infos.get("final_info", infos) if same_step else infos
            episodes = [self._finish(int(row), bool(terminated[row]), last) for row in ended]
            final_obs, final_mask = self._read_final(obs, infos, last, ended)
        shows_last = np.zeros_like(done) if self._mode == AutoresetMode.SAME_STEP else done
        mask = self._masks(obs, infos, shows_last)
        self._resetting = done if self._mode == AutoresetMode.NEXT_STEP else np.zeros_like(done)
        if ended.size and self._mode == AutoresetMode.DISABLED:
            options = {"reset_mask": done.copy()}
            obs, infos = self._guard("reset", lambda: self._env.reset(options=options))
            first_mask = self._masks(obs, infos, ~done)
            if mask is not None and first_mask is not None:
                mask = np.where(done[:, None], first_mask, mask)
        leaves = self._leaves(obs)
        self._shown = (leaves, mask)
        self._num_steps += int(valid.sum())
        self._num_episodes += len(episodes)
        self._ready = True
        ids = np.arange(self.num_envs)
        return StepBatch(
            ids, leaves, reward, terminated, truncated, valid, mask, ended, final_obs, final_mask, episodes
        )

    def step(self, actions: Array) -> StepBatch:
        """Send and receive."""
        self.send(actions)
        return self.recv()

    def state(self) -> list[SlotState]:
        """Return what `restore` needs; the vector's own state, where it has one, is in the first entry."""
        if not self._ready or self._sent is not None:
            raise UsageError("state() before reset() or between send() and recv(); take it between steps")
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
                reason = f"get_state() can't be used ({type(error).__name__}: {error})"
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
            )
            for row in range(self.num_envs)
        ]

    def restore(self, states: Sequence[SlotState]) -> tuple[StepBatch, list[str]]:
        """Go on from `states`; return what every row shows now, and how it came back."""
        self._check_open()
        if len(states) != self.num_envs:
            raise UsageError(
                f"{len(states)} saved environments can't go on in {self.num_envs}; use the same number"
            )
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
            # The vector may be half-way between two states: only a new reset is safe.
            self._reset_all(numbers + 1)
            return self._show(), [
                f"boundary: set_state() raised {type(error).__name__}: {error}"
            ] * self.num_envs
        self._numbers = numbers
        self._lengths = np.array([state.steps for state in states])
        self._returns = np.array([state.ret for state in states])
        self._terms = {name: np.array([state.terms[name] for state in states]) for name in first.terms}
        self._resetting = np.array(first.saved["resetting"])
        leaves = tuple(np.stack(rows) for rows in zip(*(state.obs for state in states), strict=True))
        masks = [state.mask for state in states if state.mask is not None]
        self._shown = (leaves, np.stack(masks) if masks else None)
        return self._show(), ["state"] * self.num_envs

    def episode_numbers(self) -> list[int]:
        """Return the number of each row's running episode, also after a failure."""
        return [int(number) for number in self._numbers]

    def statistics(self) -> dict[str, Any]:
        """Return counts and what `close` met."""
        return {
            "num_envs": self.num_envs,
            "steps": self._num_steps,
            "episodes": self._num_episodes,
            "close_errors": list(self._close_errors),
        }

    def close(self) -> None:
        """Close the vector; if it raises, that is noted in the statistics."""
        if self._closed:
            return
        self._closed = True
        try:
            self._env.close()
        except Exception as error:  # noqa: BLE001  border: the user's close
            self._close_errors.append(f"{type(error).__name__}: {error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin_rows(self, numbers: Array) -> None:
        self._numbers = numbers
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._returns = np.zeros(self.num_envs)
        self._terms = {}
        self._resetting = np.zeros(self.num_envs, np.bool_)

    def _reset_all(self, numbers: Array) -> StepBatch:
        self._ready = False
        obs, infos = self._guard("reset", lambda: self._reset_seeded(numbers))
        self._begin_rows(numbers)
        self._shown = (self._leaves(obs), self._masks(obs, infos, self._resetting))
        self._ready = True
        return self._show()

    def _reset_seeded(self, numbers: Array) -> Any:
        """Reset with a seed for each row where the environment takes a list, else with the first row's."""
        seeds = [self._seed_of(row, int(number)) for row, number in enumerate(numbers)]
        if self._takes_lists and None not in seeds:
            try:
                return self._env.reset(seed=seeds)  # type: ignore[arg-type]
            except Exception:  # noqa: BLE001  border: what is wrong besides the list shows below
                self._takes_lists = False
        return self._env.reset(seed=seeds[0])

    def _show(self) -> StepBatch:
        """Return a batch in which nothing happened, with what the rows show now."""
        leaves, mask = self._shown
        off = np.zeros(self.num_envs, np.bool_)
        final_obs, final_mask = self._no_final()
        ids, none = np.arange(self.num_envs), np.empty(0, np.int64)
        reward = np.zeros(self.num_envs)
        return StepBatch(ids, leaves, reward, off, off.copy(), ~off, mask, none, final_obs, final_mask)

    def _finish(self, row: int, terminated: bool, infos: dict[str, Any]) -> Episode:
        """Return the episode of a row that ended, and begin to count the next."""
        outcome = check_outcome(_at(infos, "outcome", row), self.spec, lambda: f"row {row} of the batch")
        metrics = read_metrics(_row_of(infos.get("episode_metrics", {}), row), self.spec, lambda: "the batch")
        for name, sums in self._terms.items():
            metrics[f"reward_terms/{name}"] = float(sums[row])
            sums[row] = 0.0
        number, ret, length = int(self._numbers[row]), float(self._returns[row]), int(self._lengths[row])
        self._numbers[row] += 1
        self._returns[row] = self._lengths[row] = 0
        return Episode(row, number, -1, ret, length, outcome, terminated, metrics)

    def _add_terms(self, infos: dict[str, Any], valid: Array, done: Array) -> None:
        """Add up the reward terms; those of a row that a same-step vector ended are in its final info."""
        final = infos.get("final_info", {})
        moved = done if final else np.zeros_like(done)
        for source, rows in ((infos, valid & ~moved), (final, moved)):
            terms = source.get("reward_terms", {})
            for name, values in terms.items():
                if not name.startswith("_"):
                    given = np.asarray(terms.get(f"_{name}", True)) & rows
                    sums = self._terms.setdefault(name, np.zeros(self.num_envs))
                    np.add(sums, np.asarray(values, np.float64), out=sums, where=given)

    def _read_final(
        self, obs: Any, infos: dict[str, Any], last: dict[str, Any], ended: Array
    ) -> tuple[Leaves, Array | None]:
        """Return the last observations and masks of the rows that ended."""
        if self._mode != AutoresetMode.SAME_STEP:
            mask = self._masks(obs, last, np.ones(self.num_envs, np.bool_))
            leaves = self._leaves(obs)
            return tuple(leaf[ended] for leaf in leaves), None if mask is None else mask[ended]
        final = infos.get("final_obs")
        if final is None:
            raise EnvContractError(
                f'rows {ended.tolist()} ended without infos["final_obs"]; a same-step vector must give '
                f"the last observations there [{self.spec.env_id}]"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = [final[row] for row in ended]
            parts = zip(*(self._flatten(row) for row in rows), strict=True)
            leaves = self._check_leaves(tuple(np.stack(part) for part in parts), len(ended))
            mask_rows = np.stack([row[MASK_KEY] for row in rows]) if self._mask_in_obs else None
        else:
            leaves = tuple(leaf[ended] for leaf in self._leaves(final))
            mask_rows = np.asarray(final[MASK_KEY])[ended] if self._mask_in_obs else None
        if not self.spec.mask_source:
            return leaves, None
        if mask_rows is None:
            given = last.get(MASK_KEY)
            shape = (len(ended), self.spec.mask_size)
            mask_rows = np.ones(shape) if given is None else np.asarray(given)[ended]
        return leaves, mask_rows.astype(np.bool_)

    def _leaves(self, obs: Any) -> Leaves:
        return self._check_leaves(self._flatten(obs), self.num_envs)

    def _check_leaves(self, leaves: tuple[Any, ...], count: int) -> Leaves:
        """Return leaves [count, *leaf.shape] in the dtypes of the spec."""
        checked = []
        for leaf, spec in zip(leaves, self.spec.leaves, strict=True):
            got = np.asarray(leaf)
            expected = (count, *spec.shape)
            if got.shape != expected or not np.can_cast(got.dtype, spec.dtype, "same_kind"):
                raise EnvContractError(
                    f"observation {spec.name!r} of the batch has shape {got.shape} and dtype {got.dtype}, "
                    f"expected shape {expected} and dtype {spec.dtype} [{self.spec.env_id}]"
                )
            checked.append(got.astype(spec.dtype, copy=False))
        return tuple(checked)

    def _masks(self, obs: Any, infos: dict[str, Any], lenient: Array) -> Array | None:
        """Return masks [B, M]; rows that are `lenient` (nothing is played from them) may have none."""
        if not self.spec.mask_source:
            return None
        shape = (self.num_envs, self.spec.mask_size)
        raw = obs[MASK_KEY] if self._mask_in_obs else infos.get(MASK_KEY)
        mask = np.zeros(shape, np.bool_) if raw is None else np.asarray(raw)
        if mask.shape != shape or mask.dtype.kind not in "biu":
            raise EnvContractError(
                f"the action masks of the batch have shape {mask.shape} and dtype {mask.dtype}, "
                f"expected {shape} of zeros and ones [{self.spec.env_id}]"
            )
        legal: Array = np.logical_or.reduceat(mask, self._mask_parts, axis=1).all(axis=1)  # type: ignore[assignment]
        wrong = np.flatnonzero(~legal & ~lenient)
        if wrong.size:
            raise EnvContractError(
                f"rows {wrong.tolist()} of the batch have no legal action; every part of the action needs "
                f'one in infos["action_mask"], or the episode must end [{self.spec.env_id}]'
            )
        return mask.astype(np.bool_) | ~legal[:, None]

    def _column(self, name: str, values: Any, dtype: type[np.generic]) -> Array:
        column = np.asarray(values)
        if column.shape != (self.num_envs,) or column.dtype.kind not in "biuf":
            raise EnvContractError(
                f"{name} of the batch has shape {column.shape} and dtype {column.dtype}, expected "
                f"({self.num_envs},) [{self.spec.env_id}]"
            )
        return column.astype(dtype)

    def _no_final(self) -> tuple[Leaves, Array | None]:
        leaves = tuple(np.zeros((0, *leaf.shape), leaf.dtype) for leaf in self.spec.leaves)
        return leaves, np.zeros((0, self.spec.mask_size), np.bool_) if self.spec.mask_source else None

    def _guard(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # border: the user's vector
            raise EnvFailure(
                f"{what}() of the batched environment {self.spec.env_id} raised "
                f"{type(error).__name__}: {error}"
            ) from error

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the vector is closed; make a new one")


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
    """Return a row's entry of batched infos, None where the row gave none."""
    given = infos.get(f"_{name}")
    if name not in infos or (given is not None and not given[row]):
        return None
    return infos[name][row]


def _row_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: _at(infos, name, row) for name in infos if not name.startswith("_")}
