"""Judges what was recorded of an environment: each function reads a Survey and gives findings.

A finding says what was seen, why it matters and what to do. Nothing is played here.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np

from mission_gym.check.findings import Finding, tell
from mission_gym.check.traces import Survey
from mission_gym.data import EnvSpec, LeafSpec
from mission_gym.env import factory
from mission_gym.errors import MissionGymError, describe

MAX_STEPS = 2000  # of one recorded episode
FEW_STEPS = 10  # below this many nothing is said about what never happened
_HUGE_REWARD, _TINY_REWARD = 1e3, 1e-4
_UNBOUNDED = 1e6  # bounds beyond this are a way to say "none"
_SHOWN = 10  # entries of a list in a message
_CALLERS = Path(factory.__file__).parent  # an exception that ends there is a call that does not fit


class Skipped(Exception):
    """A check, or the rest of it, could not be made; the message says why."""


def describe_failure(name: str, error: Exception, fix: str) -> Finding:
    """An exception as a finding."""
    return Finding("error", name, _locate(error), "training would fail here", fix)


def _locate(error: Exception) -> str:
    """An exception in words, with the line of the environment's code that raised it."""
    cause = error.__cause__ or error
    what = str(error) if isinstance(error, MissionGymError) else describe(error)
    frames = traceback.extract_tb(cause.__traceback__)
    by_user = not isinstance(cause, MissionGymError | gym.error.Error | ImportError)
    if frames and by_user and not Path(frames[-1].filename).is_relative_to(_CALLERS):
        what += f" (raised in {frames[-1].filename}, line {frames[-1].lineno})"
    return what


def judge_contract(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """The first broken promise of reset() or step(), or exception, met while playing."""
    if survey.failures:
        num_more = len(survey.failures) - 1
        more = f"; {num_more} more episodes failed" if num_more else ""
        yield tell("contract", "broken", what=_locate(survey.failures[0]) + more)


def judge_observation(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """NaN, infinity, values outside the space, and ranges that mislead."""
    if not survey.lows:
        raise Skipped("observations: none was seen")
    if survey.not_finite:
        yield tell("finite", "not", seen=survey.not_finite)
    if survey.outside:
        outside = tell("observation", "outside", seen=survey.outside)
        yield replace(outside, level="error") if survey.outside_hurts else outside
    for leaf, high in zip(spec.leaves, survey.highs, strict=True):
        if leaf.kind == "image" and leaf.dtype == "uint8" and not leaf.high and np.max(high) <= 1:
            yield tell("observation", "dark", leaf=_name(leaf))
    yield from _judge_ranges(spec, survey)


def _judge_ranges(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    space = spec.observation_space
    if len(spec.leaves) != 1 or spec.leaves[0].kind != "vector" or survey.num_steps < FEW_STEPS:
        return
    if not hasattr(space, "low"):
        return
    declared = np.asarray(space.high, np.float64) - np.asarray(space.low, np.float64)
    seen = np.asarray(survey.highs[0], np.float64) - np.asarray(survey.lows[0], np.float64)
    unused = (declared < _UNBOUNDED) & (seen > 0) & (seen < 0.01 * declared)
    if unused.any():
        yield tell("observation", "unused", entries=_indices(unused))


def judge_channels(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Parts of the observation that never changed."""
    if survey.num_steps < FEW_STEPS:
        raise Skipped(f"dead channels: only {survey.num_steps} steps were made")
    dead = []
    for leaf, low, high in zip(spec.leaves, survey.lows, survey.highs, strict=True):
        constant = np.asarray(low == high)
        if constant.all():
            dead.append(f"all of {_name(leaf)}")
        elif constant.any() and len(leaf.shape) < 2 and not leaf.is_converted:
            # The border of a picture or a map may well be still; so may columns of a text.
            dead.append(f"entries {_indices(constant)} of {_name(leaf)}")
    if dead:
        yield tell("channels", "dead", dead=" and ".join(dead), survey=survey)


def judge_endings(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Time limits: missing, or flagged as the end of the task."""
    episodes, limit = survey.episodes, spec.max_episode_steps
    longest = max((len(trace.actions) for trace in survey.traces), default=0)
    if limit is None and longest >= MAX_STEPS:
        yield tell("endings", "none", longest=longest)
    if not episodes:
        raise Skipped("endings: no episode came to its end")
    lengths = {episode.length for episode in episodes}
    last = [trace.moments[-1] for trace in survey.traces if trace.ended]
    died = all(moment.terminated and not moment.truncated for moment in last)
    if died and len(episodes) >= 3 and len(lengths) == 1 and min(lengths) > 1:
        yield tell("endings", "death", count=len(episodes), length=min(lengths))
    both = sum(moment.terminated and moment.truncated for moment in last)
    if both and both == sum(moment.truncated for moment in last):
        yield tell("endings", "both", both=both)


def judge_reward(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Returns that are all equal, and rewards far from 1."""
    if not survey.rewards:
        raise Skipped("rewards: no step was made")
    sizes = [abs(reward) for reward in survey.rewards if np.isfinite(reward)]
    returns = {episode.ret for episode in survey.episodes}
    if len(survey.episodes) >= 3 and len(returns) == 1:
        yield tell("reward", "equal", count=len(survey.episodes), ret=returns.pop())
    largest = max(sizes, default=0.0)
    if largest > _HUGE_REWARD or 0 < largest < _TINY_REWARD:
        yield tell("reward", "scale", largest=largest)
    if len(survey.episodes) < 3:
        raise Skipped("equal returns: fewer than three episodes came to their end")


def judge_mask(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Masks that forbid nothing, and actions that are never legal."""
    legal, always = survey.legal, survey.always_legal
    if legal is None or always is None:
        yield tell("mask", "none")
    elif always.all():
        yield tell("mask", "idle", spec=spec)
    elif not legal.all():
        yield tell("mask", "never", entries=_indices(~legal), spec=spec)


def judge_outcome(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Outcomes that are missing or not declared."""
    episodes = survey.episodes
    if not episodes:
        raise Skipped("outcomes: no episode came to its end")
    missing = [episode.seed for episode in episodes if episode.outcome is None]
    given = {episode.outcome for episode in episodes} - {None}
    if spec.outcomes and missing:
        seen = {"missing": len(missing), "count": len(episodes), "seed": missing[0]}
        yield tell("outcome", "missing", **seen, declared=", ".join(spec.outcomes))
    elif given and not spec.outcomes:
        yield tell("outcome", "not_declared", given=", ".join(sorted(map(str, given))))
    elif not spec.outcomes:
        yield tell("outcome", "none")
    elif spec.main_outcome is None:
        yield tell("outcome", "no_win")


def judge_speed(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Microseconds of reset and step, bytes of an observation."""
    parts = []
    for name, seconds in (("reset", survey.reset_s), ("step", survey.step_s)):
        if seconds:
            median, high = np.percentile(np.multiply(seconds, 1e6), [50, 99])
            parts.append(f"{name} {median:.0f} us (p99 {high:.0f} us)")
    parts.append(f"observation of {sum(leaf.size_bytes for leaf in spec.leaves)} bytes")
    yield tell("speed", "seen", parts=", ".join(parts))


def _name(leaf: LeafSpec) -> str:
    return f"observation {leaf.name!r}" if leaf.name else "the observation"


def _indices(chosen: np.typing.NDArray[np.bool_]) -> str:
    """Positions as text: 0, 3 or [0, 3], [1, 2]; a long list is cut."""
    places = np.argwhere(chosen)
    texts = [str(place.tolist()[0] if len(place) == 1 else place.tolist()) for place in places[:_SHOWN]]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(texts) + more
