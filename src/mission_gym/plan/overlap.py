"""Whether collecting and learning run at the same time: chosen from config and cores, with its reason."""

from __future__ import annotations

from mission_gym.backends.record import Backend
from mission_gym.config.schema import Config
from mission_gym.data import Fact
from mission_gym.procs import usable_cores

# Learning rate times gradient steps: how far an update can move a weight. Measured without a target_kl:
# a KL of 0.01 per update at 0.19 (CartPole-v1), 0.023 and at times over 0.03 at 0.64 (Pendulum-v1).
_MAX_MOVE = 0.3


def choose_overlap(config: Config, backend: Backend) -> Fact:
    """`on` where the two phases use different resources and an update moves the policy little."""
    device = config.compute.device
    if config.vector.blocks == "first_ready":
        return Fact("overlap", "off", "segments of first-ready rollouts go on beside updates already")
    if backend.for_waiting:
        reason = "environments wait while the learner computes"
    elif device != "cpu":
        reason = f"environments use the CPU while the learner uses {device}"
    elif config.run.algo == "dqn" and backend.chooses_workers and has_spare_core(config):
        reason = "the workers leave a core to the learner, and a rollout is too short to wait for"
    else:
        return Fact("overlap", "off", "collecting and learning share the CPU; side by side gains nothing")
    if config.run.algo == "dqn":  # it learns from any policy's transitions
        return Fact("overlap", "on", reason)
    ppo = config.ppo
    assert isinstance(ppo.batch_size, int)
    num_steps = config.rollout_size // ppo.batch_size * ppo.n_epochs
    if ppo.target_kl is None and num_steps * ppo.learning_rate > _MAX_MOVE:
        reason = (
            f"{num_steps} gradient steps of {ppo.learning_rate:g} without a target_kl may move the policy too"
            " far for a rollout that is one update behind"
        )
        return Fact("overlap", "off", reason)
    return Fact("overlap", "on", reason)


def has_spare_core(config: Config) -> bool:
    """Whether workers that act for themselves and the learner have cores of their own."""
    workers, threads = config.vector.num_workers, config.compute.threads
    assert isinstance(workers, int)
    assert isinstance(threads, int)
    return config.compute.acting == "numpy" and workers + threads <= usable_cores()


def explain_overlap(config: Config, backend: Backend) -> Fact:
    """The fact of a plan, from a settled config."""
    chosen, wanted = choose_overlap(config, backend), config.compute.overlap
    return chosen if chosen.value == wanted else Fact("overlap", wanted, "as asked for")
