"""Evaluations during a run: their frequency, the best checkpoint, and the goal.

Evaluations take at most about a tenth of the time, in steps, since seconds differ between equal runs.
Playing a step costs about as much as collecting one, and training learns in addition. So the limit is a tenth
of the trained steps, or four tenths for built-in and classic environments, whose training is mostly learning.
At the end the best checkpoints are played on more seeds: the highest of many scores is also a lucky one. The
best is chosen by all of its episodes and reported by the new ones, which selected nothing before. A goal is
declared only after further seeds confirm it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Settled, parse_stop_when
from mission_gym.data import EnvSpec, Fact, Weights
from mission_gym.errors import DiskError, ResourceRefused, RunStateError, WorkerError
from mission_gym.intervals import LEVEL, bound_mean, bound_rate, bound_unseen
from mission_gym.rollout.play import See, unseen
from mission_gym.run.build import make_loaded_policy
from mission_gym.run.environment import Environment
from mission_gym.run.evaluation import EvalResult, Evaluator, combine, policy_actor
from mission_gym.run.retention import NUM_CONFIRMED
from mission_gym.run.saving import passed_multiple
from mission_gym.run.snapshot import RunContext, checkpoint_errors
from mission_gym.run.status import StatusWriter
from mission_gym.store.checkpoints import CheckpointInfo, list_checkpoints, load_checkpoint
from mission_gym.store.evals import (
    CONFIRM,
    GOAL,
    RETEST,
    SELECT,
    find_best,
    rank_best,
    read_evals,
    write_eval,
)
from mission_gym.store.rundir import RunDir

Stop = Callable[[], bool]
EVAL_FREQ = "evaluation.eval_freq"
_SHARE, _CHEAP_SHARE = 0.1, 0.4  # steps played per step trained
_EVALUATING = 0.7  # part of them for evaluations; the rest is for the confirmation of the best
_CONFIRMING = 0.4  # that rest, relative to the steps of the evaluations
_ROUND = 1000
_GOAL_EPISODES = 100  # of a check, or those of an evaluation if they are more
_RETEST_FIRST = 10_000  # number of the re-test's first seed in the report suite; `eval` plays those before it
_RECENT = 5  # evaluations whose lowest return a goal check assumes for unseen kinds of episodes


def is_automatic(resolved: Resolved) -> bool:
    """Whether this module may raise eval_freq and delay evaluations: it was not given."""
    return resolved.sources[EVAL_FREQ].partition(" ")[0] == "auto"


def fit_freq(resolved: Resolved, spec: EnvSpec, episode_steps: float) -> Resolved:
    """Raise an automatic eval_freq so that evaluations with episodes of this length stay within the limit."""
    if not is_automatic(resolved):
        return resolved
    settings = resolved.settled.evaluation
    wanted = math.ceil(settings.eval_episodes * episode_steps / _share(spec) / _ROUND) * _ROUND
    return resolved if wanted <= settings.eval_freq else resolved.with_values({EVAL_FREQ: wanted}, "auto")


def is_affordable(spec: EnvSpec, *, played: int, cost: float, trained: int, total: int) -> bool:
    """Whether an evaluation of about `cost` steps is within the limit: now, and at the end together with the
    last one. played: in evaluations so far. trained, total: steps of this run."""
    share = _share(spec)
    return played + cost <= share * trained and played + 2 * cost <= share * total


def count_confirming(most: int, lengths: Sequence[float], played: int) -> int:
    """Further episodes of each of the best checkpoints, at most `most`. lengths: of their episodes. played:
    steps of all evaluations."""
    return min(most, int(_CONFIRMING * played / max(sum(lengths), 1.0)))


def is_near_end(num_left: int, freq: int) -> bool:
    """Whether less than half an interval is left, so that the last evaluation replaces this one."""
    return 2 * num_left < freq


def describe_evaluations(
    resolved: Resolved, spec: EnvSpec, total: int, *, episode_steps: float, collect_s: float, train_s: float
) -> Fact:
    """The plan's row: the number of evaluations in `total` steps, and their share of the time.

    collect_s: per step. train_s: of all steps.
    """
    config = resolved.settled
    freq, episodes = config.evaluation.eval_freq, config.evaluation.eval_episodes
    if freq == 0:
        return Fact("evaluations", "0", "")
    number = max(1, (2 * total + freq) // (2 * freq))

    def show(length: float) -> str:
        seconds = number * episodes * length * collect_s
        share = 100 * seconds / (seconds + train_s)
        shown = f"about {share:.0f} %" if share >= 1 else "under 1 %"
        return f"{shown} of the time with episodes of {length:,.0f} steps"

    when = f"every {freq:,} steps" if number > 1 else "at the end"
    reason, limit = f"{episodes} episodes {when}: {show(episode_steps)}", spec.max_episode_steps
    if number > 1 and is_automatic(resolved):
        reason += "; fewer if episodes get longer, at most about a tenth"
    elif limit is not None and limit > episode_steps + 1:
        reason += f", {show(limit)}"
    return Fact("evaluations", f"{number}", reason)


def _share(spec: EnvSpec) -> float:
    """Steps that evaluations may play per step trained."""
    return _EVALUATING * (_CHEAP_SHARE if spec.trusted else _SHARE)


class Selection:
    """The evaluations of one run, which choose among its checkpoints."""

    def __init__(self, context: RunContext, status: StatusWriter) -> None:
        self._context, self._status = context, status
        self._evaluator: Evaluator | None = None  # kept from the first evaluation on
        self._best_score, context.best_step = find_best(context.run) or (-math.inf, None)

    def is_due(self) -> bool:
        """Whether an evaluation is due between updates. An automatic one waits until it is affordable."""
        context = self._context
        settings, step, total = context.config.evaluation, context.learner.step, context.config.run.timesteps
        state, spec = context.state, context.spec
        if step >= total:
            return bool(settings.eval_freq) and state.last_eval != step
        if not passed_multiple(step, state.last_eval, settings.eval_freq):
            return False
        if is_near_end(total - step, settings.eval_freq):
            return False
        limit = spec.max_episode_steps or context.environment.evaluation_steps
        length = context.recorder.rolling().get("rollout/ep_len_mean", limit)
        agents = spec.num_agents  # each makes one step of training, and one of an evaluation
        return not is_automatic(context.resolved) or is_affordable(
            spec,
            played=agents * state.eval_steps,
            cost=agents * settings.eval_episodes * length,
            trained=step - state.began_at,
            total=total - state.began_at,
        )

    def is_due_at_end(self, step: int) -> bool:
        """Whether a training that ends at `step` needs an evaluation: not if the last one is recent."""
        freq, last = self._context.config.evaluation.eval_freq, self._context.state.last_eval
        is_recent = last > self._context.state.began_at and 2 * (step - last) < freq
        return bool(freq) and not is_recent

    def play(self, stop: Stop) -> EvalResult | None:
        """Evaluate the learner's weights; None if a stop was requested, or if the system refuses every
        process, which is a warning."""
        context = self._context
        policy = make_loaded_policy(context.config, context.spec, context.learner.weights())
        if self._evaluator is None:
            num_episodes = context.config.evaluation.eval_episodes
            self._evaluator = Evaluator(context.environment, "select", num_episodes)
        try:
            with self._status.phase("evaluating"):
                see = self._status.expect(context.config.evaluation.eval_episodes)
                result = self._evaluator.play(policy_actor(policy, context.spec), stop=stop, see=see)
        except ResourceRefused as refusal:
            context.recorder.warn(f"not evaluated: {refusal}")
            context.state.last_eval = context.learner.step
            return None
        while self._evaluator.notes:
            context.recorder.warn(self._evaluator.notes.pop())
        return result

    def add(self, step: int, result: EvalResult, seconds: float) -> None:
        """Record a result, and check whether it is the best."""
        context, document = self._context, result.document()
        context.state.last_eval = step
        context.state.eval_steps += result.num_steps
        context.recorder.add_evaluation(
            step, document, {"score": result.score, "time/seconds": round(seconds, 3)}
        )
        failure = None
        try:
            stored = document | {"score": result.score, "returns": list(result.returns)}
            write_eval(context.run, step, SELECT, stored)
            self._best_score, context.best_step = max(
                (self._best_score, context.best_step), (result.score, step)
            )
        except DiskError as error:
            failure = error
        context.recorder.report("evaluation", "the evaluation was not saved", failure)
        self._warn_of_failed("evaluation", result.failed, result.failed + result.episodes)

    def _warn_of_failed(self, what: str, failed: int, played: int) -> None:
        """Warn about failed episodes, since they are left out of all statistics."""
        if failed:
            self._context.recorder.warn(
                f"{failed} of {played} episodes of the {what} failed and are not counted;"
                " if failures depend on the policy, its results are too good"
            )

    def check_goal(self, step: int, result: EvalResult, stop: Stop) -> None:
        """Declare the goal of `stop_when` if an evaluation reaches it and further seeds confirm it.

        A run looks at its goal many times, so one lucky look decides nothing. Each check plays seeds that no
        other evaluation uses.
        """
        context, text = self._context, self._context.config.run.stop_when
        if text is None:
            return
        rule, state = parse_stop_when(text), context.state
        low = result.low(rule.name)
        if low is None or not rule.holds(low):
            return
        number = state.goal_checks + 1
        episodes = context.config.evaluation.eval_episodes
        more_episodes = max(_GOAL_EPISODES, episodes)
        first = 2 * episodes + state.goal_checks * more_episodes
        policy = make_loaded_policy(context.config, context.spec, context.learner.weights())
        with (
            self._status.phase("confirming the goal"),
            Evaluator(context.environment, "select", more_episodes, first=first) as evaluator,
        ):
            see = self._status.expect(more_episodes)
            more = evaluator.play(policy_actor(policy, context.spec), stop=stop, see=see)
        if more is None:
            return
        state.goal_checks = number
        state.eval_steps += more.num_steps
        self._warn_of_failed("check of the goal", more.failed, more.failed + more.episodes)
        bound = bound_goal(rule.name, more, _read_recent(context.run), number)
        found = f"at least {bound:.3g} in {more.episodes} further episodes"
        with suppress(DiskError):
            write_eval(context.run, step, GOAL, more.document() | {"returns": list(more.returns)})
        if rule.holds(bound):
            context.goal = f"{text} ({found})"
        else:
            context.recorder.warn(f"{text} is not confirmed: {found}; training continues")

    def confirm(self, step: int, stop: Stop) -> None:
        """Play the best checkpoints on more seeds; the best one changes only if that is done and saved."""
        context, start = self._context, time.monotonic()
        self.close()
        try:
            played, expect = context.state.eval_steps, self._status.expect
            with self._status.phase("confirming the best"):
                document = confirm_best(
                    context.run, context.config, context.environment, played, stop, expect=expect
                )
            if document is None:
                return
            write_eval(context.run, step, CONFIRM, document)
        except (DiskError, WorkerError) as error:
            context.recorder.warn(f"the best checkpoint is not confirmed: {error}")
            return
        seconds = {"time/seconds": round(time.monotonic() - start, 3)}
        context.recorder.emit("confirm", step=step, **document, **seconds)
        candidates = document["candidates"]
        failed = sum(each["failed"] for each in candidates)
        played = failed + sum(each["episodes"] for each in candidates)
        self._warn_of_failed("confirmation", failed, played)
        if best := find_best(context.run):
            self._best_score, context.best_step = best

    def retest(self, step: int, stop: Stop) -> None:
        """Play the learner's weights on seeds of the report suite that no evaluation and no report uses."""
        context, num_episodes = self._context, self._context.config.evaluation.retest_episodes
        policy = make_loaded_policy(context.config, context.spec, context.learner.weights())
        with (
            self._status.phase("testing on fresh seeds"),
            Evaluator(context.environment, "report", num_episodes, first=_RETEST_FIRST) as evaluator,
        ):
            see = self._status.expect(num_episodes)
            result = evaluator.play(policy_actor(policy, context.spec), stop=stop, see=see)
        if result is not None:
            write_eval(context.run, step, RETEST, result.document())

    def close(self) -> None:
        """Close the environments of the evaluations."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None


def bound_goal(name: str, result: EvalResult, recent: Sequence[float], number: int) -> float:
    """A lower bound of the return or of an outcome's rate in check number k, from 1. It is too high with a
    probability of at most LEVEL / (k (k + 1)), so in all checks of a run together of LEVEL.

    The bound of a return has two parts, and each may err in half of these cases. `bound_mean` is about the
    returns down to the lowest one of the result. Lower returns may be unseen, up to the rate `bound_unseen`;
    each is taken to be the lowest of the recent ones, of this policy and of those shortly before it.
    """
    alpha = LEVEL / (number * (number + 1))
    if name != "return":
        count = round(result.outcomes[name]["rate"] * result.episodes)
        return bound_rate(count, result.episodes, alpha)
    lowest = min(result.returns)
    unseen = bound_unseen(result.episodes, alpha / 2)
    return bound_mean(result.returns, alpha / 2) - unseen * (lowest - min([lowest, *recent]))


def _read_recent(run: RunDir) -> list[float]:
    """The returns of the last evaluations, and of all checks of the goal."""
    evals = read_evals(run)
    selected = [result for result in evals if result["suite"] == SELECT]
    checks = [result for result in evals if result["suite"] == GOAL]
    returns = [value for each in (*selected[-_RECENT:], *checks) for value in each.get("returns") or ()]
    return [value for value in returns if value is not None]


def find_candidates(run: RunDir) -> list[tuple[CheckpointInfo, dict[str, Any]]]:
    """The existing checkpoints with the highest scores, the best first, each with its evaluation."""
    infos = {info.step: info for info in list_checkpoints(run.checkpoints)}
    selected = {result["step"]: result for result in read_evals(run) if result["suite"] == SELECT}
    ranked = [result["step"] for result in rank_best(run, among=infos)]
    usable = [step for step in ranked if step in selected and _is_whole(selected[step])]
    return [(infos[step], selected[step]) for step in usable[:NUM_CONFIRMED]]


def _is_whole(result: dict[str, Any]) -> bool:
    """Whether a stored evaluation has all that `combine` needs. Infinite returns are stored as None."""
    needed = [result.get(name) for name in ("episodes", "length_mean", "outcomes")]
    return None not in [*needed, *(result.get("returns") or [None])]


def confirm_best(
    run: RunDir,
    config: Settled,
    environment: Environment,
    played: int,
    stop: Stop,
    *,
    expect: Callable[[int], See] = lambda num_episodes: unseen,
) -> dict[str, Any] | None:
    """Play the best checkpoints again; returns the document of the confirmation. None if there is nothing to
    choose from, no steps are left for it, or a stop was requested. played: steps of evaluations so far.
    expect: takes the number of episodes, and returns the function that takes their progress."""
    candidates, settings = find_candidates(run), config.evaluation
    lengths = [selected["length_mean"] for _, selected in candidates]
    num_episodes = count_confirming(settings.eval_episodes, lengths, played)
    if len(candidates) < 2 or not num_episodes:
        return None
    results: dict[int, EvalResult] = {}  # of the new episodes
    scores: dict[int, float] = {}  # by all episodes
    see, num_steps = expect(num_episodes * len(candidates)), 0
    with Evaluator(environment, "select", num_episodes, first=settings.eval_episodes) as evaluator:
        for number, (info, selected) in enumerate(candidates):
            see_own = partial(_see_more, see, number * num_episodes, num_steps)
            with suppress(RunStateError):  # a damaged checkpoint is left out
                checkpoint = load_checkpoint(info.path)
                with checkpoint_errors(checkpoint):
                    weights = Weights.unpack(int(checkpoint.meta["update"]), checkpoint.policy)
                    policy = make_loaded_policy(config, environment.spec, weights)
                more = evaluator.play(policy_actor(policy, environment.spec), stop=stop, see=see_own)
                if more is None:
                    return None
                num_steps += more.num_steps
                results[info.step] = more
                scores[info.step] = combine(selected, more).score
    scores = {step: score for step, score in scores.items() if math.isfinite(score)}
    if len(scores) < 2:
        return None
    documents = [{"step": step, "score": scores[step]} | results[step].document() for step in scores]
    best = max(scores, key=lambda step: (scores[step], step))
    return {"best": best, "episodes": num_episodes, "candidates": documents}


def _see_more(see: See, before: int, steps_before: int, num_ended: int, num_steps: int) -> None:
    see(before + num_ended, steps_before + num_steps)
