"""The record of PPO: its costs, limits and refusals, for the plan and the rest of the product."""

from __future__ import annotations

import sys

import numpy as np

from mission_gym.algorithms.ppo.section import PpoSection, SettledPpo, own_section
from mission_gym.clock import time_call
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config, Settled
from mission_gym.config.sizes import pick_batch_size
from mission_gym.data import EnvSpec, Fact
from mission_gym.errors import nearest
from mission_gym.learner.blocks import make_noise_block
from mission_gym.learner.contract import Algorithm, Learner
from mission_gym.policy import PolicySpec
from mission_gym.policy.layout import name_leaves

# Learning rate times gradient steps: a bound on how far an update can move a weight. Measured without a
# target_kl: a KL of 0.01 per update at 0.19 (CartPole-v1), 0.023 and sometimes over 0.03 at 0.64
# (Pendulum-v1).
_MAX_MOVE = 0.3
_ENOUGH_TRANSITIONS, _ENOUGH_IMAGES = 2048, 512  # in a block that an update is timed on
_DEVICE_STEPS = 8  # fewest timed gradient steps on a device
_LONG_S = 0.5  # an update of this length is timed once


class Ppo(Algorithm):
    """Proximal policy optimization."""

    name = "ppo"
    section = PpoSection
    has_bf16 = True
    why_no_memory = ""
    compiled_kernel_has_threads = True
    compiled = "mission_gym.algorithms.ppo.compiled_kernel"

    def layout(self, config: Config, spec: EnvSpec) -> PolicySpec:
        hidden = name_leaves(config.policy.critic_keys, spec.leaves)
        return PolicySpec.of(config.policy, spec, critic_leaves=hidden)

    def make_learner(self, config: Settled, spec: EnvSpec) -> Learner:
        from mission_gym.algorithms.ppo import build

        return build.make_learner(config, spec)

    def has_compiled_kernel(self, config: Config, threads: int) -> bool:
        return config.policy.recurrent == "none"

    def verify_compiled_kernel(self, config: Config, spec: EnvSpec, threads: int) -> str:
        from mission_gym.algorithms.ppo import build

        return build.verify_compiled_kernel(config, spec, threads)

    def verify_device(self, config: Settled, spec: EnvSpec) -> str:
        from mission_gym.algorithms.ppo import build

        return build.verify_device(config, spec)

    def refuse(self, resolved: Resolved, spec: EnvSpec) -> list[str]:
        return _refuse_with_memory(resolved) + _refuse_keys(resolved, spec)

    def trace_decay(self, config: Config) -> float:
        assert isinstance(config.algorithm, PpoSection)
        return config.algorithm.gamma * config.algorithm.gae_lambda

    def fixed_batch(self, resolved: Resolved) -> int | None:
        """Minibatches divide the rollout, so an explicit batch size constrains it."""
        batch, path = resolved.config.algorithm.batch_size, f"{resolved.config.run.algo}.batch_size"
        return batch if isinstance(batch, int) and resolved.explicit(path) else None

    def chunk(self, config: Settled) -> int:
        return own_section(config).bptt_steps if config.policy.recurrent != "none" else 1

    def minibatch(self, config: Settled) -> int | None:
        return own_section(config).batch_size

    def num_epochs(self, config: Settled) -> int:
        return own_section(config).n_epochs

    def refuse_lag(self, config: Settled) -> str:
        """Importance weights do not repair updates that move the policy far."""
        section = own_section(config)
        num_steps = config.rollout_size // section.batch_size * section.n_epochs
        if section.target_kl is not None or num_steps * section.learning_rate <= _MAX_MOVE:
            return ""
        return (
            f"{num_steps} gradient steps of {section.learning_rate:g} without a target_kl may move the policy"
            " too far for a rollout that is one update old"
        )

    def describe(self, config: Settled, spec: EnvSpec) -> list[Fact]:
        section = own_section(config)
        minibatches, quarter = config.rollout_size // section.batch_size, pick_batch_size(config.rollout_size)
        steps = f"{minibatches * section.n_epochs} gradient steps per update"
        reason = f"{minibatches} minibatches x {section.n_epochs} epochs = {steps}"
        if minibatches == 1 and quarter < section.batch_size:
            reason += "; a batch is the whole rollout"
        if section.batch_size != quarter:
            reason += f"; --batch-size auto: {quarter}"
        facts = [Fact("batch", f"{section.batch_size}", reason)]
        if config.policy.recurrent != "none":
            chunk, memory = section.bptt_steps, f"{config.policy.recurrent} of {config.policy.recurrent_size}"
            chunks = f"learned in chunks of {chunk} steps, {section.batch_size // chunk} per minibatch"
            facts.append(Fact("memory", memory, chunks))
        return [*facts, *self.describe_critic(config, spec)]

    def measure_update_s(self, learner: Learner, config: Settled, spec: EnvSpec) -> float:
        """Seconds of learning per transition, on a block of noise: one epoch is timed, all are counted."""
        from mission_gym.algorithms.ppo.learner import PpoLearner

        assert isinstance(learner, PpoLearner)
        section, kernel, before = learner.section, learner.kernel, learner.arrays()
        layout = self.layout(config, spec)
        enough = _ENOUGH_TRANSITIONS if layout.has_numpy_form else _ENOUGH_IMAGES
        num_steps = _fewest_steps(config, section, enough, self.chunk(config))
        state = layout.initial_state(config.num_columns)
        block = make_noise_block(spec, num_steps, config.num_columns, state)
        order = learner.draw_order(np.random.default_rng(0), block)
        learner.section = section.model_copy(update={"n_epochs": 1})
        num_modules = len(sys.modules)
        update_s = time_call(lambda: learner.update(block))
        # The first update also allocates memory and, in a new process, loads libraries for seconds.
        if update_s < _LONG_S or len(sys.modules) > num_modules:
            update_s = time_call(lambda: learner.update(block))
        settings = learner.step_settings()._replace(learning_rate=0.0)
        epoch_s = 0.0
        if section.n_epochs > 1:
            # On a device a few steps are too few: each read of their statistics waits for it.
            repeats = 1 if config.compute.device == "cpu" else -(-_DEVICE_STEPS // len(order))

            def run_epochs() -> None:
                for _ in range(repeats):
                    kernel.read([kernel.epoch(order, settings, lambda: False)])

            epoch_s = time_call(run_epochs) / repeats
        learner.section = section
        learner.load_arrays(before)
        learner.clock.take()
        return (update_s + (section.n_epochs - 1) * epoch_s) / block.reward.size


def _refuse_with_memory(resolved: Resolved) -> list[str]:
    """What a policy with memory can't use."""
    config, sources = resolved.config, resolved.sources
    if config.policy.recurrent == "none":
        return []
    reasons = {
        "compute.kernel": ("compiled", "it has no recurrent cells; use torch or auto"),
        "compute.precision": ("bf16", "rounding would add up in the memory; use float32 or auto"),
        "vector.blocks": ("first_ready", "its segments begin with weights of different updates; use all"),
    }
    return [
        f"{path.split('.')[1]}={value} is not possible with recurrent={config.policy.recurrent}: {reason}"
        f" [{sources[path]}]"
        for path, (value, reason) in reasons.items()
        if config.value(path) == value
    ]


def _refuse_keys(resolved: Resolved, spec: EnvSpec) -> list[str]:
    """Keys that can't be the critic's."""
    keys, source = resolved.config.policy.critic_keys, resolved.sources["policy.critic_keys"]
    names = [leaf.name for leaf in spec.leaves]
    if keys and names == [""]:
        return [
            f"critic_keys={','.join(keys)} needs a Dict observation with these keys, and {spec.env_id}"
            f" observes one {type(spec.observation_space).__name__}; remove it [{source}]"
        ]
    problems = []
    for key in keys:
        if key == spec.mask_key:
            problems.append(
                f"critic_keys: {key!r} is the action mask, which neither network reads; remove it [{source}]"
            )
        elif not name_leaves((key,), spec.leaves):
            problems.append(
                f"critic_keys: the observation has no key {key!r}{nearest(key, names)}; it has"
                f" {', '.join(names)} [{source}]"
            )
    if not problems and len(name_leaves(keys, spec.leaves)) == len(names):
        problems.append(
            f"critic_keys={','.join(keys)} names the whole observation, so the actor would see nothing;"
            f" leave it at least one of {', '.join(names)} [{source}]"
        )
    return problems


def _fewest_steps(config: Settled, section: SettledPpo, enough: int, chunk: int) -> int:
    """Steps of a block that is large enough to be timed and splits into whole minibatches. chunk: of a policy
    with memory, 1 without."""
    num_columns = config.num_columns
    for steps in range(chunk, section.n_steps_per_env, chunk):
        if steps * num_columns >= enough and steps * num_columns % section.batch_size == 0:
            return steps
    return section.n_steps_per_env
