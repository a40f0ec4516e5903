"""DQN. `section`: hyperparameters. `loss`: the equations, to read and to edit. `learner`: gradient steps,
exploration, and the verification of kernels. `kernel`: the contract of the code that touches the networks.
`torch_kernel`: the reference kernel. `compiled_kernel`, `compiled_steps`: the compiled kernel. `algorithm`:
the record. The replay and its bookkeeping are in the learner package."""

from mission_gym.algorithms.dqn.algorithm import Dqn

ALGORITHM = Dqn()
