"""SAC. `section`: hyperparameters. `loss`: the equations, to read and to edit. `kernel`: the networks and
their gradient steps. `learner`: noise and metrics. `build`: the learner of a config, and the verification of
devices. `algorithm`: the record. The replay and its bookkeeping are in the learner room."""

from mission_gym.algorithms.sac.algorithm import Sac

ALGORITHM = Sac()
