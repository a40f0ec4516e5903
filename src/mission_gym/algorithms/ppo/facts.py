"""What the plan and the rest of the product know of PPO: what it costs, holds, bears and refuses."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from mission_gym.algorithms.ppo.section import PpoSection, SettledPpo, own_section
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec, Fact
from mission_gym.errors import nearest
from mission_gym.learner.contract import Learner
from mission_gym.learner.noise import make_noise_block
from mission_gym.policy import PolicySpec
from mission_gym.policy.layout import name_leaves

# Learning rate times gradient steps: how far an update can move a weight. Measured without a target_kl:
# a KL of 0.01 per update at 0.19 (CartPole-v1), 0.023 and at times over 0.03 at 0.64 (Pendulum-v1).
_MAX_MOVE = 0.3
_ENOUGH_TRANSITIONS, _ENOUGH_PICTURES = 2048, 512  # of a block that an update is timed on
_DEVICE_STEPS = 8  # gradient steps that are timed there, at least
_LONG_S = 0.5  # an update that takes so long is timed once


def layout(config: Config, spec: EnvSpec) -> PolicySpec:
    """Actor and critic."""
    return PolicySpec.of(config.policy, spec)


def refuse(resolved: Resolved, spec: EnvSpec) -> list[str]:
    """Keys that the critic can't have for itself."""
    keys, source = resolved.config.policy.critic_keys, resolved.sources["policy.critic_keys"]
    names = [leaf.name for leaf in spec.leaves]
    if keys and names == [""]:
        return [
            f"critic_keys={','.join(keys)} needs a Dict observation, whose keys they are, and {spec.env_id}"
            f" observes one {type(spec.observation_space).__name__}; remove it [{source}]"
        ]
    problems = []
    for key in keys:
        if key == spec.mask_key:
            problems.append(
                f"critic_keys: {key!r} is the action mask, which is no input of either network; remove it"
                f" [{source}]"
            )
        elif not name_leaves((key,), spec.leaves):
            problems.append(
                f"critic_keys: the observation has no key {key!r}{nearest(key, names)}; it has"
                f" {', '.join(names)} [{source}]"
            )
    if not problems and len(name_leaves(keys, spec.leaves)) == len(names):
        problems.append(
            f"critic_keys={','.join(keys)} names the whole observation, so that the actor would see nothing;"
            f" leave it at least one of {', '.join(names)} [{source}]"
        )
    return problems


def has_compiled_kernel(config: Config, threads: int) -> bool:
    return True


def trace_decay(config: Config) -> float:
    assert isinstance(config.algorithm, PpoSection)
    return config.algorithm.gamma * config.algorithm.gae_lambda


def fixed_batch(resolved: Resolved) -> int | None:
    """Minibatches divide the rollout: a size that was asked for binds it."""
    batch, path = resolved.config.algorithm.batch_size, f"{resolved.config.run.algo}.batch_size"
    return batch if isinstance(batch, int) and resolved.explicit(path) else None


def refuse_lag(config: Settled) -> str:
    """Updates that move the policy far are not repaired by importance weights."""
    section = own_section(config)
    num_steps = config.rollout_size // section.batch_size * section.n_epochs
    if section.target_kl is not None or num_steps * section.learning_rate <= _MAX_MOVE:
        return ""
    return (
        f"{num_steps} gradient steps of {section.learning_rate:g} without a target_kl may move the policy too"
        " far for a rollout that is one update behind"
    )


def describe(config: Settled, spec: EnvSpec) -> list[Fact]:
    section = own_section(config)
    minibatches = config.rollout_size // section.batch_size
    steps = f"{minibatches * section.n_epochs} gradient steps per update"
    reason = f"{minibatches} minibatches x {section.n_epochs} epochs = {steps}"
    facts = [Fact("batch", f"{section.batch_size}", reason)]
    if hidden := layout(config, spec).critic_leaves:
        facts.append(Fact("critic", f"also sees {', '.join(hidden)}", "which the actor does not"))
    return facts


def num_epochs(config: Settled) -> int:
    return own_section(config).n_epochs


def measure_update_s(learner: Learner, config: Settled, spec: EnvSpec) -> float:
    """Seconds of learning for each transition, on a block of noise: one epoch is timed, all are counted."""
    from mission_gym.algorithms.ppo.learner import PpoLearner

    assert isinstance(learner, PpoLearner)
    section, kernel, before = learner.section, learner.kernel, learner.arrays()
    enough = _ENOUGH_TRANSITIONS if layout(config, spec).is_mlp else _ENOUGH_PICTURES
    block = make_noise_block(spec, _fewest_steps(config, section, enough), config.num_columns)
    num = block.num_steps * block.num_columns
    order = learner.draw_order(np.random.default_rng(0), block)
    learner.section = section.model_copy(update={"n_epochs": 1})
    update_s = _time(lambda: learner.update(block))
    if update_s < _LONG_S:  # the first one also loads libraries and takes memory
        update_s = _time(lambda: learner.update(block))
    settings = learner.step_settings()._replace(learning_rate=0.0)
    epoch_s = 0.0
    if section.n_epochs > 1:
        # On a device a few steps say little: it is started for each read of their statistics.
        repeats = 1 if config.compute.device == "cpu" else -(-_DEVICE_STEPS // len(order))

        def make_epochs() -> None:
            for _ in range(repeats):
                kernel.read([kernel.epoch(order, settings, lambda: False)])

        epoch_s = _time(make_epochs) / repeats
    learner.section = section
    learner.load_arrays(before)
    learner.clock.take()
    return (update_s + (section.n_epochs - 1) * epoch_s) / num


def _time(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _fewest_steps(config: Settled, section: SettledPpo, enough: int) -> int:
    """Steps of a block that is large enough to be timed, and still splits into whole minibatches."""
    num_rows = config.num_columns
    for steps in range(1, section.n_steps_per_env):
        if steps * num_rows >= enough and steps * num_rows % section.batch_size == 0:
            return steps
    return section.n_steps_per_env
