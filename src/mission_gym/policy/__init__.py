"""Policies: EnvSpec and arrays in, ActOut out; a NumPy form and a torch form of the same weights.

`layout` describes a policy, and counts the layers for images without torch. `encoding` turns observation
leaves into network inputs, with the normaliser. `numpy_forms` and `torch_forms` are the networks, `cells`
and `torch_cells` their recurrent cells. `sampling` turns outputs into actions. `trunks` reads images and
sequences before the hidden layers. `transfer` moves arrays to a device and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mission_gym.policy.encoding import Encoded, Encoder, EncodingPolicy, Normalizer
from mission_gym.policy.layout import PolicySpec
from mission_gym.policy.numpy_forms import NumpyPolicy, NumpyQPolicy, NumpySquashedPolicy

if TYPE_CHECKING:
    from mission_gym.policy.torch_forms import TorchActing


def _make_torch_actor(spec: PolicySpec, device: str) -> TorchActing:
    from mission_gym.policy.torch_forms import TorchPolicy

    return TorchPolicy(spec, device)


def _make_torch_values(spec: PolicySpec, device: str) -> TorchActing:
    from mission_gym.policy.torch_forms import TorchQPolicy

    return TorchQPolicy(spec, device)


def _make_torch_squashed(spec: PolicySpec, device: str) -> TorchActing:
    from mission_gym.policy.torch_forms import TorchSquashedPolicy

    return TorchSquashedPolicy(spec, device)


class Form(NamedTuple):
    """The acting classes of one way to turn network outputs into actions; without weights when made."""

    make_numpy: Callable[[PolicySpec], NumpyPolicy | NumpyQPolicy]
    make_torch: Callable[[PolicySpec, str], TorchActing]  # loads torch; takes a device


FORMS = {
    "actor": Form(NumpyPolicy, _make_torch_actor),
    "values": Form(NumpyQPolicy, _make_torch_values),
    "squashed": Form(NumpySquashedPolicy, _make_torch_squashed),
}


def make_numpy_policy(spec: PolicySpec) -> NumpyPolicy | NumpyQPolicy:
    """The NumPy form of a policy, without weights."""
    return FORMS[spec.form].make_numpy(spec)


def make_torch_policy(spec: PolicySpec, device: str) -> TorchActing:
    """The torch form of a policy on a device, without weights."""
    return FORMS[spec.form].make_torch(spec, device)


__all__ = [
    "FORMS",
    "Encoded",
    "Encoder",
    "EncodingPolicy",
    "Form",
    "Normalizer",
    "NumpyPolicy",
    "NumpyQPolicy",
    "NumpySquashedPolicy",
    "PolicySpec",
    "make_numpy_policy",
    "make_torch_policy",
]
