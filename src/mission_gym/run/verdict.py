"""The verdict: the bottleneck of a run, the evidence, and advice. A pure function of measurements.

The largest part of the wall time decides. If collecting and learning overlap, the shorter of the two is
hidden and does not count. CPU time shows whether environments compute or wait. An update is arithmetic or
overhead by its rate, relative to the rate of a plain matrix product on this device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mission_gym.config.schema import Settled
from mission_gym.errors import TargetSilent
from mission_gym.store.rundir import Verdict
from mission_gym.vector.record import Backend

# Of the measured rate of a matrix product. Below a third, most of a gradient step is not products.
ARITHMETIC_SHARE = 0.33
LONG_STEP_S = 5e-3  # a gradient step of custom networks or images, whose products can't be counted
WAITING_SHARE = 0.5  # CPU time of the environments, over their share of a core; below it they wait
FULL_MEMORY = 0.95
LOW_GPU = 0.5
THROTTLED = 0.8  # of its highest clock: the mean of a busy GPU that heat or power limits
OVERLAPS = 0.05
OTHERS = 0.25  # of the cores, used by processes of others
_UNREAD = {
    "mps": "macOS reports it only to administrators (sudo powermetrics)",
    "cuda": "NVML, which is part of the driver, does not report it",
}


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """The facts about a run that a verdict needs in addition to times."""

    config: Settled
    backend: Backend
    cores: int  # usable
    n_epochs: int
    num_parameters: int
    env_cpu_is_known: bool  # the timed process steps the environments
    gradient_steps: int = 0
    flops_per_sample: float | None = None  # products of a gradient step; None if they can't be counted
    matmul_flops_per_s: float | None = None  # measured on the learner's device
    hung: str = ""  # the calls of environments that did not return

    @property
    def sizes(self) -> tuple[int, int]:
        """Environments, and steps of each in a rollout."""
        return self.config.vector.n_envs, self.config.algorithm.n_steps_per_env

    @property
    def wider_rollout(self) -> str:
        """Flags for the same rollout in fewer, larger vector steps."""
        n_envs, num_steps = self.sizes
        return f"--n-envs {2 * n_envs} --n-steps-per-env {max(1, num_steps // 2)}"


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
        "failures": seconds.get("lost", 0.0),
        "acting": seconds["act"],
        "copying": seconds["copy"],
        "update": seconds["learn"],
        "recording": seconds["record"],
        "evaluation": seconds["evaluate"],
        "saving": seconds["save"],
    }
    if phases.get("phase/overlap", 0.0) > OVERLAPS:
        collecting = ("environment", "failures", "acting", "copying")
        hidden = ("update",) if seconds["collect"] >= seconds["learn"] else collecting
        parts |= dict.fromkeys(hidden, 0.0)
    largest = max(parts, key=lambda name: parts[name])
    share = f"{100 * parts[largest] / seconds['wall']:.0f} % of the time"
    case = _Measured(share, seconds, machine, facts)
    return _add_others(_add_gpu(_JUDGES[largest](case), case), case)


def judge_failure(error: BaseException, run_name: str) -> Verdict | None:
    """The verdict of a run that a failure ended, if the failure explains more than the measurements."""
    if not isinstance(error, TargetSilent):
        return None
    advice = f"start the target, then `mission-gym resume {run_name}`"
    return _make("target", str(error).partition(";")[0], advice)


class _Measured(NamedTuple):
    """The input of a judge. share: of the time, of its part."""

    share: str
    seconds: Mapping[str, float]
    machine: Mapping[str, float]
    facts: VerdictFacts


def judge_stall(seconds: float) -> Verdict:
    """The verdict of a run that was stopped while a call of an environment did not return."""
    evidence = (
        f"no step for {seconds:.0f} s when the run was stopped: a call of an environment had not returned"
    )
    return _make("environment failures", evidence, "--env-timeout 30: such calls end, and training continues")


def _make(bound: str, evidence: str, *advice: str) -> Verdict:
    return Verdict(bound=bound, evidence=evidence, advice=list(advice))


def _extend(verdict: Verdict, evidence: str, *advice: str) -> Verdict:
    """A verdict with more evidence, and with advice that comes first."""
    return _make(verdict.bound, f"{verdict.evidence}{evidence}", *advice, *verdict.advice)


def _judge_environment(case: _Measured) -> Verdict:
    share, seconds, machine, facts = case
    n_envs, num_steps = facts.sizes
    if seconds["wait"] > seconds["env"]:
        waits = 100 * seconds["wait"] / seconds["collect"]
        return _make(
            "environment waiting",
            f"environments take {share}; the mean worker waits {waits:.0f} % of collecting for the slowest",
            f"--n-steps-per-env {2 * num_steps}: longer rollouts even out slow steps",
            f"--n-envs {2 * n_envs}: more environments per worker do, too",
        )
    cpu = _env_cpu_share(seconds, facts)
    # With more processes than cores, a process that computes gets only a share of a core.
    load = max(machine.get("machine/load", 1.0), 1.0)
    if cpu is not None and cpu < WAITING_SHARE / load:
        more = f"--n-envs {4 * n_envs}: more of them wait at the same time"
        threads = "--vector threads: they wait concurrently"
        return _make(
            "environment waiting",
            f"environments take {share}, and the CPU is busy for {100 * cpu:.0f} % of it",
            *([more] if facts.backend.for_waiting else [threads, more]),
        )
    used = machine.get("machine/own_cores")
    cores = f"; this run uses {'n/a' if used is None else f'{used:.2g}'} of {facts.cores} cores"
    if cpu is not None and cpu < WAITING_SHARE:  # more processes of this run would compete, too
        return _make(
            "environment CPU", f"environments take {share}{cores}, and {load:.1f} processes compete for each"
        )
    return _make("environment CPU", f"environments take {share}{cores}", _use_cores(facts))


def _use_cores(facts: VerdictFacts) -> str:
    """Advice for environments that compute."""
    backend, (n_envs, _) = facts.backend, facts.sizes
    if not backend.chooses_workers and not backend.own_vector_form and facts.cores > 1:
        return f"--vector workers: steps them on {facts.cores} cores"
    if backend.needs_cluster:
        return "--num-workers: as many as the cluster has CPUs, and more nodes; `tune` predicts the gain"
    if backend.chooses_workers and min(facts.config.vector.num_workers, n_envs) < facts.cores:
        return f"--num-workers {facts.cores} --n-envs {max(n_envs, facts.cores)}: uses every core"
    vectorized = "" if backend.own_vector_form else ", or write a vectorized form for --vector batched"
    return f"all cores are in use: make the step itself cheaper{vectorized}"


def _judge_update(case: _Measured) -> Verdict:
    """Advises one thread first, if others use the cores that the learner's threads wait for."""
    verdict, compute = _judge_work(case), case.facts.config.compute
    if compute.device != "cpu" or compute.threads == 1 or not _count_others(case):
        return verdict
    waiting = f"the learner's {compute.threads} threads wait for each other on busy cores"
    return _extend(verdict, "", f"--threads 1: {waiting}")


def _judge_work(case: _Measured) -> Verdict:
    """Judges an update by its gradient steps."""
    share, seconds, _, facts = case
    evidence = f"learning takes {share}"
    if not facts.gradient_steps:
        return _make("update", f"{evidence}, and no update was finished")
    step_s = seconds["update"] / facts.gradient_steps
    is_arithmetic = step_s >= LONG_STEP_S
    evidence += f", {1e3 * step_s:.3g} ms per gradient step"
    if facts.flops_per_sample is not None and facts.matmul_flops_per_s and seconds["update"] > 0:
        flops = facts.flops_per_sample * facts.config.algorithm.batch_size * facts.gradient_steps
        reached, plain = flops / seconds["update"] / 1e9, facts.matmul_flops_per_s / 1e9
        if reached <= plain:
            is_arithmetic = reached >= ARITHMETIC_SHARE * plain
            evidence += (
                f", at {100 * reached / plain:.0f} % of the {plain:.3g} GFLOP/s of a plain matrix product"
            )
        else:  # other programs used the device when the product was timed
            evidence += (
                f", at {reached:.3g} GFLOP/s; the device was busy when a plain matrix product was timed"
            )
    epochs = f"--n-epochs {facts.n_epochs // 2}: fewer passes over each rollout (now {facts.n_epochs} epochs)"
    network = f"--network-arch: a smaller network (now {facts.num_parameters:,} parameters)"
    fewer = epochs if facts.n_epochs > 1 else network
    if is_arithmetic:
        return _make("update arithmetic", evidence, fewer)
    # The smallest divisor of the rollout that is at least twice the batch.
    rollout, twice = facts.config.rollout_size, 2 * facts.config.algorithm.batch_size
    larger = [
        f"--batch-size {size}: fewer, larger gradient steps; this changes learning"
        for size in range(twice, rollout + 1)
        if rollout % size == 0
    ]
    return _make("update overhead", evidence, *larger[:1], fewer)


def _judge_memory(use: float, machine: Mapping[str, float], facts: VerdictFacts) -> Verdict:
    own = machine.get("machine/memory_bytes_max")
    ours = "" if own is None else f", {own / 1e9:.2g} GB of it by this run"
    n_envs, num_steps = (max(1, size // 2) for size in facts.sizes)
    return _make(
        "memory",
        f"{100 * use:.0f} % of the machine's memory is in use{ours}",
        f"--n-envs {n_envs}: half the environments",
        f"--n-steps-per-env {num_steps}: half the rollout",
    )


def _judge_evaluation(case: _Measured) -> Verdict:
    config = case.facts.config
    every, episodes = config.evaluation.eval_freq, config.evaluation.eval_episodes
    shorter = f"--eval-episodes {max(1, episodes // 2)}: shorter"
    if every >= config.run.timesteps:
        evidence = f"evaluating takes {case.share}: {episodes} episodes at the end of a short run"
        return _make("evaluation", evidence, shorter)
    evidence = f"evaluating takes {case.share}: {episodes} episodes every {every:,} steps"
    return _make("evaluation", evidence, f"--eval-freq {4 * every}: less often", shorter)


def _judge_saving(case: _Measured) -> Verdict:
    config, faster = case.facts.config, "--runs-dir: on a faster disk"
    every = config.checkpoints.checkpoint_freq
    if every >= config.run.timesteps or not case.facts.gradient_steps:  # only the first and the last one
        evidence = f"saving checkpoints takes {case.share}: the run is short"
        return _make("saving", evidence, faster)
    evidence = f"saving checkpoints takes {case.share}, one every {every:,} steps"
    return _make("saving", evidence, f"--checkpoint-freq {10 * every}: less often", faster)


_JUDGES: Mapping[str, Callable[[_Measured], Verdict]] = {
    "environment": _judge_environment,
    "failures": lambda case: _make(
        "environment failures",
        f"{case.facts.hung}; waiting for calls that do not return takes {case.share}",
        "mission-gym check --repro: replays the first of them; env-output.txt has its stack",
    ),
    "acting": lambda case: _make(
        "acting",
        f"choosing actions takes {case.share}, for {case.facts.sizes[0]} environments and a network of"
        f" {case.facts.num_parameters:,} parameters",
        f"{case.facts.wider_rollout}: the same rollout in fewer, larger calls",
        "--network-arch: narrower",
    ),
    "copying": lambda case: _make(
        "collecting overhead",
        f"copying weights, rows and messages takes {case.share}, more than environments and policy",
        f"{case.facts.wider_rollout}: fewer, larger vector steps",
    ),
    "update": _judge_update,
    "recording": lambda case: _make(
        "recording",
        f"rows, logs and the progress line take {case.share}",
        "--log-interval 10: a row every ten updates",
        "--no-tensorboard: fewer files to write",
    ),
    "evaluation": _judge_evaluation,
    "saving": _judge_saving,
}


def _add_gpu(verdict: Verdict, case: _Measured) -> Verdict:
    """Explain a low use of the GPU: it has nothing to do, or too little at a time."""
    _, seconds, machine, facts = case
    use, device = machine.get("machine/gpu_use"), facts.config.compute.device
    if device == "cpu":
        return verdict
    if use is None:
        return _extend(verdict, f"; GPU use n/a: {_UNREAD[device.partition(':')[0]]}")
    if use >= LOW_GPU:
        return _add_throttling(verdict, machine)
    low = f"; GPU use is {100 * use:.0f} %"
    if not verdict.bound.startswith("update"):
        needed = 100 * seconds["learn"] / seconds["wall"]
        return _extend(verdict, f"{low}, since learning is only {needed:.0f} % of the time")
    small = f"{facts.num_parameters:,} parameters at batch {facts.config.algorithm.batch_size}"
    cause = f"{low}, since {small} are little work for it, and launching a gradient step takes longer"
    explained = _extend(verdict, f"{cause} than computing it")
    explained.advice.append("--device cpu: may be faster for this size")
    return explained


def _add_throttling(verdict: Verdict, machine: Mapping[str, float]) -> Verdict:
    """Report that a busy GPU has lowered its clock."""
    clock, fastest = machine.get("machine/gpu_clock_mhz"), machine.get("machine/gpu_clock_mhz_max")
    if clock is None or fastest is None or clock >= THROTTLED * fastest:
        return verdict
    heat = machine.get("machine/gpu_temperature_c_max")
    at = "" if heat is None else f" at up to {heat:.0f} C"
    return _extend(
        verdict,
        f"; the GPU is throttled: its mean clock is {clock:.0f} of {fastest:.0f} MHz{at}",
        "cool the GPU, raise its power limit or plug the laptop in: no setting of a run helps",
    )


def _count_others(case: _Measured) -> float:
    """Cores that other processes used; 0 if that is unknown or little."""
    cores, own = case.facts.cores, case.machine.get("machine/own_cores")
    busy = case.machine.get("machine/cpu")
    if own is None or busy is None or busy * cores - own < OTHERS * cores:
        return 0.0
    return busy * cores - own


def _add_others(verdict: Verdict, case: _Measured) -> Verdict:
    """Report that other processes use the machine."""
    others = _count_others(case)
    if not others:
        return verdict
    return _extend(
        verdict,
        f"; other processes used {others:.2g} of {case.facts.cores} cores",
        "end those processes, or wait for them: this run gets the rest",
    )


def _env_cpu_share(seconds: Mapping[str, float], facts: VerdictFacts) -> float | None:
    """CPU time over wall time of environments and acting, which is the smaller part."""
    if not facts.env_cpu_is_known or seconds["env"] <= 0:
        return None
    return min(seconds["collect_cpu"] / (seconds["act"] + seconds["env"]), 1.0)
