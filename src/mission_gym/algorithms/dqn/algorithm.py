"""The record of DQN: its costs, limits and refusals, for the plan and the rest of the product."""

from __future__ import annotations

import math
from dataclasses import replace

from mission_gym.actions import MAX_CATEGORIES, ActionSpec
from mission_gym.algorithms.dqn.section import DqnSection, dqn_section
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec, Fact
from mission_gym.learner.contract import Learner
from mission_gym.learner.off_policy import OffPolicyAlgorithm
from mission_gym.policy import PolicySpec


class Dqn(OffPolicyAlgorithm):
    """Deep Q-learning."""

    name = "dqn"
    section = DqnSection
    compiled = "mission_gym.algorithms.dqn.compiled_kernel"
    sampled_play_is_worse = True

    def layout(self, config: Config, spec: EnvSpec) -> PolicySpec:
        dqn = dqn_section(config)
        sigma = dqn.noisy_sigma if dqn.exploration == "noisy" else None
        return PolicySpec.of(config.policy, spec, form="values", dueling=dqn.dueling, noisy_sigma=sigma)

    def make_learner(self, config: Settled, spec: EnvSpec) -> Learner:
        from mission_gym.algorithms.dqn import learner

        return learner.make_learner(config, spec)

    def has_compiled_kernel(self, config: Config, threads: int) -> bool:
        """It has no noisy layers, and runs in one thread."""
        is_noisy = dqn_section(config).exploration == "noisy"
        return not is_noisy and (threads == 1 or config.compute.kernel == "compiled")

    def verify_compiled_kernel(self, config: Config, spec: EnvSpec, threads: int) -> str:
        from mission_gym.algorithms.dqn import learner

        return learner.verify_compiled_kernel(config, spec)

    def verify_device(self, config: Settled, spec: EnvSpec) -> str:
        from mission_gym.algorithms.dqn import learner

        return learner.verify_device(config, spec)

    def adapt_actions(self, spec: EnvSpec) -> EnvSpec:
        """Several choices and bits become one choice among all their combinations, unless these are too many:
        DQN learns a value for each. Masks of the parts become masks over combinations."""
        action = spec.action
        if _is_one_choice(action) or action.num_reals or _count_combinations(action) > MAX_CATEGORIES:
            return spec
        mask_nvec = action.nvec if spec.mask_source else ()
        return replace(spec, action=action.joined(with_bits=True), mask_nvec=mask_nvec)

    def refuse(self, resolved: Resolved, spec: EnvSpec) -> list[str]:
        config, sources, problems = resolved.config, resolved.sources, []
        action = spec.action
        if not _is_one_choice(action):
            cause = f"{spec.env_id} acts with {type(spec.action_space).__name__}"
            if not action.num_reals:
                cause += f" of {_count_combinations(action)} combinations, over the limit of {MAX_CATEGORIES}"
            elif action.parts:
                names = ", ".join(part.name for part in action.parts if part.kind == "box")
                cause += f", which has real numbers ({names})"
            problems.append(
                "algo=dqn needs one choice among actions (Discrete, or a countable space: MultiDiscrete,"
                f" MultiBinary, a Dict or Tuple of them), and {cause}; use ppo [{sources['run.algo']}]"
            )
        if config.compute.kernel == "compiled" and dqn_section(config).exploration == "noisy":
            problems.append(
                "kernel=compiled is not possible: it has no noisy layers; use torch or auto"
                f" [{sources['compute.kernel']}]"
            )
        return problems

    def flops_per_parameter(self, config: Settled) -> float:
        """Two for each forward pass, of which there are two or three, four for the backward pass."""
        return 8.0 + 2.0 * dqn_section(config).double

    def describe(self, config: Settled, spec: EnvSpec) -> list[Fact]:
        dqn = dqn_section(config)
        names = [name for name in ("double", "dueling") if getattr(dqn, name)]
        scaled = ["in units of the returns' standard deviation"] if config.policy.normalize_returns else []
        target = f"moved by {dqn.tau:g}"
        if dqn.tau == 1:
            target = f"copied every {dqn.target_update_interval:,} steps"
        if dqn.exploration == "noisy":
            exploration = Fact("exploration", "noisy", "noise in the last two layers")
        else:
            steps = round(dqn.exploration_fraction * config.run.timesteps)
            ends = f"{dqn.exploration_initial_eps:g} to {dqn.exploration_final_eps:g}"
            exploration = Fact("exploration", "epsilon", f"{ends} over {steps:,} steps")
        return [
            *self.describe_replay(config, spec),
            Fact("targets", f"{dqn.n_step}-step", ", ".join([*names, f"target network {target}", *scaled])),
            exploration,
        ]


def _is_one_choice(action: ActionSpec) -> bool:
    return action.kind == "categories" and len(action.nvec) == 1


def _count_combinations(action: ActionSpec) -> int:
    return math.prod(action.nvec) << action.num_bits
