"""Whether equal seeds and actions give equal episodes, and what it is if they do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from mission_gym.check.exam import Exam
from mission_gym.check.findings import Finding, tell
from mission_gym.check.judges import FEW_STEPS, Skipped
from mission_gym.check.traces import (
    Clock,
    Difference,
    Moment,
    Trace,
    differ_by_rounding,
    find_difference,
    observe_at,
    replay,
)
from mission_gym.data import Leaves
from mission_gym.env.factory import Env


def check_seeding(exam: Exam, out_of_time: Clock) -> Iterator[Finding]:
    traces = exam.survey.traces
    if not traces:
        exam.doubt = "no episode could be played"
        raise Skipped(f"seeding: {exam.doubt}")
    env = exam.factory()
    try:
        # The first trace twice: an instance that has played must begin as a new one does.
        tried, compared = (traces[0], *traces[:3]), 0
        for trace in tried:
            if compared and out_of_time():
                break
            played = list(replay(env, exam.spec, trace, out_of_time))
            difference = find_difference(trace.moments, played)
            if difference:
                env.close()  # some allow one instance at a time
                yield _judge_difference(exam, trace, difference, out_of_time)
                return
            compared += len(played) - 1
        if compared < min(FEW_STEPS, sum(len(trace.actions) for trace in tried)):
            raise Skipped(f"seeding: only {compared} steps were compared, for time")
        exam.doubt = ""
        starts = {trace.moments[0].obs for trace in traces}
        if len(traces) >= 2 and len(starts) == 1:
            yield _judge_equal_starts(exam, env, out_of_time)
    finally:
        env.close()


def _judge_difference(exam: Exam, trace: Trace, difference: Difference, out_of_time: Clock) -> Finding:
    """Tell a seed that does not decide the episode from an instance in which something survives reset()."""
    registered, step = exam.registered, difference.step
    what = f"seed {trace.seed} and the same actions gave two different episodes: {difference.what} differs"
    if registered is not None and registered.nondeterministic:
        exam.doubt = "it is registered as nondeterministic"
        return tell("seeding", "declared", what=what)
    if not find_difference(replay_anew(exam, trace, step), replay_anew(exam, trace, step)):
        exam.carries_over, exam.doubt = True, "an instance that has played before plays otherwise"
        return tell("seeding", "survives", seed=trace.seed, what=difference.what)
    exam.doubt = "episodes can't be repeated"
    if differ_by_rounding(_observe_anew(exam, trace, step), _observe_anew(exam, trace, step)):
        return tell("seeding", "rounding", seed=trace.seed, what=difference.what)
    is_zero = trace.seed == 0 and not exam.spec.mask_source  # what is legal may differ between seeds
    if is_zero and not find_difference(*(replay_anew(exam, trace, step, seed=1) for _ in range(2))):
        return tell("seeding", "zero", what=difference.what)
    source = "" if out_of_time() else _find_global_source(exam, trace, step)
    if not source:
        return tell("seeding", "differs", what=what, instead="")
    what += f"; it draws from the global {source}"
    return tell("seeding", "differs", what=what, instead=f", not from {source}")


def replay_anew(exam: Exam, trace: Trace, step: int, seed: int | None = None) -> list[Moment]:
    """A trace up to a step, in a new instance. seed: another one than the trace's."""
    env = exam.factory()
    try:
        return list(islice(replay(env, exam.spec, trace, seed=seed), step + 1))
    finally:
        env.close()


def _observe_anew(exam: Exam, trace: Trace, step: int) -> Leaves:
    """What a new instance shows at a step of a trace."""
    env = exam.factory()
    try:
        return observe_at(env, exam.spec, trace, step)
    finally:
        env.close()


def _find_global_source(exam: Exam, trace: Trace, step: int) -> str:
    """Name the global generator that decides the episode up to a step, if one of them does: new instances,
    which differ from each other, agree once it is seeded."""
    states = random.getstate(), np.random.get_state()
    reseed: dict[str, Callable[[int], None]] = {"random": random.seed, "numpy.random": np.random.seed}
    try:
        for name, set_seed in reseed.items():
            played = []
            for _ in range(2):
                set_seed(0)
                played.append(replay_anew(exam, trace, step))
            if not find_difference(*played):
                return name
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return ""


def _judge_equal_starts(exam: Exam, env: Env, out_of_time: Clock) -> Finding:
    first, second = exam.survey.traces[:2]
    differ = exam.spec.mask_source or find_difference(
        first.moments, replay(env, exam.spec, first, out_of_time, second.seed)
    )
    return tell("seeding", "equal_starts" if differ else "equal_episodes")
