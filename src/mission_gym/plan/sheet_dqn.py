"""What the plan of a DQN run adds: the replay's memory, the seconds of a gradient step, facts."""

from __future__ import annotations

import time

import numpy as np

from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec, Fact
from mission_gym.errors import ConfigError
from mission_gym.learner.dqn import DqnLearner
from mission_gym.learner.q_kernel import Batches, QSettings
from mission_gym.policy import Encoded
from mission_gym.run.assemble_dqn import replay_layout
from mission_gym.streams import generator

_STEPS = 4  # gradient steps that are timed together


def replay_bytes(config: Config, spec: EnvSpec) -> int:
    """The memory of the replay and its priorities."""
    layout = replay_layout(config, spec)
    slots = layout.num_rows * layout.num_envs
    # A sum tree has two numbers a slot, at the next power of two.
    tree = 16 * (1 << (slots - 1).bit_length()) if config.dqn.prioritized else 0
    return layout.size_bytes + tree


def check_replay(config: Config, spec: EnvSpec, free_bytes: int) -> int:
    """The memory of the replay; ConfigError, with the largest that fits, if that is not free."""
    need, size = replay_bytes(config, spec), config.dqn.replay_size
    if need > free_bytes:
        fits = max(1, int(size * max(0, free_bytes) / need * 0.9))
        raise ConfigError(
            f"a replay of {size} transitions needs {need / 1e9:.1f} GB and {max(0, free_bytes) / 1e9:.1f} GB"
            f" are free for it; use replay_size={fits} or less [--replay-size]"
        )
    return need


def measure_q_step_s(learner: DqnLearner, inputs: Encoded, num_actions: int, masked: bool) -> float:
    """Time a gradient step on blank inputs [batch, ...]; the learner is left as it was."""
    before, num = learner.arrays(), _STEPS * len(inputs.flat)
    blank = Encoded(*_repeated(inputs))
    batches = Batches(
        inputs=blank,
        action=np.zeros(num, np.int64),
        reward=np.zeros(num, np.float32),
        discount=np.zeros(num, np.float32),
        next_inputs=blank,
        next_mask=np.ones((num, num_actions), bool) if masked else None,
        weight=None,
    )
    asked = learner.settings
    settings = QSettings(asked.batch_size, 0.0, asked.max_grad_norm, asked.double, asked.huber, asked.tau)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        learner.kernel.learn(batches, settings, lambda place: generator("blank", place))
        seconds.append((time.perf_counter() - start) / _STEPS)
        if seconds[-1] > 0.2:
            break
    learner.load_arrays(before)
    return min(seconds)


def _repeated(inputs: Encoded) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    flat, *images = (np.concatenate([array] * _STEPS) for array in (inputs.flat, *inputs.images))
    return flat, tuple(images)


def dqn_facts(config: Config, spec: EnvSpec) -> list[Fact]:
    """The rows of the plan that are DQN's own."""
    dqn, rollout = config.dqn, config.rollout_size
    size = replay_bytes(config, spec) / 1e6
    drawn = f"prioritised, alpha {dqn.prioritized_alpha:g}" if dqn.prioritized else "drawn uniformly"
    kept = "saved with the last checkpoint" if dqn.save_replay else "not saved"
    names = [name for name in ("double", "dueling") if getattr(dqn, name)]
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
        Fact("targets", f"{dqn.n_step}-step", ", ".join([*names, f"target network {target}"])),
        exploration,
    ]
