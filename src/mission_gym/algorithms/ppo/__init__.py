"""PPO. `section`: hyperparameters. `loss`: the equations, to read and to edit. `learner`: one update.
`kernel`: the contract of the code that touches the network. `torch_kernel`: the reference kernel.
`compiled_kernel`, `compiled_steps`, `compiled_loss`: the compiled kernel. `build`: the learner of a config,
and the verification of its kernels. `algorithm`: the record."""

from mission_gym.algorithms.ppo.algorithm import Ppo

ALGORITHM = Ppo()
