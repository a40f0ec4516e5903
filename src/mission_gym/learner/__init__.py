"""What algorithms share.

`contract`: learners, kernels and records of algorithms. `loop` and `overlap`: the training loops. `blocks`:
blocks as learners read them. `advantages`: GAE and the scale of values. `replay` (with `ring` and
`priorities`), `off_policy` and `off_policy_learner`: learning from a replay. `distribution`:
log-probabilities as tensors. `torch_network`: networks on a device and their optimizers. `mlp`, `loops` and
`ranks`: compiled networks. `schedule`: values that follow the step. `verify`: how another form of a loss is
verified.
"""

ADAM_BETAS = (0.9, 0.999)  # for every form of Adam
