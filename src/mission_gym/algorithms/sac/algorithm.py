"""The record of SAC: its costs, limits and refusals, for the plan and the rest of the product."""

from __future__ import annotations

from typing import Any

from mission_gym.algorithms.sac.section import SacSection, sac_section
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec, Fact
from mission_gym.learner.contract import Learner
from mission_gym.learner.off_policy import OffPolicyAlgorithm
from mission_gym.policy import PolicySpec
from mission_gym.policy.layout import name_leaves


class Sac(OffPolicyAlgorithm):
    """Soft actor-critic."""

    name = "sac"
    section = SacSection
    compiled = "mission_gym.algorithms.sac.compiled_kernel"
    compiled_kernel_has_threads = True

    def layout(self, config: Config, spec: EnvSpec) -> PolicySpec:
        hidden = name_leaves(config.policy.critic_keys, spec.leaves)
        return PolicySpec.of(config.policy, spec, form="squashed", outputs_per_real=2, critic_leaves=hidden)

    def make_learner(self, config: Settled, spec: EnvSpec) -> Learner:
        from mission_gym.algorithms.sac import learner

        return learner.make_learner(config, spec)

    def has_compiled_kernel(self, config: Config, threads: int) -> bool:
        return True

    def verify_compiled_kernel(self, config: Config, spec: EnvSpec, threads: int) -> str:
        from mission_gym.algorithms.sac import learner

        return learner.verify_compiled_kernel(config, spec, threads)

    def verify_device(self, config: Settled, spec: EnvSpec) -> str:
        from mission_gym.algorithms.sac import learner

        return learner.verify_device(config, spec)

    def refuse(self, resolved: Resolved, spec: EnvSpec) -> list[str]:
        action, source = spec.action, resolved.sources["run.algo"]
        if action.kind != "box" or action.dtype[0] in "iu":
            name = type(spec.action_space).__name__
            kind = f"{name} of integers" if action.kind == "box" else name
            return [
                f"algo=sac needs a Box of real numbers as actions, and {spec.env_id} acts with {kind};"
                f" use ppo or dqn [{source}]"
            ]
        if not action.has_finite_bounds:
            return [
                f"algo=sac needs finite action bounds, and those of {spec.env_id} are infinite or above 1e6;"
                f" bound its action space, or use ppo [{source}]"
            ]
        return []

    def choose_measured(
        self, resolved: Resolved, collect_s: float, update_s: float
    ) -> tuple[dict[str, Any], str]:
        """Many gradient steps per transition need layer normalization: without it, values diverge."""
        values, reason = super().choose_measured(resolved, collect_s, update_s)
        sac, path, most = sac_section(resolved.config), "sac.critic_layer_norm", SacSection.NORM_RATIO
        if values["sac.replay_ratio"] <= most or sac.critic_layer_norm:
            return values, reason
        if resolved.explicit(path):
            return {"sac.replay_ratio": most}, f"{reason}; {most:g} without critic_layer_norm"
        return values | {path: True}, f"{reason}; critic_layer_norm, as for every ratio above {most:g}"

    def flops_per_parameter(self, config: Settled) -> float:
        """Of two critics (target pass, pass and its backward, and the actor's pass with the gradient of the
        inputs) and one actor (next actions, pass and its backward), by weight."""
        delay = sac_section(config).policy_delay
        return (2 * (8.0 + 4.0 / delay) + 2.0 + 6.0 / delay) / 3

    def describe(self, config: Settled, spec: EnvSpec) -> list[Fact]:
        sac = sac_section(config)
        scaled = ["in units of the returns' standard deviation"] if config.policy.normalize_returns else []
        kind = "twin critics"
        if sac.num_quantiles > 1:
            kind += f" with {sac.num_quantiles} quantiles, {sac.drop_quantiles} dropped"
        names = [kind, *(["layer norm"] if sac.critic_layer_norm else []), f"targets moved by {sac.tau:g}"]
        goal = target_entropy(sac, spec.action.num_reals)
        aim = f"learned, for an entropy of {goal:g}" if sac.learn_temperature else "fixed"
        return [
            *self.describe_replay(config, spec),
            Fact("targets", f"{sac.n_step}-step", ", ".join([*names, *scaled])),
            Fact("temperature", f"{sac.temperature_init:g}", aim),
            *self.describe_critic(config, spec),
        ]


def target_entropy(section: SacSection, num_reals: int) -> float:
    """The entropy that the temperature aims at."""
    return -float(num_reals) if section.target_entropy is None else section.target_entropy
