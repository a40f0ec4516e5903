"""Baselines: untrained policies on the report suite, for comparison with trained ones.

`random` draws uniformly from the legal actions, `noop` takes the zero or first legal action. An environment
may declare scripted policies in `env.unwrapped.baselines`, a dict from names to callables (observation, info)
-> action in the environment's own form. One called `noop` or `random` replaces ours. Those of a batched
environment take (observations [N, ...], masks [N, M]) and return actions for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from operator import attrgetter
from threading import Event
from typing import Any

import gymnasium as gym
import numpy as np

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.env.factory import make_vector_factory
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.env.spaces import make_action_encoder
from mission_gym.errors import EnvContractError, EnvFailure, UsageError, describe, nearest
from mission_gym.policy.sampling import best_of_parts, draw_random
from mission_gym.rollout.play import Actor, Expect, See, count_playing, expect_unseen
from mission_gym.run.environment import Environment
from mission_gym.run.evaluation import EvalResult, evaluate, summarise
from mission_gym.streams import generator, suite_seeds

Scripted = Callable[[Any, Any], Any]  # observation, info (of a batch: mask) -> action


def run_baselines(
    environment: Environment,
    num_episodes: int,
    *,
    names: Sequence[str] | None = None,
    expect: Expect = expect_unseen,
) -> dict[str, dict[str, Any]]:
    """Play the first seeds of the report suite with each baseline, or those in `names`; name -> the document
    of `eval --json`. expect: shows the progress of each."""
    if num_episodes < 1:
        raise UsageError(f"episodes={num_episodes} is not a positive count [--episodes]")
    spec = environment.spec
    batched = environment.backend.own_vector_form
    scripted = _find_scripted(environment)
    known = list(dict.fromkeys(["random", "noop", *scripted]))
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UsageError(
            f"unknown baseline {unknown[0]!r}{nearest(unknown[0], known)}; "
            f"{spec.env_id} has {', '.join(known)}"
        )
    results: dict[str, dict[str, Any]] = {}
    for name in known if names is None else names:
        see = expect(name, num_episodes)
        if name in scripted and batched:
            actor = _batched_actor(scripted[name], name, spec)
            result = evaluate(environment, actor, "report", num_episodes, see=see)
        elif name in scripted:
            result = _play_scripted(environment, name, num_episodes, see)
        else:
            actor = _random_actor(spec) if name == "random" else _noop_actor(spec)
            result = evaluate(environment, actor, "report", num_episodes, explore=name == "random", see=see)
        results[name] = result.document()
    return results


def _memoryless(choose: Callable[[Leaves, Array | None], Array]) -> Actor:
    """An actor that needs only observation and mask."""
    return Actor(lambda obs, mask, noise, state: (choose(obs, mask), state))


def _random_actor(spec: EnvSpec) -> Actor:
    rng = generator("baseline", "random")
    return _memoryless(lambda obs, mask: spec.action.to_env(draw_random(spec.action, mask, rng, len(obs[0]))))


def _noop_actor(spec: EnvSpec) -> Actor:
    action = spec.action

    def choose(obs: Leaves, mask: Array | None) -> Array:
        num_rows = len(obs[0])
        stored = np.zeros((num_rows, action.num_stored), action.stored_dtype)
        if mask is not None:
            stored[:, : len(action.nvec)] = best_of_parts(mask, action)
        rows, end = action.to_env(stored).reshape(num_rows, -1), 0
        for part in action.parts or (action,):  # the zero of a Box is in its own units
            start, end = end, end + math.prod(part.shape)
            if part.kind == "box":
                rows[:, start:end] = np.clip(0.0, part.low, part.high)
        return rows.reshape(num_rows, *action.shape)

    return _memoryless(choose)


class _Remember(gym.Wrapper[Any, Any, Any, Any]):
    """Stores the last observation in the environment's own form."""

    obs: Any = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.obs, info = self.env.reset(**kwargs)
        return self.obs, info

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.obs = result[0]
        return result


def _find_scripted(environment: Environment) -> dict[str, Scripted]:
    batched, spec = environment.backend.own_vector_form, environment.spec
    if spec.agents:  # would need one per agent
        return {}
    with closing(make_vector_factory(environment.request)(1) if batched else environment.factory()) as env:
        declared = getattr(env.unwrapped, "baselines", {})
    if not isinstance(declared, dict) or not all(callable(policy) for policy in declared.values()):
        raise EnvContractError(
            f"{spec.env_id}: its attribute baselines is {declared!r}, expected a dict from a "
            "name to a callable (observation, info) -> action"
        )
    return declared


def _batched_actor(policy: Scripted, name: str, spec: EnvSpec) -> Actor:
    to_row = make_action_encoder(spec.action_space)

    def choose(obs: Leaves, mask: Array | None) -> Array:
        try:
            return to_row(policy(obs[0] if len(obs) == 1 else obs, mask))
        except Exception as error:  # border: the environment's scripted policy
            raise EnvFailure(f"baseline {name!r} raised {describe(error)} [{spec.env_id}]") from error

    return _memoryless(choose)


def _play_scripted(environment: Environment, name: str, num_episodes: int, see: See) -> EvalResult:
    """Play one episode per seed in one environment, or in several threads if environments wait."""
    lengths: list[int] = []

    def add(episode: Episode) -> None:
        lengths.append(episode.length)
        see(len(lengths), sum(lengths))

    play = partial(_play_part, environment.limited(), name, is_over := Event(), add)
    if not environment.backend.for_waiting:
        return summarise(play(range(num_episodes)), environment.spec, explore=False)
    num_players = count_playing(num_episodes, own_vector_form=False, at_most=environment.most_playing)
    parts = [range(first, num_episodes, num_players) for first in range(num_players)]
    with ThreadPoolExecutor(num_players) as pool:
        players = [pool.submit(play, part) for part in parts]
        try:
            wait(players, return_when=FIRST_EXCEPTION)
        finally:  # one has failed, or the user interrupts
            is_over.set()
    episodes = [episode for player in players for episode in player.result()]
    return summarise(sorted(episodes, key=attrgetter("number")), environment.spec, explore=False)


def _play_part(
    environment: Environment, name: str, is_over: Event, add: Callable[[Episode], None], numbers: range
) -> list[Episode]:
    """Play some seeds of the report suite with a scripted policy, until `is_over` is set. add: is called
    with each episode."""
    spec = environment.spec
    seeds, to_row = suite_seeds("report", numbers.stop), make_action_encoder(spec.action_space)
    env = _Remember(environment.factory())
    policy: Scripted = env.unwrapped.baselines[name]  # type: ignore[attr-defined]  # it may be a method
    slot = EnvSlot(lambda: env, spec, 0, seeds.__getitem__)
    episodes: list[Episode] = []
    try:
        for number in numbers:
            slot.reset(number)
            terminated = False
            while not slot.ended:
                if is_over.is_set():
                    return episodes
                try:
                    chosen = policy(env.obs, slot.info)
                    action = action_rows(spec, to_row(chosen).reshape(1, *spec.action.shape))[0]
                except Exception as error:  # border: the environment's scripted policy
                    raise EnvFailure(
                        f"baseline {name!r} raised {describe(error)} at seed {slot.seed}, "
                        f"step {slot.steps} [{spec.env_id}]"
                    ) from error
                _, terminated, _ = slot.step(action)
            episodes.append(slot.finish(terminated))
            add(episodes[-1])
    finally:
        env.close()
    return episodes
