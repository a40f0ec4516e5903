"""`bench gpu`: learning and acting with the presets, on a GPU and on the CPU.

With `--pretend`, on any machine: the kernels of a gradient step and the host's waits in an update, counted on
a fake GPU (`fake_gpu`). Counts say nothing about speed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mission_gym.config.schema import Settled
from mission_gym.data import EnvSpec
from mission_gym.errors import UsageError
from mission_gym.learner.blocks import make_noise_block
from mission_gym.plan.costs import time_act
from mission_gym.plan.setups import device_exists
from mission_gym.run.build import algorithm_of, make_learner, make_loaded_policy
from mission_gym.run.config import resolve
from mission_gym.run.settle import open_new, settle
from mission_gym_bench.fake_gpu import FakeDevice, pretend
from mission_gym_bench.runner import Row, make_row


@dataclass(frozen=True, slots=True)
class GpuCase:
    """A config by its flags. Counting needs no large sizes."""

    name: str
    env: str
    flags: dict[str, Any]


_BURN = "mission_gym_bench.synthetic:Burn"
_SMALL = {"n_envs": 4, "n_steps_per_env": 32, "batch_size": 64, "network_arch": "512,512", "threads": 1}
_IMAGES = {"env_kwargs": {"image": True}, "n_steps_per_env": 8, "batch_size": 8}
COUNTED = (
    GpuCase("ppo, 512,512", "CartPole-v1", _SMALL),
    GpuCase("ppo, 512,512, target_kl", "CartPole-v1", _SMALL | {"target_kl": 1e9}),
    GpuCase("ppo, 512,512, box", "Pendulum-v1", _SMALL),
    GpuCase("ppo, images", _BURN, _SMALL | _IMAGES),
    GpuCase("dqn, 512,512", "CartPole-v1", _SMALL | {"algo": "dqn", "learning_starts": 0}),
)


_LARGE = {"n_steps_per_env": 128, "n_envs": 32, "batch_size": 512, "env_kwargs": {"image": True}}
TIMED = (
    *(GpuCase(f"preset {name}", "CartPole-v1", {"preset": name}) for name in ("fast", "heavy", "beast")),
    GpuCase("images 84 x 84 x 4", _BURN, _LARGE),
)
_ROWS = 256  # of an acting call


def measure_gpu(full: bool, cases: tuple[GpuCase, ...] = TIMED) -> list[Row]:
    """Rows per case: learning captured, not captured, compiled and on the CPU, and acting on both."""
    device = next((name for name in ("cuda", "mps") if device_exists(name)), None)
    if device is None:
        raise UsageError(
            "torch finds no GPU; `mission-gym doctor` shows why, and --pretend counts without one [bench gpu]"
        )
    chosen = cases if full else (cases[0], cases[-1])
    return [row for case in chosen for row in _time_case(case, device)]


def _time_case(case: GpuCase, device: str) -> Iterator[Row]:
    for place in (device, "cpu"):
        print(f"{case.name} on {place}", file=sys.stderr)
        config, spec = settle_case(case, place)
        learner = make_learner(config, spec)
        measure = algorithm_of(config).measure_update_s
        seconds = measure(learner, config, spec)
        yield make_row(f"{case.name}: learning on {place}", 1e6 * seconds, "us/step", **_read_peak(place))
        if getattr(learner.kernel, "record", None) is not None:
            learner.kernel.record = None  # type: ignore[attr-defined]
            seconds = measure(learner, config, spec)
            yield make_row(f"{case.name}: learning on {place}, not captured", 1e6 * seconds, "us/step")
            yield from _time_compiled(case, place, config, spec)
        policy = make_loaded_policy(config, spec, learner.weights())
        acting = f"acting with {config.compute.acting} on {place}, {_ROWS} rows"
        yield make_row(f"{case.name}: {acting}", 1e6 * time_act(policy, spec, _ROWS), "us/call")


def _time_compiled(case: GpuCase, place: str, config: Settled, spec: EnvSpec) -> Iterator[Row]:
    """Time a captured step that torch.compile fused before, if Triton is installed."""
    import torch
    from torch.utils._triton import has_triton

    if not has_triton():
        return
    learner: Any = make_learner(config, spec)
    learner.kernel._step = torch.compile(learner.kernel._step)
    begun = time.perf_counter()
    try:
        algorithm_of(config).measure_update_s(learner, config, spec)
        first_s = time.perf_counter() - begun
        seconds = algorithm_of(config).measure_update_s(learner, config, spec)
    except RuntimeError as error:  # border: compilers raise many kinds
        print(f"torch.compile failed: {str(error).splitlines()[0]}", file=sys.stderr)
        return
    name = f"{case.name}: learning on {place}, compiled"
    captured = learner.kernel.record is not None
    yield make_row(name, 1e6 * seconds, "us/step", compile_s=first_s, captured=captured)


def _read_peak(device: str) -> dict[str, Any]:
    """Return the peak memory of tensors on the GPU."""
    if device != "cuda":
        return {}
    import torch

    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return {"card": torch.cuda.get_device_name(), "peak_memory_mb": peak / 1e6}


def count_gpu(cases: tuple[GpuCase, ...] = COUNTED) -> list[Row]:
    """Two rows per case: kernels and waits."""
    return [row for case in cases for row in _count(case)]


def _count(case: GpuCase) -> list[Row]:
    with pretend("cuda") as device:
        config, spec = settle_case(case, "cuda")
        learner = make_learner(config, spec)
        block = make_noise_block(spec, config.algorithm.n_steps_per_env, config.num_columns)
        for _ in range(3):  # the first ones allocate memory and capture
            algorithm_of(config).prepare_rehearsal(learner)
            learner.update(block)
            learner.weights()
        first = learner.gradient_steps
        device.counts.clear()
        learner.update(block)
        learner.weights()
        return _make_rows(case, device, learner.gradient_steps - first)


def _make_rows(case: GpuCase, device: FakeDevice, num_steps: int) -> list[Row]:
    counts = device.counts
    more: Row = {"gradient_steps": num_steps, "uploads": counts["uploads"], "replays": counts["replays"]}
    captured = len(device.graphs) == 1
    kernels = device.kernels_of_graph if captured else counts["kernels"] / num_steps
    how = "a captured step" if captured else "a step, not captured, with its share of the update"
    return [
        make_row(f"{case.name}: kernels of {how}", kernels, "kernels"),
        make_row(f"{case.name}: waits of an update", counts["waits"], "waits", **more),
    ]


def settle_case(case: GpuCase, device: str) -> tuple[Settled, EnvSpec]:
    """Return the config of a case on this device, and the spec of its environment."""
    flags = {"tune": False, "precision": "float32", "overlap": "off", **case.flags, "device": device}
    if device != "cpu":
        flags["acting"] = "torch"
    environment, resolved, *_ = open_new(resolve(case.env, flags, preset=flags.pop("preset", None)))
    resolved, _ = settle(resolved, environment)
    return resolved.settled, environment.spec
