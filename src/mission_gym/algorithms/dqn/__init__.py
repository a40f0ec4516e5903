"""DQN: `section` (its values), `loss` (the equations to read and edit), `learner` (what an update does),
`kernel` (the contract of what touches the networks), `torch_kernel` and its twin `compiled_kernel` (with
`compiled_steps`, `passes`, `network`), `facts` (for the plan), `build` (learner and proof). The replay is in
the room that algorithms share."""

from __future__ import annotations

from mission_gym.algorithms.dqn import facts
from mission_gym.algorithms.dqn.section import DqnSection
from mission_gym.learner.contract import Algorithm

ALGORITHM = Algorithm(
    name="dqn",
    section=DqnSection,
    layout=facts.layout,
    adapt_actions=facts.adapt_actions,
    refuse=facts.refuse,
    has_compiled_kernel=facts.has_compiled_kernel,
    compiled="mission_gym.algorithms.dqn.compiled_kernel",
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
