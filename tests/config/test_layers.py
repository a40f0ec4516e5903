from __future__ import annotations

from pathlib import Path

import pytest

from mission_gym.algorithms.ppo.section import PpoSection
from mission_gym.config.layers import apply_image_profile, format_config, read_presets
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError
from mission_gym.run.config import read_config, resolve, schema
from mission_gym.run.settle import open_new


def write(folder: Path, text: str) -> Path:
    path = folder / "my.yaml"
    path.write_text(text, "utf-8")
    return path


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    file = write(tmp_path, "vector: {n_envs: 3}\nppo: {n_steps: 30, gamma: 0.3, n_epochs: 3}")
    resolved = resolve(
        "CartPole-v1",
        {"n_envs": "1"},
        sets=["vector.n_envs=2", "ppo.n_steps=20"],
        config_file=file,
        preset="fast",
    )
    config, sources = resolved.config, resolved.sources
    assert (config.vector.n_envs, sources["vector.n_envs"]) == (1, "flag --n-envs")
    assert (config.algorithm.n_steps_per_env, sources["ppo.n_steps_per_env"]) == (20, "--set ppo.n_steps")
    assert (config.algorithm.gamma, sources["ppo.gamma"]) == (0.3, f"config {file}")
    assert (config.algorithm.batch_size, sources["ppo.batch_size"]) == (2048, "preset fast")
    assert (config.algorithm.gae_lambda, sources["ppo.gae_lambda"]) == (0.8, "settings CartPole-v1")
    assert (config.algorithm.max_grad_norm, sources["ppo.max_grad_norm"]) == (0.5, "default")
    explicit = {path for path in sources if resolved.explicit(path)}
    assert explicit == {"env.env_id", "vector.n_envs", "ppo.n_steps_per_env", "ppo.gamma", "ppo.n_epochs"}


def test_flags_name_their_negation_and_alias() -> None:
    assert resolve("Env-v0", {"total_timesteps": "20k"}).config.run.timesteps == 20_000
    sources = resolve("Env-v0", {"tensorboard": False, "n_steps": 64}).sources
    assert sources["run.tensorboard"] == "flag --no-tensorboard"
    assert sources["ppo.n_steps_per_env"] == "flag --n-steps"


def test_the_environment_may_come_from_set_or_file(tmp_path: Path) -> None:
    file = write(tmp_path, "env: {env_id: CartPole-v1}")
    assert resolve(None, {}, config_file=file).sources["ppo.gamma"] == "settings CartPole-v1"
    assert resolve(None, {}, sets=["env.env_id=Pendulum-v1"], config_file=file).config.algorithm.gamma == 0.9


def test_without_an_environment_the_capture_mission_is_meant() -> None:
    resolved = resolve(None, {}, preset="fast")
    assert resolved.config.env.env_id == "mission_gym/Capture-v0"
    assert resolved.sources["env.env_id"] == "default"
    assert resolved.sources["vector.vector"] == "settings mission_gym/Capture-v0"
    assert (resolved.config.vector.n_envs, resolved.config.rollout_size) == (16, 4096)


def test_all_problems_come_in_one_error(tmp_path: Path) -> None:
    file = write(tmp_path, "pop: {gamma: 1}\nppo: {gama: 1}\ngamma: 0.9\nvector: 5")
    with pytest.raises(ConfigError) as caught:
        resolve(
            None,
            {"n_env": 4, "n_steps": 1, "n_steps_per_env": 2, "seed": -1},
            sets=["gamma=0.9", "ppo.gamma", "run.notes=&a 1"],
            config_file=file,
            preset="fats",
        )
    assert caught.value.problems == [
        "'n_env' is not a known field (did you mean 'n_envs'?); correct the name [flag --n-env]",
        "ppo.n_steps_per_env is given twice; keep one [flag --n-steps; flag --n-steps-per-env]",
        "'ppo.gamma' has no value; write section.field=value, like ppo.gamma=0.98 [--set]",
        "this is not valid YAML: anchors and aliases such as 'a' are not read in line 1; correct it"
        " [--set run.notes]",
        "'gamma' is not a known field (did you mean 'ppo.gamma'?); correct the name [--set gamma]",
        "'pop' is not a section (did you mean 'ppo'?); the sections are env, vector, ppo, dqn, sac,"
        f" policy, compute, evaluation, checkpoints, run [config {file}]",
        "'gamma' is not a section; write the field below `ppo:`; the sections are env, vector, ppo, dqn,"
        f" sac, policy, compute, evaluation, checkpoints, run [config {file}]",
        f"section 'vector' holds 5; write its fields below it [config {file}]",
        f"'ppo.gama' is not a known field (did you mean 'ppo.gamma'?); correct the name [config {file}]",
        "preset 'fats' is unknown (did you mean 'fast'?); choose one of fast, heavy, beast, max-gpu, gpu,"
        " cpu, quick, develop, full, overnight [--preset]",
        "seed: -1 is not a whole number from 0 up; write it like 5000, 500k, 50M or 1e6 [flag --seed]",
    ]


def test_set_values_are_yaml() -> None:
    sets = [
        "policy.network_arch=[32, 16]",
        "ppo.target_kl=null",
        "ppo.learning_rate=1e-3",
        "run.stop_when=won>=0.8",
    ]
    config = resolve("Env-v0", {}, sets=sets).config
    assert config.policy.network_arch == (32, 16)
    assert config.algorithm.target_kl is None
    assert config.algorithm.learning_rate == 1e-3
    assert config.run.stop_when == "won>=0.8"


def test_the_same_set_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.gamma is given twice"):
        resolve("Env-v0", {}, sets=["ppo.gamma=0.9", "ppo.gamma=0.8"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ppo: !!python/object/apply:os.getcwd []",
            "only plain YAML values are read, and nothing in it was run",
        ),
        ("- ppo", "the file and its `sources:` must be mappings"),
        ("sources: 5", "the file and its `sources:` must be mappings"),
        ("ppo: [", "this is not valid YAML"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        resolve("Env-v0", {}, config_file=file)
    with pytest.raises(ConfigError, match=message):
        read_config(file)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="the file can't be read: No such file or directory; check the path"
    ):
        resolve("Env-v0", {}, config_file=tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"run: {notes: \xe9}")
    with pytest.raises(ConfigError, match="the file is not UTF-8 text"):
        resolve("Env-v0", {}, config_file=tmp_path / "latin.yaml")


def test_empty_files_and_sections_change_nothing(tmp_path: Path) -> None:
    assert resolve("Env-v0", {}, config_file=write(tmp_path, "")) == resolve("Env-v0", {})
    assert resolve("Env-v0", {}, config_file=write(tmp_path, "ppo:\n")) == resolve("Env-v0", {})


def test_a_written_config_reads_back_equal(tmp_path: Path) -> None:
    flags = {"env_kwargs": ["size=5", "text=é"], "learning_rate": 1e-5, "max_time": "5m", "n_steps": 64}
    resolved, _ = apply_rules(resolve("CartPole-v1", flags, preset="fast"))
    assert read_config(write(tmp_path, format_config(resolved))) == resolved


def test_a_written_config_is_valid_as_config_and_remembers_what_was_explicit(tmp_path: Path) -> None:
    first, _ = apply_rules(resolve("CartPole-v1", {"gamma": 0.9}))
    file = write(tmp_path, format_config(first))
    second = resolve(None, {}, config_file=file)
    assert second.config == first.config
    assert second.sources["ppo.gamma"] == f"flag --gamma via config {file}"
    assert {path for path in second.sources if second.explicit(path)} == {"env.env_id", "ppo.gamma"}

    third = resolve(None, {}, config_file=write(tmp_path, format_config(second)))
    assert third.sources == second.sources


def test_a_line_added_to_a_written_config_is_explicit(tmp_path: Path) -> None:
    file = write(
        tmp_path, "env: {env_id: Env-v0}\nppo: {gamma: 0.9, vf_coef: 0.5}\nsources: {ppo.vf_coef: default}"
    )
    resolved = resolve(None, {}, config_file=file)
    assert resolved.explicit("ppo.gamma")
    assert not resolved.explicit("ppo.vf_coef")


def test_a_preset_without_effect_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, format_config(resolve("Env-v0", {})))
    with pytest.raises(ConfigError, match="preset fast changes nothing: other options override all"):
        resolve(None, {}, config_file=file, preset="fast")


def test_with_values_replaces_and_checks() -> None:
    resolved = resolve("Env-v0", {})
    planned = resolved.with_values({"vector.n_envs": 32}, "plan")
    assert planned.config.vector.n_envs == 32
    assert planned.sources["vector.n_envs"] == "plan"
    assert not planned.explicit("vector.n_envs")
    assert resolved.config.vector.n_envs == 8
    with pytest.raises(ConfigError, match=r"n_envs: 0 is below 1; use 1 or more, or auto \[plan\]"):
        resolved.with_values({"vector.n_envs": 0}, "plan")


@pytest.mark.parametrize(
    ("name", "n_envs", "n_steps", "batch", "epochs", "arch"),
    [
        ("fast", 16, 256, 2048, 15, (512, 512)),
        ("heavy", 32, 256, 4096, 20, (1024, 512, 256)),
        ("beast", 64, 512, 8192, 30, (1024, 512, 512, 256)),
        ("max-gpu", 32, 256, 512, 30, (1024, 1024, 512, 256)),
        ("gpu", 8, 512, 256, 10, (256, 256)),
        ("cpu", 1, 256, 64, 4, (128, 128)),
    ],
)
def test_presets_of_sizes(
    name: str, n_envs: int, n_steps: int, batch: int, epochs: int, arch: tuple[int, ...]
) -> None:
    resolved, notes = apply_rules(resolve("Env-v0", {"timesteps": 1 << 20}, preset=name))
    config = resolved.config
    assert (config.vector.n_envs, config.algorithm.n_steps_per_env, config.algorithm.batch_size) == (
        n_envs,
        n_steps,
        batch,
    )
    assert (config.algorithm.n_epochs, config.policy.network_arch) == (epochs, arch)
    assert config.algorithm.target_kl == (0.03 if epochs >= 15 else None)
    assert notes == []


@pytest.mark.parametrize(
    ("name", "n_envs", "timesteps"),
    [("quick", 4, 10_000), ("develop", 8, 100_000), ("full", 12, 900_000), ("overnight", 16, 5_000_000)],
)
def test_presets_of_length(name: str, n_envs: int, timesteps: int) -> None:
    config = resolve("CartPole-v1", {}, preset=name).config
    assert (config.vector.n_envs, config.run.timesteps, config.algorithm.batch_size) == (
        n_envs,
        timesteps,
        None,
    )


def test_every_preset_fits_every_shipped_environment() -> None:
    for env_id in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "Pendulum-v1", "MountainCar-v0"):
        for preset in (None, *read_presets()):
            apply_rules(resolve(env_id, {}, preset=preset))


@pytest.mark.parametrize(
    ("env_id", "rollout"),
    [
        ("CartPole-v1", 256),
        ("Acrobot-v1", 4096),
        ("LunarLander-v3", 16384),
        ("Pendulum-v1", 4096),
        ("MountainCar-v0", 256),
    ],
)
def test_shipped_settings_fix_sizes_and_normalisation(env_id: str, rollout: int) -> None:
    resolved = resolve(env_id, {})
    assert resolved.config.rollout_size == rollout
    for path in ("vector.n_envs", "ppo.batch_size", "policy.normalize_obs", "policy.normalize_returns"):
        assert resolved.sources[path] == f"settings {env_id}"


UNMEASURED = "RL Zoo's value, unmeasured"


@pytest.mark.parametrize(
    ("env_id", "source"),
    [
        ("ALE/Pong-v5", f"settings ALE/* ({UNMEASURED})"),
        ("ale_py:ALE/Pong-v5", f"settings ALE/* ({UNMEASURED})"),
        ("MiniGrid-DoorKey-5x5-v0", "settings MiniGrid-* (RL Zoo's value, measured on DoorKey-5x5 alone)"),
        ("BabyAI-GoToRedBall-v0", "settings BabyAI-* (measured on GoToRedBall alone)"),
        ("minigrid:MiniGrid-FourRooms-v0", f"settings MiniGrid-FourRooms-* ({UNMEASURED})"),
        ("gymnasium.envs.classic_control:CartPole-v1", "settings CartPole-v1"),
        ("gymnasium_robotics:FetchReach-v4", "default"),
        ("ALE", "default"),
        ("my_module:make_MiniGrid", "default"),
    ],
)
def test_settings_are_found_by_pattern_and_behind_a_module(env_id: str, source: str) -> None:
    resolved = resolve(env_id, {})
    assert resolved.sources["ppo.n_epochs"] == source
    assert resolved.sources["ppo.max_grad_norm"] == "default"
    apply_rules(resolved.with_values({"vector.n_envs": 8}, "plan"))


def test_a_callable_has_settings_under_its_whole_name() -> None:
    resolved = resolve("mpe2.simple_spread_v3:parallel_env", {"n_steps": 32})
    assert resolved.sources["ppo.gamma"] == "settings mpe2.simple_spread_v3:parallel_env"
    assert resolve("other.simple_v3:parallel_env", {}).sources["ppo.gamma"] == "default"


def test_the_origin_of_settings_is_that_of_the_algorithm() -> None:
    unmeasured = "settings Hopper-v5 (RL Zoo's value, unmeasured)"
    assert resolve("Hopper-v5", {"algo": "sac"}).sources["sac.tau"] == unmeasured
    assert resolve("Hopper-v5", {}).sources["ppo.gamma"] == "settings Hopper-v5"
    assert resolve("Ant-v5", {}).sources["ppo.gamma"] == "settings Ant-v5 (RL Zoo's value, unmeasured)"


def test_an_exact_id_beats_patterns_and_the_longest_pattern_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name: {"n_epochs": number} for number, name in enumerate(NAMES, start=1)}
    monkeypatch.setattr("mission_gym.config.layers.read_settings", lambda: rows)
    for env_id, key in {
        "Hopper-v5": "Hopper-v5",
        "gymnasium:Hopper-v5": "Hopper-v5",
        "own:Hopper-v5": "own:Hopper-v5",  # as it was written comes first
        "Hopper-v4": "Hopper-*",
        "Hop-v0": "H*",
        "Walker2d-v5": None,
    }.items():
        resolved = resolve(env_id, {})
        assert resolved.sources["ppo.n_epochs"] == (f"settings {key}" if key else "default")
        assert not key or resolved.config.value("ppo.n_epochs") == rows[key]["n_epochs"]


NAMES = ("H*", "Hopper-v5", "Hopper-*", "own:Hopper-v5", "Hopper-v5x*")


def test_a_name_means_the_field_of_the_chosen_algorithm(tmp_path: Path) -> None:
    flags = {"gamma": 0.9, "n_steps": 2}
    ppo = resolve("Env-v0", flags).config
    assert (ppo.algorithm.gamma, ppo.algorithm.n_steps_per_env) == (0.9, 2)
    file = write(tmp_path, "run: {algo: dqn}")
    for resolved in (
        resolve("Env-v0", flags | {"algo": "dqn"}),
        resolve("Env-v0", flags, sets=["run.algo=dqn"]),
        resolve("Env-v0", flags, config_file=file),
    ):
        config = resolved.config
        assert (config.algorithm.gamma, config.algorithm.n_steps_per_env) == (0.9, 2)
        assert type(config.algorithm) is schema().algorithms["dqn"]
        assert config.rollout_size == 2 * config.vector.n_envs
        assert resolved.sources["dqn.gamma"] == "flag --gamma"


def test_presets_and_settings_have_rows_for_an_algorithm() -> None:
    config = resolve("Env-v0", {"algo": "dqn"}, preset="gpu").config
    assert (config.vector.n_envs, config.algorithm.replay_size, config.algorithm.batch_size) == (
        8,
        50_000,
        128,
    )
    assert config.policy.network_arch == (256, 256, 256)
    config = resolve("Env-v0", {"algo": "dqn"}, preset="cpu").config
    assert (config.vector.n_envs, config.algorithm.replay_size, config.algorithm.batch_size) == (
        1,
        10_000,
        32,
    )
    assert config.policy.network_arch == (128, 128)
    settings = resolve("MountainCar-v0", {"algo": "dqn"})
    assert settings.sources["dqn.learning_rate"] == "settings MountainCar-v0"
    assert not [path for path in settings.sources if path.startswith("ppo.")]
    shared = resolve("Env-v0", {"algo": "dqn"}, preset="fast")  # has rows of ppo, and none of dqn
    assert (shared.config.vector.n_envs, shared.sources["vector.n_envs"]) == (16, "preset fast")
    assert (shared.config.algorithm.batch_size, shared.sources["dqn.batch_size"]) == (64, "default")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_an_algorithm_s_profile_fills_what_nothing_else_chose_on_every_device(device: str) -> None:
    resolved = resolve("Env-v0", {"algo": "dqn", "device": device})
    config = resolved.config
    sizes = (config.vector.n_envs, config.policy.network_arch, config.policy.activation)
    assert sizes == (8, (128, 128), "relu")
    assert resolved.sources["vector.n_envs"] == "profile of dqn: measured, see its page"
    given = resolve("Env-v0", {"algo": "dqn", "n_envs": 3}, sets=["policy.activation=elu"])
    assert (given.config.vector.n_envs, given.config.policy.activation) == (3, "elu")
    assert given.config.policy.network_arch == (128, 128)


def test_images_have_their_own_profile() -> None:
    plain, given = resolve("Env-v0", {}), resolve("Env-v0", {"n_epochs": 7})
    seen = apply_image_profile(plain)
    assert {path: seen.config.value(path) for path in PpoSection.IMAGE_PROFILE} == PpoSection.IMAGE_PROFILE
    assert seen.sources["ppo.n_epochs"] == "profile of ppo for images: measured, see its page"
    assert apply_image_profile(given) is given
    dqn = resolve("Env-v0", {"algo": "dqn"})
    assert apply_image_profile(dqn) is dqn
    _, opened, *_ = open_new(resolve("mission_gym_bench.environments:CatchPlanes", {}))
    assert opened.config.value("ppo.n_epochs") == 4


def test_arguments_of_python_are_told_as_such() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("CartPole-v1", {"backend": "threads", "num_envs": 4, "n_env": 4}, from_python=True)
    assert caught.value.problems == [
        "'backend' is not a known field (did you mean 'vector'?); correct the name [argument backend]",
        "'num_envs' is not a known field (did you mean 'n_envs'?); correct the name [argument num_envs]",
        "'n_env' is not a known field (did you mean 'n_envs'?); correct the name [argument n_env]",
    ]
    resolved = resolve("CartPole-v1", {"n_envs": 4, "tensorboard": False}, from_python=True)
    assert resolved.sources["vector.n_envs"] == "argument n_envs"
    assert resolved.sources["run.tensorboard"] == "argument tensorboard"
    assert resolved.explicit("vector.n_envs")
    assert resolved.typed("env.env_id")


def test_flags_of_a_file_are_explicit_and_not_typed() -> None:
    """As `jobs run` hands them to its runs."""
    file = Path("q.yaml")
    resolved = resolve("toys:Identity", {"gamma": 0.9}, sets=["ppo.n_epochs=3"], via=file)
    assert resolved.sources["env.env_id"] == "flag ENV via config q.yaml"
    for path in ("env.env_id", "ppo.gamma", "ppo.n_epochs"):
        assert resolved.explicit(path)
        assert not resolved.typed(path)
    with pytest.raises(ConfigError, match=r"\[flag --gamma via config q\.yaml\]"):
        resolve(None, {"gamma": 7}, via=file)
