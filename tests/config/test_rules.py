from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mission_gym.config.layers import format_config
from mission_gym.config.rules import RunFacts, apply_rules, find_unused
from mission_gym.errors import ConfigError
from mission_gym.run.config import resolve
from mission_gym.vector.backends import load_backend


def test_autos_become_numbers() -> None:
    resolved, notes = apply_rules(resolve("Env-v0", {"timesteps": "10M", "n_envs": 16, "n_steps": 625}))
    config = resolved.config
    assert config.algorithm.batch_size == 250
    assert config.evaluation.eval_freq == 200_000
    assert config.checkpoints.checkpoint_freq == 500_000
    assert config.run.log_interval == 1
    assert resolved.sources["ppo.batch_size"] == "default"
    assert notes == []


@pytest.mark.parametrize(
    ("n_envs", "n_steps", "batch"),
    [(1, 48, 48), (1, 256, 64), (8, 128, 64), (16, 128, 64), (32, 128, 128), (64, 512, 1024), (1, 997, 997)],
)
def test_the_default_batch_is_64_and_a_thirty_second_of_larger_rollouts(
    n_envs: int, n_steps: int, batch: int
) -> None:
    flags = {"timesteps": "1M", "n_envs": n_envs, "n_steps_per_env": n_steps}
    for device in ("cpu", "auto"):
        config = apply_rules(resolve("Env-v0", flags | {"device": device}))[0].config
        assert config.algorithm.batch_size == batch


@pytest.mark.parametrize(("n_envs", "n_steps", "batch"), [(16, 128, 512), (32, 256, 2048), (1, 48, 48)])
def test_an_auto_batch_is_a_quarter_of_the_rollout(n_envs: int, n_steps: int, batch: int) -> None:
    flags = {"timesteps": "1M", "n_envs": n_envs, "n_steps_per_env": n_steps, "batch_size": "auto"}
    assert apply_rules(resolve("Env-v0", flags))[0].config.algorithm.batch_size == batch


@pytest.mark.parametrize(
    ("timesteps", "eval_freq"), [(2048, 409), (61_440, 12_288), (512_000, 20_000), (2_048_000, 40_960)]
)
def test_short_runs_are_evaluated_five_times_and_long_ones_fifty_times(
    timesteps: int, eval_freq: int
) -> None:
    config = apply_rules(resolve("Env-v0", {"timesteps": timesteps}))[0].config
    assert config.evaluation.eval_freq == eval_freq


def test_short_runs_keep_the_minimum_between_checkpoints() -> None:
    config = apply_rules(resolve("Env-v0", {"timesteps": 2048}))[0].config
    assert config.checkpoints.checkpoint_freq == 20_000


def test_log_interval_holds_rows_at_a_thousand() -> None:
    config = apply_rules(resolve("Env-v0", {"timesteps": 256 * 2001, "n_envs": 2}))[0].config
    assert config.run.log_interval == 3


def test_given_values_are_kept() -> None:
    flags = {"timesteps": 4096, "batch_size": 32, "eval_freq": 0, "checkpoint_freq": 5, "log_interval": 2}
    resolved = resolve("Env-v0", flags)
    assert apply_rules(resolved) == (resolved, [])


def test_timesteps_are_rounded_up_aloud() -> None:
    resolved, notes = apply_rules(resolve("Env-v0", {"timesteps": 100_000}))
    assert resolved.config.run.timesteps == 100_352
    assert resolved.sources["run.timesteps"] == "flag --timesteps, rounded up"
    assert resolved.explicit("run.timesteps")
    assert notes == ["timesteps 100000 rounded up to 100352: 98 rollouts of 1024"]


@pytest.mark.parametrize(
    ("timesteps", "ways"),
    [
        (1000, "use timesteps=1024 or n_steps_per_env=125 or n_envs=7"),
        (100, "use timesteps=1024 or n_steps_per_env=12"),
        (5, "use timesteps=1024"),
    ],
)
def test_less_than_a_rollout_is_refused_with_what_is_possible(timesteps: int, ways: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_rules(resolve("Env-v0", {"timesteps": timesteps}))
    assert str(caught.value) == (
        f"timesteps={timesteps} is below one rollout of 1024 (8 envs x 128 steps); a run needs at least one;"
        f" {ways} [flag --timesteps]"
    )


def test_an_explicit_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_rules(resolve("Env-v0", {"batch_size": 1000, "n_envs": 32, "n_steps": 256}))
    assert str(caught.value) == (
        "batch_size=1000 does not divide the rollout of 8192 (32 envs x 256 steps); use 512, 1024 or auto"
        " [flag --batch-size]"
    )


def test_a_batch_of_a_preset_is_adapted_aloud() -> None:
    resolved, notes = apply_rules(resolve("Env-v0", {"n_envs": 17, "timesteps": 4352}, preset="fast"))
    assert resolved.config.algorithm.batch_size == 2176
    assert resolved.sources["ppo.batch_size"] == "preset fast, adapted"
    assert notes == [
        "batch_size=2048 does not divide the rollout of 4352 (17 envs x 256 steps); 2176 is used"
        " [preset fast]"
    ]


def test_a_resolved_batch_of_a_run_is_adapted_when_its_config_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(format_config(apply_rules(resolve("Env-v0", {}))[0]))
    resolved, notes = apply_rules(resolve(None, {"n_envs": 3, "n_steps_per_env": 50}, config_file=file))
    assert resolved.config.algorithm.batch_size == 75
    assert len(notes) == 2


def test_a_rising_schedule_is_refused_if_explicit_and_else_adapted() -> None:
    with pytest.raises(
        ConfigError,
        match=r"learning_rate_final=0\.1 is above learning_rate=0\.0003, and schedules can only decrease",
    ):
        apply_rules(resolve("Env-v0", {"learning_rate_final": 0.1}))
    rising = resolve("Env-v0", {"timesteps": 1024}).with_values({"ppo.ent_coef_final": 0.1}, "preset x")
    resolved, notes = apply_rules(rising)
    assert resolved.config.algorithm.ent_coef_final is None
    assert notes == [
        "ent_coef_final=0.1 is above ent_coef=0.0, and schedules can only decrease; ent_coef stays constant"
        " [preset x]"
    ]
    apply_rules(resolve("Env-v0", {"learning_rate": 1e-3, "learning_rate_final": 1e-3}))


def test_problems_of_several_rules_come_together() -> None:
    with pytest.raises(ConfigError) as caught:
        apply_rules(resolve("Env-v0", {"timesteps": 10, "batch_size": 1000, "clip_range_final": 0.5}))
    assert len(caught.value.problems) == 3


@given(st.integers(1, 64), st.integers(1, 300), st.integers(1, 10**7), st.sampled_from(["auto", 64, 2048]))
def test_finish_is_total_and_stable(n_envs: int, n_steps: int, timesteps: int, batch: Any) -> None:
    rollout = n_envs * n_steps
    flags = {"n_envs": n_envs, "n_steps": n_steps, "timesteps": max(timesteps, rollout)}
    resolved, _ = apply_rules(resolve("Env-v0", flags).with_values({"ppo.batch_size": batch}, "preset x"))
    config = resolved.config
    assert config.run.timesteps % rollout == 0
    assert config.run.timesteps - rollout < max(timesteps, rollout) <= config.run.timesteps
    assert rollout % int(config.algorithm.batch_size) == 0
    assert config.run.timesteps / rollout / int(config.run.log_interval) <= 1000
    assert apply_rules(resolved) == (resolved, [])


def unused(
    flags: dict[str, Any], *, vectors: bool = True, box: bool = True, torch: bool = False
) -> list[str]:
    backend = load_backend(flags.get("vector", "serial"))
    resolved = resolve("Env-v0", flags)
    facts = RunFacts(resolved.config, backend, vectors, box, torch, has_sequences=False)
    return find_unused(resolved, facts)


def test_the_length_of_sequences_needs_a_sequence() -> None:
    assert unused({"max_sequence": 8}) == [
        "max_sequence=8 is not used: no observation is a Sequence; remove it [flag --max-sequence]"
    ]


def test_first_ready_blocks_need_environments_that_step_on_their_own() -> None:
    for vector in ("serial", "batched"):
        assert unused({"vector": vector, "blocks": "first_ready"}) == [
            "blocks=first_ready is not used: environments in this process are stepped together; use --vector"
            " workers or threads, or remove it [flag --blocks]"
        ]
    assert unused({"vector": "workers", "blocks": "first_ready"}, torch=True) == [
        "blocks=first_ready is not used: torch acts for all environments at once; use --acting numpy with a"
        " plain MLP, or remove it [flag --blocks]"
    ]
    assert unused({"vector": "threads", "blocks": "first_ready"}) == []
    assert unused({"vector": "serial", "blocks": "all"}, torch=True) == []


def test_what_a_given_network_replaces_is_unused() -> None:
    assert unused({"network": "nets:make", "activation": "relu", "network_arch": "32,16"}) == [
        "network_arch=32,16 is not used: --network sets the network; remove one [flag --network-arch]",
        "activation=relu is not used: --network sets the network; remove one [flag --activation]",
    ]


def test_what_needs_evaluations_is_unused_without_them() -> None:
    flags = {"eval_freq": 0, "eval_episodes": 5, "keep_best": 1, "stop_when": "return>=1"}
    reason = "is not used: --eval-freq 0 disables evaluations; remove one"
    assert unused(flags) == [
        f"eval_episodes=5 {reason} [flag --eval-episodes]",
        f"keep_best=1 {reason} [flag --keep-best]",
        f"stop_when=return>=1 {reason} [flag --stop-when]",
    ]


def test_what_the_spaces_do_not_have_is_unused() -> None:
    assert unused({"normalize_obs": True}, vectors=False) == [
        "normalize_obs=True is not used: no observation is a vector of real numbers; remove it"
        " [flag --normalize-obs]"
    ]
    assert unused({"log_std_init": -1}, box=False) == [
        "log_std_init=-1.0 is not used: the actions are not continuous; remove it [flag --log-std-init]"
    ]


def test_what_is_used_or_not_explicit_or_asks_for_nothing_is_fine() -> None:
    assert unused({"activation": "relu", "eval_episodes": 5, "normalize_obs": True, "log_std_init": -1}) == []
    assert unused({"network": "nets:make", "eval_freq": 0}, vectors=False, box=False) == []
    assert (
        unused({"eval_freq": 0, "keep_best": 0, "stop_when": None, "normalize_obs": False}, vectors=False)
        == []
    )
