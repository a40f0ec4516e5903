"""What algorithms share.

`contract`: learners, kernels, records of algorithms and schedules. `loop`: the training loops. `blocks`:
blocks as learners read them. `advantages`: GAE and the scale of values. `replay` (with `replay_loops`),
`off_policy` and `off_policy_learner`: learning from a replay. `distribution`: log-probabilities as tensors.
`torch_network`: networks on a device and their optimizers. `mlp`, `loops` and `ranks`: compiled networks.
`verify`: how another form of a loss is verified.
"""

ADAM_BETAS = (0.9, 0.999)  # for every form of Adam
