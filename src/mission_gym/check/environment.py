"""Checks an environment for `mission-gym check`: plays it at random and judges the result.

In: an EnvRequest. Out: findings, errors first. An error stops or spoils training; a warning is most likely a
mistake; an info is worth knowing; an ok names a property that was tested. An exception of the environment
becomes an error of the check, and the other checks still run. All of it runs in a child process, so that an
environment that crashes or hangs is a finding too.
"""

from __future__ import annotations

import pickle
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

from mission_gym.check import survey as checks
from mission_gym.check.bridge import check_bridge
from mission_gym.check.comparison import (
    check_seeding,
    compare_with_batched,
    find_equal_actions,
    play_side_by_side,
    replay_in_new,
)
from mission_gym.check.findings import Finding, has_errors, make_finding, sort_findings
from mission_gym.check.survey import FEW_STEPS, MAX_STEPS, describe_failure, locate
from mission_gym.check.traces import CheckContext, CheckSkipped, Clock, Survey, find_difference, record
from mission_gym.data import EnvSpec
from mission_gym.env.factory import (
    Env,
    EnvRequest,
    Factory,
    make_factory,
    make_vector_factory,
    names_trusted,
)
from mission_gym.env.pace import time_steps
from mission_gym.env.probe import probe
from mission_gym.env.user_code import find_line_in_stack
from mission_gym.errors import EnvContractError, MissionGymError, WorkerDied, describe
from mission_gym.names import BRIDGE
from mission_gym.procs import BoundedLog, Child, CompanionNeeded, Link, dump_object, with_companion

Announce = Callable[[str], None]  # is called with the next part, as in "while ..."
BUDGET_S = 10.0
SILENT_S = 300.0  # for one part: a first reset may take that long, and the others end after seconds
PATIENCE_S = 10.0  # then a message names the part that is awaited
_RECORDING = 0.4  # share of the budget; the later checks have theirs in the table below
_LOOP_S, _BLOCKED = 0.3, 0.5  # seconds to step coroutines, and the share of blocked time that is too much
_AGREES = "Gymnasium's own checker agrees"
# Advice of Gymnasium's checker that does not apply here: observations are normalised, Box actions are scaled,
# and the environment is checked as it is trained, with its wrappers.
_NOISE = (
    "different from the unwrapped",
    "A Box observation space m",
    "symmetric and normalized",
    "render modes",
)


def check_in_subprocess(request: EnvRequest, say: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """Run `check_environment` in a child process; for a trusted environment in this one, which is faster.

    say: shows the user the part that takes long.
    """
    if names_trusted(request):
        return check_environment(request)
    child = Child(
        "mission_gym.check.environment:serve_check", dump_object(request), on_output=BoundedLog(None)
    )
    try:
        answer = _receive(child, say)
    finally:
        child.end()
    if isinstance(answer, MissionGymError):
        raise answer
    return answer


def _receive(child: Child, say: Callable[[str], None]) -> list[Finding] | MissionGymError:
    """Return the child's findings or error; a child that dies or hangs is a finding."""
    part = "it was started"
    try:
        while True:
            replies = child.wait(PATIENCE_S)
            if not replies:
                line = find_line_in_stack(child.read_stack())
                say(
                    f"waiting: while {part}, the environment has not answered for {PATIENCE_S:.0f} s"
                    f"{f'; it is at {line}' if line else ''}; the check gives up after {SILENT_S:.0f} s"
                )
                replies = child.wait(SILENT_S - PATIENCE_S)
            if not replies:
                break
            for kind, content in replies:
                if kind == "answer":
                    answer: list[Finding] | MissionGymError = content
                    return answer
                part = content
        stack = child.read_stack().strip()
        return [make_finding("process", "hung", part=part, seconds=SILENT_S, stack=stack)]
    except WorkerDied:
        how, output = child.describe_end(), child.tail().strip() or "none"
        return [make_finding("process", "died", part=part, how=how, output=output)]


def serve_check(link: Link, setup: bytes) -> None:
    """The main function of the child; it announces each part before it starts."""
    try:
        answer: object = check_environment(
            pickle.loads(setup), announce=lambda part: link.send(("part", part))
        )
    except MissionGymError as error:  # something that the environment needs is missing
        answer = error
    link.send(("answer", answer))


def check_environment(
    request: EnvRequest,
    *,
    num_episodes: int = 10,
    seed: int = 0,
    budget_s: float = BUDGET_S,
    announce: Announce = lambda part: None,
) -> list[Finding]:
    """Build the environment, play `num_episodes` random episodes and judge them; errors come first.

    budget_s: approximate time for all of it; a finding names checks that were left out.
    """
    findings: list[Finding] = []
    announce("it was built")
    if request.env_id.startswith(BRIDGE):
        findings = check_bridge(request)
        if has_errors(findings):
            return sort_findings(findings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Gymnasium's checker are read where it runs
        found, _ = with_companion(
            lambda kwargs: _check(
                replace(request, companion_kwargs=kwargs),
                range(seed, seed + num_episodes),
                budget_s,
                announce,
            )
        )
        findings += found
    return sort_findings(findings)


def _check(request: EnvRequest, seeds: range, budget_s: float, announce: Announce) -> list[Finding]:
    unclosed: list[str] = []
    factory = partial(_make_closing, make_factory(request), unclosed)
    try:
        env = factory()
    except CompanionNeeded:
        raise
    except MissionGymError as error:
        if _is_vector(request):
            return [make_finding("make", "vector", name=request.env_id)]
        built = isinstance(error, EnvContractError)  # the error of a wrong name has its own remedy
        return [describe_failure("make", error, "check --env-kwargs, then the constructor" if built else "")]
    registered = env.spec
    try:
        spec = probe(lambda: env, request.env_id)
        begin = perf_counter()  # without imports and the first reset, which may take longer than all the rest

        def out_of_time(share: float = 1.0) -> bool:
            return perf_counter() > begin + share * budget_s

        announce("random episodes were played")
        survey = record(factory, spec, seeds, MAX_STEPS, partial(out_of_time, _RECORDING))
    except Exception as error:  # noqa: BLE001  border: the user's environment
        failure = describe_failure("start", error, "fix this first, then check again")
        announce("Gymnasium's own checker played")
        others = _run_check("gymnasium", _run_gymnasium_checker(factory), _AGREES, [])
        more = [finding for finding in others if finding.what not in failure.what]
        return [failure, *more, make_finding("skipped", "until_started")]
    context = CheckContext(request, factory, spec, survey, registered)
    if len(survey.traces) < len(seeds) and not survey.failures:
        context.skipped.append(f"{len(seeds) - len(survey.traces)} of {len(seeds)} episodes, for time")
    findings: list[Finding] = []
    for name, check_survey, ok in _SURVEY_CHECKS:
        given = _run_check(name, check_survey(spec, survey), ok, context.skipped)
        if survey.num_steps < FEW_STEPS and given == [Finding("ok", name, ok)]:  # which proves nothing
            context.skipped.append(f"{name}: only {survey.num_steps} steps were played")
        else:
            findings += given
    for name, check, ok, share in _CHECKS:
        if out_of_time(share):
            context.skipped.append(f"{name}, for time")
        else:
            announce(f"the check of {name} ran")
            findings += _run_check(name, check(context, partial(out_of_time, share)), ok, context.skipped)
    if has_errors(findings):
        context.skipped.append("Gymnasium's own checker, until the errors are fixed")
    elif out_of_time():
        context.skipped.append("Gymnasium's own checker, for time")
    elif spec.agents:
        context.skipped.append("Gymnasium's own checker, which supports one agent")
    elif spec.mask_source:
        context.skipped.append("Gymnasium's own checker, which does not support action masks")
    else:
        announce("Gymnasium's own checker played")
        findings += _run_check("gymnasium", _run_gymnasium_checker(factory), _AGREES, context.skipped)
    if unclosed:
        findings.append(make_finding("contract", "close", what=unclosed[0]))
    if context.skipped:
        findings.append(make_finding("skipped", "some", skipped="; ".join(context.skipped)))
    return findings


def _make_closing(factory: Factory, problems: list[str]) -> Env:
    """Build an environment whose close() never raises: its error is added to `problems`."""
    env = factory()
    close = env.close

    def close_quietly() -> None:
        try:
            close()
        except (Exception, SystemExit) as error:  # noqa: BLE001  border: the user's close
            problems.append(locate(error))

    env.close = close_quietly  # type: ignore[method-assign]
    return env


def _is_vector(request: EnvRequest) -> bool:
    """Return whether a name that is not a single environment is a vector of them."""
    try:
        vector = make_vector_factory(request)(1)
    except MissionGymError:
        return False
    with suppress(Exception):  # border: failing to close a temporary environment is harmless
        vector.close()
    return True


def _run_check(name: str, check: Iterator[Finding], ok: str, skipped: list[str]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        for finding in check:  # one by one, to keep findings from before an exception
            findings.append(finding)
    except CheckSkipped as reason:
        skipped.append(str(reason))
        return findings
    except Exception as error:  # noqa: BLE001  border: the user's environment
        findings.append(describe_failure(name, error, "fix the environment where it raised"))
    return findings or [Finding("ok", name, ok)]


def _check_actions(context: CheckContext, out_of_time: Clock) -> Iterator[Finding]:
    yield from checks.check_bounds(context.spec.action)
    if context.doubt:
        raise CheckSkipped(f"dead actions: {context.doubt}")
    if context.survey.failures:
        raise CheckSkipped("dead actions, until the errors are fixed")
    equal, left_out = find_equal_actions(context.factory, context.spec, context.survey.traces, out_of_time)
    yield from (make_finding("actions", case, text=text) for case, text in equal)
    if left_out:
        raise CheckSkipped(left_out)


def _check_backends(context: CheckContext, out_of_time: Clock) -> Iterator[Finding]:
    if context.spec.coroutines == "only" and (share := _find_blocked_share(context)) > _BLOCKED:
        yield make_finding("backends", "blocks", share=f"{100 * share:.0f}")
    refusal = _try_two(context.factory)
    if refusal:
        yield make_finding("backends", "alone", refusal=refusal)
        return
    if context.doubt and not context.carries_over:
        raise CheckSkipped(f"equal traces on every backend: {context.doubt}")
    # Only the first trace was recorded in a new instance.
    traces = context.survey.traces[:1] if context.carries_over else context.survey.traces
    difference = ""
    for trace, played in play_side_by_side(context.factory, context.spec, traces, out_of_time):
        found = find_difference(trace.steps, played)
        if found is None:
            continue
        if find_difference(replay_in_new(context, trace, found.step), played):
            difference = f"{found.what}, seed {trace.seed}"
            break
        # A new instance on its own agrees: the recorded instance carried something over.
        traces = traces[:1]
        yield make_finding("seeding", "survives", seed=trace.seed, what=found.what)
    yield make_finding("backends", "shared" if difference else "fine", difference=difference)
    form = context.registered and context.registered.vector_entry_point
    if form is not None and not context.request.wrap:
        level, text = compare_with_batched(context.request, context.spec, traces, out_of_time)
        if text:
            why = "`--vector batched` would train on this other form"
            fix = "make both forms equal, or train with another vector" if level == "warning" else ""
            yield Finding(level, "backends", text, why, fix)


def _find_blocked_share(context: CheckContext) -> float:
    """Return the share of time in which coroutines held the event loop without computing."""
    from mission_gym.env.event_loop import read_held_s

    begun, held, busy = perf_counter(), read_held_s(), process_time()
    time_steps(context.factory, context.spec, _LOOP_S)
    wall_s, held_s, busy_s = perf_counter() - begun, read_held_s() - held, process_time() - busy
    return max(0.0, held_s - busy_s) / wall_s


def _try_two(factory: Factory) -> str:
    """Return the error of a second instance next to a first one, or an empty string."""
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
    """Remove the checker that `gymnasium.make` adds inside: it would report everything twice, and also what
    an outer wrapper fixes."""
    layer = outermost = gym.Wrapper(env)
    while isinstance(layer.env, gym.Wrapper):
        if isinstance(layer.env, PassiveEnvChecker):
            layer.env = layer.env.env
        else:
            layer = layer.env
    return outermost.env


def _run_gymnasium_checker(factory: Factory) -> Iterator[Finding]:
    env, complaints = _without_passive_checker(factory()), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # noqa: BLE001  border: Gymnasium's checker, which raises its findings
            complaints.append(describe(error).partition(": ")[2] or type(error).__name__)
        finally:
            env.close()
    texts = [re.sub(r"\x1b\[[\d;]*m", "", str(warning.message)) for warning in caught]
    complaints += [text.removeprefix("WARN: ") for text in texts if text.startswith("WARN: ")]
    for text in dict.fromkeys(complaints):
        if not any(noise in text for noise in _NOISE):
            yield make_finding("gymnasium", "complains", text=text)


_SURVEY_CHECKS: tuple[tuple[str, Callable[[EnvSpec, Survey], Iterator[Finding]], str], ...] = (
    ("contract", checks.check_contract, "reset() and step() kept the contract in every episode"),
    ("observation", checks.check_observation, "observations are finite and inside their space"),
    ("channels", checks.check_channels, "every part of the observation changes"),
    ("endings", checks.check_endings, "terminated and truncated are distinguished"),
    ("reward", checks.check_reward, "rewards vary and have a reasonable scale"),
    ("mask", checks.check_mask, "masks are valid, forbid something and leave a legal action"),
    ("outcome", checks.check_outcome, "every episode ended with a declared outcome"),
    ("speed", checks.check_speed, ""),
)
# The last number is the share of the budget that may be spent when the check ends.
_CHECKS: tuple[tuple[str, Callable[[CheckContext, Clock], Iterator[Finding]], str, float], ...] = (
    ("seeding", check_seeding, "the seed decides the episode", 0.6),
    ("actions", _check_actions, "every action has its own effect", 0.8),
    ("backends", _check_backends, "", 1.0),
)
