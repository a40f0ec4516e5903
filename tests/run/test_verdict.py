"""The verdict over invented phases: each bound, its evidence, and flags that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mission_gym.data import Phases
from mission_gym.run.config import resolve, schema
from mission_gym.run.telemetry import phase_metrics
from mission_gym.run.verdict import Verdict, VerdictFacts, judge
from mission_gym.vector.backends import load_backend

CONFIG = {
    "vector.vector": "serial", "vector.num_workers": 1, "vector.n_envs": 8, "ppo.n_steps_per_env": 128,
    "ppo.batch_size": 64, "evaluation.eval_freq": 20_000, "evaluation.eval_episodes": 20,
    "checkpoints.checkpoint_freq": 10_000, "compute.device": "cpu", "compute.kernel": "torch",
    "compute.precision": "float32", "compute.threads": 1, "compute.acting": "numpy", "compute.overlap": "off",
    "compute.acting_rows": 8, "run.log_interval": 1, "run.timesteps": 1_000_000,
}  # fmt: skip
FACTS: dict[str, Any] = {"cores": 4, "n_epochs": 10, "num_parameters": 9_000, "env_cpu_is_known": True}
MACHINE = {"machine/cpu": 0.4, "machine/own_cores": 1.0, "machine/memory_use_max": 0.3}


def phases(
    wall: float = 100.0, *, collect: float = 0.0, update: float = 0.0, **seconds: float
) -> dict[str, float]:
    owner = {"evaluate": "main", "save": "main", "record": "main", "values": "learner"}
    counted = {("collector", "collect"): collect, ("learner", "update"): update}
    counted |= {(owner.get(name, "collector"), name): spent for name, spent in seconds.items()}
    return phase_metrics(Phases(counted), wall)


def make_facts(**changes: Any) -> VerdictFacts:
    """Facts of a small run; names without a field are those of its config."""
    known = {path.rpartition(".")[2]: path for path in CONFIG}
    values = CONFIG | {known[name]: changes.pop(name) for name in list(changes) if name in known}
    config = resolve("toys:Identity", {}).with_values(values, "test").settled
    return VerdictFacts(config=config, backend=load_backend(config.vector.vector), **FACTS | changes)


def verdict(times: dict[str, float], machine: dict[str, float] = MACHINE, **facts: Any) -> Verdict:
    found = judge(times, machine, make_facts(**facts))
    assert found is not None
    return found


ENV = phases(collect=80, act=5, env=70, cpu=79, update=15)
WAITS = phases(collect=80, act=5, env=70, cpu=8, update=15)
UPDATE = phases(collect=20, act=5, env=10, cpu=19, update=75, values=5)
CASES = {
    "serial environments": (
        ENV, {}, "environment CPU", "environments take 70 % of the time; this run uses 1 of 4 cores",
        "--vector workers: steps them on 4 cores",
    ),
    "too few workers": (
        ENV, {"vector": "workers", "num_workers": 2}, "environment CPU", "70 %",
        "--num-workers 4 --n-envs 8: uses every core",
    ),
    "all cores in use": (
        ENV, {"vector": "workers", "num_workers": 4}, "environment CPU", "70 %",
        "all cores are in use: make the step itself cheaper, or write a vectorized form for --vector batch",
    ),
    "batched": (
        WAITS, {"vector": "batched", "env_cpu_is_known": False}, "environment CPU", "70 %",
        "all cores are in use: make the step itself cheaper",
    ),
    "environments that wait": (
        WAITS, {"vector": "workers"}, "environment waiting", "and the CPU is busy for 11 % of it",
        "--vector threads: they wait concurrently",
    ),
    "threads that wait": (
        WAITS, {"vector": "threads"}, "environment waiting", "70 %",
        "--n-envs 32: more of them wait at the same time",
    ),
    "a slow worker": (
        phases(collect=80, act=5, env=25, wait=45, cpu=79, update=15), {"vector": "workers"},
        "environment waiting", "the mean worker waits 56 % of collecting for the slowest",
        "--n-steps-per-env 256: longer rollouts even out slow steps",
    ),
    "acting": (
        phases(collect=80, act=60, env=15, cpu=80, update=15), {}, "acting",
        "takes 60 % of the time, for 8 environments and a network of 9,000 parameters",
        "--n-envs 16 --n-steps-per-env 64: the same rollout in fewer, larger calls",
    ),
    "copying": (
        phases(collect=80, act=10, env=10, cpu=80, update=15), {}, "collecting overhead",
        "weights, rows and messages takes 60 % of the time", "--n-envs 16 --n-steps-per-env 64",
    ),
    "products": (
        UPDATE, {"gradient_steps": 1000, "flops_per_sample": 54e6, "matmul_flops_per_s": 1e11},
        "update arithmetic", "75 % of the time, 70 ms per gradient step, at 49 % of the 100 GFLOP/s",
        "--n-epochs 5: fewer passes over each rollout (now 10 epochs)",
    ),
    "small products": (
        UPDATE, {"gradient_steps": 70_000, "flops_per_sample": 54e3, "matmul_flops_per_s": 1e11},
        "update overhead", "75 % of the time, 1 ms per gradient step, at 3 % of the 100 GFLOP/s",
        "--batch-size 128: fewer, larger gradient steps",
    ),
    "a product that was timed on a busy machine": (
        UPDATE, {"gradient_steps": 70_000, "flops_per_sample": 54e6, "matmul_flops_per_s": 1e11},
        "update overhead", "1 ms per gradient step, at 3.46e+03 GFLOP/s; the device was busy when a plain",
        "--batch-size 128: fewer, larger gradient steps",
    ),
    "no update finished": (UPDATE, {}, "update", "and no update was finished", ""),
    "own network, long": (UPDATE, {"gradient_steps": 1000}, "update arithmetic", "70 ms", "--n-epochs 5"),
    "own network, short": (UPDATE, {"gradient_steps": 70_000}, "update overhead", "1 ms", "--batch-size"),
    "the batch is the rollout": (
        UPDATE, {"gradient_steps": 70_000, "batch_size": 1024, "n_epochs": 1}, "update overhead", "1 ms",
        "--network-arch: a smaller network",
    ),
    "evaluation": (
        phases(collect=20, env=20, cpu=20, update=15, evaluate=60), {}, "evaluation",
        "evaluating takes 60 % of the time: 20 episodes every 20,000 steps", "--eval-freq 80000: less often",
    ),
    "saving": (
        phases(collect=20, env=20, cpu=20, update=15, save=60), {"gradient_steps": 1000}, "saving",
        "takes 60 % of the time, one every 10,000 steps", "--checkpoint-freq 100000: less often",
    ),
    "the only evaluation": (
        phases(collect=20, env=20, cpu=20, update=15, evaluate=60), {"timesteps": 2000}, "evaluation",
        "evaluating takes 60 % of the time: 20 episodes at the end of a short run", "--eval-episodes 10",
    ),
    "the only checkpoint": (
        phases(collect=20, env=20, cpu=20, update=15, save=60), {"timesteps": 2000}, "saving",
        "saving checkpoints takes 60 % of the time: the run is short", "--runs-dir: on a faster disk",
    ),
    "recording": (
        phases(collect=20, env=20, cpu=20, update=15, record=60), {}, "recording", "60 %", "--log-interval",
    ),
    "overlap hides the update": (
        phases(wall=100, collect=95, act=25, env=40, cpu=95, update=90), {}, "environment CPU", "40 %", "--v",
    ),
    "overlap hides the environments": (
        phases(wall=100, collect=90, act=0, env=90, cpu=90, update=95), {"gradient_steps": 10**6},
        "update overhead", "95 %", "--batch-size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_bounds_the_run(name: str) -> None:
    times, facts, bound, evidence, advice = CASES[name]
    found = verdict(times, **facts)
    assert found.bound == bound
    assert evidence in found.evidence
    assert next(iter(found.advice), "").startswith(advice)


@pytest.mark.parametrize("name", CASES)
def test_every_flag_of_an_advice_exists(name: str) -> None:
    times, facts, *_ = CASES[name]
    known = {flag for field in schema().fields for flag in flags_of(field)}
    for text in verdict(times, **facts).advice:
        assert set(re.findall(r"--[a-z-]+", text)) <= known


def flags_of(field: Any) -> set[str]:
    name = field.path.rpartition(".")[2].replace("_", "-")
    return {f"--{name}", f"--no-{name}"}


def test_low_cpu_time_among_many_processes_is_not_waiting() -> None:
    crowded = phases(collect=80, act=5, env=70, cpu=20, update=15)  # a quarter of a core
    assert verdict(crowded).bound == "environment waiting"
    found = verdict(crowded, MACHINE | {"machine/load": 4.0})
    assert found.bound == "environment CPU"
    assert found.evidence.endswith("of 4 cores, and 4.0 processes compete for each")
    assert not found.advice
    assert verdict(WAITS, MACHINE | {"machine/load": 4.0}).bound == "environment waiting"


def test_others_that_took_the_machine_are_told_of() -> None:
    crowded = MACHINE | {"machine/cpu": 1.0, "machine/own_cores": 1.5}
    for times in (ENV, UPDATE):
        found = verdict(times, crowded)
        assert found.evidence.endswith("other processes used 2.5 of 4 cores")
        assert found.advice[0].startswith("end those processes")
        assert found.bound == verdict(times).bound
    assert "beside" not in verdict(ENV, MACHINE | {"machine/cpu": 1.0, "machine/own_cores": 3.5}).evidence
    assert "beside" not in verdict(ENV, {"machine/cpu": 1.0}).evidence


def test_threads_that_wait_for_busy_cores_are_advised_against() -> None:
    crowded = MACHINE | {"machine/cpu": 1.0, "machine/own_cores": 1.5}
    found = verdict(UPDATE, crowded, threads=4)
    assert found.advice[1] == "--threads 1: the learner's 4 threads wait for each other on busy cores"
    for times, machine, threads in ((UPDATE, MACHINE, 4), (UPDATE, crowded, 1), (ENV, crowded, 4)):
        assert not any(
            each.startswith("--threads") for each in verdict(times, machine, threads=threads).advice
        )


def test_full_memory_comes_first() -> None:
    found = verdict(ENV, {"machine/memory_use_max": 0.97, "machine/memory_bytes_max": 12e9})
    assert found.bound == "memory"
    assert found.evidence == "97 % of the machine's memory is in use, 12 GB of it by this run"
    assert found.advice[0] == "--n-envs 4: half the environments"


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (ENV, "GPU use is 12 %, since learning is only 15 % of the time"),
        (UPDATE, "GPU use is 12 %, since 9,000 parameters at batch 64 are little work for it"),
    ],
)
def test_low_use_of_a_gpu_is_explained(times: dict[str, float], words: str) -> None:
    machine = MACHINE | {"machine/gpu_use": 0.12}
    found = verdict(times, machine, device="cuda", gradient_steps=70_000)
    assert words in found.evidence
    assert "GPU" not in verdict(times, machine, gradient_steps=70_000).evidence
    assert "GPU" not in verdict(times, MACHINE | {"machine/gpu_use": 0.9}, device="cuda").evidence
    if times is UPDATE:
        assert found.advice[-1].startswith("--device cpu")


def test_missing_samples_are_not_zero() -> None:
    assert "this run uses n/a of 4 cores" in verdict(ENV, {}).evidence


def test_nothing_timed_is_no_verdict() -> None:
    assert judge(phases(1.0), MACHINE, make_facts()) is None
    assert judge(phases(0.0), MACHINE, make_facts()) is None


def test_a_busy_gpu_that_slows_its_clock_is_throttled() -> None:
    clocks = {"machine/gpu_clock_mhz": 1200.0, "machine/gpu_clock_mhz_max": 2100.0}
    machine = MACHINE | clocks | {"machine/gpu_use": 0.9, "machine/gpu_temperature_c_max": 87.0}
    found = verdict(UPDATE, machine, device="cuda")
    assert found.evidence.endswith("the GPU is throttled: its mean clock is 1200 of 2100 MHz at up to 87 C")
    assert found.advice[0].startswith("cool the GPU")
    idle = verdict(UPDATE, machine | {"machine/gpu_use": 0.1}, device="cuda")
    assert "throttled" not in idle.evidence  # a GPU without work slows down by itself


@pytest.mark.parametrize(("device", "cause"), [("mps", "sudo powermetrics"), ("cuda", "NVML")])
def test_a_use_that_cannot_be_read_is_said_with_its_cause(device: str, cause: str) -> None:
    found = verdict(UPDATE, MACHINE, device=device)
    assert "GPU use n/a: " in found.evidence
    assert cause in found.evidence
