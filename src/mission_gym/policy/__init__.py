"""Policies: EnvSpec and arrays in, ActOut out; a torch form and a NumPy form of the same weights.

`encoding` turns observation leaves into network inputs, normaliser included; `sampling` turns actor
outputs into actions; `numpy_form` and `torch_form` are the networks between the two, `q_numpy` and `q_torch`
those of action values; `trunks` reads pictures and sequences before them, and `branches` counts its layers.
The torch forms are imported by name where they are needed, so that everything else here works without torch.
"""

from mission_gym.policy.encoding import Encoded, Encoder, Normalizer
from mission_gym.policy.layout import PolicySpec, QSpec
from mission_gym.policy.numpy_form import NumpyPolicy
from mission_gym.policy.q_numpy import NumpyQPolicy


def make_numpy_policy(spec: PolicySpec) -> NumpyPolicy | NumpyQPolicy:
    """The NumPy form of either kind, without weights yet."""
    return NumpyPolicy(spec) if spec.q is None else NumpyQPolicy(spec)


__all__ = [
    "Encoded",
    "Encoder",
    "Normalizer",
    "NumpyPolicy",
    "NumpyQPolicy",
    "PolicySpec",
    "QSpec",
    "make_numpy_policy",
]
