"""A replay ratio from measured costs: its limits, its place in the plan, and what keeps it the same."""

import re
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import mission_gym as mg
from mission_gym.algorithms import load_algorithm
from mission_gym.errors import ConfigError, UsageError
from mission_gym.plan import measured
from mission_gym.plan.cache import make_plan_key, read_plan, write_plan
from mission_gym.run.branch import branch_run
from mission_gym.run.config import read_config, resolve
from mission_gym.run.settle import make_builder, open_new, prepare_run
from mission_gym.run.start import start_run
from mission_gym.store.files import read_json
from mission_gym.store.resolve import find_run

AUTO = {"algo": "sac", "replay_ratio": "auto", "timesteps": 256, "network_arch": "8", "n_envs": 2}
PATH, NORM = "sac.replay_ratio", "sac.critic_layer_norm"


class Slow(gym.Wrapper):
    """Pendulum that waits 20 ms per step."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=20))

    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        return self.env.step(action)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def choose(collect_ms: float, update_ms: float, **flags: Any) -> tuple[dict[str, Any], str]:
    resolved = resolve("Pendulum-v1", AUTO | flags)
    algorithm = load_algorithm(resolved.config.run.algo)
    return algorithm.choose_measured(resolved, 1e-3 * collect_ms, 1e-3 * update_ms)


@pytest.mark.parametrize(
    ("collect_ms", "update_ms", "flags", "values", "words"),
    [
        (6.0, 5.0, {}, {PATH: 1.3}, "replay_ratio 1.3: collecting a .* takes 6 ms, a gradient step 5 ms$"),
        (0.1, 5.0, {}, {PATH: 0.5}, "a gradient step 5 ms; auto is 0.5 to 20 for sac$"),
        (20.0, 5.0, {}, {PATH: 4.4, NORM: True}, "critic_layer_norm, as for every ratio above 2$"),
        (500.0, 5.0, {}, {PATH: 20.0, NORM: True}, "auto is 0.5 to 20 for sac; critic_layer_norm"),
        (20.0, 5.0, {"critic_layer_norm": True}, {PATH: 4.4}, "a gradient step 5 ms$"),
        (20.0, 5.0, {"critic_layer_norm": False}, {PATH: 2.0}, "; 2 without critic_layer_norm$"),
        (20.0, 5.0, {"algo": "dqn"}, {"dqn.replay_ratio": 1.0}, "auto is 0.25 to 1 for dqn$"),
    ],
)  # fmt: skip
def test_gradient_steps_take_as_long_as_collecting_within_limits(
    collect_ms: float, update_ms: float, flags: dict[str, Any], values: dict[str, Any], words: str
) -> None:
    found, reason = choose(collect_ms, update_ms, **flags)
    assert found == values
    assert re.search(words, reason)


def make_costs(monkeypatch: pytest.MonkeyPatch, collect_s: float, update_s: float) -> list[str]:
    """Replace the measurement; returns the list of its calls."""
    calls: list[str] = []

    def measure(*_: Any) -> Any:
        calls.append("measured")
        return measured._Costs(collect_s, update_s)

    monkeypatch.setattr(measured, "_measure", measure)
    return calls


def test_the_ratio_is_settled_before_the_first_update_printed_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, events = make_costs(monkeypatch, 0.03, 0.011), list[dict[str, Any]]()
    runs = []
    for _ in range(2):
        flags = AUTO | {"runs_dir": str(tmp_path), "learning_starts": 32, "eval_freq": 0, "seed": 1}
        with start_run(resolve("Pendulum-v1", flags), events.append) as session:
            for _ in session.updates():
                pass
        runs.append(session)
    assert calls == ["measured"]  # once: equal runs choose equally
    for session in runs:
        resolved = read_config(session.run.config_yaml)
        assert resolved.config.value(PATH) == 3.0
        assert resolved.config.value(NORM) is True
        assert resolved.sources[PATH].startswith("measured: replay_ratio 3: collecting a transition")
        assert session.learner.gradient_steps == 3 * (256 - 32)
        document = read_json(session.run.plan_json)
        assert "3 gradient steps per transition" in str(document["facts"])
        assert any("planned: replay_ratio 3" in note for note in document["notes"])
    one, other = (session.learner.arrays() for session in runs)
    assert all((one[name] == other[name]).all() for name in one)


def test_a_tuned_plan_keeps_the_costs_and_the_rate_of_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = make_costs(monkeypatch, 0.05, 0.011)
    resolved = resolve("Pendulum-v1", AUTO | {"timesteps": 1_000_000, "n_steps_per_env": 4})
    environment, resolved, *_ = open_new(resolved)
    key = make_plan_key(resolved, make_builder(environment, resolved).spec)
    layout = {"backend": "serial", "num_workers": 1, "n_envs": 2, "n_steps_per_env": 4, "num_agents": 1}
    entry = {"steps_per_s": 100.0, "values": {"vector.vector": "serial"}, "reasons": ["why"], "changes": []}
    write_plan(key, entry | {"layout": layout, "measured": {"env": {"step_s": 0.05}}})
    for _ in range(2):
        prepared = prepare_run(
            resolve("Pendulum-v1", AUTO | {"timesteps": 1_000_000}), None, lambda text: None
        )
        assert prepared.resolved.config.value(PATH) == 5.0
        assert prepared.tuned is not None
        assert prepared.tuned.entry is not None
        assert prepared.tuned.entry["reasons"][0] == "why"
        assert prepared.tuned.entry["reasons"][1].startswith("replay_ratio 5: ")
        assert len(prepared.tuned.entry["reasons"]) == 2
    kept = read_plan(key)
    assert kept is not None
    assert kept["costs"] == [0.05, 0.011]
    assert kept["steps_per_s"] != 100.0  # that of another ratio
    assert calls == ["measured"]


def test_a_slow_environment_leaves_time_for_several_steps(tmp_path: Path) -> None:
    """Measured: each step waits 20 ms, and a step of this network takes less."""
    flags = AUTO | {"vector": "serial", "n_envs": 1, "timesteps": 64, "learning_starts": 16}
    values = flags | {"runs_dir": str(tmp_path), "eval_freq": 0}
    with start_run(resolve(f"{__name__}:Slow", values), lambda event: None) as session:
        assert session.config.value(PATH) >= 1.0


@pytest.mark.parametrize(
    ("value", "words"),
    [("0", "replay_ratio: 0 is not above 0"), ("often", "'often' is not a finite number; .*, or auto")],
)
def test_what_is_no_ratio_is_refused(value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve("Pendulum-v1", {"algo": "sac", "replay_ratio": value})


def test_a_branch_keeps_the_ratio_or_needs_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_costs(monkeypatch, 0.03, 0.011)
    flags = AUTO | {"timesteps": 32, "runs_dir": str(tmp_path), "eval_freq": 0}
    run = mg.train("Pendulum-v1", progress=False, **flags)
    ref = find_run(str(run.path), tmp_path)
    with branch_run(ref, {"timesteps": 64}, lambda event: None) as session:
        assert (session.config.value(PATH), session.config.value(NORM)) == (3.0, True)
    refused = pytest.raises(UsageError, match=r"replay_ratio=auto is for new runs; a branch keeps")
    changes = {"replay_ratio": "auto", "timesteps": 64}
    with refused, branch_run(ref, changes, lambda event: None):
        pass
