"""Whether collecting and learning run at the same time: chosen from config and cores, with its reason."""

from __future__ import annotations

from mission_gym.backends.record import Backend
from mission_gym.config.schema import Settled
from mission_gym.data import Fact
from mission_gym.learner.contract import Algorithm
from mission_gym.procs import usable_cores


def choose_overlap(config: Settled, backend: Backend, algorithm: Algorithm) -> Fact:
    """`on` where the two phases use different resources and an update moves the policy little."""
    device = config.compute.device
    if config.vector.blocks == "first_ready":
        return Fact("overlap", "off", "segments of first-ready rollouts go on beside updates already")
    if backend.for_waiting:
        reason = "environments wait while the learner computes"
    elif device != "cpu":
        reason = f"environments use the CPU while the learner uses {device}"
    elif algorithm.overlaps_on_cores and backend.chooses_workers and _has_spare_core(config):
        reason = "the workers leave a core to the learner, and a rollout is too short to wait for"
    else:
        return Fact("overlap", "off", "collecting and learning share the CPU; side by side gains nothing")
    against = algorithm.refuse_lag(config)
    return Fact("overlap", "off", against) if against else Fact("overlap", "on", reason)


def _has_spare_core(config: Settled) -> bool:
    """Whether workers that act for themselves and the learner have cores of their own."""
    wanted = config.vector.num_workers + config.compute.threads
    return config.compute.acting == "numpy" and wanted <= usable_cores()


def explain_overlap(config: Settled, backend: Backend, algorithm: Algorithm) -> Fact:
    """The fact of a plan, from a settled config."""
    chosen, wanted = choose_overlap(config, backend, algorithm), config.compute.overlap
    return chosen if chosen.value == wanted else Fact("overlap", wanted, "as asked for")
