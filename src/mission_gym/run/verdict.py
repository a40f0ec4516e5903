"""The verdict: what bounds a run, the evidence, and what to change. A pure function of its numbers.

The largest part of the wall time decides; where collecting and learning overlap, the shorter of the two is
hidden and does not count. The environment computes or waits by its CPU time; the update is arithmetic or
overhead by its share of the rate at which this device multiplies matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mission_gym.config.schema import Settled
from mission_gym.vector.record import Backend

# Of the measured rate of a matrix product. Below a third of it, most of a gradient step is not products.
ARITHMETIC_SHARE = 0.33
LONG_STEP_S = (
    5e-3  # a gradient step whose products can't be counted (own networks, pictures) and is this long
)
WAITING_SHARE = 0.5  # CPU time of the environments, over what they would get of a core; below it they wait
FULL_MEMORY = 0.95
LOW_GPU = 0.5
THROTTLED = 0.8  # of its fastest clock: what a busy GPU runs at in the mean when heat or power bound it
_UNREAD = {
    "mps": "macOS tells it to administrators alone (sudo powermetrics)",
    "cuda": "NVML, which comes with the driver, does not tell it",
}
OVERLAPS = 0.05
OTHERS = 0.25  # of the cores, taken by processes that are not this run's


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """What the verdict must know of a run beside its times."""

    config: Settled
    backend: Backend
    cores: int  # usable
    n_epochs: int
    num_parameters: int
    env_cpu_is_known: bool  # environments are stepped by the process that is timed
    gradient_steps: int = 0
    flops_per_sample: float | None = None  # products of a gradient step; None: can't be counted
    matmul_flops_per_s: float | None = None  # measured on the learner's device


@dataclass(frozen=True, slots=True)
class Verdict:
    """Words for people; `bound` is one of a fixed list."""

    bound: str
    evidence: str
    advice: list[str]


def judge(phases: Mapping[str, float], machine: Mapping[str, float], facts: VerdictFacts) -> Verdict | None:
    """The verdict over `phase/*` and `machine/*` values of a whole run; None before anything was timed."""
    seconds = {
        key.removeprefix("phase/").removesuffix("_s"): value
        for key, value in phases.items()
        if key.endswith("_s")
    }
    if not seconds.get("wall") or seconds["collect"] + seconds["learn"] <= 0:
        return None
    use = machine.get("machine/memory_use_max", 0.0)
    if use >= FULL_MEMORY:
        return _judge_memory(use, machine, facts)
    parts = {
        "environment": seconds["env"] + seconds["wait"],
        "acting": seconds["act"],
        "copying": seconds["copy"],
        "update": seconds["learn"],
        "recording": seconds["record"],
        "evaluation": seconds["evaluate"],
        "saving": seconds["save"],
    }
    if phases.get("phase/overlap", 0.0) > OVERLAPS:
        collecting = ("environment", "acting", "copying")
        hidden = ("update",) if seconds["collect"] >= seconds["learn"] else collecting
        parts |= dict.fromkeys(hidden, 0.0)
    largest = max(parts, key=lambda name: parts[name])
    share = f"{100 * parts[largest] / seconds['wall']:.0f} % of the time"
    case = _Case(share, seconds, machine, facts)
    return _tell_others(_explain_gpu(_JUDGES[largest](case), case), case)


class _Case(NamedTuple):
    """What a judge looks at; `share` tells how much of the time his part takes."""

    share: str
    seconds: Mapping[str, float]
    machine: Mapping[str, float]
    facts: VerdictFacts


def _judge_environment(case: _Case) -> Verdict:
    share, seconds, machine, facts = case
    n_envs, num_steps = _sizes(facts)
    if seconds["wait"] > seconds["env"]:
        waits = 100 * seconds["wait"] / seconds["collect"]
        return Verdict(
            "environment waiting",
            f"environments take {share}; the mean worker waits {waits:.0f} % of collecting for the slowest",
            [
                f"--n-steps-per-env {2 * num_steps}: longer rollouts even out slow steps",
                f"--n-envs {2 * n_envs}: more environments in each worker do too",
            ],
        )
    cpu = _env_cpu_share(seconds, facts)
    # Who computes among more processes than cores gets a share of a core only.
    load = max(machine.get("machine/load", 1.0), 1.0)
    if cpu is not None and cpu < WAITING_SHARE / load:
        more = f"--n-envs {4 * n_envs}: more of them wait at the same time"
        beside = "--vector threads: they wait side by side"
        return Verdict(
            "environment waiting",
            f"environments take {share}, and collecting computes for {100 * cpu:.0f} % of it",
            [more] if facts.backend.for_waiting else [beside, more],
        )
    cores = f"; this run uses {_show(machine, 'own_cores')} of {facts.cores} cores"
    if cpu is not None and cpu < WAITING_SHARE:
        cores += f", where {load:.1f} processes want each of them"
    return Verdict("environment CPU", f"environments take {share}{cores}", [_use_cores(facts)])


def _use_cores(facts: VerdictFacts) -> str:
    """What makes environments that compute faster."""
    backend, (n_envs, _) = facts.backend, _sizes(facts)
    if not backend.chooses_workers and not backend.own_vector_form and facts.cores > 1:
        return f"--vector workers: steps them on {facts.cores} cores"
    if backend.needs_cluster:
        return "--num-workers: as many as the cluster has CPUs, and more nodes; tune tells where that ends"
    if backend.chooses_workers and min(facts.config.vector.num_workers, n_envs) < facts.cores:
        return f"--num-workers {facts.cores} --n-envs {max(n_envs, facts.cores)}: uses every core"
    vectorised = "" if backend.own_vector_form else ", or give a vectorised form with --vector batched"
    return f"no core is left to add: make the step itself cheaper{vectorised}"


def _sizes(facts: VerdictFacts) -> tuple[int, int]:
    return facts.config.vector.n_envs, facts.config.algorithm.n_steps_per_env


def _fewer_vector_steps(facts: VerdictFacts) -> str:
    n_envs, num_steps = _sizes(facts)
    return f"--n-envs {2 * n_envs} --n-steps-per-env {max(1, num_steps // 2)}"


def _judge_update(case: _Case) -> Verdict:
    share, seconds, _, facts = case
    evidence = f"learning takes {share}"
    is_arithmetic = False
    if facts.gradient_steps:
        step_s = seconds["update"] / facts.gradient_steps
        is_arithmetic = step_s >= LONG_STEP_S
        evidence += f", {1e3 * step_s:.3g} ms a gradient step"
    if facts.flops_per_sample is not None and facts.matmul_flops_per_s and seconds["update"] > 0:
        flops = facts.flops_per_sample * facts.config.algorithm.batch_size * facts.gradient_steps
        reached, plain = flops / seconds["update"] / 1e9, facts.matmul_flops_per_s / 1e9
        if reached <= plain:
            is_arithmetic = reached >= ARITHMETIC_SHARE * plain
            evidence += (
                f", at {100 * reached / plain:.0f} % of the {plain:.3g} GFLOP/s of a plain matrix product"
            )
        else:  # nothing is faster: others had the device when the product was timed
            evidence += (
                f", at {reached:.3g} GFLOP/s; the device was busy when a plain matrix product was timed"
            )
    network = f"--network-arch: a smaller network, fewer products (now {facts.num_parameters:,} parameters)"
    epochs = (
        f"--n-epochs {facts.n_epochs // 2}: less to learn from each rollout (now {facts.n_epochs} epochs)"
    )
    fewer = epochs if facts.n_epochs > 1 else network
    if is_arithmetic:
        return Verdict("update arithmetic", evidence, [fewer])
    # The smallest divisor of the rollout from twice the batch on.
    rollout, twice = facts.config.rollout_size, 2 * facts.config.algorithm.batch_size
    larger = [
        f"--batch-size {size}: fewer, larger gradient steps; learning changes with it"
        for size in range(twice, rollout + 1)
        if rollout % size == 0
    ]
    return Verdict("update overhead", evidence, [*larger[:1], fewer])


def _judge_memory(use: float, machine: Mapping[str, float], facts: VerdictFacts) -> Verdict:
    own = machine.get("machine/memory_bytes_max")
    ours = "" if own is None else f", {own / 1e9:.2g} GB of it this run's"
    n_envs, num_steps = (max(1, size // 2) for size in _sizes(facts))
    advice = [f"--n-envs {n_envs}: half the environments", f"--n-steps-per-env {num_steps}: half the rollout"]
    return Verdict("memory", f"{100 * use:.0f} % of the machine's memory is in use{ours}", advice)


def _judge_evaluation(case: _Case) -> Verdict:
    every, episodes = case.facts.config.evaluation.eval_freq, case.facts.config.evaluation.eval_episodes
    evidence = f"evaluating takes {case.share}: {episodes} episodes every {every:,} steps"
    rarer, shorter = (
        f"--eval-freq {4 * every}: less often",
        f"--eval-episodes {max(1, episodes // 2)}: shorter",
    )
    return Verdict("evaluation", evidence, [rarer, shorter])


def _judge_saving(case: _Case) -> Verdict:
    every = case.facts.config.checkpoints.checkpoint_freq
    evidence = f"saving checkpoints takes {case.share}, one every {every:,} steps"
    advice = [f"--checkpoint-freq {10 * every}: less often", "--runs-dir: on a faster disk"]
    return Verdict("saving", evidence, advice)


_JUDGES: Mapping[str, Callable[[_Case], Verdict]] = {
    "environment": _judge_environment,
    "acting": lambda case: Verdict(
        "acting",
        f"choosing actions takes {case.share}, for {_sizes(case.facts)[0]} environments and a network of"
        f" {case.facts.num_parameters:,} parameters",
        [
            f"{_fewer_vector_steps(case.facts)}: the same rollout in fewer, larger calls",
            "--network-arch: narrower",
        ],
    ),
    "copying": lambda case: Verdict(
        "collecting overhead",
        f"weights, rows and messages take {case.share}, more than environments and policy do",
        [f"{_fewer_vector_steps(case.facts)}: fewer, larger vector steps"],
    ),
    "update": _judge_update,
    "recording": lambda case: Verdict(
        "recording",
        f"rows, logs and the progress line take {case.share}",
        ["--log-interval 10: a row every ten updates", "--no-tensorboard: fewer files to write"],
    ),
    "evaluation": _judge_evaluation,
    "saving": _judge_saving,
}


def _explain_gpu(verdict: Verdict, case: _Case) -> Verdict:
    """Say what a low use of the GPU is: no fault where it has nothing to do, or too little at a time."""
    _, seconds, machine, facts = case
    use, device = machine.get("machine/gpu_use"), facts.config.compute.device
    if device == "cpu":
        return verdict
    if use is None:
        cause = _UNREAD[device.partition(":")[0]]
        return replace(verdict, evidence=f"{verdict.evidence}; GPU use n/a: {cause}")
    if use >= LOW_GPU:
        return _tell_throttling(verdict, machine)
    told = f"{verdict.evidence}; GPU use is {100 * use:.0f} %"
    if not verdict.bound.startswith("update"):
        needed = 100 * seconds["learn"] / seconds["wall"]
        told += f", as learning is only {needed:.0f} % of the time"
        return replace(verdict, evidence=told)
    batch_size, advice = facts.config.algorithm.batch_size, "--device cpu: may be faster for this size"
    told += (
        f", as {facts.num_parameters:,} parameters at batch {batch_size} are little work for it, and"
        " starting a gradient step takes longer than computing it"
    )
    return replace(verdict, evidence=told, advice=[*verdict.advice, advice])


def _tell_throttling(verdict: Verdict, machine: Mapping[str, float]) -> Verdict:
    """Say that a GPU with work to do has slowed its clock: settings of a run do not cool it."""
    clock, fastest = machine.get("machine/gpu_clock_mhz"), machine.get("machine/gpu_clock_mhz_max")
    if clock is None or fastest is None or clock >= THROTTLED * fastest:
        return verdict
    heat = machine.get("machine/gpu_temperature_c_max")
    at = "" if heat is None else f" at up to {heat:.0f} C"
    told = f"the GPU is throttled: its clock is {clock:.0f} MHz in the mean of {fastest:.0f}{at}"
    advice = "cool the GPU, raise its power limit or plug the laptop in: no setting of a run does that"
    return replace(verdict, evidence=f"{verdict.evidence}; {told}", advice=[advice, *verdict.advice])


def _tell_others(verdict: Verdict, case: _Case) -> Verdict:
    """Say that others took the machine: no setting of this run gives back what they have."""
    cores, own = case.facts.cores, case.machine.get("machine/own_cores")
    busy = case.machine.get("machine/cpu")
    if own is None or busy is None or busy * cores - own < OTHERS * cores:
        return verdict
    told = f"processes that are not of this run took {busy * cores - own:.2g} of {cores} cores"
    advice = "end those processes, or wait for them: this run gets the rest"
    return replace(verdict, evidence=f"{verdict.evidence}; {told}", advice=[advice, *verdict.advice])


def _env_cpu_share(seconds: Mapping[str, float], facts: VerdictFacts) -> float | None:
    """CPU time over wall time of the environments, acting included: it is the smaller part here, and where
    cores are short it gets no more of them."""
    if not facts.env_cpu_is_known or seconds["env"] <= 0:
        return None
    return min(seconds["collect_cpu"] / (seconds["act"] + seconds["env"]), 1.0)


def _show(machine: Mapping[str, float], name: str) -> str:
    value = machine.get(f"machine/{name}")
    return "n/a" if value is None else f"{value:.2g}"
