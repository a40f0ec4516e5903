"""Ours as `mission-gym train ENV --timesteps N --seed S --no-tune` trains, in one process with one thread.

Tuning chooses how a run is made, not what is learned, so it is left out. That the environments are in this
process does not change what is learned either, and its clock counts everything.
"""

from __future__ import annotations

from pathlib import Path

from mission_gym.rollout.playing import Actor
from mission_gym.run.build import make_loaded_policy
from mission_gym.run.config import resolve
from mission_gym.run.evaluation import policy_actor
from mission_gym.run.start import start_run
from mission_gym_bench.defaults.exam import Examiner
from mission_gym_bench.sides import Job, Result

_HOW = {
    "tune": False, "vector": "serial", "device": "cpu", "threads": 1, "eval_freq": 0, "tensorboard": False
}  # fmt: skip


def train(job: Job, folder: Path) -> Result:
    """Make a real run, in a folder that is thrown away."""
    resolved = resolve(job.env_id, job.flags | _HOW | {"runs_dir": str(folder)})
    with Examiner(job) as examiner, start_run(resolved, lambda event: None) as session:

        def make_actor() -> Actor:
            policy = make_loaded_policy(session.config, session.spec, session.learner.weights())
            return policy_actor(policy, session.spec)

        examiner.begin()
        for progress in session.updates():
            examiner.look(progress.step, make_actor)
        return examiner.finish(session.step, make_actor(), session.learner.gradient_steps)
