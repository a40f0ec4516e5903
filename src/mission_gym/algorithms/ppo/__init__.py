"""PPO: `section` (its values), `loss` (the equations to read and edit), `learner` (what an update does),
`kernel` (the contract of what touches the network), `torch_kernel` and its twin `compiled_kernel` with
`compiled_steps`, `compiled_loss`, `heads`, `passes` and `network`, `facts` (for the plan), `build` (learner
and proof)."""

from __future__ import annotations

from mission_gym.algorithms.ppo import facts
from mission_gym.algorithms.ppo.section import PpoSection
from mission_gym.learner.contract import Algorithm

ALGORITHM = Algorithm(
    name="ppo",
    section=PpoSection,
    layout=facts.layout,
    has_compiled_kernel=facts.has_compiled_kernel,
    compiled_kernel_has_threads=True,
    has_bf16=True,
    trace_decay=facts.trace_decay,
    fixed_batch=facts.fixed_batch,
    minibatch=lambda config: config.algorithm.batch_size,
    refuse=facts.refuse,
    refuse_lag=facts.refuse_lag,
    describe=facts.describe,
    measure_update_s=facts.measure_update_s,
    num_epochs=facts.num_epochs,
    compiled="mission_gym.algorithms.ppo.compiled_kernel",
)
