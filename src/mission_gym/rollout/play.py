"""Plays a fixed list of seeds with any policy: episodes count by seed, not by finishing first.

Counting the first to finish favours short episodes. Environment i plays the seeds i, i + n, i + 2n, ... of
the list; environments that are done are no longer stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mission_gym.data import Array, EnvSpec, Episode, Leaves, ends_episode
from mission_gym.policy.sampling import draw_noise
from mission_gym.streams import generator
from mission_gym.vector.arrays import rows_of
from mission_gym.vector.base import Vector

See = Callable[[int, int], None]  # episodes that have ended, and steps so far
_PARALLEL = 16


def unseen(num_ended: int, num_steps: int) -> None:
    """Shows no progress."""


Expect = Callable[[str, int], See]  # the name of a player and its number of episodes -> shows its progress


def expect_unseen(what: str, num_episodes: int) -> See:
    """Shows no progress."""
    return unseen


@dataclass(frozen=True, slots=True)
class Actor:
    """A policy as a player.

    act: obs, mask, noise, memory -> the environment's own actions [B, ...] and the memory after them.
    initial_state: number of rows -> the memory at the beginning of episodes, empty without memory.
    """

    act: Callable[[Leaves, Array | None, Array | None, Leaves], tuple[Array, Leaves]]
    initial_state: Callable[[int], Leaves] = lambda num_rows: ()


def count_playing(num_episodes: int, *, own_vector_form: bool, at_most: int | None = None) -> int:
    """The number of environments that play a suite; it is part of the definition of sampled play.

    An environment's own vector form takes seeds only at its first reset: one episode per row. at_most: the
    number in the run, if each environment may own a process such as a browser.
    """
    return num_episodes if own_vector_form else min(num_episodes, _PARALLEL, at_most or _PARALLEL)


def seed_of_suite(seeds: Sequence[int], num_envs: int) -> Callable[[int, int], int]:
    """The seed of episode `number` of environment `env_id`; any seed after the end of the list."""

    def seed_of(env_id: int, number: int) -> int:
        position = env_id + num_envs * number
        return seeds[position] if position < len(seeds) else seeds[env_id % len(seeds)]

    return seed_of


def play(
    vec: Vector,
    actor: Actor,
    spec: EnvSpec,
    num_episodes: int,
    *,
    explore: bool,
    stop: Callable[[], bool] = lambda: False,
    see: See = unseen,
) -> list[Episode] | None:
    """Play `num_episodes` episodes and return them in the order of their seeds; None after a stop request.
    see: called after every step.

    The vector's seeds come from `seed_of_suite`. Sampled play draws its noise from a fixed stream. Failed
    episodes are left out.
    """
    num_envs, num_columns = vec.num_envs, vec.num_columns
    episodes: dict[int, Episode] = {}
    batch = vec.reset()
    obs, mask = tuple(leaf.copy() for leaf in batch.obs), None if batch.mask is None else batch.mask.copy()
    initial, state = actor.initial_state(num_columns), actor.initial_state(num_columns)
    rng = generator("play")
    active = list(range(num_envs))
    num_ended = num_steps = 0
    while active:
        if stop():
            return None
        noise = draw_noise(spec.action, rng, 1, num_columns)[0] if explore else None
        actions, state = actor.act(obs, mask, noise, state)
        if vec.rows_step_alone:
            vec.send(actions[rows_of(active, vec.per_env)], active)
        else:
            vec.send(actions)
        batch = vec.recv()
        for leaf, new in zip(obs, batch.obs, strict=True):
            leaf[batch.env_ids] = new
        if mask is not None:
            mask[batch.env_ids] = batch.mask
        begun = batch.env_ids[ends_episode(batch.terminated, batch.truncated, batch.valid)]
        for memory, first in zip(state, initial, strict=True):
            memory[begun] = first[begun]
        num_steps += len(batch.env_ids)
        for episode in batch.episodes:
            position = episode.env_id + num_envs * episode.number
            num_ended += position < num_episodes
            if position < num_episodes and not episode.failed:
                episodes[position] = episode
            if position + num_envs >= num_episodes and episode.env_id in active:
                active.remove(episode.env_id)
        see(num_ended, num_steps)
    return [episodes[position] for position in sorted(episodes)]
