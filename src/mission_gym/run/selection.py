"""Evaluations during a run: when one is due, what its result makes of the best checkpoint and of the goal.

The session plays and saves; counters that a resume needs (`last_eval`, `eval_steps`, `goal`) are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mission_gym.clock import steady_s
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import parse_stop_when
from mission_gym.errors import DiskError, WorkerError
from mission_gym.learner.contract import Learner
from mission_gym.plan.evaluations import is_affordable, is_bounded, is_near_end
from mission_gym.run.assemble import make_loaded_policy
from mission_gym.run.confirmation import confirm_best
from mission_gym.run.environment import EVALUATION_STEPS, Environment
from mission_gym.run.evaluation import EvalResult, Evaluator, policy_actor
from mission_gym.run.recorder import Recorder
from mission_gym.run.saving import passed_multiple
from mission_gym.store.evals import CONFIRM, SELECT, find_best, write_eval
from mission_gym.store.rundir import RunDir

Stop = Callable[[], bool]


class Selection:
    """The suite of one run that chooses among its checkpoints."""

    def __init__(
        self,
        run: RunDir,
        resolved: Resolved,
        environment: Environment,
        learner: Learner,
        recorder: Recorder,
        counters: dict[str, Any],
    ) -> None:
        self._run, self._config, self._environment = run, resolved.settled, environment
        self._learner, self._recorder, self._counters = learner, recorder, counters
        self._may_wait = is_bounded(resolved)
        self._evaluator = Evaluator(environment, "select", self._config.evaluation.eval_episodes)
        self._best: tuple[float, int | None] = find_best(run) or (-math.inf, None)  # score and step

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint; None before there is one."""
        return self._best[1]

    def is_due(self) -> bool:
        """Whether one is due between updates: the last step has one, and none comes shortly before it. Where
        eval_freq was left open it waits until the steps that were trained pay for it."""
        settings, step, total = self._config.evaluation, self._learner.step, self._config.run.timesteps
        last, began_at = self._counters["last_eval"], self._counters["began_at"]
        if step >= total:
            return bool(settings.eval_freq) and last != step
        if not passed_multiple(step, last, settings.eval_freq) or is_near_end(
            total - step, settings.eval_freq
        ):
            return False
        spec = self._environment.spec
        limit = spec.max_episode_steps or EVALUATION_STEPS
        length = self._recorder.rolling().get("rollout/ep_len_mean", limit)
        agents = spec.num_agents  # each makes a step of training, and one of an evaluation
        return not self._may_wait or is_affordable(
            spec, played=agents * self._counters["eval_steps"],
            cost=agents * settings.eval_episodes * length,
            trained=step - began_at, total=total - began_at,
        )  # fmt: skip

    def is_due_at_end(self, step: int) -> bool:
        """Whether the loop's end at `step` wants one: where the last one is new it need not be made again."""
        freq, last = self._config.evaluation.eval_freq, self._counters["last_eval"]
        is_new = last > self._counters["began_at"] and 2 * (step - last) < freq
        return bool(freq) and not is_new

    def play(self, stop: Stop) -> EvalResult | None:
        """Play the suite with the learner's weights; None if a stop was asked for."""
        spec = self._environment.spec
        policy = make_loaded_policy(self._config, spec, self._learner.weights())
        return self._evaluator.play(policy_actor(policy, spec), stop=stop)

    def keep(self, step: int, result: EvalResult, seconds: float) -> None:
        """Record a result, and see whether it is the best, and whether it reaches the goal."""
        self._counters["last_eval"] = step
        self._counters["eval_steps"] += result.num_steps
        document = result.document()
        self._recorder.add_evaluation(
            step, document, {"score": result.score, "time/seconds": round(seconds, 3)}
        )
        failure = None
        try:
            kept = document | {"score": result.score, "returns": list(result.returns)}
            write_eval(self._run, step, SELECT, kept)
            self._best = max(self._best, (result.score, step))
        except DiskError as error:
            failure = error
        self._recorder.report("evaluation", "the evaluation was not kept", failure)
        if self._config.run.stop_when is not None:
            rule = parse_stop_when(self._config.run.stop_when)
            low = result.low(rule.name)
            if low is not None and rule.holds(low):
                self._counters["goal"] = f"{self._config.run.stop_when} (lower bound {low:.3g})"

    def confirm(self, step: int, stop: Stop) -> None:
        """Play the best checkpoints on more seeds; until that is done and kept, the best stays as it is."""
        self._evaluator.close()
        played, start = self._counters["eval_steps"], steady_s()
        try:
            document = confirm_best(self._run, self._config, self._environment, played, stop)
            if document is None:
                return
            write_eval(self._run, step, CONFIRM, document)
        except (DiskError, WorkerError) as error:
            self._recorder.warn(f"the best checkpoint is not confirmed: {error}")
            return
        seconds = {"time/seconds": round(steady_s() - start, 3)}
        self._recorder.emit("confirm", step=step, **document, **seconds)
        self._best = find_best(self._run) or self._best

    def close(self) -> None:
        """End the environments that it plays in."""
        self._evaluator.close()
