"""The plan of a run: counts, memory and the expected rate, printed before the start and stored."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import psutil

from mission_gym.check.devices import free_device_bytes
from mission_gym.config.layers import read_presets
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec, Fact, Plan
from mission_gym.errors import ConfigError
from mission_gym.learner.dqn import DqnLearner
from mission_gym.learner.kernel import Samples, StepSettings
from mission_gym.plan.facts import EnvFacts, Layout, Wishes
from mission_gym.plan.model import explain_misfit, fits, predict_memory
from mission_gym.plan.overlap import explain_overlap
from mission_gym.plan.sheet_dqn import check_replay, dqn_facts, measure_q_step_s
from mission_gym.plan.ways import explain
from mission_gym.policy import Encoded
from mission_gym.procs import read_machine
from mission_gym.rollout.blocks import block_bytes
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.assemble_dqn import Learner

_TORCH_BYTES = 350 << 20  # resident memory of a process that has loaded torch
_PRIME_STEPS = 256  # transitions of the short block that primes the normaliser and is timed
_PRIME_S = 2.0  # for which it is played again


def prime_steps(config: Config) -> int:
    """Vector steps of the short block before the start: a fixed count, so that equal runs stay equal."""
    return min(config.algorithm.n_steps_per_env, max(4, -(-_PRIME_STEPS // config.vector.n_envs)))


def check_memory(config: Config, spec: EnvSpec, env: EnvFacts | None = None) -> int:
    """Predict the bytes of a run; ConfigError, with the nearest plan that fits, if that is not free.

    env: what was measured of the environment; without it, one that weighs little.
    """
    assert isinstance(config.vector.num_workers, int)
    layout = Layout(
        config.vector.vector,
        config.vector.num_workers,
        config.vector.n_envs,
        config.algorithm.n_steps_per_env,
    )
    own, learning = psutil.Process().memory_info().rss, 20 * _num_parameters(config, spec)
    wishes = Wishes(
        layout,
        (layout.backend,),
        step_bytes=step_bytes(config, spec),
        block_copies=count_copies(config),
        base_bytes=max(own, _TORCH_BYTES) + learning,
    )
    env = env or EnvFacts(step_s=0.0)
    machine = read_machine()
    # What this process has taken already is counted, and so is free to it.
    machine = replace(machine, memory_free_bytes=machine.memory_free_bytes + own)
    if config.run.algo == "dqn":
        replay = check_replay(config, spec, machine.memory_free_bytes - wishes.base_bytes)
        wishes = replace(wishes, base_bytes=wishes.base_bytes + replay)
    if not fits(machine, env, wishes, layout):
        raise ConfigError(explain_misfit(machine, env, wishes))
    on_device = learning + 2 * config.rollout_size * wishes.step_bytes
    free = free_device_bytes(config.compute.device)
    if free is not None and on_device > free:
        raise ConfigError(
            f"the run needs {on_device / 1e9:.1f} GB on {config.compute.device} and {free / 1e9:.1f} GB are"
            " free there; use a smaller rollout or network, or cpu [--device]"
        )
    return predict_memory(env, wishes, layout)


def count_copies(config: Config) -> int:
    """Blocks in memory: the raw one, its encoded form, and the torch kernel's own; overlap collects into a
    second one, and first-ready segments are made in one of their own."""
    has_spare = config.compute.overlap == "on" or config.vector.blocks == "first_ready"
    return 2 + (config.compute.kernel == "torch") + has_spare


def step_bytes(config: Config, spec: EnvSpec) -> int:
    """The memory of one transition in a block."""
    block = block_bytes(spec, config.algorithm.n_steps_per_env, config.vector.n_envs)
    return -(-block // config.rollout_size)


def _num_parameters(config: Config, spec: EnvSpec) -> int:
    features = sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in spec.leaves if leaf.kind != "image")
    widths = (features + 512, *config.policy.network_arch, spec.action.num_params)
    return 2 * sum((a + 1) * b for a, b in pairwise(widths))


def measure_gradient_step_s(learner: Learner, num_flat: int, spec: EnvSpec, mask_size: int) -> float:
    """Time one gradient step of the planned batch on blank data; the learner is left as it was."""
    batch = learner.settings.batch_size
    images = tuple(
        np.zeros((batch, *_channels_first(leaf.shape, leaf.channels_last)), np.uint8)
        for leaf in spec.leaves
        if leaf.kind == "image"
    )
    inputs = Encoded(np.zeros((batch, num_flat), np.float32), images)
    if isinstance(learner, DqnLearner):
        return measure_q_step_s(learner, inputs, spec.action.num_params, mask_size > 0)
    before = learner.arrays()
    stored = np.float32 if spec.action.kind == "box" else np.int64
    zeros = np.zeros(batch, np.float32)
    learner.kernel.load_samples(
        Samples(
            inputs=inputs,
            mask=np.ones((batch, mask_size), bool) if mask_size else None,
            action=np.zeros((batch, spec.action.num_stored), stored),
            log_prob=zeros,
            advantage=zeros,
            returns=zeros,
            weight=None,
        )
    )
    settings = StepSettings(0.0, 0.2, 0.0, 0.5, 0.5, True)
    order = np.arange(batch)[None]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        learner.kernel.epoch(order, settings, lambda: False)
        seconds.append(time.perf_counter() - start)
        if sum(seconds[1:]) > 0.5:  # the first one also allocates, loads libraries and captures graphs
            break
    learner.load_arrays(before)
    return min(seconds)


def _channels_first(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    if len(shape) == 2:
        return (1, *shape)
    return (shape[2], *shape[:2]) if channels_last else shape


def predict_fps(config: Config, collect_s: float, gradient_step_s: float) -> float:
    """Steps per second from the seconds of one collected step and one gradient step."""
    if config.run.algo == "dqn":
        update_s = gradient_step_s * config.dqn.replay_ratio
    else:
        assert isinstance(config.ppo.batch_size, int)
        update_s = gradient_step_s * config.ppo.n_epochs / config.ppo.batch_size
    return 1.0 / (max if config.compute.overlap == "on" else sum)((collect_s, update_s))


def measure_collect_s(collector: BlockCollector, learner: Learner, num_steps: int) -> float:
    """Play the short block: prime the learner's statistics with it, return seconds per step.

    It is played again unless that takes long: the first time also loads libraries and fills caches.
    """
    collector.policy.load(learner.weights())
    seconds: list[float] = []
    while not seconds or (len(seconds) < 3 and sum(seconds) < _PRIME_S):
        start = time.perf_counter()
        obs = collector.prime(num_steps)
        seconds.append(time.perf_counter() - start)
    learner.prime(obs)
    return min(seconds) / (num_steps * int(collector.vec.num_envs))


def make_plan(
    config: Config,
    spec: EnvSpec,
    memory_bytes: int,
    predicted_fps: float | None,
    notes: list[str],
    start: int,
    reasons: Sequence[str] = (),
) -> Plan:
    """Put the plan of the steps behind `start` together; `plan.json` and the terminal show these facts.

    reasons: of a tuned plan, one sentence each.
    """
    rollout, total = config.rollout_size, config.run.timesteps - start
    eval_freq, save_freq = config.evaluation.eval_freq, config.checkpoints.checkpoint_freq
    assert isinstance(eval_freq, int)
    assert isinstance(save_freq, int)
    num_evals = 0 if eval_freq == 0 else max(1, -(-total // eval_freq))
    compute = config.compute
    network = config.policy.network or ",".join(map(str, config.policy.network_arch))
    shape = "your own" if config.policy.network else config.policy.activation
    episodes = config.evaluation.eval_episodes
    held = "blocks, replay" if config.run.algo == "dqn" else "blocks"
    facts = [
        Fact("environment", config.env.env_id, describe_spaces(spec)),
        Fact("environments", f"{config.vector.n_envs}", _describe_backend(config)),
        Fact("rollout", f"{rollout}", _describe_rollout(config)),
        *(dqn_facts(config, spec) if config.run.algo == "dqn" else _ppo_facts(config)),
        Fact("updates", f"{total // rollout}", f"{total:,} steps"),
        Fact("network", network, f"{shape}, acting with {compute.acting}"),
        Fact("learner", compute.device, explain(config, spec)),
        explain_overlap(config),
        Fact(
            "evaluations",
            f"{num_evals}",
            f"{episodes} episodes every {eval_freq:,} steps" if eval_freq else "",
        ),
        Fact("checkpoints", f"every {save_freq:,} steps", "and after every evaluation" if eval_freq else ""),
        Fact("memory", f"{memory_bytes / 1e9:.2f} GB", f"torch, {held}, network, workers, environments"),
    ]
    if predicted_fps is not None:
        source = "as tuned" if reasons else "measured just now"
        facts.append(
            Fact(
                "expected",
                f"{predicted_fps:,.0f} steps/s",
                f"about {_duration(total / predicted_fps)} of training, {source}",
            )
        )
    facts += [Fact("" if number else "reasons", "", reason) for number, reason in enumerate(reasons)]
    return Plan(tuple(facts), memory_bytes, predicted_fps, tuple(notes))


def judge_preset(preset: str | None, total: int, fps: float, cores: int) -> list[str]:
    """What a preset costs on a machine with fewer cores than it is made for, and the smaller choice."""
    made_for = {name: row["cores"] for name, row in read_presets().items() if "cores" in row}
    if preset not in made_for or cores >= made_for[preset]:
        return []
    fitting = [name for name, wanted in made_for.items() if wanted <= cores]
    return [
        f"preset {preset} is made for about {made_for[preset]} cores and {cores} are usable here: at"
        f" {fps:,.0f} steps/s, measured, {total:,} steps take about {_duration(total / fps)}; the smaller"
        f" choice is --preset {fitting[-1] if fitting else 'fast'}"
    ]


def _describe_backend(config: Config) -> str:
    workers = f", {config.vector.num_workers} workers" if config.vector.vector == "workers" else ""
    return f"{config.vector.vector} backend{workers}"


def _describe_rollout(config: Config) -> str:
    n_envs, steps = config.vector.n_envs, config.algorithm.n_steps_per_env
    if config.vector.blocks == "first_ready":
        return f"the {n_envs} segments of {steps} steps that are finished first"
    return f"{n_envs} envs x {steps} steps"


def _ppo_facts(config: Config) -> list[Fact]:
    ppo = config.ppo
    assert isinstance(ppo.batch_size, int)
    minibatches = config.rollout_size // ppo.batch_size
    steps = f"{minibatches * ppo.n_epochs} gradient steps per update"
    return [
        Fact("batch", f"{ppo.batch_size}", f"{minibatches} minibatches x {ppo.n_epochs} epochs = {steps}")
    ]


def describe_spaces(spec: EnvSpec) -> str:
    """The observation and action of an environment in a few words."""
    leaves = ", ".join(f"{leaf.kind}{list(leaf.shape)}" for leaf in spec.leaves)
    action = spec.action
    shape = list(action.nvec) if action.kind == "categories" else list(action.shape)
    masked = ", masked" if spec.mask_source else ""
    return f"observes {leaves}; acts {action.kind}{shape}{masked}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
