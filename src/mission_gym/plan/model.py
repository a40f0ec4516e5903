"""What a layout costs: seconds for each transition collected, and bytes of all processes. Pure.

The model is coarse on purpose: its constants only rank layouts that were not tried, since what it says is
scaled by the nearest trial of the same backend.
"""

from __future__ import annotations

from math import exp, log, sqrt
from statistics import fmean

from mission_gym.plan.facts import EnvFacts, Facts, Layout, UpdateCost, Wishes
from mission_gym.procs import MachineFacts

SLOW_CORE = 0.6  # of a fast core's speed: what efficiency cores give
_SLOT_S = 2e-6  # checks around each step
_THREAD_S = 30e-6  # waking a thread for a step
_GROUP_ROWS = 32  # of threads that wait for each other; other groups are under way meanwhile
_BLOCK_S = 1.5e-3  # a command and a reply for a block of workers
_WORKER_S = 0.2e-3  # and for each worker of them
_MEMORY_SHARE = 0.9  # of what is free


def predict_rate(facts: Facts, layout: Layout, update: UpdateCost) -> float:
    """Steps per second of training; the slower phase alone counts where they run at once."""
    both = (predict_collect_s(facts, layout), update.step_s)
    return 1.0 / (max if facts.wishes.at_once(layout, update) else sum)(both)


def predict_collect_s(facts: Facts, layout: Layout) -> float:
    """Seconds for each transition collected: the model times what trials say of it, the nearest of the same
    backend, or else all together: a machine that is busy with other things slows every layout down."""
    modelled = model_collect_s(facts, layout)
    ratios = {trial: trial.collect_s / model_collect_s(facts, trial.layout) for trial in facts.trials}
    near = [trial for trial in ratios if trial.layout.backend == layout.backend]
    if near:
        return modelled * ratios[min(near, key=lambda trial: _distance(trial.layout, layout))]
    return modelled * exp(fmean(log(ratio) for ratio in ratios.values())) if ratios else modelled


def _distance(one: Layout, other: Layout) -> float:
    return abs(log(one.n_envs / other.n_envs)) + abs(log(one.num_workers / other.num_workers))


def model_collect_s(facts: Facts, layout: Layout) -> float:
    """Rows one after the other in a process, workers side by side, a barrier at the end of a block."""
    env, act, cores = facts.env, facts.act, facts.machine.usable_cores
    n_envs, num_steps, num_workers = layout.n_envs, layout.n_steps_per_env, layout.num_workers
    cpu_s = env.step_s * env.cpu_share
    wait_s = env.step_s - cpu_s
    if layout.backend.for_waiting:
        # A group waits together, the slowest for longest; what needs the processor takes turns.
        rows, row_s = min(n_envs, _GROUP_ROWS), cpu_s + act.row_s + _THREAD_S
        longest_s = wait_s * (1.0 + env.spread * sqrt(2.0 * log(max(rows, 2))))
        turn_s = max(longest_s + act.call_s + rows * row_s, act.call_s * n_envs / rows + n_envs * row_s)
        return turn_s / n_envs + _BLOCK_S / layout.rollout
    rows = -(-n_envs // num_workers)
    slower = 1.0 + (env.slowdown - 1.0) * (min(num_workers, cores) - 1) / max(cores - 1, 1)
    if num_workers > count_fast(facts.machine):
        slower /= SLOW_CORE
    busy_s = slower * (act.call_s + rows * (act.row_s + _SLOT_S + cpu_s))
    # Beyond the cores, those that compute wait for one.
    turn_s = max(busy_s + rows * wait_s, busy_s * num_workers / cores)
    block_s = num_steps * turn_s
    if num_workers > 1:  # the slowest of the workers ends the block
        block_s *= 1.0 + env.spread * sqrt(2.0 * log(num_workers) / (num_steps * rows))
    if not layout.backend.runs_here:
        block_s += _BLOCK_S + num_workers * _WORKER_S
    return block_s / layout.rollout


def count_fast(machine: MachineFacts) -> int:
    """Usable cores that are not efficiency cores, 1 at least."""
    return max(1, min(machine.usable_cores, machine.allowed_cores - machine.efficiency_cores))


def predict_memory(env: EnvFacts, wishes: Wishes, layout: Layout) -> int:
    """Bytes of all processes: the learner's, copies of the block, workers, environments."""
    processes = layout.backend.count_processes(layout.num_workers)
    block = wishes.block_copies * layout.rollout * wishes.step_bytes
    vectors = 2 if wishes.eval_envs else 1  # workers of training, and of evaluations
    environments = (layout.n_envs + wishes.eval_envs) * env.memory_bytes
    return wishes.base_bytes + block + vectors * processes * env.worker_bytes + environments


def fits(machine: MachineFacts, env: EnvFacts, wishes: Wishes, layout: Layout) -> bool:
    """Whether the layout fits in the memory that is free, and its block in what can be shared."""
    return (
        _can_share(machine, wishes, layout)
        and predict_memory(env, wishes, layout) <= _MEMORY_SHARE * machine.memory_free_bytes
    )


def _can_share(machine: MachineFacts, wishes: Wishes, layout: Layout) -> bool:
    return (
        layout.backend.runs_here
        or layout.rollout * wishes.step_bytes <= _MEMORY_SHARE * machine.shared_free_bytes
    )


def explain_misfit(machine: MachineFacts, env: EnvFacts, wishes: Wishes) -> str:
    """Why the wished layout does not fit, and the nearest that does."""
    ruled = wishes.layout
    need, free = predict_memory(env, wishes, ruled), machine.memory_free_bytes
    shared = ""
    if not _can_share(machine, wishes, ruled):
        shared = f", {machine.shared_free_bytes / 1e9:.2f} GB of them to share"
    text = (
        f"the run needs {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free{shared} (blocks of"
        f" {ruled.n_envs} envs x {ruled.n_steps_per_env} steps, {ruled.num_workers} x {ruled.backend.name})"
    )
    for n_envs in range(ruled.n_envs - 1, 0, -1):
        workers = min(ruled.num_workers, n_envs)
        if fits(machine, env, wishes, Layout(ruled.backend, workers, n_envs, ruled.n_steps_per_env)):
            return f"{text}; use n_envs={n_envs} or fewer steps per env [--n-envs, --n-steps-per-env]"
    for steps in (ruled.n_steps_per_env >> shift for shift in range(1, 20)):
        if steps and fits(machine, env, wishes, Layout(ruled.backend, 1, 1, steps)):
            return f"{text}; use n_envs=1 with n_steps_per_env={steps} [--n-envs, --n-steps-per-env]"
    return f"{text}; not even one step of one environment fits; free memory or use a smaller network"
