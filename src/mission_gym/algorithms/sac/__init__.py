"""SAC. `section`: hyperparameters. `loss`: the equations, to read and to edit. `learner`: noise, metrics, and
the verification of kernels. `kernel`: the contract of the code that touches the networks. `torch_kernel`: the
reference kernel. `compiled_kernel`, `compiled_steps`, `compiled_loss`: the compiled kernel. `algorithm`: the
record. The replay and its bookkeeping are in the learner package."""

from mission_gym.algorithms.sac.algorithm import Sac

ALGORITHM = Sac()
