"""The environment doctor of `mission-gym check`: plays an environment at random and judges what it saw.

In: an EnvRequest. Out: findings, errors first. An error stops or spoils training here; a warning is most
likely a mistake; an info is worth knowing; an ok names what was tried and found right. A check that meets
an exception of the environment becomes an error, and the others still run.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from time import perf_counter

import numpy as np
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.utils.env_checker import check_env

from mission_gym.check import judges
from mission_gym.check.comparison import compare_with_batched, compare_with_serial, find_equal_actions
from mission_gym.check.findings import Finding, has_errors, sort_findings
from mission_gym.check.judges import MAX_STEPS, Skipped, describe_failure
from mission_gym.check.traces import Clock, Difference, Survey, Trace, find_difference, record, replay
from mission_gym.data import EnvSpec
from mission_gym.env.factory import Env, EnvRequest, Factory, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import MissionGymError, describe

BUDGET_S = 10.0
_RECORDING = 0.4  # the share of the budget; the later checks have theirs in the table below
_AGREES = "Gymnasium's own checker agrees"
# Gymnasium's advice that does not matter here: observations are normalised, Box actions scaled, and
# the environment is checked as it will be trained, wrappers included.
_NOISE = (
    "different from the unwrapped",
    "A Box observation space m",
    "symmetric and normalized",
    "render modes",
)


@dataclass(slots=True)
class _Exam:
    """What the checks share."""

    request: EnvRequest
    factory: Factory
    spec: EnvSpec
    survey: Survey
    registered: GymSpec | None  # as the environment has it
    repeatable: bool = False  # found by the seeding check
    skipped: list[str] = field(default_factory=list)


def check_environment(
    request: EnvRequest, *, num_episodes: int = 10, seed: int = 0, budget_s: float = BUDGET_S
) -> list[Finding]:
    """Make the environment, play `num_episodes` random episodes and judge them; errors come first.

    budget_s: about how long all of it may take; what was left out for that is named in a finding.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own are read where its checker runs
        findings = _examine(request, num_episodes, seed, budget_s)
    return sort_findings(findings)


def _examine(request: EnvRequest, num_episodes: int, seed: int, budget_s: float) -> list[Finding]:
    begin = perf_counter()

    def out_of_time(share: float = 1.0) -> bool:
        return perf_counter() > begin + share * budget_s

    factory = make_factory(request)
    try:
        env = factory()
    except MissionGymError as error:
        return [describe_failure("make", error, "check the name and --env-kwargs, then the constructor")]
    registered = env.spec
    seeds = range(seed, seed + num_episodes)
    try:
        spec = probe(lambda: env, request.env_id)
        survey = record(factory, spec, seeds, MAX_STEPS, partial(out_of_time, _RECORDING))
    except Exception as error:  # noqa: BLE001  border: the user's environment
        failure = describe_failure("start", error, "repair this first, then check again")
        others = _run_check("gymnasium", _ask_gymnasium(factory), _AGREES, [])
        left_out = Finding("info", "skipped", "left out: all checks that play, until it can be started")
        return [failure, *(finding for finding in others if finding.what not in failure.what), left_out]
    exam = _Exam(request, factory, spec, survey, registered)
    if len(survey.traces) < num_episodes and not survey.failures:
        exam.skipped.append(f"{num_episodes - len(survey.traces)} of {num_episodes} episodes, for time")
    findings: list[Finding] = []
    for name, judge, ok in _JUDGES:
        findings += _run_check(name, judge(spec, survey), ok, exam.skipped)
    for name, check, ok, share in _CHECKS:
        if out_of_time(share):
            exam.skipped.append(f"{name}, for time")
        else:
            findings += _run_check(name, check(exam, partial(out_of_time, share)), ok, exam.skipped)
    if has_errors(findings):
        exam.skipped.append("Gymnasium's own checker, until the errors are repaired")
    elif out_of_time():
        exam.skipped.append("Gymnasium's own checker, for time")
    elif spec.mask_source:
        exam.skipped.append("Gymnasium's own checker, which does not know action masks")
    else:
        findings += _run_check("gymnasium", _ask_gymnasium(factory), _AGREES, exam.skipped)
    if exam.skipped:
        findings.append(Finding("info", "skipped", f"left out: {'; '.join(exam.skipped)}"))
    return findings


def _run_check(name: str, check: Iterator[Finding], ok: str, skipped: list[str]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        for finding in check:  # one by one: what was found before it raises counts
            findings.append(finding)
    except Skipped as reason:
        skipped.append(str(reason))
        return findings
    except Exception as error:  # noqa: BLE001  border: the user's environment
        findings.append(describe_failure(name, error, "repair the environment where it raised"))
    return findings or [Finding("ok", name, ok)]


def _check_seeding(exam: _Exam, out_of_time: Clock) -> Iterator[Finding]:
    traces = exam.survey.traces
    if not traces:
        raise Skipped("seeding: no episode could be played")
    env = exam.factory()
    try:
        # The first trace twice: an instance that has played must begin as a new one does.
        for tried, trace in enumerate((traces[0], *traces[:3])):
            if tried and out_of_time():
                break
            difference = find_difference(trace.moments, replay(env, exam.spec, trace, out_of_time))
            if difference:
                yield _judge_randomness(exam, env, trace, difference, out_of_time)
                return
        exam.repeatable = True
        starts = {trace.moments[0].obs for trace in traces}
        if len(traces) >= 2 and len(starts) == 1:
            yield _judge_equal_starts(exam, env, out_of_time)
    finally:
        env.close()


def _judge_randomness(
    exam: _Exam, env: Env, trace: Trace, difference: Difference, out_of_time: Clock
) -> Finding:
    what = f"seed {trace.seed} and the same actions gave two different episodes: {difference.what} differs"
    if exam.registered is not None and exam.registered.nondeterministic:
        return Finding("info", "seeding", f"{what}; it is registered as nondeterministic")
    fix = "call super().reset(seed=seed) in reset() and draw every random number from self.np_random"
    source = "" if out_of_time() else _find_global_source(exam, env, trace, difference.step)
    if source:
        what += f"; it draws from the global {source}"
        fix = f"{fix}, not from {source}"
    why = "evaluations can't be repeated, crashed episodes can't be replayed and resume is not exact"
    return Finding("error", "seeding", what, why, fix)


def _find_global_source(exam: _Exam, env: Env, trace: Trace, step: int) -> str:
    """Name the global generator that decides the episode up to a step, if one of them does."""
    states = random.getstate(), np.random.get_state()
    reseed: dict[str, Callable[[int], None]] = {"random": random.seed, "numpy.random": np.random.seed}
    try:
        for name, set_seed in reseed.items():
            set_seed(0)
            first = list(islice(replay(env, exam.spec, trace), step + 1))
            set_seed(0)
            if not find_difference(first, replay(env, exam.spec, trace)):
                return name
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return ""


def _judge_equal_starts(exam: _Exam, env: Env, out_of_time: Clock) -> Finding:
    first, second = exam.survey.traces[:2]
    same_start = "all seeds gave the same first observation"
    if exam.spec.mask_source or find_difference(
        first.moments, replay(env, exam.spec, first, out_of_time, second.seed)
    ):
        return Finding("info", "seeding", f"{same_start}; fine if that is how the task begins")
    what = f"{same_start} and, for the same actions, the same episode"
    why = "the agent can learn one episode by heart, and an evaluation plays it again and again"
    fix = "use self.np_random for what should vary; fine if the task is a fixed puzzle"
    return Finding("warning", "seeding", what, why, fix)


def _check_actions(exam: _Exam, out_of_time: Clock) -> Iterator[Finding]:
    if not exam.repeatable:
        raise Skipped("dead actions: episodes can't be repeated")
    if exam.survey.failures:
        raise Skipped("dead actions, until the errors are repaired")
    equal, left_out = find_equal_actions(exam.factory, exam.spec, exam.survey.traces, out_of_time)
    for text in equal:
        why = "an action without an effect of its own makes exploring slower, and is often a forgotten branch"
        fix = "look at how step() reads the action; fine if the effect shows only in rare situations"
        yield Finding("warning", "actions", text, why, fix)
    if left_out:
        raise Skipped(left_out)


def _check_backends(exam: _Exam, out_of_time: Clock) -> Iterator[Finding]:
    if not exam.repeatable:
        raise Skipped("equal traces on every backend: episodes can't be repeated")
    traces = exam.survey.traces
    difference = compare_with_serial(exam.factory, exam.spec, traces, out_of_time)
    if difference:
        what = f"two environments played side by side differ from the same ones alone: {difference}"
        why = (
            "they share something (a module variable, a class attribute, a global generator), so one "
            "disturbs the other in every vector"
        )
        fix = "keep all state in self, made in __init__ or reset()"
        yield Finding("error", "backends", what, why, fix)
    else:
        yield Finding("ok", "backends", "alone and side by side it plays the same episodes")
    form = exam.registered and exam.registered.vector_entry_point
    if form is not None and not exam.request.wrap:
        level, text = compare_with_batched(exam.request, exam.spec, traces, out_of_time)
        if text:
            why = "`--vector batched` would train on this other form"
            fix = "make both forms equal, or train with another vector" if level == "warning" else ""
            yield Finding(level, "backends", text, why, fix)


def _ask_gymnasium(factory: Factory) -> Iterator[Finding]:
    env, complaints = factory(), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # noqa: BLE001  border: Gymnasium's checker, which raises what it finds
            complaints.append(describe(error).partition(": ")[2] or type(error).__name__)
        finally:
            env.close()
    texts = [re.sub(r"\x1b\[[\d;]*m", "", str(warning.message)) for warning in caught]
    complaints += [text.removeprefix("WARN: ") for text in texts if text.startswith("WARN: ")]
    for text in dict.fromkeys(complaints):
        if not any(noise in text for noise in _NOISE):
            why = "it may train here, but tools that keep to Gymnasium's rules will complain or refuse"
            yield Finding("warning", "gymnasium", text, why, "see gymnasium.utils.env_checker.check_env")


_JUDGES: tuple[tuple[str, Callable[[EnvSpec, Survey], Iterator[Finding]], str], ...] = (
    ("contract", judges.judge_contract, "reset() and step() kept the contract in every episode"),
    ("observation", judges.judge_observation, "observations are finite and inside their space"),
    ("channels", judges.judge_channels, "every part of the observation changes"),
    ("endings", judges.judge_endings, "terminated and truncated are told apart"),
    ("reward", judges.judge_reward, "rewards differ and have a sound scale"),
    ("mask", judges.judge_mask, "masks are well formed, forbid something and leave a legal action"),
    ("outcome", judges.judge_outcome, "every episode ended with a declared outcome"),
    ("speed", judges.judge_speed, ""),
)
# The last number is the share of the budget that is spent when the check has to end.
_CHECKS: tuple[tuple[str, Callable[[_Exam, Clock], Iterator[Finding]], str, float], ...] = (
    ("seeding", _check_seeding, "the seed decides the episode", 0.6),
    ("actions", _check_actions, "every action has an effect of its own", 0.8),
    ("backends", _check_backends, "", 1.0),
)
