"""Builds a throw-away environment and reads its EnvSpec: spaces, mask, outcomes, step limit, trust.

A mask comes from `info["action_mask"]` on reset, else from an observation key "action_mask", else from a
method `action_masks()`. Its layout is flat: Discrete [n], MultiDiscrete [sum(nvec)].
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from mission_gym.data import ActionSpec, EnvSpec
from mission_gym.env.agents import AgentsEnv
from mission_gym.env.contract import show_short
from mission_gym.env.factory import Env, Factory, VectorEnv, is_trusted
from mission_gym.env.old_api import OLD_API, is_old
from mission_gym.env.spaces import Space, action_spec, any_action_spec, any_leaf_specs, leaf_specs
from mission_gym.env.wrappers import count_frames
from mission_gym.errors import EnvContractError, describe

MASK_KEY = "action_mask"
MASK_METHOD = "action_masks"


def probe(factory: Factory, env_id: str, bare: bool = False) -> EnvSpec:
    """Build one environment, reset it once, and return what the product needs to know of it.

    bare: for `make_vec`, which takes any space and leaves the infos to its caller.
    """
    env = factory()
    try:
        return look_at(env, env_id, bare)
    finally:
        with suppress(Exception):  # border: a throw-away environment that can't close harms nothing
            env.close()


def look_at(env: Env, env_id: str, bare: bool = False) -> EnvSpec:
    """As `probe`, for an environment that the caller closes."""
    before = _spaces(env)
    _, info = _reset(env, env_id)
    if before != _spaces(env):
        raise EnvContractError(
            f"{env_id}: reset() changed the spaces from {before[0]} and {before[1]} to "
            f"{env.observation_space} and {env.action_space}; they must stay as built"
        )
    inner = env.unwrapped
    if isinstance(inner, AgentsEnv):
        if bare:
            raise EnvContractError(
                f"{env_id} has {len(inner.agents)} agents, and a vector of Gymnasium's has one in each "
                "environment; train it as it is: mission_gym.train takes it"
            )
        told = [each for each in info.values() if isinstance(each, dict)]
        shown: dict[str, Any] = next(iter(told), {})  # what one agent tells, all do: they are alike
        spec = _read_spec(env_id, env, *before, shown, trusted=False)
        return replace(spec, agents=inner.agents)
    if bare:
        leaves, action = any_leaf_specs(before[0]), any_action_spec(before[1])
        return EnvSpec(env_id, leaves, action, *before, trusted=is_trusted(env), bare=True)
    return _read_spec(env_id, env, *before, info, is_trusted(env))


def probe_vector(factory: Callable[[int], VectorEnv], env_id: str) -> EnvSpec:
    """Do the same for an environment that is vectorised itself, with one row."""
    env = factory(1)
    try:
        _, info = _reset(env, env_id)
        trusted = type(env.unwrapped).__module__.startswith("mission_gym.missions.")
        single = (env.single_observation_space, env.single_action_space)
        return _read_spec(env_id, env, *single, info, trusted)
    finally:
        with suppress(Exception):  # border: a throw-away environment that can't close harms nothing
            env.close()


def _spaces(env: Env) -> tuple[Space, Space]:
    found = (getattr(env, "observation_space", None), getattr(env, "action_space", None))
    if found[0] is None or found[1] is None:
        raise EnvContractError(f"{env} must have an observation_space and an action_space once it is built")
    for space in found:
        if is_old(space):
            raise EnvContractError(
                f"{env} has the space {space} of the old gym package; use gymnasium.spaces"
            )
    return found[0], found[1]


def _reset(env: Env | VectorEnv, env_id: str) -> tuple[Any, dict[str, Any]]:
    try:
        result = env.reset(seed=0)
    except Exception as error:  # border: the user's reset
        # Before there were seeds in reset(), there was seed().
        hint = f"; {OLD_API}" if "unexpected keyword argument 'seed'" in str(error) else ""
        raise EnvContractError(f"{env_id}: reset() raised {describe(error)}{hint}") from error
    if not isinstance(result, tuple) or len(result) != 2:
        raise EnvContractError(
            f"{env_id}: reset() must return (observation, info), got {show_short(result)}; {OLD_API}"
        )
    obs, info = result
    if not isinstance(info, dict):
        raise EnvContractError(
            f"{env_id}: reset() must return (observation, dict), got {type(info).__name__}"
        )
    return obs, info


def _read_spec(
    env_id: str,
    env: Env | VectorEnv,
    observation_space: Space,
    action_space: Space,
    info: dict[str, Any],
    trusted: bool,
) -> EnvSpec:
    batch = () if isinstance(env, gym.Env) else (1,)
    action = action_spec(action_space)
    source, sample = "", None
    if MASK_KEY in info:
        source, sample = "info", np.asarray(info[MASK_KEY])
    elif isinstance(observation_space, spaces.Dict) and MASK_KEY in observation_space.spaces:
        source, sample = f"obs:{MASK_KEY}", np.zeros((*batch, *(observation_space[MASK_KEY].shape or ())))
    elif isinstance(env, gym.Env) and env.has_wrapper_attr(MASK_METHOD):
        source, sample = "method", np.asarray(env.get_wrapper_attr(MASK_METHOD)())
    if sample is not None:
        _check_mask_layout(env_id, source, sample.shape, action, batch)
    outcomes, main_outcome = _read_outcomes(env_id, env.metadata)
    return EnvSpec(
        env_id=env_id,
        leaves=leaf_specs(observation_space, MASK_KEY if source.startswith("obs:") else None),
        action=action,
        observation_space=observation_space,
        action_space=action_space,
        mask_source=source,
        outcomes=outcomes,
        main_outcome=main_outcome,
        max_episode_steps=env.spec.max_episode_steps if env.spec is not None else None,
        trusted=trusted,
        frame_stack=count_frames(env) if isinstance(env, gym.Env) else 1,
    )


def _check_mask_layout(
    env_id: str, source: str, shape: tuple[int, ...], action: ActionSpec, batch: tuple[int, ...]
) -> None:
    if action.kind != "categories":
        raise EnvContractError(
            f"{env_id}: it gives an action mask ({source}) for a {action.kind} action space; masks are for "
            "Discrete and MultiDiscrete; remove the mask"
        )
    expected = (*batch, sum(action.nvec))
    if shape != expected:
        raise EnvContractError(
            f"{env_id}: its action mask ({source}) has shape {shape}, expected {expected}; a mask is flat: "
            "[n] for Discrete, [sum(nvec)] for MultiDiscrete"
        )


def _read_outcomes(env_id: str, metadata: dict[str, Any]) -> tuple[tuple[str, ...], str | None]:
    outcomes, main = metadata.get("outcomes", ()), metadata.get("main_outcome")
    if isinstance(outcomes, str) or not all(isinstance(name, str) for name in outcomes):
        raise EnvContractError(f'{env_id}: metadata["outcomes"] must be a list of names, got {outcomes!r}')
    if main is not None and main not in outcomes:
        raise EnvContractError(
            f'{env_id}: metadata["main_outcome"]={main!r} is not one of metadata["outcomes"]={list(outcomes)}'
        )
    return tuple(outcomes), main
