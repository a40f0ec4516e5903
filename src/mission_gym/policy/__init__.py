"""Policies: EnvSpec and arrays in, ActOut out; a torch form and a NumPy form of the same weights.

`encoding` turns observation leaves into network inputs, normaliser included; `sampling` turns actor
outputs into actions; `numpy_form` and `torch_form` are the networks between the two. The torch form
is imported by name where it is needed, so that everything else here works without torch.
"""

from mission_gym.policy.encoding import Encoded, Encoder, Normalizer
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.numpy_form import NumpyPolicy

__all__ = ["Encoded", "Encoder", "Normalizer", "NumpyPolicy", "PolicySpec"]
