"""Replays recorded episodes and compares them, and finds the cause if they differ.

With equal seeds and actions; with other actions in the same situation (dead actions); side by side in a
SerialVec; in the environment's own vector form. The last three need an environment whose seed decides the
episode.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import Literal

import numpy as np

from mission_gym.actions import ActionSpec
from mission_gym.check.findings import Finding, make_finding
from mission_gym.check.survey import FEW_STEPS
from mission_gym.check.traces import (
    CheckContext,
    CheckSkipped,
    Clock,
    Difference,
    StepRecord,
    Trace,
    differ_by_rounding,
    digest,
    draw_stored,
    find_difference,
    observe_at,
    record_step,
    replay,
    to_action,
)
from mission_gym.data import EnvSpec, Leaves, StepBatch
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import EnvRequest, Factory, make_vector_factory
from mission_gym.env.probe import probe_vector
from mission_gym.env.slot import EnvSlot
from mission_gym.env.spaces import mask_parts
from mission_gym.streams import generator
from mission_gym.vector.batched import BatchedVec
from mission_gym.vector.record import Limits, VectorOptions
from mission_gym.vector.serial import SerialVec

_MAX_VALUES = 32  # of one part of an action; parts with more are not tested
_MIN_SITUATIONS = 8  # with fewer, equal effects may be chance
_TAIL = 3  # steps after the tested action, because an effect may be delayed
_AT = (0, 1, 3, 7, 15, 31, 63)  # steps of the situations, cheap ones first

_TENTH = 0.1  # of the bounds of a Box dimension; equal effects there and at the bounds mean it is too wide

Effects = dict[tuple[int, float], dict[int, tuple[StepRecord, ...]]]  # (part, value) -> situation -> effect


def find_equal_actions(
    factory: Factory, spec: EnvSpec, traces: Sequence[Trace], out_of_time: Clock
) -> tuple[list[tuple[str, str]], str]:
    """Return which actions always had equal effects, each as a case of the finding and a text, and what
    remained untested."""
    action = spec.action
    tried = {part: values for part, values in _values(action).items() if len(values) <= _MAX_VALUES}
    effects: Effects = {(part, value): {} for part, values in tried.items() for value in values}
    num_tried = 0
    slot = make_slot(factory, spec, 0, lambda episode: None)
    try:
        for at in _AT:
            for trace in traces:
                if at >= len(trace.actions):
                    continue
                num_tried += 1
                for (part, value), found in effects.items():
                    if out_of_time():
                        break
                    effect = _try(slot, spec, trace, at, part, value)
                    if effect is not None:
                        found[num_tried] = effect
    finally:
        slot.env.close()
    equal = [
        found for part, values in tried.items() for found in _describe_equal(action, part, values, effects)
    ]
    most = max((len(found) for found in effects.values()), default=0)
    if not tried:
        return equal, f"dead actions: more than {_MAX_VALUES} values"
    if most < _MIN_SITUATIONS:
        late = ", for time" if out_of_time() else ""
        return equal, f"dead actions: {most} situations were tested, {_MIN_SITUATIONS} are needed{late}"
    return equal, ""


def play_side_by_side(
    factory: Factory, spec: EnvSpec, traces: Sequence[Trace], out_of_time: Clock
) -> list[tuple[Trace, list[StepRecord]]]:
    """Replay two traces side by side in new instances of a SerialVec; return each with its records."""
    rows = (*traces, *traces)[:2]
    played: list[list[StepRecord]] = [[], []]
    options = VectorOptions(limits=Limits(max_restarts=0))
    with SerialVec(factory, spec, 2, lambda env_id, episode: rows[env_id].seed, options) as vec:
        _note(vec.reset(), spec, played)
        for step in range(max(len(trace.actions) for trace in rows)):
            ids = [row for row, trace in enumerate(rows) if step < len(trace.actions)]
            # A trace that ended early already differs; its environment continues, unused.
            stored = np.stack([rows[row].actions[step] for row in ids])
            vec.send(spec.action.to_env(stored.reshape(-1, spec.action.num_stored)), ids)
            _note(vec.recv(), spec, played)
            if out_of_time():
                break
    return list(zip(rows, played, strict=True))


def compare_with_batched(
    request: EnvRequest, spec: EnvSpec, traces: Sequence[Trace], out_of_time: Clock
) -> tuple[Literal["warning", "info"], str]:
    """Replay two traces in the environment's own vector form; return a level and the difference."""
    rows = traces[:2]
    if len(rows) < 2 or rows[1].seed != rows[0].seed + 1:  # as Gymnasium seeds a vector
        return "info", "its vector form was not compared: that needs two episodes with consecutive seeds"
    factory = make_vector_factory(request)
    if probe_vector(factory, request.env_id).signature != spec.signature:
        return "warning", "its vector form has other spaces or another mask than its single form"
    played: list[list[StepRecord]] = [[], []]
    with BatchedVec(factory(2), spec, lambda env_id, episode: rows[env_id].seed) as vec:
        _note(vec.reset(), spec, played)
        if _first_difference(rows, played):
            return (
                "info",
                "its vector form seeds its environments in another way, so the two can't be compared",
            )
        for step in range(min(len(trace.actions) for trace in rows)):
            stored = np.stack([trace.actions[step] for trace in rows])
            _note(vec.step(spec.action.to_env(stored)), spec, played)
            if out_of_time():
                break
    difference = _first_difference(rows, played)
    return "warning", f"its vector form differs from its single form: {difference}" if difference else ""


def _note(batch: StepBatch, spec: EnvSpec, played: list[list[StepRecord]]) -> None:
    if spec.agents:
        _note_agents(batch, spec, played)
        return
    ended = batch.ended.tolist()
    for row, env_id in enumerate(batch.env_ids.tolist()):
        leaves, at = (batch.final_obs, ended.index(row)) if row in ended else (batch.obs, row)
        shown = digest(tuple(leaf[at] for leaf in leaves), spec)
        reward = repr(float(batch.reward[row]))
        played[env_id].append(
            StepRecord(shown, reward, bool(batch.terminated[row]), bool(batch.truncated[row]))
        )


def _note_agents(batch: StepBatch, spec: EnvSpec, played: list[list[StepRecord]]) -> None:
    """Like `record_step`, for a batch; an environment that ended already shows its next episode."""
    over = {episode.env_id: episode for episode in batch.episodes}
    cuts = spec.num_agents
    for first in range(0, len(batch.env_ids), cuts):
        rows, env_id = slice(first, first + cuts), int(batch.env_ids[first]) // cuts
        episode = over.get(env_id)
        leaves = tuple(np.zeros_like(leaf[rows]) if episode else leaf[rows] for leaf in batch.obs)
        columns = (batch.reward, batch.terminated, batch.truncated)
        is_first = not played[env_id]
        made = "0.0" if is_first else str([column[rows].tolist() for column in columns])
        ends = (False, False) if episode is None else (episode.terminated, not episode.terminated)
        played[env_id].append(StepRecord(digest(leaves, spec), made, *ends))


def _first_difference(rows: Sequence[Trace], played: list[list[StepRecord]]) -> str:
    for trace, steps in zip(rows, played, strict=True):
        difference = find_difference(trace.steps, steps)
        if difference:
            return f"{difference.what}, seed {trace.seed}"
    return ""


def _values(action: ActionSpec) -> dict[int, list[float]]:
    """Return the stored values to test, by index: all categories, both bits, five points of a Box
    dimension."""
    values: list[list[float]] = [list(range(size)) for size in action.nvec]
    values += [[0.0, 1.0]] * action.num_bits + [[-1.0, -_TENTH, 0.0, _TENTH, 1.0]] * action.num_reals
    return dict(enumerate(values))


def _owner(action: ActionSpec, number: int) -> tuple[ActionSpec, int]:
    """Return the part of an action that a stored number belongs to, and its index there."""
    if action.kind != "composite" or (action.joint and not number):
        return action, number
    number += max(len(action.joint) - 1, 0)
    for kind in ("categories", "binary", "box"):
        for part in action.parts:
            if part.kind == kind:
                if number < part.num_stored:
                    return part, number
                number -= part.num_stored
    raise AssertionError("every number has a part")


def _show_category(part: ActionSpec, index: int, value: int) -> str:
    """Return a category in the environment's numbers; for a joint category all of its parts."""
    if not part.joint:
        return str(value + part.start[index])
    digits = np.unravel_index(value, part.joint)
    return str(tuple(int(digit) + start for digit, start in zip_longest(digits, part.start, fillvalue=0)))


def _try(
    slot: EnvSlot, spec: EnvSpec, trace: Trace, at: int, part: int, value: float
) -> tuple[StepRecord, ...] | None:
    """Return the effect of another value in one part of the action at a step; None if it is illegal."""
    slot.reset(0, trace.seed)
    for stored in trace.actions[:at]:
        slot.step(to_action(stored, spec))
        if slot.ended:  # not the recorded episode, so this situation can't be reached again
            return None
    is_choice = part < len(spec.action.nvec)
    column = mask_parts(spec.action)[part] + int(value) if is_choice else 0
    if slot.mask is not None and is_choice and not slot.mask[..., column].all():
        return None
    stored = trace.actions[at].copy()
    stored[..., part] = value  # with several agents, for each of them
    rng = generator(trace.seed, "tail", at)
    effect: list[StepRecord] = []
    while True:
        effect.append(record_step(slot, spec, slot.step(to_action(stored, spec))))
        if slot.ended or len(effect) > _TAIL:
            return tuple(effect)
        stored = draw_stored(slot, spec, rng)


def _describe_equal(
    action: ActionSpec, part: int, values: list[float], effects: Effects
) -> list[tuple[str, str]]:
    """Describe which values of a part had equal effects, with the case of the finding; for a Box dimension
    only if all had, or those beyond a tenth of its bounds on both sides."""
    groups: list[list[float]] = []
    num_common = 0
    for value in values:
        for group in groups:
            mine, other = effects[part, value], effects[part, group[0]]
            common = mine.keys() & other.keys()
            if len(common) >= _MIN_SITUATIONS and all(mine[key] == other[key] for key in common):
                group.append(value)
                num_common = len(common)
                break
        else:
            groups.append([value])
    where = f" in all {num_common} tested situations"
    owner, index = _owner(action, part)
    of_name = f" of {owner.name!r}" if owner.name else ""
    if owner.kind in ("binary", "box"):
        of_name = of_name or " of the action"
        if len(groups) == 1:
            return [("equal", f"entry {index}{of_name} had no effect{where}")]
        is_wide = owner.has_finite_bounds and all(
            any({edge, edge * _TENTH} <= set(group) for group in groups) for edge in (-1.0, 1.0)
        )
        same = f"entry {index}{of_name} had the same effect at {_TENTH:.0%} of its bounds and at the bounds"
        return [("wide", same + where)] if owner.kind == "box" and is_wide else []
    of_part = f" of part {index}{of_name}" if len(owner.nvec) > 1 else of_name
    named = [
        [_show_category(owner, index, int(value)) for value in group] for group in groups if len(group) > 1
    ]
    return [("equal", f"actions {', '.join(names)}{of_part} had the same effect{where}") for names in named]


def check_seeding(context: CheckContext, out_of_time: Clock) -> Iterator[Finding]:
    traces = context.survey.traces
    if not traces:
        context.doubt = "no episode could be played"
        raise CheckSkipped(f"seeding: {context.doubt}")
    env = context.factory()
    try:
        # The first trace twice: an instance that was used must start like a new one.
        tried, compared = (traces[0], *traces[:3]), 0
        for trace in tried:
            if compared and out_of_time():
                break
            played = list(replay(env, context.spec, trace, out_of_time))
            difference = find_difference(trace.steps, played)
            if difference:
                env.close()  # some environments allow one instance at a time
                yield _explain_difference(context, trace, difference, out_of_time)
                return
            compared += len(played) - 1
        if compared < min(FEW_STEPS, sum(len(trace.actions) for trace in tried)):
            raise CheckSkipped(f"seeding: only {compared} steps were compared, for time")
        context.doubt = ""
        starts = {trace.steps[0].obs for trace in traces}
        if len(traces) >= 2 and len(starts) == 1:
            first, second = traces[:2]
            differ = context.spec.mask_source or find_difference(
                first.steps, replay(env, context.spec, first, out_of_time, second.seed)
            )
            yield make_finding("seeding", "equal_starts" if differ else "equal_episodes")
    finally:
        env.close()


def _explain_difference(
    context: CheckContext, trace: Trace, difference: Difference, out_of_time: Clock
) -> Finding:
    """Distinguish a seed that does not decide the episode from state that survives reset()."""
    registered, step = context.registered, difference.step
    what = f"seed {trace.seed} and the same actions gave two different episodes: {difference.what} differs"
    if registered is not None and registered.nondeterministic:
        context.doubt = "it is registered as nondeterministic"
        return make_finding("seeding", "declared", what=what)
    if not find_difference(replay_in_new(context, trace, step), replay_in_new(context, trace, step)):
        context.carries_over, context.doubt = True, "earlier episodes of an instance change later ones"
        return make_finding("seeding", "survives", seed=trace.seed, what=difference.what)
    context.doubt = "episodes can't be repeated"
    if differ_by_rounding(_observe_in_new(context, trace, step), _observe_in_new(context, trace, step)):
        return make_finding("seeding", "rounding", seed=trace.seed, what=difference.what)
    is_zero = trace.seed == 0 and not context.spec.mask_source  # legal actions may differ between seeds
    if is_zero and not find_difference(*(replay_in_new(context, trace, step, seed=1) for _ in range(2))):
        return make_finding("seeding", "zero", what=difference.what)
    source = "" if out_of_time() else _find_global_source(context, trace, step)
    if not source:
        return make_finding("seeding", "differs", what=what, instead="")
    what += f"; it uses the global {source}"
    return make_finding("seeding", "differs", what=what, instead=f", not from {source}")


def replay_in_new(
    context: CheckContext, trace: Trace, step: int, seed: int | None = None
) -> list[StepRecord]:
    """Replay a trace up to a step in a new instance. seed: instead of the trace's own."""
    env = context.factory()
    try:
        return list(islice(replay(env, context.spec, trace, seed=seed), step + 1))
    finally:
        env.close()


def _observe_in_new(context: CheckContext, trace: Trace, step: int) -> Leaves:
    """Return the observation of a new instance at a step of a trace."""
    env = context.factory()
    try:
        return observe_at(env, context.spec, trace, step)
    finally:
        env.close()


def _find_global_source(context: CheckContext, trace: Trace, step: int) -> str:
    """Name the global random generator that decides the episode, if there is one: new instances, which
    differ, agree after it is seeded."""
    states = random.getstate(), np.random.get_state()
    reseed: dict[str, Callable[[int], None]] = {"random": random.seed, "numpy.random": np.random.seed}
    try:
        for name, set_seed in reseed.items():
            played = []
            for _ in range(2):
                set_seed(0)
                played.append(replay_in_new(context, trace, step))
            if not find_difference(*played):
                return name
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return ""
