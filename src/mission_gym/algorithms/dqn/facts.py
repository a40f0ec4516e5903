"""What the plan and the rest of the product know of DQN: what it costs, holds, bears and refuses."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from mission_gym.algorithms.dqn.section import DqnSection, own_section
from mission_gym.config.layers import Resolved
from mission_gym.config.schema import Config, Settled
from mission_gym.data import MAX_CATEGORIES, ActionSpec, EnvSpec, Fact
from mission_gym.learner.contract import Learner
from mission_gym.learner.noise import make_noise_block
from mission_gym.learner.replay import ReplayLayout
from mission_gym.policy import PolicySpec, QSpec

_ENOUGH_TRANSITIONS = 2048  # in the replay, before updates are timed
_FEWEST_STEPS, _UPDATES_S, _LONGEST_S = 16, 0.02, 1.0  # of the timed updates
_NEVER = 1 << 60


def _section(config: Config) -> DqnSection:
    assert isinstance(config.algorithm, DqnSection)
    return config.algorithm


def layout(config: Config, spec: EnvSpec) -> PolicySpec:
    """A network of action values."""
    dqn = _section(config)
    sigma = dqn.noisy_sigma if dqn.exploration == "noisy" else None
    return PolicySpec.of(config.policy, spec, QSpec(dqn.dueling, sigma))


def adapt_actions(spec: EnvSpec) -> EnvSpec:
    """Several choices and bits become one choice among all their combinations, where these are not too many:
    a value for each is what DQN learns. Masks of each part, too, are then masks over combinations."""
    action = spec.action
    if _is_one_choice(action) or action.num_reals or _count_combinations(action) > MAX_CATEGORIES:
        return spec
    mask_nvec = action.nvec if spec.mask_source else ()
    return replace(spec, action=action.joined(with_bits=True), mask_nvec=mask_nvec)


def _is_one_choice(action: ActionSpec) -> bool:
    return action.kind == "categories" and len(action.nvec) == 1


def _count_combinations(action: ActionSpec) -> int:
    return math.prod(action.nvec) << action.num_bits


def refuse(resolved: Resolved, spec: EnvSpec) -> list[str]:
    config, sources, problems = resolved.config, resolved.sources, []
    dqn, action = _section(config), spec.action
    if not _is_one_choice(action):
        cause = f"{spec.env_id} acts with {type(spec.action_space).__name__}"
        if not action.num_reals:
            cause += f" of {_count_combinations(action)} combinations, over the {MAX_CATEGORIES} it can have"
        elif action.parts:
            names = ", ".join(part.name for part in action.parts if part.kind == "box")
            cause += f", which has real numbers ({names})"
        problems.append(
            f"algo=dqn needs one choice among actions (Discrete, or what can be counted out: MultiDiscrete,"
            f" MultiBinary, a Dict or Tuple of them), and {cause}; use ppo [{sources['run.algo']}]"
        )
    if config.compute.kernel == "compiled" and dqn.exploration == "noisy":
        problems.append(
            "kernel=compiled is not possible: it has no noisy layers; use torch or auto"
            f" [{sources['compute.kernel']}]"
        )
    return problems


def has_compiled_kernel(config: Config, threads: int) -> bool:
    """It has no noisy layers, and computes in one thread."""
    return _section(config).exploration != "noisy" and (threads == 1 or config.compute.kernel == "compiled")


def replay_layout(config: Config, spec: EnvSpec) -> ReplayLayout:
    """The replay that the config asks for in this environment."""
    dqn = _section(config)
    return ReplayLayout(
        leaves=spec.leaves,
        mask_size=spec.mask_size,
        num_envs=config.num_columns,
        capacity=dqn.replay_size,
        n_step=dqn.n_step,
        gamma=dqn.gamma,
        episode_steps=spec.max_episode_steps or ReplayLayout._field_defaults["episode_steps"],
    )


def held_bytes(config: Config, spec: EnvSpec) -> int:
    """The memory of the replay and its priorities."""
    replay = replay_layout(config, spec)
    slots = replay.num_rows * replay.num_envs
    # A sum tree has two numbers a slot, at the next power of two.
    tree = 16 * (1 << (slots - 1).bit_length()) if _section(config).prioritized else 0
    return replay.size_bytes + tree


def explain_held(config: Config, spec: EnvSpec, free_bytes: int) -> str:
    """Why the replay does not fit, and the largest that does."""
    need, size = held_bytes(config, spec), _section(config).replay_size
    fits = max(1, int(size * max(0, free_bytes) / need * 0.9))
    return (
        f"a replay of {size} transitions needs {need / 1e9:.1f} GB and {max(0, free_bytes) / 1e9:.1f} GB"
        f" are free for it; use replay_size={fits} or less [--replay-size]"
    )


def flops_per_parameter(config: Settled) -> float:
    """Two for each product of a pass forward, four for the one backward: two passes or three forward."""
    return 8.0 + 2.0 * own_section(config).double


def describe(config: Settled, spec: EnvSpec) -> list[Fact]:
    dqn, rollout = own_section(config), config.rollout_size
    size = held_bytes(config, spec) / 1e6
    drawn = f"prioritised, alpha {dqn.prioritized_alpha:g}" if dqn.prioritized else "drawn uniformly"
    kept = "saved with the last checkpoint" if dqn.save_replay else "not saved"
    names = [name for name in ("double", "dueling") if getattr(dqn, name)]
    scaled = ["in units of the returns' deviation"] if config.policy.normalize_returns else []
    target = f"copied every {dqn.target_update_interval:,} steps" if dqn.tau == 1 else f"moved by {dqn.tau:g}"
    if dqn.exploration == "noisy":
        exploration = Fact("exploration", "noisy", "noise in the last two layers")
    else:
        falls = round(dqn.exploration_fraction * config.run.timesteps)
        ends = f"{dqn.exploration_initial_eps:g} to {dqn.exploration_final_eps:g}"
        exploration = Fact("exploration", "epsilon", f"{ends} over {falls:,} steps")
    return [
        Fact(
            "batch",
            f"{dqn.batch_size}",
            f"{dqn.replay_ratio:g} gradient steps per transition = {dqn.replay_ratio * rollout:g} per update,"
            f" from step {dqn.learning_starts:,} on",
        ),
        Fact("replay", f"{dqn.replay_size:,}", f"{size:.1f} MB, {drawn}, {kept}"),
        Fact("targets", f"{dqn.n_step}-step", ", ".join([*names, f"target network {target}", *scaled])),
        exploration,
    ]


def notes_on_branch(config: Settled) -> list[str]:
    starts = own_section(config).learning_starts
    return [f"the replay is not carried over; learning goes on after {starts} steps"]


def prepare_rehearsal(learner: Learner) -> None:
    """Learn from the start, as for most of a run."""
    from mission_gym.algorithms.dqn.learner import DqnLearner

    assert isinstance(learner, DqnLearner)
    learner.learning_starts = 0


def measure_update_s(learner: Learner, config: Settled, spec: EnvSpec) -> float:
    """Seconds of learning for each transition, on blocks of noise, with some in the replay already."""
    from mission_gym.algorithms.dqn.learner import DqnLearner

    assert isinstance(learner, DqnLearner)
    dqn, before = own_section(config), learner.arrays()
    block = make_noise_block(spec, dqn.n_steps_per_env, config.num_columns)
    num, starts = block.num_steps * block.num_columns, learner.learning_starts
    learner.learning_starts = _NEVER
    for _ in range(-(-min(_ENOUGH_TRANSITIONS, dqn.replay_size) // num)):
        learner.update(block)
    learner.learning_starts = 0
    learner.update(block)  # the first one loads libraries and takes memory
    made, first = 0, learner.gradient_steps
    begun = now = time.perf_counter()
    while now - begun < _UPDATES_S or learner.gradient_steps - first < _FEWEST_STEPS:
        learner.update(block)
        made, now = made + 1, time.perf_counter()
        if now - begun > _LONGEST_S:
            break
    learner.learning_starts = starts
    learner.load_arrays(before)
    learner.clock.take()
    return (now - begun) / (made * num)
