"""One running environment: checks every step of its episode, and saves and restores its state.

In: a factory, the EnvSpec, a function from episode number to seed, and the stages of a curriculum. Out:
`obs`, `mask` and `info` after `reset` and `step`; `finish` returns the ended Episode. All vectors consist of
slots.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from gymnasium.spaces import Box
from numpy import ndarray  # a lookup in NumPy takes a tenth of the time of a cheap step

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.env.contract import (
    PAIR,
    TERMS,
    Contract,
    check_outcome,
    explain_step,
    read_metrics,
    show_action,
    show_short,
)
from mission_gym.env.factory import Factory
from mission_gym.env.probe import MASK_METHOD, find_announce
from mission_gym.env.resume import (
    REPLAY_BUDGET_S,
    SlotState,
    copy_plain,
    find_state_owner,
    read_generator,
    restore_generator,
    restore_wrappers,
)
from mission_gym.env.spaces import make_action_decoder
from mission_gym.env.stages import Staging
from mission_gym.env.user_code import find_line
from mission_gym.errors import (
    EnvContractError,
    EnvFailure,
    MissionGymError,
    TargetSilent,
    UsageError,
    describe,
)

MAX_REPLAY_STEPS = 200_000
UNTIMED = 15  # one step of 16 is timed: reading the clock takes as long as a cheap step
_OWN_SEED: Any = object()


class EnvSlot:
    """One environment of a vector. It never resets by itself; the vector decides."""

    def __init__(
        self,
        factory: Factory,
        spec: EnvSpec,
        env_id: int,
        seed_of: Callable[[int], int | None],
        staging: Staging | None = None,
    ) -> None:
        self._factory = factory
        self._staging = staging
        self.stage = 0  # of the running episode
        self.env_id = env_id
        self.episode = 0
        self.seed: int | None = None
        self.steps = 0
        self.ret = 0.0
        self.ended = True  # before the first reset
        self.obs: Leaves = ()
        self.mask: Array | None = None
        self.info: dict[str, Any] = {}
        self._past_steps = 0  # of earlier episodes
        self._timed_steps = 0
        self._timed_s = 0.0
        self._spec = spec
        self._seed_of = seed_of
        self._terms: dict[str, float] = {}
        self._keeps_actions = not spec.bare
        self._actions: list[Any] | None = None
        self._is_scalar = spec.action.shape == ()
        self._decode = make_action_decoder(spec.action_space)
        self._contract = Contract(spec, self.refuse)
        self.conversions = self._contract.conversions
        one_array = isinstance(spec.observation_space, Box) and not spec.mask_source
        one_array = one_array and not self._contract.converts
        plain: tuple[Any, tuple[int, ...]] = self._contract.expected[0] if one_array else (None, ())
        self._plain_dtype, self._plain_shape = plain
        self._has_mask = bool(spec.mask_size)
        self._build()

    def _build(self) -> None:
        spec = self._spec
        self.env = self._factory()
        step, decode = self.env.step, self._decode
        self._step: Callable[[Any], Any] = step if decode is None else lambda row: step(decode(row))
        self._announce = find_announce(self.env)
        self._mask_method = self.env.get_wrapper_attr(MASK_METHOD) if spec.mask_source == "method" else None
        spaces = (self.env.observation_space, self.env.action_space)
        if spaces != (spec.observation_space, spec.action_space):
            self.env.close()
            raise EnvContractError(
                f"environment {self.env_id} has spaces {spaces[0]} and {spaces[1]}, expected "
                f"{spec.observation_space} and {spec.action_space}; all environments must be alike"
            )

    def rebuild(self) -> None:
        """Replace the environment by a new one, which must be reset."""
        with suppress(Exception):  # border: a broken environment may fail to close
            self.env.close()
        self.ended = True
        self._build()

    @property
    def total_steps(self) -> int:
        """Number of steps over all episodes."""
        return self._past_steps + self.steps

    @property
    def mean_step_s(self) -> float:
        """Mean seconds of the steps that were timed."""
        return self._timed_s / max(self._timed_steps, 1)

    @property
    def curriculum_stage(self) -> int | None:
        """The stage of the running episode; None without a curriculum."""
        return None if self._staging is None else self.stage

    def reset(
        self,
        episode: int,
        seed: int | None = _OWN_SEED,
        options: dict[str, Any] | None = None,
        stage: int | None = None,
    ) -> None:
        """Start an episode, by default with its own seed and stage."""
        self.episode = episode
        self.seed = self._seed_of(episode) if seed is _OWN_SEED else seed
        self._past_steps += self.steps
        self.steps, self.ret, self.ended = 0, 0.0, True
        self._terms, self._actions = {}, [] if self._keeps_actions else None
        if self._staging is not None:
            options = self._enter(self._staging.choose(self.seed) if stage is None else stage)
        try:
            result = self.env.reset(seed=self.seed, options=options)
        except TargetSilent:
            raise
        except (Exception, SystemExit) as error:  # border: the user's reset
            raise self._failure("reset", f"reset() raised {describe(error)}", error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            self.refuse(f"reset() must return {PAIR}, got {show_short(result)}")
        self._read(*result, ended=False)
        self.ended = False

    def _enter(self, stage: int) -> dict[str, Any] | None:
        """Enter a stage and return the options of its resets; rebuilds the environment if its arguments
        differ."""
        assert self._staging is not None
        variant, self.stage = self._staging.stages.variants[stage], stage
        if variant.factory is not self._factory:
            before, self._factory = self._factory, variant.factory
            try:
                self.rebuild()
            except MissionGymError as error:
                self._factory = before  # for the next attempt
                what = f"building it for stage {stage + 1} failed: {error}"
                raise self._failure("reset", what, error.__cause__ or error) from error
        return variant.options

    def step(self, action: Any) -> tuple[float, bool, bool]:
        """Step the environment and return (reward, terminated, truncated)."""
        if self.ended:
            self.refuse_step()
        steps = self.steps
        if self._actions is not None:  # a copy, because the environment may change its action in place
            self._actions.append(action if self._is_scalar else action.copy())
            if steps == MAX_REPLAY_STEPS:
                self._actions = None
        start = 0.0 if steps & UNTIMED else perf_counter()
        try:
            result = self._step(action)
        except (EnvContractError, TargetSilent):  # the next episode would raise it too
            raise
        except (Exception, SystemExit) as error:  # border: the user's step
            shown = action if self._decode is None else self._decode(action)
            what = f"step() raised {describe(error)}; the action was {show_action(shown)}"
            raise self._failure("step", what, error) from error
        if start:
            self._timed_s += perf_counter() - start
            self._timed_steps += 1
        self.steps = steps + 1
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            self.refuse(explain_step(result))
        if type(reward) is not float:
            reward = self._contract.to_float(reward)
        if reward - reward != 0.0 and not self._spec.bare:
            self.refuse(f"the reward is {reward}; look for divisions by zero, logs and overflows")
        self.ret += reward
        if terminated is not False or truncated is not False:
            terminated = self._contract.to_bool("terminated", terminated)
            truncated = self._contract.to_bool("truncated", truncated)
            self.ended = terminated or truncated
        # The fast path of most environments: one array, as declared.
        if (
            type(obs) is ndarray
            and obs.dtype is self._plain_dtype
            and obs.shape == self._plain_shape
            and type(info) is dict
        ):
            self.obs, self.info = (obs,), info
        else:
            self._read(obs, info, self.ended)
        if info and "reward_terms" in info and not self._spec.bare:
            self._contract.add_terms(self._terms, info["reward_terms"])
        return reward, terminated, truncated

    @property
    def announces(self) -> bool:
        """Whether such environments are stepped together, after each has announced its action."""
        return self._announce is not None

    def announce(self, action: Any) -> None:
        """Announce the action of the next step."""
        if self._announce is not None and not self.ended:
            with suppress(Exception):  # border: the step raises it again
                self._announce(action if self._decode is None else self._decode(action))

    def refuse_step(self) -> NoReturn:
        """Raise UsageError because the episode is over."""
        raise UsageError(f"{self._where()}: the episode is over; reset the environment before stepping it")

    def finish(self, terminated: bool, failed: bool = False) -> Episode:
        """Return the episode that has just ended or failed."""
        seed = -1 if self.seed is None else self.seed
        outcome, metrics = (None, {}) if self._spec.bare or failed else self._read_end(terminated)
        end = (outcome, terminated, metrics, failed, self.stage)
        return Episode(self.env_id, self.episode, seed, self.ret, self.steps, *end)

    def _read_end(self, terminated: bool) -> tuple[str | None, dict[str, float]]:
        """Return the outcome and the metrics of the episode. A wrapper that truncates knows no outcome."""
        outcome = check_outcome(self.info.get("outcome"), self._spec, self.refuse, is_due=terminated)
        metrics = read_metrics(self.info.get("episode_metrics", {}), self.refuse)
        return outcome, metrics | {f"{TERMS}{name}": value for name, value in self._terms.items()}

    def state(self) -> SlotState:
        """Return the state from which `restore` continues exactly."""
        dtypes = (dtype for dtype, _ in self._contract.expected)
        state = SlotState(
            how="boundary",
            episode=self.episode,
            seed=self.seed,
            steps=self.steps,
            ret=self.ret,
            obs=tuple(np.array(leaf, dtype) for leaf, dtype in zip(self.obs, dtypes, strict=True)),
            mask=None if self.mask is None else self.mask.copy(),
            terms=dict(self._terms),
            step_s=self.mean_step_s,
            stage=self.stage,
        )
        if self.ended:
            state.reason = "its episode was over"
            return state
        owner = find_state_owner(self.env)
        if owner is not None:
            try:
                state.saved = copy_plain({"env": owner.get_state(), "generator": read_generator(self.env)})
            except Exception as error:  # noqa: BLE001  border: the user's get_state
                state.reason = f"get_state() can't be used ({describe(error)})"
            else:
                state.how = "state"
                return state
        if self.seed is None:
            state.reason = "the episode has no seed"
        elif self._actions is None:
            state.reason = f"its actions were not kept (the limit is {MAX_REPLAY_STEPS} steps)"
        else:
            state.how = "replay"
            shape = (self.steps, *self._spec.step_shape)
            state.actions = np.array(self._actions, self._spec.action.dtype).reshape(shape)
        return state

    def restore(self, state: SlotState, budget_s: float = REPLAY_BUDGET_S) -> str:
        """Continue from a state; returns how: `state`, `replay`, or `boundary: reason` (the next episode)."""
        reason = state.reason
        if state.how == "state":
            reason = self._restore_saved(state)
        elif state.how == "replay":
            reason = self._replay(state, budget_s)
        if state.how != "boundary" and not reason:
            return state.how
        self.reset(state.episode + 1)
        return f"boundary: {reason}"

    def _restore_saved(self, state: SlotState) -> str:
        """Continue by set_state; return why it failed, or an empty string."""
        # Many environments build their parts in reset, and another stage has another environment.
        self.reset(state.episode, state.seed, stage=state.stage)
        owner = find_state_owner(self.env)
        if owner is None:
            return "the environment no longer has set_state()"
        try:
            owner.set_state(copy_plain(state.saved["env"]))
            restore_generator(self.env, state.saved["generator"])
        except Exception as error:  # noqa: BLE001  border: the user's set_state
            return f"set_state() raised {describe(error)}"
        restore_wrappers(self.env, state.steps)
        self._past_steps -= state.steps  # another process made them
        self.steps, self.ret, self._terms = state.steps, state.ret, dict(state.terms)
        self._actions = None  # they were not saved, because get_state is used
        self.obs, self.mask, self.info = state.obs, state.mask, {}
        return ""

    def _replay(self, state: SlotState, budget_s: float) -> str:
        """Continue by replaying the episode; return why it failed, or an empty string."""
        assert state.actions is not None
        if state.replay_s > budget_s:
            return (
                f"replaying {state.steps} steps would take {state.replay_s:.1f} s, "
                f"over the {budget_s:.1f} s allowed"
            )
        try:
            self.reset(state.episode, state.seed, stage=state.stage)
            for action in action_rows(self._spec, state.actions):
                self.step(action)
        except MissionGymError as error:
            return f"the replay failed ({error})"
        same = repr(self.ret) == repr(state.ret) and all(
            np.asarray(got, old.dtype).tobytes() == old.tobytes()
            for got, old in zip(self.obs, state.obs, strict=True)
        )
        if same and not self.ended:
            return ""
        return f"the replay of {state.steps} steps gave another observation; the environment ignores its seed"

    def _read(self, obs: Any, info: Any, ended: bool) -> None:
        """Check and store an observation and its mask."""
        if not isinstance(info, dict):
            self.refuse(f"info must be a dict, got {type(info).__name__}")
        self.info = info
        self.obs = self._contract.read_obs(obs)
        if self._has_mask:
            self.mask = self._contract.read_mask(obs, info, self._mask_method, ended)

    def check_values(self) -> None:
        """Refuse the current observation if it has NaN, infinity or a category outside its space."""
        if not self._spec.bare:
            self._contract.check_values(self.obs)

    def refuse(self, what: str) -> NoReturn:
        """Raise an EnvContractError that names the current step."""
        error = EnvContractError(f"{self._where()}: {what} [{self._spec.env_id}]")
        error.facts = self._list_facts() | {"kind": "contract", "what": what}
        raise error

    def _where(self) -> str:
        return f"environment {self.env_id}, seed {self.seed}, episode {self.episode}, step {self.steps}"

    def _failure(self, call: str, what: str, error: BaseException) -> EnvFailure:
        """Return an error with its facts. call: the one that raised `error`."""
        failure = EnvFailure(f"{self._where()}: {what}")
        trace = "".join(traceback.format_exception(error))
        cause = {"kind": type(error).__name__, "what": describe(error), "line": find_line(error)}
        failure.facts = self._list_facts() | cause | {"call": call, "trace": trace}
        return failure

    def _list_facts(self) -> dict[str, Any]:
        """Return the place of the current step, and the actions of its episode if they were kept."""
        return {
            "env_index": self.env_id,
            "episode": self.episode,
            "seed": self.seed,
            "step": self.steps,
            "actions": None if self._actions is None else np.asarray(self._actions).tolist(),
            "stage": self.curriculum_stage,
        }


def action_rows(spec: EnvSpec, actions: Array) -> list[Any]:
    """Split a batch [B, *shape] in the environment's units into one action per environment.

    An action is a NumPy scalar (as in Gymnasium and SB3, because `Discrete.contains` is slow for an int) or
    an array, which is a row for a Dict or Tuple. Actions of one environment's agents stay together.
    """
    if spec.agents:
        return list(np.array(actions, spec.action.dtype).reshape(-1, *spec.step_shape))
    make = np.asarray if spec.action.shape == () else np.array  # an environment may keep a row
    return list(make(actions, spec.action.dtype))
