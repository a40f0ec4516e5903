"""Plays one environment and keeps what the checks judge: traces to compare, statistics to read.

A trace holds its seed, the actions in stored form, and a digest of everything shown, so that long episodes
of large observations stay small. `record` plays through an EnvSlot, which refuses broken contracts;
`replay` uses the bare environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mission_gym.data import Array, EnvSpec, Episode, Leaves
from mission_gym.env.agents_slot import AgentsSlot, make_slot
from mission_gym.env.factory import Env, Factory
from mission_gym.env.observations import ObsReader
from mission_gym.env.slot import EnvSlot, action_rows
from mission_gym.env.spaces import make_action_decoder
from mission_gym.errors import MissionGymError
from mission_gym.policy.sampling import draw_random
from mission_gym.streams import generator

Clock = Callable[[], bool]  # whether the time is up
_ROUNDING = 1e-6  # of a number's size
_MAX_FAILURES = 3  # then recording stops: more of the same says nothing new


class Moment(NamedTuple):
    """What an environment showed once, in a form that compares exactly; NaN equals NaN."""

    obs: bytes
    reward: str = "0.0"
    terminated: bool = False
    truncated: bool = False


@dataclass(slots=True)
class Trace:
    """One episode, or the beginning of one."""

    seed: int
    moments: list[Moment] = field(default_factory=list)  # one more than actions
    actions: list[Array] = field(default_factory=list)  # stored, each [K]
    episode: Episode | None = None  # where it ended

    @property
    def ended(self) -> bool:
        return self.episode is not None


@dataclass(slots=True)
class Survey:
    """Everything seen while recording."""

    traces: list[Trace] = field(default_factory=list)
    failures: list[MissionGymError] = field(default_factory=list)
    lows: list[Array] = field(default_factory=list)  # by leaf, each [*leaf.shape]
    highs: list[Array] = field(default_factory=list)
    legal: Array | None = None  # bool [M]: ever
    always_legal: Array | None = None
    not_finite: str = ""  # the first place
    outside: str = ""  # the first observation outside its space
    outside_hurts: bool = False  # it is a category or a bit, not a real number
    rewards: list[float] = field(default_factory=list)
    reset_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    @property
    def episodes(self) -> list[Episode]:
        return [trace.episode for trace in self.traces if trace.episode is not None]

    @property
    def num_steps(self) -> int:
        return len(self.rewards)


def record(
    factory: Factory, spec: EnvSpec, seeds: Sequence[int], max_steps: int, out_of_time: Clock
) -> Survey:
    """Play one random episode per seed, each of at most `max_steps` steps; at least one step is made."""
    survey = Survey()
    leaf_spaces = ObsReader(spec).spaces
    slot = make_slot(factory, spec, 0, seeds.__getitem__)
    look = partial(_look, survey, slot, spec, leaf_spaces)

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
                survey.reset_s.append(perf_counter() - start)
                trace.moments.append(Moment(digest(slot.obs, spec)))
                look()
                _record_steps(survey, trace, slot, spec, look, lambda: slot.steps >= max_steps or is_over())
            except MissionGymError as error:
                survey.failures.append(error)
            if trace.actions:
                survey.traces.append(trace)
    finally:
        slot.env.close()
    return survey


def _record_steps(
    survey: Survey, trace: Trace, slot: EnvSlot, spec: EnvSpec, look: Callable[[], None], stop: Clock
) -> None:
    rng = generator(trace.seed, "check")
    terminated = False
    while not slot.ended and not stop():
        stored = draw_stored(slot, spec, rng)
        action = to_action(stored, spec)
        start = perf_counter()
        made = slot.step(action)
        survey.step_s.append(perf_counter() - start)
        trace.actions.append(stored)
        trace.moments.append(moment_of(slot, spec, made))
        terminated, reward = trace.moments[-1].terminated, float(np.sum(made[0]))
        survey.rewards.append(reward)
        look()
        if not np.isfinite(reward) and not survey.not_finite:
            survey.not_finite = f"the reward is {reward} at seed {slot.seed}, step {slot.steps}"
    if slot.ended:
        trace.episode = slot.finish(terminated)


def replay(
    env: Env, spec: EnvSpec, trace: Trace, out_of_time: Clock = lambda: False, seed: int | None = None
) -> Iterator[Moment]:
    """Play a trace's actions in a bare environment, step by step as the moments are asked for.

    It ends with the episode, with the actions, or when out of time. seed: another one than the trace's.
    """
    if spec.agents:
        yield from _replay_agents(env, spec, trace, out_of_time, seed)
        return
    read = ObsReader(spec).read
    form = make_action_decoder(spec.action_space)
    obs, _ = env.reset(seed=trace.seed if seed is None else seed)
    yield Moment(digest(read(obs), spec))
    for stored in trace.actions:
        action = to_action(stored, spec)
        obs, reward, terminated, truncated, _ = env.step(action if form is None else form(action))
        shown = digest(read(obs), spec)
        yield Moment(shown, repr(float(reward)), bool(terminated), bool(truncated))
        if terminated or truncated or out_of_time():
            return


def observe_at(env: Env, spec: EnvSpec, trace: Trace, step: int) -> Leaves:
    """What a bare environment shows after so many of a trace's actions, and the reward of the last one."""
    if spec.agents:  # only a slot lays their dicts out
        slot = make_slot(lambda: env, spec, 0, lambda episode: None)
        slot.reset(0, trace.seed)
        made: Any = (0.0,)
        for stored in trace.actions[:step]:
            made = slot.step(to_action(stored, spec))
        return (*slot.obs, np.asarray(made[0]))
    form = make_action_decoder(spec.action_space)
    obs, _ = env.reset(seed=trace.seed)
    reward: Any = 0.0
    for stored in trace.actions[:step]:
        action = to_action(stored, spec)
        obs, reward, *_ = env.step(action if form is None else form(action))
    return (*map(np.array, ObsReader(spec).read(obs)), np.asarray(reward))


def differ_by_rounding(mine: Leaves, theirs: Leaves) -> bool:
    """Whether two observations are equal but for the last digits of real numbers."""
    pairs = list(zip(mine, theirs, strict=True))
    if any(one.shape != two.shape for one, two in pairs):
        return False
    return all(
        np.allclose(one, two, _ROUNDING, _ROUNDING, equal_nan=True)
        if one.dtype.kind == "f"
        else np.all(one == two)
        for one, two in pairs
    )


def _replay_agents(
    env: Env, spec: EnvSpec, trace: Trace, out_of_time: Clock, seed: int | None
) -> Iterator[Moment]:
    """The same for several agents, whose dicts only a slot lays out."""
    slot = make_slot(lambda: env, spec, 0, lambda episode: None)
    slot.reset(0, trace.seed if seed is None else seed)
    yield Moment(digest(slot.obs, spec))
    for stored in trace.actions:
        yield moment_of(slot, spec, slot.step(to_action(stored, spec)))
        if slot.ended or out_of_time():
            return


def moment_of(slot: EnvSlot, spec: EnvSpec, made: Any) -> Moment:
    """What a slot shows after a step that gave `made`. Of several agents all rewards and flags are compared;
    the episode as a whole has ended with the last of them."""
    if not isinstance(slot, AgentsSlot):
        reward, terminated, truncated = made
        return Moment(digest(slot.obs, spec), repr(reward), terminated, truncated)
    return Moment(
        digest(slot.obs, spec),
        str([column.tolist() for column in made]),
        slot.ended and not slot.is_cut,
        slot.ended and slot.is_cut,
    )


class Difference(NamedTuple):
    """Where two traces part."""

    step: int
    what: str


def find_difference(mine: Iterable[Moment], theirs: Iterable[Moment]) -> Difference | None:
    """Return the first difference of two traces, None if there is none; the shorter one decides how far."""
    for step, (one, two) in enumerate(zip(mine, theirs, strict=False)):
        if one.obs != two.obs:
            return Difference(step, f"the observation after step {step}" if step else "the first observation")
        if one.reward != two.reward:
            return Difference(step, f"the reward of step {step} ({one.reward} and {two.reward})")
        if one != two:
            return Difference(step, f"the end of the episode at step {step}")
    return None


def digest(leaves: Leaves, spec: EnvSpec) -> bytes:
    """A short hash of an observation in the dtypes of the spec."""
    content = blake2b(digest_size=16)
    for leaf, expected in zip(leaves, spec.leaves, strict=True):
        content.update(np.asarray(leaf, expected.dtype).tobytes())
    return content.digest()


def draw_stored(slot: EnvSlot, spec: EnvSpec, rng: np.random.Generator) -> Array:
    """A legal random action [K] for what the slot shows now, or one of each agent [A, K]."""
    if spec.agents:
        return draw_random(spec.action, slot.mask, rng, spec.num_agents)
    stored: Array = draw_random(spec.action, None if slot.mask is None else slot.mask[None], rng, 1)[0]
    return stored


def to_action(stored: Array, spec: EnvSpec) -> Any:
    """A stored action, [K] or [A, K], as a slot takes it."""
    return action_rows(spec, spec.action.to_env(stored if spec.agents else stored[None]))[0]


def _look(survey: Survey, slot: EnvSlot, spec: EnvSpec, leaf_spaces: tuple[Any, ...]) -> None:
    """Add what the slot shows, to each agent that is there, to the statistics."""
    if not isinstance(slot, AgentsSlot):
        _look_at(survey, slot, spec, leaf_spaces, slot.obs, slot.mask)
        return
    for agent in np.flatnonzero(slot.live).tolist():
        mask = None if slot.mask is None else slot.mask[agent]
        _look_at(survey, slot, spec, leaf_spaces, tuple(leaf[agent] for leaf in slot.obs), mask)


def _look_at(
    survey: Survey,
    slot: EnvSlot,
    spec: EnvSpec,
    leaf_spaces: tuple[Any, ...],
    obs: Leaves,
    mask: Array | None,
) -> None:
    leaves = [np.array(leaf, leaf_spec.dtype) for leaf, leaf_spec in zip(obs, spec.leaves, strict=True)]
    survey.lows = [np.fmin(*pair) for pair in zip(survey.lows or leaves, leaves, strict=True)]
    survey.highs = [np.fmax(*pair) for pair in zip(survey.highs or leaves, leaves, strict=True)]
    if mask is not None and not slot.ended:
        survey.legal = mask if survey.legal is None else survey.legal | mask
        survey.always_legal = mask if survey.always_legal is None else survey.always_legal & mask
    for leaf, leaf_spec, space in zip(leaves, spec.leaves, leaf_spaces, strict=True):
        where = f"at seed {slot.seed}, step {slot.steps}"
        name = f"observation {leaf_spec.name!r}" if leaf_spec.name else "the observation"
        wrong = ~np.isfinite(leaf)
        if wrong.any():
            if not survey.not_finite:
                index = np.argwhere(wrong)[0].tolist()
                survey.not_finite = f"{name} holds {leaf[wrong][0]} at index {index}, {where}"
        elif survey.outside or leaf_spec.is_converted:  # it was judged as it was read
            continue
        elif not space.contains(leaf) and not _is_rounding(leaf, space):
            survey.outside = f"{name} is outside {space} {where}: {_show_outside(leaf, space)}"
            survey.outside_hurts = leaf_spec.kind in ("categories", "binary")


def _is_rounding(leaf: Array, space: Any) -> bool:
    """Whether real numbers leave their bounds by no more than rounding."""
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
    index = np.unravel_index(np.argmax(beyond), leaf.shape)  # not the first, which may be mere rounding
    place = f"index {[int(i) for i in index]}"
    return f"{place} is {leaf[index]}, allowed {space.low[index]} to {space.high[index]}"
