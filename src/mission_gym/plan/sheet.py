"""The plan of a run: counts, memory and the expected rate, printed before the start and stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mission_gym.config.layers import read_presets
from mission_gym.config.schema import Settled
from mission_gym.data import ActionSpec, EnvSpec, Fact, LeafSpec, Plan
from mission_gym.env.agents import type_of_agent
from mission_gym.learner.contract import Algorithm
from mission_gym.plan.ways import explain_overlap, explain_way
from mission_gym.vector.record import Backend

_LOW_USE = 0.5  # of an accelerator


def make_plan(
    config: Settled,
    backend: Backend,
    spec: EnvSpec,
    algorithm: Algorithm,
    memory_bytes: int,
    predicted_fps: float,
    notes: list[str],
    start: int,
    evaluations: Fact,
    reasons: Sequence[str] = (),
    of_device: Sequence[Fact] = (),
) -> Plan:
    """Put the plan of the steps behind `start` together; `plan.json` and the terminal show these facts.

    reasons: of a tuned plan, one sentence each. of_device: what is expected of an accelerator.
    """
    rollout, total = config.rollout_size, config.run.timesteps - start
    eval_freq, save_freq = config.evaluation.eval_freq, config.checkpoints.checkpoint_freq
    compute = config.compute
    network = config.policy.network or ",".join(map(str, config.policy.network_arch))
    shape = "your own" if config.policy.network else config.policy.activation
    holds, lasts = algorithm.holds, _duration(total / predicted_fps)
    source = "as tuned" if reasons else "measured just now"
    facts = [
        Fact("environment", config.env.env_id, describe_spaces(spec)),
        Fact("environments", f"{config.vector.n_envs}", _describe_backend(config, backend)),
        *([Fact("target", *spec.target)] if spec.target else []),
        *_describe_agents(config, spec),
        *_describe_curriculum(config),
        Fact("rollout", f"{rollout}", _describe_rollout(config)),
        *algorithm.describe(config, spec),
        Fact("updates", f"{total // rollout}", f"{total:,} steps"),
        Fact("network", network, f"{shape}, acting with {compute.acting}"),
        Fact("learner", compute.device, explain_way(config, spec)),
        explain_overlap(config, backend, algorithm),
        *of_device,
        evaluations,
        Fact("checkpoints", f"every {save_freq:,} steps", "and after every evaluation" if eval_freq else ""),
        Fact("memory", f"{memory_bytes / 1e9:.2f} GB", f"torch, {holds}, network, workers, environments"),
        Fact("expected", f"{predicted_fps:,.0f} steps/s", f"about {lasts} of training, {source}"),
    ]
    facts += [Fact("" if number else "reasons", "", reason) for number, reason in enumerate(reasons)]
    return Plan(tuple(facts), memory_bytes, predicted_fps, tuple(notes))


def expect_use(
    config: Settled, collect_s: float, update_s: float, taken_bytes: int | None, free_bytes: int | None
) -> list[Fact]:
    """How busy an accelerator will be, from the measured phases: no fault where environments bound a run."""
    if config.compute.device == "cpu":
        return []
    in_turns = config.compute.overlap == "off"
    share = update_s / (collect_s + update_s if in_turns else max(collect_s, update_s))
    bound = "learning bounds this run" if update_s > collect_s else "environments bound this run"
    reason = f"learning {1e6 * update_s:.3g} us and collecting {1e6 * collect_s:.3g} us a step; {bound}"
    if share < _LOW_USE:
        reason += f"; on enough cores {int(1.0 / share)} runs side by side would fill it"
    facts = [Fact("device use", f"about {100 * share:.0f} %", reason)]
    if taken_bytes is not None and free_bytes is not None:
        many = f"; {1 + free_bytes // max(taken_bytes, 1)} such runs would fit" if share < _LOW_USE else ""
        sizes = f"measured in an update; {free_bytes / 1e9:.1f} GB are free beside it{many}"
        facts.append(Fact("device memory", f"{taken_bytes / 1e9:.2f} GB", sizes))
    return facts


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


def _describe_backend(config: Settled, backend: Backend) -> str:
    workers = backend.name_workers(config.vector.num_workers)
    return f"{backend.name} backend{workers and f', {workers}'}"


def _describe_rollout(config: Settled) -> str:
    n_envs, steps = config.vector.n_envs, config.algorithm.n_steps_per_env
    if config.vector.blocks == "first_ready":
        return f"the {config.num_columns} segments of {steps} steps that are finished first"
    agents = f" x {config.vector.num_agents} agents" if config.vector.num_agents > 1 else ""
    return f"{n_envs} envs{agents} x {steps} steps"


def _describe_agents(config: Settled, spec: EnvSpec) -> list[Fact]:
    if not spec.agents:
        return []
    kinds = Counter(type_of_agent(agent) for agent in spec.agents)
    each = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    how = f"{each}; they share the policy, and a step is one agent's"
    return [Fact("agents", f"{config.num_columns}", f"{spec.num_agents} in each environment: {how}")]


def _describe_curriculum(config: Settled) -> list[Fact]:
    """A line for each stage."""
    curriculum = config.env.curriculum
    if curriculum is None:
        return []
    played, facts = curriculum.find(config.evaluation.eval_stage), []
    for number, (stage, label) in enumerate(zip(curriculum.stages, curriculum.labels, strict=True)):
        made = ", ".join(f"{key}={value}" for key, value in {**stage.kwargs, **stage.options}.items())
        parts = ["" if made == label else made, f"until {stage.until}" if stage.until else "to the end"]
        parts += [f"back if {stage.back}"] if stage.back else []
        parts += ["evaluations are on it"] if number == played and config.evaluation.eval_freq else []
        text = "; ".join(part for part in parts if part)
        facts.append(Fact("" if number else "curriculum", f"{number + 1} {label}", text))
    if curriculum.earlier:
        facts.append(Fact("", f"{100 * curriculum.earlier:g} %", "of the episodes are of earlier stages"))
    return facts


def describe_spaces(spec: EnvSpec) -> str:
    """The observation and action of an environment in a few words."""
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
    """What is read of a leaf, and what is not."""
    if leaf.kind == "text":
        return f"text (its first {leaf.shape[0] // 2} words or characters)"
    if leaf.kind == "sequence":
        return f"sequence (its first {leaf.max_elements} elements of {leaf.num_element_features - 1} columns)"
    if leaf.open_ended:
        return f"ids{list(leaf.shape)} of {max(leaf.nvec)} kinds"
    shape = f"{leaf.kind}{list(leaf.shape)}"
    return f"{shape}, the mean of each {leaf.shrink} x {leaf.shrink} pixels" if leaf.shrink > 1 else shape


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
