"""Judges what was recorded of an environment: each function reads a Survey and gives findings.

A finding says what was seen, why it matters and what to do. Nothing is played here.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace

import gymnasium as gym
import numpy as np

from mission_gym.check.findings import Finding
from mission_gym.check.traces import Survey
from mission_gym.data import EnvSpec, LeafSpec
from mission_gym.errors import MissionGymError, describe

MAX_STEPS = 2000  # of one recorded episode
_FEW_STEPS = 10  # below this many nothing is said about what never happened
_HUGE_REWARD, _TINY_REWARD = 1e3, 1e-4
_UNBOUNDED = 1e6  # bounds beyond this are a way to say "none"
_SHOWN = 10  # entries of a list in a message


class Skipped(Exception):
    """A check, or the rest of it, could not be made; the message says why."""


def describe_failure(name: str, error: Exception, fix: str) -> Finding:
    """An exception as a finding, with the line of the environment's code that raised it."""
    cause = error.__cause__ or error
    what = str(error) if isinstance(error, MissionGymError) else describe(error)
    frames = traceback.extract_tb(cause.__traceback__)
    by_user = not isinstance(cause, MissionGymError | gym.error.Error)
    if frames and by_user:
        what += f" (raised in {frames[-1].filename}, line {frames[-1].lineno})"
    return Finding("error", name, what, "training would fail here", fix)


def judge_contract(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """The first broken promise of reset() or step(), or exception, met while playing."""
    if survey.failures:
        fix = (
            "play this seed to this step in a debugger; reset() must return (observation, dict) and step() "
            "five values, as the spaces, the mask and the outcomes declare"
        )
        first = describe_failure("contract", survey.failures[0], fix)
        num_more = len(survey.failures) - 1
        yield replace(first, what=f"{first.what}; {num_more} more episodes failed") if num_more else first


def judge_observation(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """NaN, infinity, values outside the space, and ranges that mislead."""
    if not survey.lows:
        raise Skipped("observations: none was seen")
    if survey.not_finite:
        why = "one NaN or infinity in an observation or a reward makes the network's weights NaN"
        yield Finding(
            "error", "finite", survey.not_finite, why, "look for divisions by zero, logs and overflows"
        )
    if survey.outside:
        why = "the space is a promise: networks are built from it, and other tools clip or refuse the rest"
        fix = "widen the space or clip the observation"
        yield Finding("error" if survey.outside_hurts else "warning", "observation", survey.outside, why, fix)
    for leaf, high in zip(spec.leaves, survey.highs, strict=True):
        if leaf.kind == "image" and np.max(high) <= 1:
            why = "images are divided by 255, so these pixels are nearly 0 for the network"
            fix = "scale the pixels to 0..255, or declare a float32 Box from 0 to 1"
            yield Finding(
                "warning", "observation", f"{_name(leaf)} is an image but no pixel is above 1", why, fix
            )
    for text in _find_unused_ranges(spec, survey):
        yield Finding(
            "info", "observation", text, "harmless here: observations are normalised by what is seen"
        )


def _find_unused_ranges(spec: EnvSpec, survey: Survey) -> Iterator[str]:
    space = spec.observation_space
    if len(spec.leaves) != 1 or spec.leaves[0].kind != "vector" or survey.num_steps < _FEW_STEPS:
        return
    if not hasattr(space, "low"):
        return
    declared = np.asarray(space.high, np.float64) - np.asarray(space.low, np.float64)
    seen = np.asarray(survey.highs[0], np.float64) - np.asarray(survey.lows[0], np.float64)
    unused = (declared < _UNBOUNDED) & (seen > 0) & (seen < 0.01 * declared)
    if unused.any():
        yield f"entries {_indices(unused)} used less than 1 % of the range their space declares"


def judge_channels(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Parts of the observation that never changed."""
    if survey.num_steps < _FEW_STEPS:
        raise Skipped(f"dead channels: only {survey.num_steps} steps were made")
    dead = []
    for leaf, low, high in zip(spec.leaves, survey.lows, survey.highs, strict=True):
        constant = np.asarray(low == high)
        if constant.all():
            dead.append(f"all of {_name(leaf)}")
        elif constant.any() and leaf.kind != "image":  # the border of a picture may well be still
            dead.append(f"entries {_indices(constant)} of {_name(leaf)}")
    if dead:
        what = f"{' and '.join(dead)} never changed in {survey.num_steps} steps"
        why = "a constant tells the agent nothing; it is often a value that is never filled in"
        fix = "fill it in or remove it; fine if it changes only where random play does not get"
        yield Finding("warning", "channels", what, why, fix)


def judge_endings(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Time limits: missing, or flagged as the end of the task."""
    episodes, limit = survey.episodes, spec.max_episode_steps
    longest = max((len(trace.actions) for trace in survey.traces), default=0)
    if limit is None and longest >= MAX_STEPS:
        what = f"an episode ran for {longest} steps without an end, and no time limit is registered"
        why = "an agent that gets stuck would never start anew, and returns would never be reported"
        fix = "register it with max_episode_steps=..., or wrap it in gymnasium.wrappers.TimeLimit"
        yield Finding("warning", "endings", what, why, fix)
    if not episodes:
        raise Skipped("endings: no episode came to its end")
    lengths = {episode.length for episode in episodes}
    last = [trace.moments[-1] for trace in survey.traces if trace.ended]
    died = all(moment.terminated and not moment.truncated for moment in last)
    if died and len(episodes) >= 3 and len(lengths) == 1 and min(lengths) > 1:
        what = f"all {len(episodes)} episodes ended as terminated after exactly {min(lengths)} steps"
        why = (
            "a time limit flagged as terminated reads as death: the value of going on is taken to be 0, "
            "and the agent learns that good states become worthless with time"
        )
        fix = "return truncated=True and terminated=False at a time limit; fine if the task itself is over"
        yield Finding("warning", "endings", what, why, fix)
    both = sum(moment.terminated and moment.truncated for moment in last)
    if both and both == sum(moment.truncated for moment in last):
        what = f"terminated and truncated were both set at the end of {both} episodes, never truncated alone"
        why = "terminated wins if both are set, so the time limit is read as death"
        fix = "set terminated only where the task itself is over"
        yield Finding("warning", "endings", what, why, fix)


def judge_reward(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Returns that are all equal, and rewards far from 1."""
    if not survey.rewards:
        raise Skipped("rewards: no step was made")
    sizes = [abs(reward) for reward in survey.rewards if np.isfinite(reward)]
    returns = {episode.ret for episode in survey.episodes}
    if len(survey.episodes) >= 3 and len(returns) == 1:
        what = f"all {len(survey.episodes)} random episodes had the same return {returns.pop():.6g}"
        why = "learning can't begin until chance finds an episode that is better than the others"
        fix = "reward progress in small steps, or make sure that the goal can be reached by chance"
        yield Finding("warning", "reward", what, why, fix)
    largest = max(sizes, default=0.0)
    if largest > _HUGE_REWARD or 0 < largest < _TINY_REWARD:
        what = f"the largest reward of a step is {largest:.3g}"
        why = "values far from 1 are learned slowly, and rounding hides small differences"
        fix = "divide it by a constant, and leave normalize_returns on (--set policy.normalize_returns=true)"
        yield Finding("warning", "reward", what, why, fix)
    if len(survey.episodes) < 3:
        raise Skipped("equal returns: fewer than three episodes came to their end")


def judge_mask(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Masks that forbid nothing, and actions that are never legal."""
    legal, always = survey.legal, survey.always_legal
    source = spec.mask_source
    if legal is None or always is None:
        yield Finding("ok", "mask", "it gives no action mask: every action counts as legal")
    elif always.all():
        yield Finding("info", "mask", f"the action mask ({source}) never forbade an action")
    elif not legal.all():
        yield Finding(
            "info", "mask", f"entries {_indices(~legal)} of the action mask ({source}) were never legal"
        )


def judge_outcome(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Outcomes that are missing or not declared."""
    spec, episodes = spec, survey.episodes
    if not episodes:
        raise Skipped("outcomes: no episode came to its end")
    missing = [episode.seed for episode in episodes if episode.outcome is None]
    given = {episode.outcome for episode in episodes} - {None}
    why = "wins are counted by outcome, never guessed from the return"
    if spec.outcomes and missing:
        count = f"{len(missing)} of {len(episodes)} episodes"
        what = f'{count} ended without info["outcome"], first at seed {missing[0]}'
        fix = f'set info["outcome"] to one of {", ".join(spec.outcomes)} in the last step of every episode'
        yield Finding("warning", "outcome", what, why, fix)
    elif given and not spec.outcomes:
        what = (
            f'info["outcome"] gives {", ".join(sorted(map(str, given)))}, but metadata declares no outcomes'
        )
        fix = 'declare metadata["outcomes"] (a list of names) and metadata["main_outcome"] (the win)'
        yield Finding("warning", "outcome", what, why, fix)
    elif not spec.outcomes:
        fix = 'optional: set info["outcome"] at the end and declare metadata["outcomes"] and "main_outcome"'
        yield Finding(
            "info", "outcome", "it declares no outcomes, so only returns will be reported", why, fix
        )
    elif spec.main_outcome is None:
        fix = 'declare metadata["main_outcome"]'
        yield Finding("info", "outcome", "no outcome is named as the win, so `best` goes by return", why, fix)


def judge_speed(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Microseconds of reset and step, bytes of an observation."""
    parts = []
    for name, seconds in (("reset", survey.reset_s), ("step", survey.step_s)):
        if seconds:
            median, high = np.percentile(np.multiply(seconds, 1e6), [50, 99])
            parts.append(f"{name} {median:.0f} us (p99 {high:.0f} us)")
    size = sum(leaf.size_bytes for leaf in spec.leaves)
    yield Finding("info", "speed", f"{', '.join(parts)}, observation of {size} bytes")


def _name(leaf: LeafSpec) -> str:
    return f"observation {leaf.name!r}" if leaf.name else "the observation"


def _indices(chosen: np.typing.NDArray[np.bool_]) -> str:
    """Positions as text: 0, 3 or [0, 3], [1, 2]; a long list is cut."""
    places = np.argwhere(chosen)
    texts = [str(place.tolist()[0] if len(place) == 1 else place.tolist()) for place in places[:_SHOWN]]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(texts) + more
