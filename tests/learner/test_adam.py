"""Adam on one flat tensor: places of the parameters, and arrays that know nothing of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mission_gym.learner.torch_network import FlatAdam
from mission_gym_bench.fake_gpu import pretend


def step(device: str, arrays: dict[str, np.ndarray] | None = None) -> tuple[FlatAdam, nn.Module]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(device)
    adam = FlatAdam(net, 1e-5)
    if arrays is not None:
        adam.load(arrays)
    net(torch.ones(2, 3, device=device)).sum().backward()
    adam.clip(0.5)
    adam.step(0.125)
    return adam, net


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_parameters_on_a_device_begin_at_aligned_places(kind: str) -> None:
    with pretend(kind):
        adam, net = step(kind)
        starts = [parameter.data_ptr() - adam.flat.data_ptr() for parameter in net.parameters()]
    assert starts == [0, 256, 512, 768]  # bytes: 64 numbers each


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_arrays_of_one_device_are_loaded_on_another(kind: str) -> None:
    arrays = step("cpu")[0].arrays()
    expected = step("cpu", arrays)[0].arrays()
    with pretend(kind):
        found = step(kind, arrays)[0].arrays()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_spoils_no_later_one(number: float) -> None:
    """The places between parameters belong to no gradient, so nothing would put them back to 0."""
    with pretend("cuda"):
        adam, _ = step("cuda")
        adam.grad[0] = number
        assert not torch.isfinite(adam.clip(0.5)).cpu()
        adam.grad[0] = 1.0
        assert torch.isfinite(adam.clip(0.5)).cpu()


def test_groups_are_clipped_by_their_own_norms() -> None:
    """Of unequal sizes: the norm that is returned is that of all."""
    net = nn.ModuleDict({"actor": nn.Linear(2, 3), "critic": nn.Linear(4, 5)})
    adam = FlatAdam(net, 1e-5, clipped_separately="critic.")
    gradients = {
        name: torch.full_like(p, 0.1 if "actor" in name else 3.0) for name, p in net.named_parameters()
    }
    loss = sum((gradients[name] * p).sum() for name, p in net.named_parameters())
    adam.differentiate(loss)
    norm = adam.clip(0.5)
    assert float(norm) == pytest.approx((9 * 0.1**2 + 25 * 3.0**2) ** 0.5)
    found = adam.gradient()
    np.testing.assert_allclose(found["actor.weight"], 0.1, rtol=1e-6)  # its norm is 0.3
    np.testing.assert_allclose(found["critic.weight"], 0.5 / 5, rtol=1e-6)
