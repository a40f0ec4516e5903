"""The fake GPU detects what it is for, and computes the CPU's results."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

from mission_gym_bench.fake_gpu import pretend

KINDS = ("cuda", "mps")


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_learns_on_it_what_it_learns_on_the_cpu(kind: str) -> None:
    def learn(device: str) -> list[np.ndarray]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
        adam = torch.optim.Adam(net.parameters(), fused=False)
        for _ in range(3):
            adam.zero_grad()
            net(torch.ones(2, 3, device=device)).sum().backward()
            adam.step()
        assert {parameter.device.type for parameter in net.parameters()} == {device}
        return [parameter.detach().cpu().numpy() for parameter in net.parameters()]

    with pretend(kind):
        faked = learn(kind)
    for ours, theirs in zip(faked, learn("cpu"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_two_devices_do_not_mix(kind: str) -> None:
    with pretend(kind), pytest.raises(RuntimeError, match="at least two devices"):
        torch.ones(2, device=kind) + torch.ones(2)


def test_the_device_exists_only_inside_the_block() -> None:
    with pretend("cuda", name="A GPU"):
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_name() == "A GPU"
    assert not torch.cuda.is_available()
    with pretend("mps"):
        assert torch.backends.mps.is_available()
        with pytest.raises(AttributeError, match="current_device"):
            torch.cuda.stream(None)
    assert not torch.backends.mps.is_available()


def test_waits_are_counted_and_refused_inside_a_capture() -> None:
    with pretend("cuda") as device:
        number = torch.ones(1, device="cuda")
        number.item()
        number.cpu()
        assert device.counts["waits"] == 2
        graph = torch.cuda.CUDAGraph()
        with (
            pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
            torch.cuda.graph(graph),
        ):
            number.item()


def test_a_graph_repeats_what_was_recorded_with_the_numbers_of_now() -> None:
    with pretend("cuda") as device:
        number = torch.ones(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = number * 2
        number.fill_(5.0)
        graph.replay()
        assert doubled.tolist() == [10.0]
        assert device.counts["replays"] == 1


def test_mps_has_no_float64() -> None:
    with pretend("mps"), pytest.raises(TypeError, match="float64"):
        torch.zeros(2, dtype=torch.float64, device="mps")


def test_memory_ends() -> None:
    with pretend("cuda", largest_bytes=1024):
        torch.zeros(256, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            torch.zeros(257, device="cuda")


def test_threads_see_the_device() -> None:
    found = []
    with pretend("cuda"):
        thread = threading.Thread(target=lambda: found.append(torch.zeros(1, device="cuda").device.type))
        thread.start()
        thread.join()
    assert found == ["cuda"]
