"""Where and in which precision a run learns: by invented times, and in runs on this machine's CPU."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mission_gym.algorithms.ppo import ALGORITHM
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import ComputeSection
from mission_gym.errors import ConfigError
from mission_gym.plan import setups
from mission_gym.plan.setups import LearnerSetup, choose_setup, combine
from mission_gym.run.build import make_learner
from mission_gym.run.config import read_config, resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.resume import resume_run
from mission_gym.run.settle import settle
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints, load_checkpoint
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

SMALL = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 192, "eval_freq": 0,
    "network_arch": "16", "seed": 3, "tensorboard": False, "vector": "serial",
}  # fmt: skip
CPU = LearnerSetup("cpu", "compiled", "float32")
TORCH = LearnerSetup("cpu", "torch", "float32")
TORCH16 = LearnerSetup("cpu", "torch", "bf16")
CUDA = LearnerSetup("cuda", "torch", "float32")
CUDA16 = LearnerSetup("cuda", "torch", "bf16")
MPS = LearnerSetup("mps", "torch", "float32")


@pytest.mark.parametrize(
    ("compute", "is_mlp", "devices", "expected"),
    [
        ({}, True, {"cpu": False}, [CPU]),
        ({}, False, {"cpu": False}, [TORCH]),
        ({}, True, {"cpu": True}, [CPU, TORCH16]),
        ({}, False, {"cpu": False, "cuda": True}, [TORCH, CUDA, CUDA16]),
        ({}, True, {"cpu": False, "cuda": False, "mps": False}, [CPU, CUDA, MPS]),
        ({"device": "cuda"}, True, {"cpu": True, "cuda": True}, [CUDA, CUDA16]),
        ({"device": "cpu", "kernel": "torch"}, True, {"cpu": True, "cuda": True}, [TORCH, TORCH16]),
        ({"precision": "bf16"}, True, {"cpu": False}, [TORCH16]),
        ({"precision": "float32"}, False, {"cpu": True, "cuda": True}, [TORCH, CUDA]),
        ({"kernel": "compiled"}, True, {"cpu": True, "cuda": True}, [CPU]),
        ({"kernel": "compiled", "precision": "bf16"}, True, {"cpu": True}, []),
        ({"kernel": "compiled", "device": "cuda"}, True, {"cpu": True, "cuda": True}, []),
    ],
)
def test_setups_follow_from_the_config_and_the_machine(
    compute: dict[str, Any], is_mlp: bool, devices: dict[str, bool], expected: list[LearnerSetup]
) -> None:
    assert combine(ComputeSection(**compute), is_mlp, devices) == expected


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({CPU: 0.010, CUDA: 0.002, CUDA16: 0.0015}, CUDA16),
        ({CPU: 0.001, CUDA: 0.002}, CPU),
        ({CPU: 0.010, TORCH16: 0.0095}, CPU),  # 5 % is noise
        ({CPU: 0.010, TORCH16: 0.0085}, TORCH16),
    ],
)
def test_the_fastest_setup_wins_if_it_gains_enough(
    times: dict[LearnerSetup, float], chosen: LearnerSetup
) -> None:
    assert choose_setup(times) == chosen


def test_overlap_hides_the_shorter_of_collecting_and_learning() -> None:
    times = {CPU: 100e-6, CUDA: 100e-6}
    assert choose_setup(times, 100e-6, lambda setup: setup == CUDA) == CUDA
    assert choose_setup(times, 1e-6, lambda setup: setup == CUDA) == CPU


def test_a_device_that_fails_is_left_out() -> None:
    assert choose_setup({CPU: 0.5, CUDA: "out of memory"}) == CPU


def settled(**flags: Any) -> Resolved:
    resolved = resolve("toys:DictMask", SMALL | flags)
    return settle(resolved, open_environment(resolved.config, {}))[0]


@pytest.mark.parametrize(("arch", "num_ways"), [("64,64", 1), ("64,256", 2)])
def test_narrow_networks_are_not_measured_in_bf16_on_a_cpu(
    arch: str, num_ways: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "find_devices", lambda: {"cpu": True})
    config = resolve("CartPole-v1", SMALL | {"network_arch": arch}).config
    assert len(setups.list_setups(config, ALGORITHM, True, 1)) == num_ways


def test_a_machine_with_a_bf16_cpu_measures_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is invented, the choice is made by invented times, the run is real."""
    monkeypatch.setattr(setups, "_measured", {})
    monkeypatch.setattr(setups, "find_devices", lambda: {"cpu": True, "mps": False})
    monkeypatch.setattr(setups, "_MIN_STEPS_FOR_GPU", 0)
    times = {"float32": 0.02, "bf16": 0.008}

    def measure(learner: Any, *_: Any) -> float:
        return times[str(learner.kernel._precision).removeprefix("torch.").replace("bfloat", "bf")]

    monkeypatch.setattr(type(ALGORITHM), "measure_update_s", lambda self, *args: measure(*args))
    resolved = resolve("toys:DictMask", SMALL | {"runs_dir": str(tmp_path)})
    with start_run(resolved, lambda event: None) as session:
        compute, sources = session.config.compute, read_config(session.run.config_yaml).sources
        plan = json.loads(session.run.plan_json.read_text())
    assert (compute.device, compute.kernel, compute.precision) == ("cpu", "torch", "bf16")
    assert sources["compute.precision"] == "plan"
    ways = plan["measured"]["setups"]
    assert ways["cpu torch float32"] == 0.02
    assert ways["cpu torch bf16"] == 0.008
    assert isinstance(ways["mps torch float32"], str)  # what torch says without such a device
    fact = next(fact for fact in plan["facts"] if fact["name"] == "learner")
    assert "torch kernel, bf16, 1 thread" in fact["reason"]
    assert "; update time per step: cpu torch float32 2e+04 us" in fact["reason"]


def test_a_short_run_does_not_start_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "find_devices", lambda: {"cpu": False, "cuda": True})
    short, long = (resolve("CartPole-v1", SMALL | {"timesteps": steps}).config for steps in (192, 100_000))
    assert setups.list_setups(short, ALGORITHM, True, 1) == [CPU]
    assert setups.list_setups(long, ALGORITHM, True, 1) == [CPU, CUDA, CUDA16]


def test_times_are_kept_so_that_equal_runs_choose_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve("CartPole-v1", SMALL)
    spec = open_environment(resolved.config, {}).spec
    for taken in (0.5, 0.1):
        monkeypatch.setattr(setups, "_measured", {})  # another process
        times = setups.measure_setups([CPU, TORCH], resolved.config, spec, lambda setup, taken=taken: taken)
        assert times == {CPU: 0.5, TORCH: 0.5}
    other = resolve("CartPole-v1", SMALL | {"n_envs": 16})
    assert setups.measure_setups([CPU], other.config, spec, lambda setup: 0.3) == {CPU: 0.3}


def test_with_only_a_plain_cpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "_measured", {})
    monkeypatch.setattr(setups, "find_devices", lambda: {"cpu": False})
    compute = settled().config.compute
    assert (compute.device, compute.kernel, compute.precision) == ("cpu", "torch", "float32")
    assert not setups._measured


WIDE = SMALL | {"network_arch": "256,256", "batch_size": 64, "device": "cpu"}


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the user's limits threads, and none were compared yet."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for module in ("plan.setups", "procs.machine"):
        monkeypatch.setattr(f"mission_gym.{module}.usable_cores", lambda: 8)
    monkeypatch.setattr(setups, "_at_load", {})


def settle_threads(**flags: Any) -> tuple[int, str, list[str]]:
    """The threads of a config, their source, and the notes."""
    resolved = resolve("toys:Identity", WIDE | flags)
    settled, notes = settle(resolved, open_environment(resolved.config, {}))
    return settled.settled.compute.threads, settled.sources["compute.threads"], notes


@pytest.mark.parametrize(
    ("used", "times", "expected"),
    [(0.5, {1: 1.0, 8: 9.0}, 8), (7.0, {1: 1.0, 8: 0.5}, 8), (7.0, {1: 1.0, 8: 9.0}, 1)],
    ids=["quiet", "busy, but faster with all", "busy"],
)
@pytest.mark.usefixtures("eight_cores")
def test_threads_are_compared_on_a_busy_machine(
    used: float, times: dict[int, float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "measure_use", lambda seconds: used)
    monkeypatch.setattr(setups, "_time_product", lambda rows, width, threads: times[threads])
    threads, source, notes = settle_threads()
    assert threads == expected
    cause = "other processes use 7 of 8 cores, and a product of the network takes 1e+03 ms with 1 thread, "
    assert source.startswith(f"plan: {cause}" if expected == 1 else "plan")
    note = f"1 thread for the learner: {cause}9e+03 ms with 8; an equal run on an idle machine uses 8"
    assert any(each.startswith(note) for each in notes) == (expected == 1)
    assert settle_threads(threads=8)[0] == 8  # explicit


@pytest.mark.usefixtures("eight_cores")
def test_threads_are_limited_by_the_variables_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setups, "measure_use", lambda seconds: 0.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert settle_threads()[0] == 2
    assert settle_threads(threads=3)[0] == 3
    resolved = resolve("toys:Identity", WIDE)
    environment = open_environment(resolved.config, {})
    config = settle(resolved, environment)[0].settled
    assert "2 threads (at most 2 by OMP_NUM_THREADS)" in setups.describe_setup(config, environment.spec)


def test_a_product_is_timed_with_the_threads_of_before() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    assert setups._time_product(8, 8, before + 1) > 0.0
    assert torch.get_num_threads() == before


def test_values_that_exclude_each_other_are_refused() -> None:
    resolved = resolve("CartPole-v1", SMALL | {"kernel": "compiled", "precision": "bf16"})
    environment = open_environment(resolved.config, {})
    message = r"kernel=compiled is not possible with device=auto and precision=bf16: it computes in float32"
    with pytest.raises(ConfigError, match=message):
        settle(resolved, environment)
    if not setups.device_exists("cuda"):
        with pytest.raises(ConfigError, match="device=cuda is not available to torch"):
            settled(device="cuda")


def test_what_an_algorithm_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve("CartPole-v1", SMALL | {"kernel": "compiled"})
    environment = open_environment(resolved.config, {})
    monkeypatch.setattr(type(ALGORITHM), "has_compiled_kernel", lambda self, config, threads: False)
    monkeypatch.setattr(type(ALGORITHM), "has_bf16", False)
    with pytest.raises(ConfigError, match="kernel=compiled is not possible: ppo has none for this config"):
        settle(resolved, environment)
    resolved = resolve("CartPole-v1", SMALL | {"precision": "bf16"})
    with pytest.raises(ConfigError, match="precision=bf16 is not possible: ppo learns in float32 only"):
        settle(resolved, environment)


def test_a_bf16_run_is_exact_and_begins_each_update_with_ratio_one(tmp_path: Path) -> None:
    def begin(folder: str) -> Any:
        flags = SMALL | {"runs_dir": str(tmp_path / folder), "precision": "bf16"}
        return start_run(resolve("toys:DictMask", flags), lambda event: None)

    def last_policy(run: RunDir) -> dict[str, Any]:
        return load_checkpoint(list_checkpoints(run.checkpoints)[-1].path).policy

    with begin("straight") as session:
        for _ in session.updates():
            pass
        straight = session.run
    rows = [row for row in MetricsLog.read(straight.metrics_jsonl) if row["event"] == "progress"]
    assert len(rows) == 3
    assert max(row["train/first_ratio_error"] for row in rows) < 1e-5
    with begin("halves") as session:
        for _ in session.updates():
            break
        run = session.run
    with resume_run(run, lambda event: None) as session:
        for _ in session.updates():
            pass
    for name, array in last_policy(straight).items():
        np.testing.assert_array_equal(last_policy(run)[name], array, err_msg=name)


def test_a_device_on_which_every_setup_fails_is_refused_with_the_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(setups, "_measured", {})
    resolved = resolve("CartPole-v1", SMALL | {"device": "cuda"})
    spec = open_environment(resolved.config, {}).spec

    def measure(setup: LearnerSetup) -> float:
        raise RuntimeError(f"no kernel image for {setup.precision}")

    tried = [LearnerSetup("cuda", "torch", precision) for precision in ("float32", "bf16")]
    with pytest.raises(ConfigError, match=r"device=cuda is not possible: .*for float32; .*for bf16; use cpu"):
        setups.measure_setups(tried, resolved.config, spec, measure)
    assert not setups.find_measured(resolved.config, spec)  # the next attempt measures again


@pytest.mark.parametrize(("loads", "num_updates"), [(True, 2), (False, 1)])
def test_a_long_update_is_timed_again_if_it_loaded_libraries(
    loads: bool, num_updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve("CartPole-v1", SMALL | {"kernel": "torch", "n_epochs": 1})
    environment = open_environment(resolved.config, {})
    config = settle(resolved, environment)[0].settled
    learner = make_learner(config, environment.spec)
    updates: list[Any] = []

    def update(block: Any) -> None:
        if not updates:
            time.sleep(0.6)
            if loads:
                monkeypatch.setitem(sys.modules, "loaded_by_the_first_update", sys)
        updates.append(block)

    monkeypatch.setattr(learner, "update", update)
    ALGORITHM.measure_update_s(learner, config, environment.spec)
    assert len(updates) == num_updates
