"""Mission Gym's side of a contest: a real run in a folder that is thrown away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mission_gym.run.config import resolve
from mission_gym.run.evaluation import evaluate, policy_actor
from mission_gym.run.open import open_run
from mission_gym.run.start import start_run
from mission_gym.store.resolve import RunRef
from mission_gym.store.rundir import RunDir
from mission_gym_bench.sides import Evaluation, Job, Result, Stopwatch


def train(job: Job, folder: Path) -> Result:
    """Train as `mission-gym train` does, without TensorBoard."""
    evals: list[Evaluation] = []
    ours = {"runs_dir": str(folder), "tensorboard": False, "tune": False}
    resolved = resolve(job.env_id, job.flags | ours)

    def listen(event: dict[str, Any]) -> None:
        if event["event"] in ("eval", "confirm"):
            watch.skip(event["time/seconds"])
        if event["event"] == "eval":
            evals.append(Evaluation(event["step"], watch.read_s(), event["return_mean"]))

    with start_run(resolved, listen) as session:
        watch = Stopwatch()
        updates = session.updates()
        warm_from = next(updates).step
        first_s = watch.read_s()
        for _ in updates:
            pass
        warm_s = watch.read_s() - first_s
    verdict = session.telemetry.summarize()["time/verdict"]
    return Result(
        gradient_steps=session.learner.gradient_steps,
        warm_steps=session.step - warm_from,
        warm_s=warm_s,
        return_mean=session.recorder.rolling().get("rollout/ep_rew_mean"),
        evals=evals,
        report_return=_report(session.run, job.report_episodes) if job.report_episodes else None,
        evidence=verdict["evidence"] if verdict else "",
    )


def _report(run: RunDir, episodes: int) -> float:
    """The mean return of the best checkpoint on the report suite."""
    opened = open_run(RunRef(run, None))
    actor = policy_actor(opened.policy, opened.environment.spec)
    result = evaluate(opened.environment, actor, "report", episodes)
    assert result is not None  # nobody asks it to stop
    return result.return_mean
