"""Runs of environments with several agents: learning, exact resume, evaluation, counts and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.check.environment import check_environment
from mission_gym.check.repro import replay_bundle, write_bundle
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import ConfigError, EnvContractError, EnvFailure
from mission_gym.policy.sampling import draw_random
from mission_gym.run.config import resolve
from mission_gym.run.start import start_run
from mission_gym.store.rundir import RunDir
from mission_gym.store.trusted import retry_if_allowed
from runs import silent, start

ENV = "agent_toys:Lives"
SMALL: dict[str, Any] = {
    "n_envs": 2,
    "timesteps": 576,
    "eval_freq": 192,
    "checkpoint_freq": 96,
}  # 6 x 16 rows
LEARNING: dict[str, Any] = {
    "seed": 1, "n_envs": 4, "n_steps_per_env": 64, "learning_rate": 2e-3, "gamma": 0.5, "network_arch": "32",
    "tensorboard": False, "progress": False, "eval_freq": 0, "threads": 1,
}  # fmt: skip


def test_agents_that_die_at_different_times_learn_together(tmp_path: Path) -> None:
    run = mg.train(ENV, runs_dir=str(tmp_path), timesteps=8_000, **LEARNING)
    result = run.evaluate(episodes=20)
    assert result["return_mean"] >= 15.5  # the optimum is 16, chance is 8
    assert result["agents"]["worker"]["return_mean"] >= 5.8
    assert result["agents"]["guest"]["return_mean"] >= 3.8
    assert result["agents"]["worker"]["outcomes"]["retired"]["rate"] == 1.0
    rows = [row for row in run.metrics() if "agents/guest/return" in row]
    assert rows[-1]["agents/guest/return"] <= 4.0
    assert rows[-1]["agents/worker/outcome/retired"] == 1.0


def test_agents_read_words_and_answer_in_parts(tmp_path: Path) -> None:
    """Text observations and Dict actions, of several agents, in workers."""
    given = LEARNING | {"vector": "workers", "num_workers": 2}
    run = mg.train("agent_toys:Orders", runs_dir=str(tmp_path), timesteps=8_000, **given)
    assert run.evaluate(episodes=20)["return_mean"] >= 15.5
    action, _ = mg.load(run.path).predict("pull left")
    assert action["lever"] == 0
    assert action["force"].shape == (1,)


@pytest.mark.slow
def test_dqn_learns_from_agents(tmp_path: Path) -> None:
    given = {key: value for key, value in LEARNING.items() if key not in ("n_steps_per_env", "gamma")}
    run = mg.train(ENV, runs_dir=str(tmp_path), algo="dqn", timesteps=12_000, learning_starts=500, **given)
    assert run.evaluate(episodes=20)["return_mean"] >= 15.0


def test_steps_are_counted_by_agent(tmp_path: Path) -> None:
    with start(tmp_path, ENV, **SMALL) as session:
        config = session.config
        assert (config.vector.num_agents, config.num_columns, config.rollout_size) == (3, 6, 96)
        assert config.compute.acting_rows % 3 == 0
        steps = [update.step for update in session.updates()]
    assert steps == list(range(96, 577, 96))


def test_sizes_follow_from_all_agents(tmp_path: Path) -> None:
    """A batch that only divides the rollout of all agents is taken; what does not fit it is refused."""
    given = {
        "runs_dir": str(tmp_path),
        "n_envs": 2,
        "n_steps_per_env": 16,
        "tensorboard": False,
        "timesteps": 96,
    }
    with start_run(resolve(ENV, given | {"batch_size": 48}), silent) as session:
        assert session.config.algorithm.batch_size == 48
    for flags, what in (
        (
            {"batch_size": 64},
            r"batch_size=64 does not divide the rollout of 96 \(2 envs x 3 agents x 16 steps\)",
        ),
        ({"timesteps": 50}, "timesteps=50 is below one rollout of 96"),
        ({"num_agents": 2}, "num_agents=2 is wrong: agent_toys:Lives has 3; remove it"),
        ({"acting_rows": 4}, "acting_rows=4 would split the 3 agents of an environment"),
    ):
        with pytest.raises(ConfigError, match=what), start_run(resolve(ENV, given | flags), silent):
            pass
    with (
        pytest.raises(ConfigError, match="batch_size=48 does not divide the rollout of 32"),
        start_run(resolve("toys:Identity", given | {"batch_size": 48}), silent),
    ):
        pass


def test_check_judges_agents() -> None:
    findings = check_environment(EnvRequest(ENV), num_episodes=4)
    assert {finding.name for finding in findings if finding.level == "ok"} >= {
        "contract", "seeding", "actions", "backends", "reward",
    }  # fmt: skip
    assert not [finding for finding in findings if finding.level == "error"]


def test_a_vector_of_gymnasium_has_one_agent() -> None:
    with pytest.raises(
        EnvContractError, match="has 3 agents, but environments of a Gymnasium vector have one"
    ):
        mg.make_vec(ENV, 2, backend="serial")


def test_a_failure_of_agents_with_parts_replays(tmp_path: Path) -> None:
    factory = make_factory(EnvRequest("agent_toys:Tearing"))
    spec, rng = probe(factory, "toy"), np.random.default_rng(0)
    slot = make_slot(factory, spec, 0, lambda episode: episode)
    slot.reset(0)
    drawn = [spec.action.to_env(draw_random(spec.action, None, rng, spec.num_agents)) for _ in range(3)]
    with pytest.raises(EnvFailure, match="torn") as caught:
        list(map(slot.step, drawn))
    bundle = write_bundle(RunDir(tmp_path), caught.value, EnvRequest("agent_toys:Tearing"))
    assert bundle is not None
    replay = retry_if_allowed(lambda: replay_bundle(bundle), lambda error: True)
    assert "reproduced at step 2:" in replay.text
    assert "RuntimeError: torn" in replay.text


def test_agents_that_ignore_their_seed_are_told_so() -> None:
    findings = check_environment(EnvRequest("agent_toys:Unseeded"), num_episodes=2)
    (told,) = [each for each in findings if each.name == "seeding" and each.level == "error"]
    assert "numpy.random" in told.what + told.fix
