"""The environment doctor of `mission-gym check`: plays an environment at random and judges what it saw.

In: an EnvRequest. Out: findings, errors first. An error stops or spoils training here; a warning is most
likely a mistake; an info is worth knowing; an ok names what was tried and found right. A check that meets
an exception of the environment becomes an error, and the others still run.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time

import gymnasium as gym
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import PassiveEnvChecker

from mission_gym.check import judges
from mission_gym.check.bridge import check_bridge
from mission_gym.check.comparison import compare_with_batched, find_equal_actions, play_side_by_side
from mission_gym.check.exam import Exam
from mission_gym.check.findings import Finding, has_errors, sort_findings, tell
from mission_gym.check.judges import FEW_STEPS, MAX_STEPS, Skipped, describe_failure
from mission_gym.check.seeding import check_seeding, replay_anew
from mission_gym.check.traces import (
    Clock,
    Survey,
    find_difference,
    record,
)
from mission_gym.data import EnvSpec
from mission_gym.env.factory import Env, EnvRequest, Factory, make_factory, make_vector_factory
from mission_gym.env.pace import time_steps
from mission_gym.env.probe import probe
from mission_gym.errors import EnvContractError, MissionGymError, describe
from mission_gym.names import BRIDGE
from mission_gym.procs import CompanionNeeded, with_companion

Say = Callable[[str], None]
BUDGET_S = 10.0
_RECORDING = 0.4  # the share of the budget; the later checks have theirs in the table below
_LOOP_S, _BLOCKED = 0.3, 0.5  # for which coroutines are stepped, and the share that is too much
_AGREES = "Gymnasium's own checker agrees"
# Gymnasium's advice that does not matter here: observations are normalised, Box actions scaled, and
# the environment is checked as it will be trained, wrappers included.
_NOISE = (
    "different from the unwrapped",
    "A Box observation space m",
    "symmetric and normalized",
    "render modes",
)


def check_environment(
    request: EnvRequest,
    *,
    num_episodes: int = 10,
    seed: int = 0,
    budget_s: float = BUDGET_S,
    say: Say = lambda part: None,
) -> list[Finding]:
    """Make the environment, play `num_episodes` random episodes and judge them; errors come first.

    budget_s: about how long all of it may take; what was left out for that is named in a finding.
    say: is told what comes next, to go on "while ...".
    """
    findings: list[Finding] = []
    say("it was built")
    if request.env_id.startswith(BRIDGE):
        findings = check_bridge(request)
        if has_errors(findings):
            return sort_findings(findings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own are read where its checker runs
        found, _ = with_companion(
            lambda told: _examine(replace(request, companion_kwargs=told), num_episodes, seed, budget_s, say)
        )
        findings += found
    return sort_findings(findings)


def _examine(request: EnvRequest, num_episodes: int, seed: int, budget_s: float, say: Say) -> list[Finding]:
    factory = make_factory(request)
    try:
        env = factory()
    except CompanionNeeded:
        raise
    except MissionGymError as error:
        if _is_vector(request):
            return [tell("make", "vector", name=request.env_id)]
        built = isinstance(error, EnvContractError)  # a wrong name says itself what to do
        return [describe_failure("make", error, "check --env-kwargs, then the constructor" if built else "")]
    registered = env.spec
    seeds = range(seed, seed + num_episodes)
    try:
        spec = probe(lambda: env, request.env_id)
        begin = perf_counter()  # imports and the first reset may take longer than all the rest

        def out_of_time(share: float = 1.0) -> bool:
            return perf_counter() > begin + share * budget_s

        say("random episodes were played")
        survey = record(factory, spec, seeds, MAX_STEPS, partial(out_of_time, _RECORDING))
    except Exception as error:  # noqa: BLE001  border: the user's environment
        failure = describe_failure("start", error, "repair this first, then check again")
        say("Gymnasium's own checker played")
        others = _run_check("gymnasium", _ask_gymnasium(factory), _AGREES, [])
        more = [finding for finding in others if finding.what not in failure.what]
        return [failure, *more, tell("skipped", "until_started")]
    exam = Exam(request, factory, spec, survey, registered)
    if len(survey.traces) < num_episodes and not survey.failures:
        exam.skipped.append(f"{num_episodes - len(survey.traces)} of {num_episodes} episodes, for time")
    findings: list[Finding] = []
    for name, judge, ok in _JUDGES:
        given = _run_check(name, judge(spec, survey), ok, exam.skipped)
        if survey.num_steps < FEW_STEPS and given == [Finding("ok", name, ok)]:  # that proves nothing
            exam.skipped.append(f"{name}: only {survey.num_steps} steps were made")
        else:
            findings += given
    for name, check, ok, share in _CHECKS:
        if out_of_time(share):
            exam.skipped.append(f"{name}, for time")
        else:
            say(f"the check of {name} ran")
            findings += _run_check(name, check(exam, partial(out_of_time, share)), ok, exam.skipped)
    if has_errors(findings):
        exam.skipped.append("Gymnasium's own checker, until the errors are repaired")
    elif out_of_time():
        exam.skipped.append("Gymnasium's own checker, for time")
    elif spec.agents:
        exam.skipped.append("Gymnasium's own checker, which knows one agent")
    elif spec.mask_source:
        exam.skipped.append("Gymnasium's own checker, which does not know action masks")
    else:
        say("Gymnasium's own checker played")
        findings += _run_check("gymnasium", _ask_gymnasium(factory), _AGREES, exam.skipped)
    if exam.skipped:
        findings.append(tell("skipped", "some", skipped="; ".join(exam.skipped)))
    return findings


def _is_vector(request: EnvRequest) -> bool:
    """Whether a name that gives no single environment gives a vector of them."""
    try:
        vector = make_vector_factory(request)(1)
    except MissionGymError:
        return False
    with suppress(Exception):  # border: a throw-away environment that can't close harms nothing
        vector.close()
    return True


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


def _check_actions(exam: Exam, out_of_time: Clock) -> Iterator[Finding]:
    if exam.doubt:
        raise Skipped(f"dead actions: {exam.doubt}")
    if exam.survey.failures:
        raise Skipped("dead actions, until the errors are repaired")
    equal, left_out = find_equal_actions(exam.factory, exam.spec, exam.survey.traces, out_of_time)
    yield from (tell("actions", "equal", text=text) for text in equal)
    if left_out:
        raise Skipped(left_out)


def _check_backends(exam: Exam, out_of_time: Clock) -> Iterator[Finding]:
    if exam.spec.coroutines == "only" and (share := _find_blocked_share(exam)) > _BLOCKED:
        yield tell("backends", "blocks", share=f"{100 * share:.0f}")
    refusal = _try_two(exam.factory)
    if refusal:
        yield tell("backends", "alone", refusal=refusal)
        return
    if exam.doubt and not exam.carries_over:
        raise Skipped(f"equal traces on every backend: {exam.doubt}")
    # Only the first was recorded in a new instance.
    traces = exam.survey.traces[:1] if exam.carries_over else exam.survey.traces
    difference = ""
    for trace, played in play_side_by_side(exam.factory, exam.spec, traces, out_of_time):
        apart = find_difference(trace.moments, played)
        if apart is None:
            continue
        if find_difference(replay_anew(exam, trace, apart.step), played):
            difference = f"{apart.what}, seed {trace.seed}"
            break
        # A new instance alone agrees: what was recorded came from one that had played.
        traces = traces[:1]
        yield tell("seeding", "survives", seed=trace.seed, what=apart.what)
    yield tell("backends", "shared" if difference else "fine", difference=difference)
    form = exam.registered and exam.registered.vector_entry_point
    if form is not None and not exam.request.wrap:
        level, text = compare_with_batched(exam.request, exam.spec, traces, out_of_time)
        if text:
            why = "`--vector batched` would train on this other form"
            fix = "make both forms equal, or train with another vector" if level == "warning" else ""
            yield Finding(level, "backends", text, why, fix)


def _find_blocked_share(exam: Exam) -> float:
    """Of the time of steps, how much their coroutines held the event loop without computing."""
    from mission_gym.env.event_loop import read_held_s

    begun, held, busy = perf_counter(), read_held_s(), process_time()
    time_steps(exam.factory, exam.spec, _LOOP_S)
    wall_s, held_s, busy_s = perf_counter() - begun, read_held_s() - held, process_time() - busy
    return max(0.0, held_s - busy_s) / wall_s


def _try_two(factory: Factory) -> str:
    """What a second instance raises beside a first one, or an empty string."""
    with ExitStack() as opened:
        first = factory()
        opened.callback(first.close)
        first.reset(seed=0)
        try:
            second = factory()
            opened.callback(second.close)
            second.reset(seed=0)
        except Exception as error:  # noqa: BLE001  border: the user's environment
            return describe(error.__cause__ or error)
    return ""


def _without_passive_checker(env: Env) -> Env:
    """The environment without the checker that `gymnasium.make` puts inside: it would say everything twice,
    and accuse what an outer wrapper mends."""
    layer = outermost = gym.Wrapper(env)
    while isinstance(layer.env, gym.Wrapper):
        if isinstance(layer.env, PassiveEnvChecker):
            layer.env = layer.env.env
        else:
            layer = layer.env
    return outermost.env


def _ask_gymnasium(factory: Factory) -> Iterator[Finding]:
    env, complaints = _without_passive_checker(factory()), []
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
            yield tell("gymnasium", "complains", text=text)


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
_CHECKS: tuple[tuple[str, Callable[[Exam, Clock], Iterator[Finding]], str, float], ...] = (
    ("seeding", check_seeding, "the seed decides the episode", 0.6),
    ("actions", _check_actions, "every action has an effect of its own", 0.8),
    ("backends", _check_backends, "", 1.0),
)
