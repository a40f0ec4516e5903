"""Plays one environment and records traces to compare, and statistics.

A trace has its seed, the actions in stored form, and a digest of each observation, so that long episodes of
large observations stay small. All episodes are played in a slot, which refuses broken contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.env.agents_slot import AgentsSlot, make_slot
from mission_gym.env.contract import describe_conversions, name_leaf
from mission_gym.env.factory import Env, EnvRequest, Factory
from mission_gym.env.leaves import ObsReader
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.errors import MissionGymError
from mission_gym.policy.sampling import draw_random
from mission_gym.streams import generator

Clock = Callable[[], bool]  # whether the time is up
_ROUNDING = 1e-6  # relative
_MAX_FAILURES = 3  # then recording stops, because more failures add no information


class CheckSkipped(Exception):
    """A check, or the rest of it, was skipped; the message says why."""


class StepRecord(NamedTuple):
    """One step (or reset) in a form that compares exactly; NaN equals NaN."""

    obs: bytes
    reward: str = "0.0"
    terminated: bool = False
    truncated: bool = False


@dataclass(slots=True)
class Trace:
    """One episode, or the beginning of one."""

    seed: int
    steps: list[StepRecord] = field(default_factory=list)  # the reset, then one per action
    actions: list[Array] = field(default_factory=list)  # stored, each [K]
    episode: Episode | None = None  # if it ended

    @property
    def ended(self) -> bool:
        return self.episode is not None


@dataclass(slots=True)
class Survey:
    """Everything that was recorded."""

    traces: list[Trace] = field(default_factory=list)
    failures: list[MissionGymError] = field(default_factory=list)
    lows: list[Array] = field(default_factory=list)  # by leaf, each [*leaf.shape]
    highs: list[Array] = field(default_factory=list)
    legal: Array | None = None  # bool [M]: at least once
    always_legal: Array | None = None
    outside: str = ""  # the first observation outside its space
    conversions: str = ""  # of dtypes
    rewards: list[float] = field(default_factory=list)
    reset_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    @property
    def episodes(self) -> list[Episode]:
        return [trace.episode for trace in self.traces if trace.episode is not None]

    @property
    def num_steps(self) -> int:
        return len(self.rewards)


@dataclass(slots=True)
class CheckContext:
    """An environment, its survey, and open questions about it."""

    request: EnvRequest
    factory: Factory
    spec: EnvSpec
    survey: Survey
    registered: GymSpec | None  # Gymnasium's own spec of the environment
    doubt: str = "it was not tested, for time, whether episodes can be repeated"  # "" if they can
    carries_over: bool = False  # earlier episodes of an instance change its later ones
    skipped: list[str] = field(default_factory=list)


def record(
    factory: Factory, spec: EnvSpec, seeds: Sequence[int], max_steps: int, out_of_time: Clock
) -> Survey:
    """Play one random episode per seed, each of at most `max_steps` steps, and at least one step in total."""
    survey = Survey()
    slot = make_slot(factory, spec, 0, seeds.__getitem__)
    note = partial(_note_values, survey, slot, spec, ObsReader(spec).spaces)

    def is_over() -> bool:
        return survey.num_steps > 0 and out_of_time()

    try:
        for number, seed in enumerate(seeds):
            if is_over() or len(survey.failures) == _MAX_FAILURES:
                break
            trace = Trace(seed)
            try:
                start = perf_counter()
                slot.reset(number)
                slot.check_values()
                survey.reset_s.append(perf_counter() - start)
                trace.steps.append(StepRecord(digest(slot.obs, spec)))
                note()
                _record_steps(survey, trace, slot, spec, note, lambda: slot.steps >= max_steps or is_over())
            except MissionGymError as error:
                survey.failures.append(error)
            if trace.actions:
                survey.traces.append(trace)
    finally:
        slot.env.close()
    survey.conversions = describe_conversions(slot.conversions, spec.leaves)
    return survey


def _record_steps(
    survey: Survey, trace: Trace, slot: EnvSlot, spec: EnvSpec, note: Callable[[], None], stop: Clock
) -> None:
    rng = generator(trace.seed, "check")
    terminated = False
    while not slot.ended and not stop():
        stored = draw_stored(slot, spec, rng)
        action = to_action(stored, spec)
        start = perf_counter()
        made = slot.step(action)
        slot.check_values()
        survey.step_s.append(perf_counter() - start)
        trace.actions.append(stored)
        trace.steps.append(record_step(slot, spec, made))
        terminated, reward = trace.steps[-1].terminated, float(np.sum(made[0]))
        survey.rewards.append(reward)
        note()
    if slot.ended:
        trace.episode = slot.finish(terminated)


def replay(
    env: Env, spec: EnvSpec, trace: Trace, out_of_time: Clock = lambda: False, seed: int | None = None
) -> Iterator[StepRecord]:
    """Play a trace's actions in an environment, step by step as the records are consumed.

    It ends with the episode, with the actions, or when out of time. seed: instead of the trace's own.
    """
    slot = make_slot(lambda: env, spec, 0, lambda episode: None)
    slot.reset(0, trace.seed if seed is None else seed)
    yield StepRecord(digest(slot.obs, spec))
    for stored in trace.actions:
        yield record_step(slot, spec, slot.step(to_action(stored, spec)))
        if slot.ended or out_of_time():
            return


def observe_at(env: Env, spec: EnvSpec, trace: Trace, step: int) -> Leaves:
    """Return the observation after `step` of a trace's actions, and the last reward."""
    slot = make_slot(lambda: env, spec, 0, lambda episode: None)
    slot.reset(0, trace.seed)
    made: Any = (0.0,)
    for stored in trace.actions[:step]:
        if not slot.ended:
            made = slot.step(to_action(stored, spec))
    return (*map(np.array, slot.obs), np.asarray(made[0]))


def differ_by_rounding(mine: Leaves, theirs: Leaves) -> bool:
    """Return whether two observations are equal except for the last digits of real numbers."""
    pairs = list(zip(mine, theirs, strict=True))
    if any(one.shape != two.shape for one, two in pairs):
        return False
    return all(
        np.allclose(one, two, _ROUNDING, _ROUNDING, equal_nan=True)
        if one.dtype.kind == "f"
        else np.all(one == two)
        for one, two in pairs
    )


def record_step(slot: EnvSlot, spec: EnvSpec, made: Any) -> StepRecord:
    """Record the step of a slot that returned `made`. With several agents all rewards and flags are compared;
    the episode ends with the last agent."""
    if not isinstance(slot, AgentsSlot):
        reward, terminated, truncated = made
        return StepRecord(digest(slot.obs, spec), repr(reward), terminated, truncated)
    ends = (slot.ended and not slot.is_cut, slot.ended and slot.is_cut)
    return StepRecord(digest(slot.obs, spec), str([column.tolist() for column in made]), *ends)


class Difference(NamedTuple):
    """The first difference of two traces."""

    step: int
    what: str


def find_difference(mine: Iterable[StepRecord], theirs: Iterable[StepRecord]) -> Difference | None:
    """Return the first difference of two traces up to the end of the shorter one; None without one."""
    for step, (one, two) in enumerate(zip(mine, theirs, strict=False)):
        if one.obs != two.obs:
            return Difference(step, f"the observation after step {step}" if step else "the first observation")
        if one.reward != two.reward:
            return Difference(step, f"the reward of step {step} ({one.reward} and {two.reward})")
        if one != two:
            return Difference(step, f"the end of the episode at step {step}")
    return None


def digest(leaves: Leaves, spec: EnvSpec) -> bytes:
    """Return a short hash of an observation in the dtypes of the spec."""
    content = blake2b(digest_size=16)
    for leaf, expected in zip(leaves, spec.leaves, strict=True):
        content.update(np.asarray(leaf, expected.dtype).tobytes())
    return content.digest()


def draw_stored(slot: EnvSlot, spec: EnvSpec, rng: np.random.Generator) -> Array:
    """Draw a legal random action [K] for the slot, or one per agent [A, K]."""
    if spec.agents:
        return draw_random(spec.action, slot.mask, rng, spec.num_agents)
    stored: Array = draw_random(spec.action, None if slot.mask is None else slot.mask[None], rng, 1)[0]
    return stored


def to_action(stored: Array, spec: EnvSpec) -> Any:
    """Convert a stored action, [K] or [A, K], for a slot."""
    return action_rows(spec, spec.action.to_env(stored if spec.agents else stored[None]))[0]


def _note_values(survey: Survey, slot: EnvSlot, spec: EnvSpec, leaf_spaces: tuple[Any, ...]) -> None:
    """Add the slot's observation, or that of each live agent, to the statistics."""
    shown = [(slot.obs, slot.mask)]
    if isinstance(slot, AgentsSlot):
        masks = [None] * spec.num_agents if slot.mask is None else slot.mask
        live = np.flatnonzero(slot.live).tolist()
        shown = [(tuple(leaf[agent] for leaf in slot.obs), masks[agent]) for agent in live]
    where = f"at seed {slot.seed}, step {slot.steps}"
    for obs, mask in shown:
        if mask is not None and not slot.ended:
            survey.legal = mask if survey.legal is None else survey.legal | mask
            survey.always_legal = mask if survey.always_legal is None else survey.always_legal & mask
        leaves = [np.array(leaf, leaf_spec.dtype) for leaf, leaf_spec in zip(obs, spec.leaves, strict=True)]
        survey.lows = [np.fmin(*pair) for pair in zip(survey.lows or leaves, leaves, strict=True)]
        survey.highs = [np.fmax(*pair) for pair in zip(survey.highs or leaves, leaves, strict=True)]
        for leaf, leaf_spec, space in zip(leaves, spec.leaves, leaf_spaces, strict=True):
            name = name_leaf(leaf_spec.name)
            if survey.outside or leaf_spec.is_converted:  # converted values were checked when they were read
                continue
            if not space.contains(leaf) and not _is_rounding(leaf, space):
                survey.outside = f"{name} is outside {space} {where}: {_show_outside(leaf, space)}"


def _is_rounding(leaf: Array, space: Any) -> bool:
    """Return whether real numbers exceed their bounds only by rounding."""
    if leaf.dtype.kind != "f" or leaf.shape != space.shape:
        return False
    slack = _ROUNDING * np.maximum(1.0, np.abs(leaf))
    return bool(np.all((leaf >= space.low - slack) & (leaf <= space.high + slack)))


def _show_outside(leaf: Array, space: Any) -> str:
    if not hasattr(space, "low"):
        return f"it is {leaf.tolist()}"
    beyond = np.maximum(
        np.subtract(space.low, leaf, dtype=np.float64), np.subtract(leaf, space.high, dtype=np.float64)
    )
    index = np.unravel_index(np.argmax(beyond), leaf.shape)  # not the first, which may be only rounding
    position = f"index {[int(i) for i in index]}"
    return f"{position} is {leaf[index]}, allowed {space.low[index]} to {space.high[index]}"
