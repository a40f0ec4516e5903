"""DQN: `section` (its values), `loss` (the equations to read and edit), `learner` (what an update does),
`kernel` (the contract of what touches the networks), `torch_kernel` and its twin `compiled_kernel`, `facts`
(for the plan), `build` (learner and proof). The replay is in the room that algorithms share."""

from __future__ import annotations

from mission_gym.algorithms.dqn import facts
from mission_gym.algorithms.dqn.metrics import METRICS
from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec
from mission_gym.learner.contract import Algorithm, Learner


def _make_learner(config: Settled, spec: EnvSpec) -> Learner:
    from mission_gym.algorithms.dqn.build import make_learner  # torch and numba

    return make_learner(config, spec)


def _prove(config: Config, spec: EnvSpec, threads: int) -> str:
    from mission_gym.algorithms.dqn.build import prove

    return prove(config, spec, threads)


ALGORITHM = Algorithm(
    name="dqn",
    section=DqnSection,
    metrics=METRICS,
    layout=facts.layout,
    make_learner=_make_learner,
    refuse=facts.refuse,
    has_twin=facts.has_twin,
    prove=_prove,
    held_bytes=facts.held_bytes,
    explain_held=facts.explain_held,
    trace_decay=lambda config: 0.0,  # minibatches come from the replay, and no trace is cut
    refuse_lag=lambda config: "",  # it learns from any policy's transitions
    overlaps_on_cores=True,
    describe=facts.describe,
    holds="blocks, replay",
    measure_update_s=facts.measure_update_s,
    prepare_rehearsal=facts.prepare_rehearsal,
    flops_per_parameter=facts.flops_per_parameter,
    sampled_play_is_worse=True,
    notes_on_branch=facts.notes_on_branch,
)
