"""The memory of a run, predicted before it starts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from typing import Any

import psutil

from mission_gym.check.devices import free_device_bytes
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec
from mission_gym.errors import ConfigError
from mission_gym.learner.contract import Algorithm
from mission_gym.plan.facts import EnvFacts, PlanInput, RunLayout
from mission_gym.policy import PolicySpec
from mission_gym.policy.layout import count_parameters, feature_width
from mission_gym.procs import MachineFacts, read_machine
from mission_gym.rollout.blocks import block_bytes
from mission_gym.rollout.play import count_playing
from mission_gym.vector.record import Backend

_TORCH_BYTES = 350 << 20  # resident memory of a process that has loaded torch
_MEMORY_SHARE = 0.9  # of the free memory


def check_memory(
    config: Settled, backend: Backend, spec: EnvSpec, algorithm: Algorithm, env: EnvFacts | None = None
) -> int:
    """Predict the bytes of a run; ConfigError, with the nearest plan that fits, if they are not free.

    env: measurements of the environment; without them it is assumed to be small.
    """
    layout, machine = layout_of(config, backend), read_own_machine()
    own, learning = psutil.Process().memory_info().rss, 20 * _num_parameters(config, spec)
    base, held = max(own, _TORCH_BYTES) + learning, algorithm.held_bytes(config, spec)
    if held > machine.memory_free_bytes - base:
        raise ConfigError(algorithm.explain_held(config, spec, machine.memory_free_bytes - base))
    inputs = PlanInput(layout, (backend,), base_bytes=base + held, **count_bytes(config, spec, backend))
    env = env or EnvFacts(step_s=0.0)
    if not fits(machine, env, inputs, layout):
        raise ConfigError(explain_misfit(machine, env, inputs))
    on_device = learning + config.rollout_size * (inputs.step_bytes + inputs.encoded_bytes)
    free = free_device_bytes(config.compute.device)
    if free is not None and on_device > free:
        raise ConfigError(
            f"the run needs {on_device / 1e9:.1f} GB on {config.compute.device}, and {free / 1e9:.1f} GB are"
            " free there; use a smaller rollout or network, or cpu [--device]"
        )
    return predict_memory(env, inputs, layout)


def read_own_machine() -> MachineFacts:
    """The machine; memory that this process already uses counts as free, since predictions include it."""
    machine, own = read_machine(), int(psutil.Process().memory_info().rss)
    return replace(machine, memory_free_bytes=machine.memory_free_bytes + own)


def layout_of(config: Settled, backend: Backend) -> RunLayout:
    """The layout of a settled config."""
    vector = config.vector
    return RunLayout(
        backend, vector.num_workers, vector.n_envs, config.algorithm.n_steps_per_env, vector.num_agents
    )


def count_bytes(config: Settled, spec: EnvSpec, backend: Backend) -> dict[str, Any]:
    """The fields of `PlanInput` about the memory of blocks and evaluations.

    There are the raw block, its encoded form and the torch kernel's copy. Overlap collects into a second
    block, and first-ready segments are filled in a separate one.
    """
    state = _describe_policy(config, spec).initial_state(1)
    block = block_bytes(spec, config.algorithm.n_steps_per_env, config.num_columns, state)
    encoded = sum(leaf.encoded_bytes for leaf in spec.leaves)
    has_spare = config.compute.overlap == "on" or config.vector.blocks == "first_ready"
    playing = count_playing(
        config.evaluation.eval_episodes,
        own_vector_form=backend.own_vector_form,
        at_most=backend.limit_playing(config.num_envs),
    )
    return {
        "step_bytes": -(-block // config.rollout_size),
        "block_copies": 1 + has_spare,
        "encoded_bytes": encoded * (1 + (config.compute.kernel == "torch")),
        "eval_envs": playing if config.evaluation.eval_freq else 0,
    }


def _num_parameters(config: Settled, spec: EnvSpec) -> int:
    shaped = [leaf for leaf in spec.leaves if not leaf.is_flat]
    features = sum(leaf.num_features for leaf in spec.leaves) + sum(map(feature_width, shaped))
    policy = _describe_policy(config, spec)
    cell = policy.count_memory(features)
    features += policy.recurrent_size if policy.has_memory else 0
    widths = (features, *config.policy.network_arch, policy.num_outputs)
    return cell + 2 * sum((a + 1) * b for a, b in pairwise(widths)) + sum(map(count_parameters, shaped))


def _describe_policy(config: Settled, spec: EnvSpec) -> PolicySpec:
    return PolicySpec.of(config.policy, spec)


def predict_memory(env: EnvFacts, inputs: PlanInput, layout: RunLayout) -> int:
    """The bytes of all processes on this machine: learner, copies of the block, workers, environments."""
    processes = layout.backend.count_processes(layout.num_workers)
    block = layout.rollout * (inputs.block_copies * inputs.step_bytes + inputs.encoded_bytes)
    vectors = 2 if inputs.eval_envs else 1  # training and evaluations have their own workers
    trained = 0 if layout.backend.needs_cluster else layout.n_envs
    environments = (trained + inputs.eval_envs) * env.memory_bytes
    return inputs.base_bytes + block + vectors * processes * env.worker_bytes + environments


def fits(machine: MachineFacts, env: EnvFacts, inputs: PlanInput, layout: RunLayout) -> bool:
    """Whether the layout fits in free memory, and its block in free shared memory."""
    return (
        _fits_shared(machine, inputs, layout)
        and predict_memory(env, inputs, layout) <= _MEMORY_SHARE * machine.memory_free_bytes
    )


def _fits_shared(machine: MachineFacts, inputs: PlanInput, layout: RunLayout) -> bool:
    return (
        layout.backend.runs_here
        or layout.backend.needs_cluster
        or layout.rollout * inputs.step_bytes <= _MEMORY_SHARE * machine.shared_free_bytes
    )


def explain_misfit(machine: MachineFacts, env: EnvFacts, inputs: PlanInput) -> str:
    """The message for a default layout that does not fit, with the nearest one that does."""
    default = inputs.default
    need, free = predict_memory(env, inputs, default), machine.memory_free_bytes
    shared = ""
    if not _fits_shared(machine, inputs, default):
        shared = f", {machine.shared_free_bytes / 1e9:.2f} GB of them shared memory"
    text = (
        f"the run needs {need / 1e9:.1f} GB and {free / 1e9:.1f} GB are free{shared} (blocks of"
        f" {default.n_envs} envs x {default.n_steps_per_env} steps, {default.num_workers} x"
        f" {default.backend.name})"
    )

    def overflows(n_envs: int, steps: int = default.n_steps_per_env) -> bool:
        workers = min(default.num_workers, n_envs)
        layout = replace(default, num_workers=workers, n_envs=n_envs, n_steps_per_env=steps)
        return not fits(machine, env, inputs, layout)

    if n_envs := bisect_left(range(1, default.n_envs), True, key=overflows):
        return f"{text}; use n_envs={n_envs} or fewer steps per env [--n-envs, --n-steps-per-env]"
    for steps in (default.n_steps_per_env >> shift for shift in range(1, 20)):
        if steps and not overflows(1, steps):
            return f"{text}; use n_envs=1 with n_steps_per_env={steps} [--n-envs, --n-steps-per-env]"
    return f"{text}; not even one step of one environment fits; free memory or use a smaller network"
