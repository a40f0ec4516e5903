"""The tolerances of a device's proof: products in TF32 or bf16 pass, faults do not.

TF32 is imitated on the CPU: what goes into a product is rounded to 10 bits of mantissa, sums stay float32.
As a script, `python tests/learner/test_tolerances.py 40`, it prints the largest disagreements of so many
seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mission_gym.actions import ActionSpec
from mission_gym.algorithms.dqn import learner as dqn
from mission_gym.algorithms.dqn.kernel import QSettings
from mission_gym.algorithms.dqn.torch_kernel import TorchQKernel
from mission_gym.algorithms.ppo import build as ppo
from mission_gym.algorithms.ppo.section import StepSettings
from mission_gym.algorithms.ppo.torch_kernel import TorchKernel
from mission_gym.data import LeafSpec
from mission_gym.learner.verify import DEVICE_TOLERANCES, Evidence, Tolerance, find_disagreement
from mission_gym.policy import Encoded, PolicySpec

CHOICE = ActionSpec("categories", (), "int64", nvec=(4,), start=(0,))
BOX = ActionSpec("box", (2,), "float32", low=(-2.0, -1.0), high=(2.0, 1.0))
BODY = LeafSpec("body", (24,), "float32", "vector")
EYE = LeafSpec("eye", (36, 36, 2), "uint8", "image", channels_last=True)
# Where in the arguments the factors of a product are.
FACTORS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "convolution": (0, 1)}
FACTORS |= {"convolution_backward": (0, 1, 2)}
SETTINGS = StepSettings(3e-4, 0.2, 0.01, 0.5, 0.5, True)
Q_SETTINGS = QSettings(64, 3e-4, 10.0, True, False, 1.0)


class Coarse(TorchDispatchMode):
    """Rounds the factors of every product to so many bits of mantissa."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._dropped = 23 - bits

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args = list(args)
        for place in FACTORS.get(func._schema.name.removeprefix("aten::"), ()):
            whole = args[place].contiguous().view(torch.int32) + (1 << (self._dropped - 1))
            args[place] = (whole & ~((1 << self._dropped) - 1)).view(torch.float32)
        return func(*args, **(kwargs or {}))


def compare_ppo(seed: int, activation: str, with_eye: bool, precision: str, bits: int) -> list[Evidence]:
    """What products of so many bits, or of bf16, make of a minibatch, and what float32 does."""
    spec = PolicySpec((BODY, EYE)[: 1 + with_eye], (CHOICE, BOX)[seed % 2], (64, 64), activation=activation)
    reference, kernel = TorchKernel(spec, seed), TorchKernel(spec, seed, precision=precision)
    rng = np.random.default_rng(seed)
    inputs = draw(rng, with_eye)
    samples = ppo._make_samples(ppo._CASES[0], spec, inputs, 0, reference, rng)
    expected = reference.differentiate(samples, SETTINGS)
    with make_coarse(precision, bits):
        return [kernel.differentiate(samples, SETTINGS), expected]


def compare_dqn(seed: int, activation: str, with_eye: bool, precision: str, bits: int) -> list[Evidence]:
    leaves = (BODY, EYE)[: 1 + with_eye]
    spec = PolicySpec(leaves, CHOICE, (64, 64), activation=activation, form="values")
    kernel, rng = TorchQKernel(spec, seed), np.random.default_rng(seed)
    batches = dqn._make_batch(spec, 0, 1.0, rng, *(draw(rng, with_eye) for _ in range(2)))
    expected = kernel.differentiate(batches, Q_SETTINGS)
    with make_coarse(precision, bits):
        return [kernel.differentiate(batches, Q_SETTINGS), expected]


def make_coarse(precision: str, bits: int) -> AbstractContextManager[Any]:
    return Coarse(bits) if precision == "float32" else nullcontext()


def draw(rng: np.random.Generator, with_eye: bool) -> Encoded:
    pictures = np.moveaxis(rng.integers(0, 256, (64, *EYE.shape), np.uint8), -1, 1)
    return Encoded(rng.standard_normal((64, 24), np.float32), (pictures,) if with_eye else ())


COMPARE = {"ppo": compare_ppo, "dqn": compare_dqn}
CASES = [  # DQN learns in float32 alone
    case
    for case in product(COMPARE, ("tanh", "relu"), (False, True), ("float32", "bf16"))
    if case[0] == "ppo" or case[3] == "float32"
]


@pytest.mark.parametrize(("algo", "activation", "with_eye", "precision"), CASES)
def test_the_precision_of_cards_passes(algo: str, activation: str, with_eye: bool, precision: str) -> None:
    for seed in range(2):
        found, expected = COMPARE[algo](seed, activation, with_eye, precision, 10)
        assert found.gradient.keys() == expected.gradient.keys()
        assert not find_disagreement(found, expected, DEVICE_TOLERANCES[precision])


@pytest.mark.parametrize("algo", COMPARE)
def test_faults_do_not_pass(algo: str) -> None:
    """At the widest tolerance: a kernel that leaves out a part of a gradient, a loss that is a little off."""
    _, expected = COMPARE[algo](0, "tanh", False, "float32", 10)
    name, array = max(expected.gradient.items(), key=lambda item: float(np.square(item[1]).sum()))
    half = array.copy()
    half[..., half.shape[-1] // 2 :] = 0.0
    wrong = expected._replace(gradient={**expected.gradient, name: half})
    assert find_disagreement(wrong, expected, DEVICE_TOLERANCES["bf16"]).startswith(f"its gradient of {name}")
    off = expected._replace(numbers={**expected.numbers, "loss": 1.03 * expected.numbers["loss"]})
    assert find_disagreement(off, expected, DEVICE_TOLERANCES["bf16"]).startswith("its loss is")


def list_disagreements(num_seeds: int) -> Iterator[str]:
    """Of each case the smallest tolerances that let all seeds pass, in steps of a tenth."""
    steps = [10 ** (power / 24) for power in range(-168, 24)]
    for algo, activation, with_eye, precision in CASES:
        least = [0.0, 0.0]
        for seed in range(num_seeds):
            pair = COMPARE[algo](seed, activation, with_eye, precision, 10)
            passing = (
                next(step for step in steps if not find_disagreement(*pair, Tolerance(step, np.inf))),
                next(step for step in steps if not find_disagreement(*pair, Tolerance(np.inf, step, 0.1))),
            )
            least = [max(pair) for pair in zip(least, passing, strict=True)]
        what = f"{algo} {activation} {'pictures' if with_eye else 'numbers'} {precision}"
        yield f"{what}: numbers {least[0]:.2g}, gradient {least[1]:.2g}"


if __name__ == "__main__":
    for line in list_disagreements(int(sys.argv[1])):
        print(line, flush=True)
