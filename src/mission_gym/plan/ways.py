"""Where the learner computes, with which kernel and in which precision: the fastest that was measured.

What is possible follows from the config and the machine. If that is more than one way, a gradient step of
each is timed, once in a process, and the plan tells the times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.schema import ComputeSection, Config
from mission_gym.data import EnvSpec

# Another way than the first must be this much faster: times are noisy, and the first is the plainest.
_GAIN = 1.1
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86 and ARM


class Way(NamedTuple):
    """One way to learn."""

    device: str
    kernel: str
    precision: str

    def __str__(self) -> str:
        return " ".join(self)


class Measured(NamedTuple):
    """The seconds of a gradient step, or why there are none."""

    seconds: float
    error: str = ""


_measured: dict[tuple[Any, ...], dict[Way, Measured]] = {}  # by what a gradient step depends on


def device_exists(device: str) -> bool:
    """Whether this torch sees such a device."""
    import torch

    if device == "cuda":
        return torch.cuda.is_available()
    if device == "mps":
        return torch.backends.mps.is_available()
    return True


def find_devices() -> dict[str, bool]:
    """The devices that there are, each with whether it computes bf16 by itself."""
    import torch

    flags = set(_CPUINFO.read_text("utf-8").split()) if _CPUINFO.exists() else set()
    devices = {"cpu": not flags.isdisjoint(_CPU_FLAGS)}
    if device_exists("cuda"):
        devices["cuda"] = torch.cuda.get_device_capability() >= (8, 0)
    if device_exists("mps"):
        devices["mps"] = False
    return devices


def list_ways(compute: ComputeSection, is_mlp: bool, devices: Mapping[str, bool]) -> list[Way]:
    """What the config leaves open, the plainest first; empty if its values exclude each other."""
    ways = []
    for device in devices if compute.device == "auto" else [compute.device]:
        precisions = [compute.precision]
        if compute.precision == "auto":
            precisions = ["float32", "bf16"] if devices.get(device) else ["float32"]
        for precision in precisions:
            analytic = is_mlp and device == "cpu" and precision == "float32"
            kernel = compute.kernel
            if kernel == "auto":
                # For an MLP on the CPU the analytic kernel is faster at every width and number of threads.
                kernel = "numpy" if analytic else "torch"
            if kernel == "torch" or analytic:
                ways.append(Way(device, kernel, precision))
    return ways


def choose_way(measured: Mapping[Way, Measured]) -> Way:
    """The first way, or the fastest if that gains enough; one that failed is out of question."""
    made = {way: times.seconds for way, times in measured.items() if not times.error}
    first, fastest = next(iter(made)), min(made, key=made.__getitem__)
    return fastest if made[first] > _GAIN * made[fastest] else first


def measure_ways(
    ways: Sequence[Way], config: Config, spec: EnvSpec, measure: Callable[[Way], float]
) -> dict[Way, Measured]:
    """Time each way; an accelerator that fails is left out with its cause."""
    made = _measured.setdefault(_key(config, spec), {})
    for way in ways:
        if way in made:
            continue
        try:
            made[way] = Measured(measure(way))
        except RuntimeError as error:  # border: drivers raise whatever they like
            if way.device == "cpu":
                raise
            made[way] = Measured(0.0, str(error).splitlines()[0])
    return {way: made[way] for way in ways}


def find_measured(config: Config, spec: EnvSpec) -> dict[str, float | str]:
    """What this process measured for a config: seconds of a gradient step, or what failed, by way."""
    made = _measured.get(_key(config, spec), {})
    return {str(way): times.error or times.seconds for way, times in made.items()}


def explain(config: Config, spec: EnvSpec) -> str:
    """How the learner computes, and what the alternatives took."""
    compute = config.compute
    precision = "TF32" if compute.device == "cuda" and compute.precision != "bf16" else compute.precision
    threads = "1 thread" if compute.threads == 1 else f"{compute.threads} threads"
    times = [
        f"{way} failed: {taken}" if isinstance(taken, str) else f"{way} {1e3 * taken:.3g} ms"
        for way, taken in find_measured(config, spec).items()
    ]
    measured = f"; a gradient step: {', '.join(times)}" if times else ""
    return f"{compute.kernel} kernel, {precision}, {threads}{measured}"


def _key(config: Config, spec: EnvSpec) -> tuple[Any, ...]:
    return config.policy, config.algorithm, config.compute.threads, spec.signature
