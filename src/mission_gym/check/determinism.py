"""Checks whether equal seeds and actions give equal episodes, and finds the cause if they do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

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
    find_difference,
    observe_at,
    replay,
)
from mission_gym.data import Leaves


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
