"""The best checkpoint of a run, confirmed at its end: the three of the highest score play more seeds.

The highest of many scores is also a lucky one. The seeds are those behind the suite that chose, so the second
look is at episodes that had no part in the choice; the score then is the lower bound over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any

from mission_gym.config.schema import Settled
from mission_gym.data import Weights
from mission_gym.errors import RunStateError
from mission_gym.plan.evaluations import NUM_CONFIRMED, count_confirming
from mission_gym.rollout.collector import ActingPolicy
from mission_gym.run.assemble import make_loaded_policy
from mission_gym.run.environment import Environment
from mission_gym.run.evaluation import EvalResult, Evaluator, combine, policy_actor
from mission_gym.run.snapshot import checkpoint_errors
from mission_gym.store.checkpoints import CheckpointInfo, list_checkpoints, load_checkpoint
from mission_gym.store.evals import SELECT, rank_best, read_evals
from mission_gym.store.rundir import RunDir


def find_candidates(run: RunDir) -> list[tuple[CheckpointInfo, dict[str, Any]]]:
    """The checkpoints of the highest scores that are still there, the best first, each with its evaluation on
    the selection suite."""
    infos = {info.step: info for info in list_checkpoints(run.checkpoints)}
    selected = {result["step"]: result for result in read_evals(run) if result["suite"] == SELECT}
    ranked = [result["step"] for result in rank_best(run, among=infos)]
    usable = [step for step in ranked if _can_be_added_to(selected.get(step, {}))]
    return [(infos[step], selected[step]) for step in usable[:NUM_CONFIRMED]]


def _can_be_added_to(result: dict[str, Any]) -> bool:
    """Evaluations of earlier versions kept no returns."""
    returns, needed = result.get("returns") or [None], ("episodes", "length_mean", "outcomes")
    return None not in [*returns, *(result.get(name) for name in needed)]


def confirm_best(
    run: RunDir, config: Settled, environment: Environment, played: int, stop: Callable[[], bool]
) -> dict[str, Any] | None:
    """The document of a confirmation; None where there is nothing to choose from, no step left for it, or a
    stop was asked for. played: steps of the evaluations so far."""
    candidates, settings = find_candidates(run), config.evaluation
    num_episodes = count_confirming(
        settings.eval_episodes, [selected["length_mean"] for _, selected in candidates], played
    )
    if len(candidates) < 2 or not num_episodes:
        return None
    results: dict[int, EvalResult] = {}
    with Evaluator(environment, "select", num_episodes, first=settings.eval_episodes) as evaluator:
        for info, selected in candidates:
            with suppress(RunStateError):  # a damaged checkpoint is left out
                policy = _load_policy(info, config, environment)
                more = evaluator.play(policy_actor(policy, environment.spec), stop=stop)
                if more is None:
                    return None
                results[info.step] = combine(selected, more)
    scores = {step: result.score for step, result in results.items() if isfinite(result.score)}
    if len(scores) < 2:
        return None
    told = [{"step": step, "score": scores[step]} | results[step].document() for step in scores]
    best = max(scores, key=lambda step: (scores[step], step))
    return {"best": best, "episodes": num_episodes, "candidates": told}


def _load_policy(info: CheckpointInfo, config: Settled, environment: Environment) -> ActingPolicy:
    checkpoint = load_checkpoint(info.path)
    with checkpoint_errors(checkpoint):
        weights = Weights.unpack(int(checkpoint.meta.get("update", 0)), checkpoint.policy)
        return make_loaded_policy(config, environment.spec, weights)
