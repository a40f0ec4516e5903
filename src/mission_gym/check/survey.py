"""Checks of the recorded statistics of an environment: each reads a Survey and yields findings."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np

from mission_gym.actions import WIDEST, ActionSpec
from mission_gym.check.findings import Finding, make_finding
from mission_gym.check.traces import CheckSkipped, Survey
from mission_gym.data import EnvSpec
from mission_gym.env import factory
from mission_gym.env.contract import name_leaf
from mission_gym.errors import MissionGymError, describe

MAX_STEPS = 2000  # of one recorded episode
FEW_STEPS = 10  # with fewer steps, events that never happened are not reported
_HUGE_REWARD, _TINY_REWARD = 1e3, 1e-4
_HUGE_BOUND = 1e4  # a larger bound of an action is hardly meant
_UNBOUNDED = 1e6  # larger bounds count as none
_SHOWN = 10  # entries of a list in a message
_CALLERS = Path(factory.__file__).parent  # an exception raised there is a wrong call


def describe_failure(name: str, error: Exception, fix: str) -> Finding:
    """Make a finding of an exception."""
    return Finding("error", name, locate(error), "training would fail here", fix)


def locate(error: BaseException) -> str:
    """Describe an exception, with the line of the user's code that raised it."""
    cause = error.__cause__ or error
    what = str(error) if isinstance(error, MissionGymError) else describe(error)
    frames = traceback.extract_tb(cause.__traceback__)
    by_user = not isinstance(cause, MissionGymError | gym.error.Error | ImportError)
    if frames and by_user and not Path(frames[-1].filename).is_relative_to(_CALLERS):
        what += f" (raised in {frames[-1].filename}, line {frames[-1].lineno})"
    return what


def check_contract(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report the first exception or broken contract of reset() or step()."""
    if survey.failures:
        num_more = len(survey.failures) - 1
        more = f"; {num_more} more episodes failed" if num_more else ""
        first = survey.failures[0]
        raised = first.__cause__ is not None
        fix = (
            "fix the line that raised"
            if raised
            else "the message names the rule; change the environment at this seed and step"
        )
        yield make_finding("contract", "broken", what=locate(first) + more, fix=fix)


def check_observation(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report real numbers outside the space, and misleading ranges."""
    if not survey.lows:
        raise CheckSkipped("observations: there were none")
    if survey.outside:
        yield make_finding("observation", "outside", seen=survey.outside)
    if survey.conversions:
        yield make_finding("observation", "converted", seen=survey.conversions)
    for leaf, high in zip(spec.leaves, survey.highs, strict=True):
        if leaf.kind == "image" and leaf.dtype == "uint8" and not leaf.high and np.max(high) <= 1:
            yield make_finding("observation", "dark", leaf=name_leaf(leaf.name))
    yield from _check_ranges(spec, survey)


def _check_ranges(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    space = spec.observation_space
    if len(spec.leaves) != 1 or spec.leaves[0].kind != "vector" or survey.num_steps < FEW_STEPS:
        return
    if not hasattr(space, "low"):
        return
    declared = np.asarray(space.high, np.float64) - np.asarray(space.low, np.float64)
    seen = np.asarray(survey.highs[0], np.float64) - np.asarray(survey.lows[0], np.float64)
    unused = (declared < _UNBOUNDED) & (seen > 0) & (seen < 0.01 * declared)
    if unused.any():
        yield make_finding("observation", "unused", entries=_indices(unused))


def check_channels(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report parts of the observation that never changed."""
    if survey.num_steps < FEW_STEPS:
        raise CheckSkipped(f"dead channels: only {survey.num_steps} steps were made")
    dead = []
    for leaf, low, high in zip(spec.leaves, survey.lows, survey.highs, strict=True):
        constant = np.asarray(low == high)
        if constant.all():
            dead.append(f"all of {name_leaf(leaf.name)}")
        elif constant.any() and len(leaf.shape) < 2 and not leaf.is_converted:
            # The border of an image or a map may be constant, and so may columns of a text.
            dead.append(f"entries {_indices(constant)} of {name_leaf(leaf.name)}")
    if dead:
        yield make_finding("channels", "dead", dead=" and ".join(dead), survey=survey)


def check_bounds(action: ActionSpec) -> Iterator[Finding]:
    """Report real actions without bounds, or with bounds that look like a placeholder."""
    largest = np.maximum(np.abs(action.low), np.abs(action.high))
    if (infinite := largest >= WIDEST).any():
        yield make_finding("actions", "infinite", entries=_indices(infinite))
    if (huge := (largest > _HUGE_BOUND) & ~infinite).any():
        yield make_finding("actions", "huge", entries=_indices(huge), limit=_HUGE_BOUND)


def check_endings(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report time limits that are missing or flagged as the end of the task."""
    episodes, limit = survey.episodes, spec.max_episode_steps
    longest = max((len(trace.actions) for trace in survey.traces), default=0)
    if limit is None and longest >= MAX_STEPS:
        yield make_finding("endings", "none", longest=longest)
    if not episodes:
        raise CheckSkipped("endings: no episode ended")
    lengths = {episode.length for episode in episodes}
    last = [trace.steps[-1] for trace in survey.traces if trace.ended]
    died = all(step.terminated and not step.truncated for step in last)
    if died and len(episodes) >= 3 and len(lengths) == 1 and min(lengths) > 1:
        yield make_finding("endings", "death", count=len(episodes), length=min(lengths))
    both = sum(step.terminated and step.truncated for step in last)
    if both and both == sum(step.truncated for step in last):
        yield make_finding("endings", "both", both=both)


def check_reward(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report returns that are all equal, and rewards far from 1."""
    if not survey.rewards:
        raise CheckSkipped("rewards: there were no steps")
    sizes = [abs(reward) for reward in survey.rewards if np.isfinite(reward)]
    returns = {episode.ret for episode in survey.episodes}
    if len(survey.episodes) >= 3 and len(returns) == 1:
        yield make_finding("reward", "equal", count=len(survey.episodes), ret=returns.pop())
    largest = max(sizes, default=0.0)
    if largest > _HUGE_REWARD or 0 < largest < _TINY_REWARD:
        yield make_finding("reward", "scale", largest=largest)
    if len(survey.episodes) < 3:
        raise CheckSkipped("equal returns: fewer than three episodes ended")


def check_mask(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report masks that forbid nothing, and actions that are never legal."""
    legal, always = survey.legal, survey.always_legal
    if legal is None or always is None:
        yield make_finding("mask", "none")
    elif always.all():
        yield make_finding("mask", "idle", spec=spec)
    elif not legal.all():
        yield make_finding("mask", "never", entries=_indices(~legal), spec=spec)


def check_outcome(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report outcomes that are missing or not declared."""
    episodes = survey.episodes
    if not episodes:
        raise CheckSkipped("outcomes: no episode ended")
    missing = [episode.seed for episode in episodes if episode.outcome is None]
    given = {episode.outcome for episode in episodes} - {None}
    if spec.outcomes and missing:
        seen = {"missing": len(missing), "count": len(episodes), "seed": missing[0]}
        yield make_finding("outcome", "missing", **seen, declared=", ".join(spec.outcomes))
    elif given and not spec.outcomes:
        yield make_finding("outcome", "not_declared", given=", ".join(sorted(map(str, given))))
    elif not spec.outcomes:
        yield make_finding("outcome", "none")
    elif spec.main_outcome is None:
        yield make_finding("outcome", "no_win")


def check_speed(spec: EnvSpec, survey: Survey) -> Iterator[Finding]:
    """Report the microseconds of reset and step, and the bytes of an observation."""
    parts = []
    for name, seconds in (("reset", survey.reset_s), ("step", survey.step_s)):
        if seconds:
            median, high = np.percentile(np.multiply(seconds, 1e6), [50, 99])
            parts.append(f"{name} {median:.0f} us (p99 {high:.0f} us)")
    parts.append(f"observation of {sum(leaf.size_bytes for leaf in spec.leaves)} bytes")
    yield make_finding("speed", "seen", parts=", ".join(parts))


def _indices(chosen: np.typing.NDArray[np.bool_]) -> str:
    """Return positions as text: 0, 3 or [0, 3], [1, 2]; a long list is shortened."""
    places = np.argwhere(chosen)
    texts = [str(place.tolist()[0] if len(place) == 1 else place.tolist()) for place in places[:_SHOWN]]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(texts) + more
