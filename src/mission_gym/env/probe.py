"""Reads the EnvSpec of a temporary environment: spaces, mask, outcomes, step limit, trust.

A mask comes from `info["action_mask"]` of reset, else from an observation key "action_mask", else from a
method `action_masks()`. Its forms are in `masks`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
)

from mission_gym.data import EnvSpec
from mission_gym.env import wrappers
from mission_gym.env.agents import AgentsEnv
from mission_gym.env.contract import PAIR, Contract, describe_conversions, show_short
from mission_gym.env.coroutines import has_coroutines, offers_form
from mission_gym.env.factory import Env, Factory, VectorEnv, is_trusted
from mission_gym.env.leaves import (
    MAX_SEQUENCE,
    ObsReader,
    as_ids,
    is_image,
    leaf_specs,
    may_hold_ids,
    with_frames,
)
from mission_gym.env.masks import fit_masks
from mission_gym.env.spaces import Space, action_spec, array_action_spec, array_leaf_specs
from mission_gym.env.user_code import describe_user_error, is_old_gym
from mission_gym.errors import EnvContractError, TargetSilent, describe

MASK_KEY = "action_mask"
MASK_METHOD = "action_masks"
TARGET_METHOD = "describe_target"
_NUM_LOOKS = 64  # observations to search for ids; most images are recognised by the first
# Wrappers that do not change observations.
_TRANSPARENT = (
    TimeLimit, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, wrappers.TimeLimit,
    wrappers.ClipReward, wrappers.Weigh,
)  # fmt: skip


def probe(factory: Factory, env_id: str, bare: bool = False, max_sequence: int = MAX_SEQUENCE) -> EnvSpec:
    """Build one environment, reset it once, and return its EnvSpec.

    bare: for `make_vec`, which takes arrays of any size and dtype and leaves the infos to its caller.
    max_sequence: elements of a sequence that are kept.
    """
    env = factory()
    try:
        return probe_env(env, env_id, bare, max_sequence)
    finally:
        with suppress(Exception):  # border: failing to close a temporary environment is harmless
            env.close()


def probe_env(env: Env, env_id: str, bare: bool = False, max_sequence: int = MAX_SEQUENCE) -> EnvSpec:
    """Like `probe`, for an environment that the caller closes."""
    spec = replace(_probe(env, env_id, bare, max_sequence), target=_read_target(env, env_id))
    if has_coroutines(env):
        return replace(spec, coroutines="only")
    return replace(spec, coroutines="offered") if offers_form(env.unwrapped) else spec


def _read_target(env: Env, env_id: str) -> tuple[str, str] | None:
    """Return the name and the health of an external service that the environment depends on."""
    if not env.has_wrapper_attr(TARGET_METHOD):
        return None
    try:
        name, health = env.get_wrapper_attr(TARGET_METHOD)()
    except Exception as error:  # border: the user's method
        raise EnvContractError(
            f"{env_id}: {TARGET_METHOD}() must return two texts, the service that the environment depends on "
            f"and its health; it raised {describe(error)}"
        ) from error
    return str(name), str(health)


def _probe(env: Env, env_id: str, bare: bool, max_sequence: int) -> EnvSpec:
    before = _spaces(env)
    obs, info = _reset(env, env_id)
    if before != _spaces(env):
        raise EnvContractError(
            f"{env_id}: reset() changed the spaces from {before[0]} and {before[1]} to "
            f"{env.observation_space} and {env.action_space}; they must stay as built"
        )
    inner = env.unwrapped
    if isinstance(inner, AgentsEnv):
        if bare:
            raise EnvContractError(
                f"{env_id} has {len(inner.agents)} agents, but environments of a Gymnasium vector have one; "
                "use mission_gym.train, which supports several"
            )
        infos = [each for each in info.values() if isinstance(each, dict)]
        shown: dict[str, Any] = next(iter(infos), {})  # agents are alike, so one is enough
        spec = _read_spec(env_id, env, before, shown, False, max_sequence)
        return replace(spec, agents=inner.agents)
    if bare:
        leaves, action = array_leaf_specs(before[0]), array_action_spec(before[1])
        return EnvSpec(env_id, leaves, action, *before, trusted=is_trusted(env), bare=True)
    spec = _read_spec(env_id, env, before, info, is_trusted(env), max_sequence)
    spec = _find_ids(env, replace(spec, conversions=_read_conversions(spec, obs)), obs)
    num_frames = count_frames(env)
    return replace(spec, leaves=tuple(with_frames(leaf, num_frames) for leaf in spec.leaves))


def probe_vector(
    factory: Callable[[int], VectorEnv], env_id: str, max_sequence: int = MAX_SEQUENCE
) -> EnvSpec:
    """Return the EnvSpec of an environment that is a vector itself, built with one environment."""
    env = factory(1)
    try:
        obs, info = _reset(env, env_id)
        trusted = type(env.unwrapped).__module__.startswith("mission_gym_missions.")
        single = (env.single_observation_space, env.single_action_space)
        return _find_ids(env, _read_spec(env_id, env, single, info, trusted, max_sequence), obs)
    finally:
        with suppress(Exception):  # border: failing to close a temporary environment is harmless
            env.close()


def _spaces(env: Env) -> tuple[Space, Space]:
    found = (getattr(env, "observation_space", None), getattr(env, "action_space", None))
    if found[0] is None or found[1] is None:
        raise EnvContractError(f"{env} must have an observation_space and an action_space once it is built")
    for space in found:
        if is_old_gym(space):
            raise EnvContractError(f"{env} has the space {space} of old gym; use gymnasium.spaces")
    return found[0], found[1]


def _reset(env: Env | VectorEnv, env_id: str) -> tuple[Any, dict[str, Any]]:
    try:
        result = env.reset(seed=0, options=None)
    except TargetSilent:
        raise
    except (Exception, SystemExit) as error:  # border: the user's reset
        raise EnvContractError(f"{env_id}: reset() raised {describe_user_error(error)}") from error
    if not isinstance(result, tuple) or len(result) != 2:
        got = show_short(result)
        raise EnvContractError(f"{env_id}: reset() must return {PAIR}, got {got}")
    obs, info = result
    if not isinstance(info, dict):
        raise EnvContractError(f"{env_id}: the info of reset() must be a dict, got {type(info).__name__}")
    return obs, info


def _read_spec(
    env_id: str,
    env: Env | VectorEnv,
    single: tuple[Space, Space],
    info: dict[str, Any],
    trusted: bool,
    max_sequence: int,
) -> EnvSpec:
    observation_space, action_space = single
    batch = () if isinstance(env, gym.Env) else (1,)
    action = action_spec(action_space)
    source, sample = "", None
    if MASK_KEY in info:
        source, sample = "info", info[MASK_KEY]
    elif isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces:
        source, sample = f"obs:{MASK_KEY}", _blank(observation_space[MASK_KEY], batch)
    elif isinstance(env, gym.Env) and env.has_wrapper_attr(MASK_METHOD):
        source, sample = "method", env.get_wrapper_attr(MASK_METHOD)()
    if source:
        action = fit_masks(action, action_space, sample, batch, f"{env_id}: its action mask ({source})")
    outcomes, main_outcome = _read_outcomes(env_id, env.metadata)
    return EnvSpec(
        env_id=env_id,
        leaves=leaf_specs(observation_space, MASK_KEY if source.startswith("obs:") else None, max_sequence),
        action=action,
        observation_space=observation_space,
        action_space=action_space,
        mask_source=source,
        outcomes=outcomes,
        main_outcome=main_outcome,
        max_episode_steps=env.spec.max_episode_steps if env.spec is not None else None,
        trusted=trusted,
    )


def _read_conversions(spec: EnvSpec, obs: Any) -> str:
    """Describe parts with another dtype than their space. Misfits are refused later."""

    def refuse(what: str) -> NoReturn:
        raise EnvContractError(what)

    contract = Contract(spec, refuse)
    with suppress(EnvContractError):
        contract.read_obs(obs)
    return describe_conversions(contract.conversions, spec.leaves)


def _blank(space: Space, batch: tuple[int, ...]) -> Any:
    """Return a mask of zeros in the form of its space."""
    if isinstance(space, spaces.Dict):
        return {key: _blank(part, batch) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_blank(part, batch) for part in space.spaces)
    return np.zeros((*batch, *(space.shape or ())))


def _find_ids(env: Env | VectorEnv, spec: EnvSpec, obs: Any) -> EnvSpec:
    """Distinguish grids of ids from small images, which have the same space, by the values of some steps.

    The seed and the actions are fixed, so an environment that follows its seed always gives the same answer.
    With an action mask only the first observation is used; a step that raises ends the search.
    """
    indices = [index for index, leaf in enumerate(spec.leaves) if may_hold_ids(leaf)]
    if not indices:
        return spec
    reader = ObsReader(spec)
    read = reader.read if isinstance(env, gym.Env) else reader.read_batch
    highest = {index: np.zeros(spec.leaves[index].shape, np.uint8) for index in indices}
    action_space = deepcopy(env.action_space)
    action_space.seed(0)
    with suppress(Exception):  # border: a failure here is repeated and reported later
        for step in range(1 if spec.mask_source else _NUM_LOOKS):
            if step:
                obs, _, terminated, truncated, _ = env.step(action_space.sample())
                if isinstance(env, gym.Env) and (terminated or truncated):
                    obs, _ = env.reset()
            leaves = read(obs)
            for index in indices:
                shown = np.asarray(leaves[index]).reshape(highest[index].shape)
                highest[index] = np.maximum(highest[index], shown)
            if all(is_image(seen) for seen in highest.values()):
                return spec
    found = [as_ids(leaf, highest[i]) if i in highest else leaf for i, leaf in enumerate(spec.leaves)]
    return replace(spec, leaves=tuple(found))


def count_frames(env: Env) -> int:
    """Return the number of frames that every observation stacks along its first axis, with the first one
    repeated at the start of an episode: blocks and replays then store each frame once. 1 if unknown."""
    while isinstance(env, gym.Wrapper) and type(env) in _TRANSPARENT:
        env = env.env
    if type(env) is wrappers.FrameStack:
        return env.num
    if type(env) is FrameStackObservation and env.padding_type == "reset":
        return int(env.stack_size)
    return 1


def _read_outcomes(env_id: str, metadata: dict[str, Any] | None) -> tuple[tuple[str, ...], str | None]:
    declared = metadata or {}  # some wrappers set None
    outcomes, main = declared.get("outcomes", ()), declared.get("main_outcome")
    if isinstance(outcomes, str) or not all(isinstance(name, str) for name in outcomes):
        raise EnvContractError(f'{env_id}: metadata["outcomes"] must be a list of names, got {outcomes!r}')
    if main is not None and main not in outcomes:
        names = f'metadata["outcomes"]={list(outcomes)}'
        raise EnvContractError(f'{env_id}: metadata["main_outcome"]={main!r} is not in {names}')
    return tuple(outcomes), main


def find_announce(env: Env) -> Callable[[Any], None] | None:
    """Return the method that announces an action, for games that share a process; None below a wrapper that
    may change actions."""
    while isinstance(env, gym.Wrapper):
        plain = (gym.ObservationWrapper, gym.RewardWrapper, TimeLimit)
        known = [kind.step for kind in plain]
        if not isinstance(env, plain) or type(env).step not in known:
            return None
        env = env.env
    announce: Callable[[Any], None] | None = getattr(env, "announce_action", None)
    return announce
