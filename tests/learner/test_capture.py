"""A step that can't be captured leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mission_gym.learner.torch_network import Captured


def test_a_capture_that_fails_puts_the_state_back() -> None:
    weight = torch.zeros(3)

    def step(amount: Tensor) -> Tensor:
        return weight.add_(amount)

    def record(rehearse: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        rehearse()
        assert weight.tolist() == [1.0, 1.0, 1.0]
        raise RuntimeError("no graph")

    with pytest.raises(RuntimeError, match="no graph"):
        Captured(step, [torch.ones(3)], [weight], record)
    assert weight.tolist() == [0.0, 0.0, 0.0]
