"""Plans made, kept and applied; what is given is never changed, and a resume never plans."""

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg
from mission_gym.config.rules import apply_rules
from mission_gym.errors import ConfigError, UsageError
from mission_gym.plan.cache import make_plan_key, read_plan, write_plan
from mission_gym.plan.facts import EnvFacts, RunLayout, UpdateCost
from mission_gym.plan.memory import check_memory
from mission_gym.plan.setups import LearnerSetup, list_threaded
from mission_gym.plan.summary import judge_preset
from mission_gym.plan.tuner import make_plan_input, tune_run
from mission_gym.run.branch import branch_run
from mission_gym.run.config import read_config, resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.preview import advise
from mission_gym.run.resume import resume_run
from mission_gym.run.settle import make_builder
from mission_gym.run.start import start_run
from mission_gym.store.files import read_json
from mission_gym.store.resolve import find_run
from mission_gym.store.rundir import RunDir
from mission_gym.vector.backends import load_backend, load_rivals
from toys import Identity

TOY = "toys:Identity"
ENTRY: dict[str, Any] = {
    "layout": {"backend": "serial", "num_workers": 1, "n_envs": 4, "n_steps_per_env": 256},
    "update": {"device": "cpu", "kernel": "compiled", "threads": 1, "step_s": 1e-5},
    "values": {
        "vector.n_envs": 4,
        "ppo.n_steps_per_env": 256,
        "vector.vector": "serial",
        "compute.threads": 1,
    },
    "steps_per_s": 1000.0,  # so that a run of a million steps is long
    "memory_bytes": 1,
    "reasons": ["because it was written here"],
    "changes": ["n_envs 8 -> 4"],
    "scaling": [],
    "measured": {"env": {"step_s": 1e-5}},
    "budget_s": 30.0,
    "spent_s": 1.0,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(flags: dict[str, Any], env_id: str = TOY, preset: str | None = None) -> Any:
    resolved = resolve(env_id, flags, preset=preset)
    first, _ = apply_rules(resolved)
    builder = make_builder(open_environment(first.config, {}), first)
    return resolved, builder.settle(first), builder


def keep(flags: dict[str, Any], **changes: Any) -> str:
    resolved, _, builder = opened(flags)
    key = make_plan_key(resolved, builder.spec)
    write_plan(key, ENTRY | changes)
    return key


@pytest.mark.parametrize(
    ("flags", "env_id", "open_envs", "open_steps", "backends"),
    [
        ({}, TOY, True, True, ("serial", "workers")),
        ({"n_envs": 4}, TOY, False, True, ("serial", "workers")),
        ({"n_envs": "auto", "n_steps_per_env": 16}, TOY, True, False, ("serial", "workers")),
        ({"vector": "workers", "num_workers": 2}, TOY, True, True, ("workers",)),
        ({}, "CartPole-v1", False, True, ("serial", "workers")),  # shipped settings fix the sizes
        ({"n_envs": "auto"}, "CartPole-v1", True, True, ("serial", "workers")),
    ],
)
def test_only_what_is_open_may_be_chosen(
    flags: dict[str, Any], env_id: str, open_envs: bool, open_steps: bool, backends: tuple[str, ...]
) -> None:
    resolved, default, builder = opened(flags, env_id)
    inputs = make_plan_input(builder, resolved, default)
    assert (inputs.open_envs, inputs.open_steps) == (open_envs, open_steps)
    assert tuple(each.name for each in inputs.backends) == backends
    assert inputs.open_workers == ("num_workers" not in flags)


def test_a_preset_fixes_the_environments() -> None:
    resolved, default, builder = opened({}, preset="quick")
    inputs = make_plan_input(builder, resolved, default)
    assert not inputs.open_envs
    assert inputs.default == RunLayout(load_backend("serial"), 1, 4, 128)


@pytest.mark.parametrize(
    ("preset", "cores", "words"),
    [
        ("beast", 16, ""),
        ("beast", 8, "made for about 16 cores, and 8 are usable: at the measured 250 steps/s, 900,000 steps"
         " take about 60 min; a smaller choice is --preset heavy, or no preset: about 9,000 steps/s"),
        ("heavy", 2, "made for about 8 cores, and 2 are usable: at the measured 250 steps/s, 900,000 steps"
         " take about 60 min; a smaller choice is --preset fast, or no preset: about 9,000 steps/s"),
        ("fast", 1, ""),
        (None, 1, ""),
    ],
)  # fmt: skip
def test_a_preset_made_for_more_cores_says_what_it_costs(preset: str | None, cores: int, words: str) -> None:
    notes = judge_preset(preset, 900_000, 250.0, cores, lambda: 9000.0)
    assert notes == ([f"preset {preset} is {words}"] if words else [])


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (1024, "1 minibatches x 1 epochs = 1 gradient steps per update; a batch is the whole rollout;"
         " --batch-size auto: 256"),
        ("auto", "4 minibatches x 1 epochs = 4 gradient steps per update"),
        (None, "16 minibatches x 1 epochs = 16 gradient steps per update; --batch-size auto: 256"),
    ],
)  # fmt: skip
def test_the_plan_compares_the_batch_with_a_quarter(
    batch: int | str | None, reason: str, tmp_path: Path
) -> None:
    flags = {"n_envs": 8, "n_epochs": 1, "timesteps": 1024, "runs_dir": str(tmp_path), "batch_size": batch}
    events: list[dict[str, Any]] = []
    with start_run(resolve(TOY, flags), events.append):
        pass
    (plan,) = [event for event in events if event["event"] == "plan"]
    (row,) = [fact for fact in plan["time/plan"]["facts"] if fact["name"] == "batch"]
    assert row["reason"] == reason


def test_a_run_says_which_preset_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mission_gym.run.start.usable_cores", lambda: 2)
    flags = {
        "n_epochs": 1,
        "timesteps": 8192,
        "network_arch": "8",
        "runs_dir": str(tmp_path),
        "device": "cpu",
    }
    events: list[dict[str, Any]] = []
    with start_run(resolve(TOY, flags, preset="heavy"), events.append):
        pass
    (plan,) = [event for event in events if event["event"] == "plan"]
    (note,) = [
        note for note in plan["time/plan"]["notes"] if "preset heavy is made for about 8 cores" in note
    ]
    assert "or no preset: about" in note


def test_setups_start_with_the_default() -> None:
    small = {"n_steps_per_env": 64, "batch_size": 64}  # one thread by the fixed rules
    resolved, default, builder = opened({"device": "cpu", "precision": "float32"} | small)
    setups = list(list_threaded(resolved.config, default, builder.algorithm, builder.spec, 8))
    assert setups == [(LearnerSetup("cpu", "compiled", "float32"), threads) for threads in (1, 4, 8)]
    given, default, _ = opened({"kernel": "torch", "threads": 2, "device": "cpu", "precision": "float32"})
    setups = list(list_threaded(given.config, default, builder.algorithm, builder.spec, 8))
    assert setups == [(LearnerSetup("cpu", "torch", "float32"), 2)]


def test_dqn_is_planned_from_its_profile_and_with_its_replay() -> None:
    flags = {"algo": "dqn", "device": "cpu"}
    resolved, default, builder = opened(flags)
    assert resolved.sources["vector.n_envs"].startswith("profile of dqn")
    inputs = make_plan_input(builder, resolved, default)
    assert (inputs.open_envs, inputs.open_steps, inputs.default) == (
        True,
        True,
        RunLayout(load_backend("serial"), 1, 8, 4),
    )
    assert (inputs.min_steps, inputs.batch_size) == (1, None)
    resolved, default, builder = opened(flags | {"replay_size": 3_000_000, "n_envs": 2})
    larger = make_plan_input(builder, resolved, default)
    assert larger.base_bytes - inputs.base_bytes > 50e6
    assert not larger.open_envs
    setups = list(list_threaded(resolved.config, default, builder.algorithm, builder.spec, 8))
    assert setups == [
        (LearnerSetup("cpu", kernel, "float32"), threads)
        for kernel, threads in (("compiled", 1), ("torch", 4), ("torch", 8))
    ]
    noisy, default, _ = opened(flags | {"exploration": "noisy"})
    found = list_threaded(noisy.config, default, builder.algorithm, builder.spec, 2)
    assert {setup.kernel for setup, _ in found} == {"torch"}


def test_a_kept_plan_of_dqn_is_applied(tmp_path: Path) -> None:
    flags = {"algo": "dqn", "timesteps": 1_000_000, "learning_starts": 8}
    values = {"vector.n_envs": 2, "dqn.n_steps_per_env": 2, "vector.vector": "serial", "compute.threads": 1}
    keep(flags, values=values, layout=ENTRY["layout"] | {"n_envs": 2, "n_steps_per_env": 2})
    resolved = read_config(first_update(flags, tmp_path).config_yaml)
    assert (resolved.config.vector.n_envs, resolved.config.algorithm.n_steps_per_env) == (2, 2)
    assert resolved.sources["vector.n_envs"] == resolved.sources["dqn.n_steps_per_env"] == "plan"
    assert resolved.sources["policy.activation"].startswith("profile of dqn")  # a plan does not choose it


def find_at_once(flags: dict[str, Any]) -> set[tuple[str, str, int]]:
    """Backends, devices and numbers of workers with which collecting and learning run side by side."""
    resolved, default, builder = opened(flags)
    inputs, rivals = make_plan_input(builder, resolved, default), load_rivals(builder.spec)
    return {
        (backend.name, device, num_workers)
        for backend, device, num_workers in product(rivals, ("cpu", "cuda"), (2, 3))
        if inputs.overlaps(RunLayout(backend, num_workers, 8, 128), UpdateCost(device, "torch", 1, 1e-3))
    }


def test_phases_run_at_once_where_the_rules_of_overlap_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mission_gym.plan.setups.usable_cores", lambda: 3)
    chosen = find_at_once({})
    assert {("threads", "cpu", 2), ("workers", "cuda", 3)} <= chosen
    assert ("workers", "cpu", 2) not in chosen
    assert not find_at_once({"overlap": "off"})
    dqn = find_at_once({"algo": "dqn", "device": "cpu"})
    assert ("workers", "cpu", 2) in dqn
    assert ("workers", "cpu", 3) not in dqn  # no core is left to the learner


@pytest.mark.parametrize("flags", [{"timesteps": 2048}, {"tune": False}])
def test_short_runs_and_no_tune_follow_the_fixed_rules(flags: dict[str, Any]) -> None:
    resolved, _, builder = opened(flags)
    tuned = tune_run(builder, resolved, pytest.fail)
    assert tuned.entry is None
    assert tuned.resolved == resolved


def test_auto_in_a_short_run_is_said_aloud() -> None:
    resolved, _, builder = opened({"n_envs": "auto", "timesteps": 4096})
    tuned = tune_run(builder, resolved, pytest.fail)
    assert tuned.resolved.config.vector.n_envs == 8
    assert tuned.notes == ("n_envs=auto: the run is too short for a measurement, 8 are used",)


def test_auto_without_tuning_is_refused() -> None:
    resolved, _, builder = opened({"n_envs": "auto", "tune": False})
    with pytest.raises(ConfigError, match=r"n_envs=auto needs a plan, and --no-tune disables it"):
        tune_run(builder, resolved, pytest.fail)


def first_update(flags: dict[str, Any], folder: Path) -> RunDir:
    resolved = resolve(TOY, flags | {"runs_dir": str(folder), "tensorboard": False, "eval_freq": 0})
    with start_run(resolved, lambda event: None) as session:
        for _ in session.updates():
            session.stop.reason = "enough"
    return session.run


@pytest.mark.parametrize(("others", "threads"), [(0.0, 2), (1.5, 1)])
def test_threads_of_a_kept_plan_are_left_out_on_a_busy_machine(
    others: float, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable limits them to one in tests, so the rule gives one."""
    monkeypatch.setattr("mission_gym.plan.tuner.measure_others", lambda: others)
    keep({}, values=ENTRY["values"] | {"compute.threads": 2})
    run = first_update({}, tmp_path)
    assert read_config(run.config_yaml).config.compute.threads == threads


def test_a_kept_plan_is_applied_stored_and_left_alone_by_resume(tmp_path: Path) -> None:
    key = keep({})
    run = first_update({}, tmp_path)
    resolved = read_config(run.config_yaml)
    assert (resolved.config.vector.n_envs, resolved.config.algorithm.n_steps_per_env) == (4, 256)
    assert resolved.sources["vector.n_envs"] == resolved.sources["vector.vector"] == "plan"
    plan = read_json(run.plan_json)
    assert plan["tuning"]["values"] == ENTRY["values"]
    assert plan["predicted_fps"] == run.read_status()["predicted_fps"] == 1000.0
    assert "because it was written here" in [fact["reason"] for fact in plan["facts"]]
    write_plan(key, ENTRY | {"values": {"vector.n_envs": 2}})
    before = run.config_yaml.read_text()
    with resume_run(run, lambda event: None) as session:
        assert session.config.vector.n_envs == 4
    assert run.config_yaml.read_text() == before


def test_equal_runs_get_equal_plans_and_equal_weights(tmp_path: Path) -> None:
    keep({})
    runs = [first_update({}, tmp_path) for _ in range(2)]
    policies = [sorted(run.checkpoints.glob("*/policy.safetensors"))[-1].read_bytes() for run in runs]
    assert policies[0] == policies[1]


def test_what_is_given_is_not_overwritten(tmp_path: Path) -> None:
    flags = {"n_envs": 2}
    keep(flags, values={"vector.n_envs": 2, "ppo.n_steps_per_env": 128, "vector.vector": "serial"})
    resolved = read_config(first_update(flags, tmp_path).config_yaml)
    assert resolved.sources["vector.n_envs"] == "flag --n-envs"
    assert resolved.sources["ppo.n_steps_per_env"] == "default"


def test_a_plan_that_missed_is_measured_again_with_the_old_choice_in_hand() -> None:
    key = keep({"num_workers": 1, "vector": "workers"}, missed=True, steps_per_s=25_000.0)
    resolved, _, builder = opened({"num_workers": 1, "vector": "workers"})
    said: list[str] = []
    tuned = tune_run(builder, resolved, said.append)
    assert said[0] == "the last run missed its plan by over 15 %; measuring again"
    assert tuned.entry is not None
    assert "missed" not in tuned.entry
    assert read_plan(key) == tuned.entry
    layout = RunLayout(**tuned.entry["layout"] | {"backend": builder.backend})
    assert layout.rollout == 1024
    assert layout.n_steps_per_env >= 17
    config = tuned.resolved.config
    assert (config.vector.n_envs, config.vector.num_workers) == (layout.n_envs, 1)


def test_a_plan_for_a_device_that_is_gone_is_measured_again() -> None:
    values = ENTRY["values"] | {"compute.device": "cuda"}
    key = keep({"num_workers": 1}, values=values, steps_per_s=25_000.0)
    resolved, _, builder = opened({"num_workers": 1})
    said: list[str] = []
    tuned = tune_run(builder, resolved, said.append)
    assert said[0] == "the cached plan is for cuda, which is not available; measuring again"
    assert tuned.entry is not None
    assert tuned.entry["values"]["compute.device"] == "cpu"
    assert read_plan(key) == tuned.entry


def test_an_environment_that_fails_while_timed_trains_without_a_plan() -> None:
    flags = {"env_kwargs": {"fail": "raise", "at": 1}, "timesteps": 10_000_000}
    resolved = resolve("toys:Faulty", flags | {"vector": "workers"})
    environment = open_environment(resolved.config, dict(resolved.config.env.env_kwargs))
    builder = make_builder(environment, resolved)
    key = make_plan_key(resolved, builder.spec)
    write_plan(key, {"steps_per_s": 1000.0})
    tuned = tune_run(builder, resolved, lambda message: None)
    assert tuned.entry is None
    assert tuned.notes[0].startswith("not tuned: environment 0, seed 0, episode 0, step 0: step() raised")
    with pytest.raises(Exception, match="the simulator fell over"):
        advise(resolved, 2.0, lambda message: None)


class Dying(Identity):
    """Ends its process at the first step."""

    def step(self, action: Any) -> Any:
        os._exit(7)


@pytest.mark.parametrize(("kind", "measured"), [(Identity, True), (Dying, False)])
def test_a_look_that_fails_refuses_nothing(kind: type[Identity], measured: bool) -> None:
    config = resolve("<toy>", {"vector": "workers"}).config
    environment = open_environment(config, {}, kind, measure_s=0.01)
    assert environment.spec.action.nvec == (4,)
    assert (environment.pace is not None) == measured


def test_auto_is_for_new_runs(tmp_path: Path) -> None:
    run = mg.train(
        TOY, progress=False, runs_dir=str(tmp_path), timesteps=64, n_envs=4, n_steps_per_env=16,
    )  # fmt: skip
    ref = find_run(str(run.path), tmp_path)
    refused = pytest.raises(UsageError, match="n_envs=auto is for new runs")
    with refused, branch_run(ref, {"n_envs": "auto", "timesteps": 128}, lambda event: None):
        pass


def test_a_run_that_does_not_fit_is_refused_with_the_nearest() -> None:
    _, default, builder = opened({"n_envs": 4, "vector": "workers", "num_workers": 2})
    places = (default, builder.backend, builder.spec, builder.algorithm)
    assert check_memory(*places) > 300 << 20
    with pytest.raises(ConfigError, match=r"the run needs .* GB are free \(blocks of 4 envs x 128 steps"):
        check_memory(*places, EnvFacts(0.0, memory_bytes=1 << 50))
