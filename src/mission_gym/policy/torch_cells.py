"""Recurrent cells in torch: the equations of one step, and the pass over a chunk of steps, for learning.

`cells` has the same equations in NumPy, and defines the layers. Products of the features are one product for
all steps and columns; only what depends on the memory is computed step by step. Episodes may start anywhere
in a chunk: the memory of that column is then replaced by 0 before the step, which cuDNN's layers can't do.

A scan takes the products of the features x [T, C, G], the memory before the first step, factors [T, C, 1]
that are 0 where an episode starts, and the layer `hidden`; it returns the memory after each step [T, C, H].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mission_gym.policy.cells import CELLS

_LONGEST = 128  # steps that the slowest units remember at first
# The gate that keeps the memory, the sign of its bias, and the gate with the opposite bias.
_KEEPING = {"gru": (1, 1.0, None), "lstm": (1, 1.0, 0), "mingru": (0, -1.0, None)}

State = tuple[Tensor, ...]  # the memory, which begins with h


class TorchMemory(NamedTuple):
    """The memory of a recurrent policy in a pass over a chunk [T, C]; input rows are t * C + c."""

    state: State  # before the first step, each [C, H]
    starts: Tensor  # bool [T, C]: an episode starts here, so memory is reset before the step


def _forwards(*steps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The steps of several tensors [T, ...]."""
    return zip(*map(torch.unbind, steps), strict=True)


def _backwards(*steps: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same, the last step first."""
    return zip(*(reversed(torch.unbind(each)) for each in steps), strict=True)


def _scan_gru(x: Tensor, state: State, keeps: Tensor, hidden: nn.Linear | None) -> State:
    """r = s(x_r + h_r), z = s(x_z + h_z), n = tanh(x_n + r h_n), h' = n + z (h - n),
    with x [T, C, 3 H] and U h + c = (h_r, h_z, h_n)."""
    assert hidden is not None
    return (_Gru.apply(x, *state, keeps, hidden.weight, hidden.bias),)  # type: ignore[no-untyped-call]


class _Gru(torch.autograd.Function):
    """The loops make few calls, which write into tensors made before: for small cells, calls take most of the
    time. Whatever does not depend on the memory, or on its gradient, is computed for all steps at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, keeps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        size, shape = h.shape[1], (*x.shape[:2], h.shape[1])
        kept, n, after = (x.new_empty(shape) for _ in range(3))
        gates, products, transposed = x.new_empty(*shape[:2], 2 * size), torch.empty_like(x), weight.t()
        steps = (keeps, x[..., : 2 * size], x[..., 2 * size :], kept, products, gates, n, after)
        for keep, x_rz, x_n, kept_t, product, rz, n_t, after_t in _forwards(*steps):
            torch.mul(h, keep, out=kept_t)
            torch.addmm(bias, kept_t, transposed, out=product)
            torch.add(x_rz, product[:, : 2 * size], out=rz).sigmoid_()
            torch.addcmul(x_n, rz[:, :size], product[:, 2 * size :], out=n_t).tanh_()
            h = torch.lerp(n_t, kept_t, rz[:, size:], out=after_t)
        ctx.save_for_backward(keeps, weight, kept, products[..., 2 * size :], gates, n)
        return after

    @staticmethod
    def backward(ctx: Any, d_after: Tensor) -> tuple[Tensor | None, ...]:
        """With d = dL/dh': dn = d (1 - z), dz = d (h - n), dr = dn tanh' h_n, and dL/dh = d z + U^T (...)."""
        keeps, weight, kept, h_n, gates, n = ctx.saved_tensors
        r, z = gates.chunk(2, -1)
        # Gradients of the gates' inputs are d times these factors.
        to_n = (1.0 - z) * (1.0 - n * n)
        to_r, to_z = to_n * h_n * r * (1.0 - r), (kept - n) * z * (1.0 - z)
        to_product = torch.stack([to_r, to_z, to_n * r], 2)  # [T, C, 3, H]
        back_product, back_kept = to_product * keeps.unsqueeze(-1), z * keeps
        d, part = torch.empty_like(d_after), torch.empty_like(to_product[0])
        d_h, flat_part = torch.zeros_like(d_after[0]), part.view(len(part), -1)
        for d_after_t, d_t, product, to_kept in _backwards(d_after, d, back_product, back_kept):
            torch.add(d_after_t, d_h, out=d_t)
            torch.mul(d_t.unsqueeze(1), product, out=part)
            torch.mul(d_t, to_kept, out=d_h)
            d_h.addmm_(flat_part, weight)
        d_products = (d.unsqueeze(2) * to_product).flatten(2).flatten(0, 1)
        d_x = (d.unsqueeze(2) * torch.stack([to_r, to_z, to_n], 2)).flatten(2)
        return d_x, d_h, None, d_products.t() @ kept.flatten(0, 1), d_products.sum(0)


def _scan_lstm(x: Tensor, state: State, keeps: Tensor, hidden: nn.Linear | None) -> State:
    """i, f, g, o = s(x + U h + b) with tanh for g, c' = f c + i g, h' = o tanh(c'), with x [T, C, 4 H]."""
    assert hidden is not None
    after: State = _Lstm.apply(x, *state, keeps, hidden.weight, hidden.bias)  # type: ignore[no-untyped-call]
    return after


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, keeps: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        size = h.shape[1]
        shape = (*x.shape[:2], size)
        gates, transposed = torch.empty_like(x), weight.t()
        kept_h, kept_c, after_h, after_c, bent = (x.new_empty(shape) for _ in range(5))
        steps = (x + bias, keeps, kept_h, kept_c, gates, after_h, after_c, bent)
        for x_t, keep, kept_h_t, kept_c_t, gates_t, after_h_t, after_c_t, bent_t in _forwards(*steps):
            torch.mul(h, keep, out=kept_h_t)
            torch.mul(c, keep, out=kept_c_t)
            torch.addmm(x_t, kept_h_t, transposed, out=gates_t)
            gates_t[:, : 2 * size].sigmoid_()
            gates_t[:, 2 * size : 3 * size].tanh_()
            gates_t[:, 3 * size :].sigmoid_()
            i, f, g, o = gates_t.chunk(4, 1)
            c = torch.mul(f, kept_c_t, out=after_c_t).addcmul_(i, g)
            h = torch.mul(o, torch.tanh(c, out=bent_t), out=after_h_t)
        ctx.save_for_backward(keeps, weight, kept_h, kept_c, gates, bent)
        ctx.set_materialize_grads(False)  # a loss uses h only
        return after_h, after_c

    @staticmethod
    def backward(ctx: Any, *d_after: Tensor | None) -> tuple[Tensor | None, ...]:
        """With d = dL/dh', e = dL/dc' + d o tanh'(c'): di = e g, df = e c, dg = e i, do = d tanh(c')."""
        keeps, weight, kept_h, kept_c, gates, bent = ctx.saved_tensors
        d_after_h, d_after_c = (torch.zeros_like(kept_h) if each is None else each for each in d_after)
        i, f, g, o = gates.chunk(4, -1)
        to_c = o * (1.0 - bent * bent)
        to_gates = torch.stack([g * i * (1.0 - i), kept_c * f * (1.0 - f), i * (1.0 - g * g)], 2)
        to_o, back_c = bent * o * (1.0 - o), f * keeps
        d_gates = gates.new_empty(*gates.shape[:2], 4, gates.shape[2] // 4)
        d_h, d_c, d = torch.zeros_like(kept_h[0]), torch.zeros_like(kept_h[0]), torch.empty_like(kept_h[0])
        steps = (keeps, d_after_h, d_after_c, to_c, to_gates, to_o, back_c, d_gates)
        for keep, d_after_h_t, d_after_c_t, to_c_t, to_gates_t, to_o_t, back_c_t, d_gates_t in _backwards(
            *steps
        ):
            torch.add(d_after_h_t, d_h, out=d)
            d_c.add_(d_after_c_t).addcmul_(d, to_c_t)
            torch.mul(d_c.unsqueeze(1), to_gates_t, out=d_gates_t[:, :3])
            torch.mul(d, to_o_t, out=d_gates_t[:, 3])
            torch.mm(d_gates_t.flatten(1), weight, out=d_h).mul_(keep)
            d_c *= back_c_t
        d_x = d_gates.flatten(2)
        d_products = d_x.flatten(0, 1)
        return d_x, d_h, d_c, None, d_products.t() @ kept_h.flatten(0, 1), d_products.sum(0)


def _scan_mingru(x: Tensor, state: State, keeps: Tensor, hidden: nn.Linear | None) -> State:
    """z = s(x_z), h' = (1 - z) h + z x_n, with x [T, C, 2 H].

    h_t = a_t h_{t-1} + b_t is linear. Two steps of it are one with a = a_2 a_1 and b = a_2 b_1 + b_2, so
    log2(T) rounds, in which spans double, replace T steps.
    """
    z, n = x.chunk(2, -1)
    z = torch.sigmoid(z)
    a, b = (1.0 - z) * keeps, z * n
    span = 1
    while span < len(a):
        b = torch.cat([b[:span], torch.addcmul(b[span:], a[span:], b[:-span])])
        a = torch.cat([a[:span], a[span:] * a[:-span]])
        span *= 2
    return (torch.addcmul(b, a, state[0]),)


_SCANS = {"gru": _scan_gru, "lstm": _scan_lstm, "mingru": _scan_mingru}


class Memory(nn.Module):
    """The recurrent core that actor and critic share. generator: None leaves weights to be loaded."""

    def __init__(self, kind: str, num_in: int, size: int, generator: torch.Generator | None) -> None:
        super().__init__()
        cell, self._kind, self.size = CELLS[kind], kind, size
        self.input = nn.Linear(num_in, cell.num_gates * size)
        self.hidden = nn.Linear(size, cell.num_gates * size) if cell.reads_hidden else None
        if generator is not None:
            self._initialise(generator)

    def _initialise(self, generator: torch.Generator) -> None:
        """Orthogonal gates, and units that remember for 2 to `_LONGEST` steps, on a logarithmic scale: the
        past is in the memory before any gradient has asked for it (Tallec and Ollivier 2018)."""
        size = self.size
        for layer in (self.input, self.hidden):
            if layer is not None:
                for gate in torch.split(layer.weight, size):
                    nn.init.orthogonal_(gate, generator=generator)
                nn.init.zeros_(layer.bias)
        keeping, sign, opposite = _KEEPING[self._kind]
        with torch.no_grad():
            biases = self.input.bias.view(-1, size)
            biases[keeping] = sign * torch.linspace(0.0, math.log(_LONGEST - 1), size)
            if opposite is not None:
                biases[opposite] = -biases[keeping]

    def forward(self, features: Tensor, memory: TorchMemory) -> tuple[Tensor, State]:
        """The memory h after each step [T * C, H] for features [T * C, F], and all memory at the end."""
        shape = memory.starts.shape
        x = self.input(features).view(*shape, -1)
        keeps = memory.starts.logical_not().to(x.dtype).unsqueeze(-1)
        after = _SCANS[self._kind](x, memory.state, keeps, self.hidden)
        return after[0].flatten(0, 1), tuple(each[-1] for each in after)
