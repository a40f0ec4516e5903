"""Recurrent cells: the NumPy form, the torch form and PyTorch's own cells agree; gradients are exact; and
episodes inside a chunk are independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mission_gym.data import Array
from mission_gym.policy.cells import CELLS, NumpyMemory
from mission_gym.policy.torch_cells import Memory, State, TorchMemory

NUM_IN, SIZE = 5, 8


def make_memory(kind: str, seed: int = 0) -> Memory:
    return Memory(kind, NUM_IN, SIZE, torch.Generator().manual_seed(seed))


def to_numpy(kind: str, memory: Memory) -> NumpyMemory:
    layers = {"input": memory.input} | ({} if memory.hidden is None else {"hidden": memory.hidden})
    return NumpyMemory(
        kind,
        {name: (each.weight.detach().numpy().T, each.bias.detach().numpy()) for name, each in layers.items()},
    )


def draw_state(kind: str, num_columns: int, dtype: torch.dtype = torch.float32) -> State:
    generator = torch.Generator().manual_seed(7)
    shape = (num_columns, SIZE)
    return tuple(torch.randn(shape, generator=generator, dtype=dtype) for _ in range(CELLS[kind].num_states))


def run_in_torch(memory: Memory, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
    """x [T, C, F] -> h [T, C, H], all memory at the end."""
    h, after = memory(x.flatten(0, 1), TorchMemory(state, starts))
    return h.view(*starts.shape, SIZE), after


def run_in_numpy(step: Any, x: Array, state: Sequence[Array], starts: Array) -> tuple[Array, Sequence[Array]]:
    passed = []
    for x_t, begins in zip(x, starts, strict=True):
        state = step(x_t, tuple(np.where(begins[:, None], np.float32(0), each) for each in state))
        passed.append(state[0])
    return np.stack(passed), state


@pytest.mark.parametrize("kind", CELLS)
def test_both_forms_agree_over_200_steps(kind: str) -> None:
    memory, rng = make_memory(kind), np.random.default_rng(0)
    x = rng.standard_normal((200, 4, NUM_IN), np.float32)
    starts, state = rng.random((200, 4)) < 0.02, draw_state(kind, 4)
    expected, after = run_in_numpy(to_numpy(kind, memory), x, [each.numpy() for each in state], starts)
    with torch.no_grad():
        found, last = run_in_torch(memory, torch.from_numpy(x), state, torch.from_numpy(starts))
    np.testing.assert_allclose(found, expected, atol=3e-6)
    for one, other in zip(last, after, strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "reference"), [("gru", nn.GRUCell), ("lstm", nn.LSTMCell)])
def test_the_cells_are_pytorchs_cells(kind: str, reference: type[nn.GRUCell] | type[nn.LSTMCell]) -> None:
    memory, cell = make_memory(kind), reference(NUM_IN, SIZE)
    assert memory.hidden is not None
    with torch.no_grad():
        memory.hidden.bias.normal_(generator=torch.Generator().manual_seed(1))  # both biases count
        for name, layer in (("ih", memory.input), ("hh", memory.hidden)):
            getattr(cell, f"weight_{name}").copy_(layer.weight)
            getattr(cell, f"bias_{name}").copy_(layer.bias)
        x, state = torch.randn(200, 4, NUM_IN), draw_state(kind, 4)
        found, last = run_in_torch(memory, x, state, torch.zeros(200, 4, dtype=torch.bool))
        for x_t, h in zip(x, found, strict=True):
            after = cell(x_t, state if kind == "lstm" else state[0])
            state = after if kind == "lstm" else (after,)
            torch.testing.assert_close(h, state[0], atol=1e-6, rtol=0.0)
    torch.testing.assert_close(last, state, atol=1e-5, rtol=1e-5)


def test_a_mingru_of_scalars_by_hand() -> None:
    """z = s(x_z) is 1/2, then 1/4: 0.5 * 2 = 1, 0.75 * 1 + 0.25 * 4 = 1.75; after a start 0.25 * 4 = 1."""
    memory = Memory("mingru", 2, 1, None)
    with torch.no_grad():
        memory.input.weight.copy_(torch.eye(2))
        memory.input.bias.zero_()
        quarter = float(np.log(1 / 3))
        x = torch.tensor([[0.0, 2.0], [quarter, 4.0], [quarter, 4.0]])
        starts = torch.tensor([[False], [False], [True]])
        h, _ = memory(x, TorchMemory((torch.zeros(1, 1),), starts))
    np.testing.assert_allclose(h[:, 0], [1.0, 1.75, 1.0], rtol=1e-6)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_gradients_equal_finite_differences_with_an_end_inside(kind: str, num_steps: int) -> None:
    """Of the memory after every step, with respect to features, initial memory and parameters."""
    memory = make_memory(kind).double()
    starts = torch.zeros(num_steps, 3, dtype=torch.bool)
    starts[0, 0] = starts[num_steps // 2, 1] = True
    state = [each.requires_grad_() for each in draw_state(kind, 3, torch.float64)]
    x = torch.randn(num_steps, 3, NUM_IN, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        h, after = run_in_torch(memory, x, rest[: len(state)], starts)
        return h, *after

    assert torch.autograd.gradcheck(run, (x, *state, *memory.parameters()))


@pytest.mark.parametrize("kind", CELLS)
def test_a_chunk_of_three_episodes_equals_three_alone(kind: str) -> None:
    memory, x = make_memory(kind), torch.randn(12, 1, NUM_IN)
    starts = torch.zeros(12, 1, dtype=torch.bool)
    starts[5] = starts[6] = True
    state = draw_state(kind, 1)
    zeros = tuple(torch.zeros_like(each) for each in state)
    with torch.no_grad():
        together, last = run_in_torch(memory, x, state, starts)
        parts = [
            run_in_torch(memory, x[part], begin, torch.zeros_like(starts[part]))
            for part, begin in ((slice(5), state), (slice(5, 6), zeros), (slice(6, 12), zeros))
        ]
    torch.testing.assert_close(together, torch.cat([h for h, _ in parts]), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(last, parts[-1][1], atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("kind", CELLS)
def test_an_untrained_memory_still_holds_what_it_saw_50_steps_ago(kind: str) -> None:
    """So a signal reaches chunks that its gradient can't; without slow units nothing would be left."""
    memory = Memory(kind, NUM_IN, 64, torch.Generator().manual_seed(0))
    state = tuple(torch.zeros(2, 64) for _ in range(CELLS[kind].num_states))
    x = torch.zeros(51, 2, NUM_IN)
    x[0, 0], x[0, 1] = 1.0, -1.0
    with torch.no_grad():
        h, _ = memory(x.flatten(0, 1), TorchMemory(state, torch.zeros(51, 2, dtype=torch.bool)))
    first, last = (abs(each[0] - each[1]).norm() for each in h.view(51, 2, -1)[[0, -1]])
    assert last > 0.01 * first
