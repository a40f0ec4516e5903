"""The plan of a run: sizes, memory and the expected rate, printed before training and stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mission_gym.actions import ActionSpec
from mission_gym.check.devices import free_device_bytes, peak_device_bytes
from mission_gym.config.layers import read_presets
from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec, Fact, LeafSpec, Plan
from mission_gym.env.agents import type_of_agent
from mission_gym.learner.contract import Algorithm
from mission_gym.plan.setups import describe_setup, explain_overlap
from mission_gym.vector.record import Backend

_LOW_USE = 0.5  # of an accelerator
_FEW = 8  # categories whose sizes are listed


class RunCosts(NamedTuple):
    """Measured and predicted costs of a run; seconds per step."""

    collect_s: float
    update_s: float
    fps: float
    memory_bytes: int


def make_plan(
    config: Settled,
    backend: Backend,
    spec: EnvSpec,
    algorithm: Algorithm,
    costs: RunCosts,
    *,
    start: int,
    evaluations: Fact,
    notes: Sequence[str],
    reasons: Sequence[str] = (),
) -> Plan:
    """The plan of the steps after `start`, for plan.json and the terminal. reasons: of a tuned plan."""
    rollout, total = config.rollout_size, config.run.timesteps - start
    eval_freq, save_freq = config.evaluation.eval_freq, config.checkpoints.checkpoint_freq
    network = config.policy.network or ",".join(map(str, config.policy.network_arch))
    shape = "custom" if config.policy.network else config.policy.activation
    duration, source = _duration(total / costs.fps), "as tuned" if reasons else "just measured"
    facts = [
        Fact("environment", config.env.env_id, describe_spaces(spec)),
        Fact("environments", f"{config.vector.n_envs}", backend.describe(config.vector.num_workers)),
        *([Fact("target", *spec.target)] if spec.target else []),
        *_describe_agents(config, spec),
        *_describe_curriculum(config),
        Fact("rollout", f"{rollout}", _describe_rollout(config)),
        *algorithm.describe(config, spec),
        Fact("updates", f"{total // rollout}", f"{total:,} steps"),
        Fact("network", network, f"{shape}, acting with {config.compute.acting}"),
        Fact("learner", config.compute.device, describe_setup(config, spec)),
        explain_overlap(config, backend, algorithm),
        *_describe_device(config, costs),
        evaluations,
        Fact("checkpoints", f"every {save_freq:,} steps", "and after every evaluation" if eval_freq else ""),
        Fact(
            "memory",
            f"{costs.memory_bytes / 1e9:.2f} GB",
            f"torch, {algorithm.holds}, network, workers, environments",
        ),
        Fact("expected", f"{costs.fps:,.0f} steps/s", f"about {duration} of training, {source}"),
    ]
    facts += [Fact("" if number else "reasons", "", reason) for number, reason in enumerate(reasons)]
    return Plan(tuple(facts), costs.memory_bytes, costs.fps, tuple(notes))


def _describe_device(config: Settled, costs: RunCosts) -> list[Fact]:
    """The expected use and memory of an accelerator. Low use is normal if environments limit the run."""
    device = config.compute.device
    if device == "cpu":
        return []
    collect_s, update_s = costs.collect_s, costs.update_s
    alternates = config.compute.overlap == "off"
    share = update_s / (collect_s + update_s if alternates else max(collect_s, update_s))
    limit = "learning limits this run" if update_s > collect_s else "environments limit this run"
    reason = f"learning {1e6 * update_s:.3g} us and collecting {1e6 * collect_s:.3g} us per step; {limit}"
    if share < _LOW_USE:
        reason += f"; with enough cores, {int(1.0 / share)} runs at the same time would fill it"
    facts = [Fact("device use", f"about {100 * share:.0f} %", reason)]
    taken, free = peak_device_bytes(device), free_device_bytes(device)
    if taken is not None and free is not None:
        fitting = f"; {1 + free // max(taken, 1)} such runs would fit" if share < _LOW_USE else ""
        sizes = f"measured in an update; {free / 1e9:.1f} GB are free in addition{fitting}"
        facts.append(Fact("device memory", f"{taken / 1e9:.2f} GB", sizes))
    return facts


def judge_preset(
    preset: str | None, total: int, fps: float, cores: int, measure_without: Callable[[], float | None]
) -> list[str]:
    """A note if the preset is made for more cores: the expected duration, a smaller preset, and the rate
    without one."""
    made_for = {name: row["cores"] for name, row in read_presets().items() if "cores" in row}
    if preset not in made_for or cores >= made_for[preset]:
        return []
    without = measure_without()
    fitting = [name for name, wanted in made_for.items() if wanted <= cores]
    return [
        f"preset {preset} is made for about {made_for[preset]} cores, and {cores} are usable: at the measured"
        f" {fps:,.0f} steps/s, {total:,} steps take about {_duration(total / fps)}; a smaller choice is"
        f" --preset {fitting[-1] if fitting else 'fast'}"
        + (f", or no preset: about {without:,.0f} steps/s" if without else "")
    ]


def _describe_rollout(config: Settled) -> str:
    n_envs, steps = config.vector.n_envs, config.algorithm.n_steps_per_env
    if config.vector.blocks == "first_ready":
        return f"the first {config.num_columns} finished segments of {steps} steps"
    agents = f" x {config.vector.num_agents} agents" if config.vector.num_agents > 1 else ""
    return f"{n_envs} envs{agents} x {steps} steps"


def _describe_agents(config: Settled, spec: EnvSpec) -> list[Fact]:
    if not spec.agents:
        return []
    kinds = Counter(type_of_agent(agent) for agent in spec.agents)
    each = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    how = f"{each}; they share the policy, and each agent's steps count"
    return [Fact("agents", f"{config.num_columns}", f"{spec.num_agents} per environment: {how}")]


def _describe_curriculum(config: Settled) -> list[Fact]:
    """One row per stage."""
    curriculum = config.env.curriculum
    if curriculum is None:
        return []
    played, facts = curriculum.find(config.evaluation.eval_stage), []
    for number, (stage, label) in enumerate(zip(curriculum.stages, curriculum.labels, strict=True)):
        made = ", ".join(f"{key}={value}" for key, value in {**stage.kwargs, **stage.options}.items())
        parts = [
            "" if made == label else made,
            f"until {stage.until}" if stage.until else "until the end",
        ]
        parts += [f"back if {stage.back}"] if stage.back else []
        parts += ["for evaluations"] if number == played and config.evaluation.eval_freq else []
        text = "; ".join(part for part in parts if part)
        facts.append(Fact("" if number else "curriculum", f"{number + 1} {label}", text))
    if curriculum.earlier:
        facts.append(Fact("", f"{100 * curriculum.earlier:g} %", "of the episodes use earlier stages"))
    return facts


def describe_spaces(spec: EnvSpec) -> str:
    """The observation and action spaces of an environment, in a few words."""
    leaves = ", ".join(map(_describe_leaf, spec.leaves))
    masked = ", masked" if spec.mask_source else ""
    return f"observes {leaves}; acts {_describe_action(spec.action)}{masked}"


def _describe_action(action: ActionSpec) -> str:
    if action.kind == "composite":
        parts = ", ".join(f"{part.name} {_describe_action(part)}" for part in action.parts)
        return f"{parts}, categories joined" if action.joint else parts
    shape = list(action.nvec) if action.kind == "categories" else list(action.shape)
    joined = f" (all of {' x '.join(map(str, action.joint))})" if action.joint else ""
    return f"{action.kind}{shape}{joined}"


def _describe_leaf(leaf: LeafSpec) -> str:
    """The name of a leaf and the part of it that is read."""
    return f"{leaf.name} {_describe_form(leaf)}" if leaf.name else _describe_form(leaf)


def _describe_form(leaf: LeafSpec) -> str:
    if leaf.kind == "text":
        return f"text (first {leaf.shape[0] // 2} words or characters)"
    if leaf.kind == "sequence":
        return f"sequence (first {leaf.max_elements} elements of {leaf.num_element_features - 1} values)"
    if leaf.open_ended:
        return f"ids{list(leaf.shape)} of {max(leaf.nvec)} kinds"
    if leaf.kind == "categories" and len(leaf.nvec) <= _FEW:
        return f"category of {leaf.nvec[0]}" if leaf.shape == () else f"categories{list(leaf.nvec)}"
    shape = f"{leaf.kind}{list(leaf.shape)}"
    return f"{shape}, averaged over {leaf.shrink} x {leaf.shrink} pixels" if leaf.shrink > 1 else shape


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
