"""The devices that torch computes on: what its build can use, and one real kernel timed on each.

They are looked at in a process of its own, which runs this file: a driver may crash or hang.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

_SIZE = 1024  # of the square matrices that are multiplied
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device, and the seconds of one product of two 1024 x 1024 float32 matrices on it."""

    name: str  # cpu, cuda:0, mps
    title: str = ""
    capability: tuple[int, int] | None = None  # of an NVIDIA card
    memory_bytes: int | None = None
    matmul_s: float | None = None
    error: str = ""  # what the kernel raised

    @property
    def gflops(self) -> float | None:
        """What the product reached, in 10**9 operations a second."""
        return None if self.matmul_s is None else 2e-9 * _SIZE**3 / self.matmul_s


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The torch that is installed; `version` is None where it can't be imported.

    `error` is what the import, or the look at the devices, ended with.
    """

    version: str | None
    error: str = ""
    cuda_build: str | None = None  # CUDA version that it was built for
    architectures: tuple[str, ...] = ()  # sm_80, compute_90, ... that the build holds code for
    devices: tuple[DeviceFacts, ...] = ()


def read_torch(deadline_s: float) -> TorchFacts:
    """List the devices of a torch that can be imported, and run the kernel on each, in its own process."""
    from mission_gym.check.packages import read_version  # here: the child runs this file without the package
    from mission_gym.check.trials import run_trial

    trial = run_trial(f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')", deadline_s)
    if trial.error:
        return TorchFacts(read_version("torch"), trial.error)
    facts = json.loads(trial.output)
    for device in facts["devices"]:
        device["capability"] = device["capability"] and tuple(device["capability"])
    facts["devices"] = tuple(DeviceFacts(**device) for device in facts["devices"])
    return TorchFacts(**facts | {"architectures": tuple(facts["architectures"])})


def look_at_torch() -> TorchFacts:
    """What the process of its own does."""
    import torch

    devices = [DeviceFacts("cpu")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            capability = (int(card.major), int(card.minor))
            devices.append(DeviceFacts(f"cuda:{index}", card.name, capability, int(card.total_memory)))
    if torch.backends.mps.is_available():
        devices.append(DeviceFacts("mps", "Apple GPU"))
    return TorchFacts(
        version=str(torch.__version__),
        cuda_build=torch.version.cuda,
        architectures=tuple(torch.cuda.get_arch_list()) if torch.version.cuda else (),
        devices=tuple(map(measure_device, devices)),
    )


def time_product(device: str, size: int, repeats: int = 3) -> float:
    """Seconds of a product of square float32 matrices, the best of a few; ArithmeticError if it is wrong."""
    import torch

    matrix: Any = torch.full((size, size), 0.5, device=device)
    seconds = []
    for _ in range(1 + repeats):  # the first one loads the library
        start = time.perf_counter()
        total = float((matrix @ matrix)[0, 0].item())  # brought back, to be sure that it was made
        seconds.append(time.perf_counter() - start)
    if total != 0.25 * size:
        raise ArithmeticError(f"a product came out as {total} instead of {0.25 * size}")
    return min(seconds)


def measure_device(device: DeviceFacts) -> DeviceFacts:
    """Time the kernel on a device."""
    try:
        return replace(device, matmul_s=time_product(device.name, _SIZE, _REPEATS))
    except Exception as error:  # noqa: BLE001  border: drivers raise whatever they like
        first_line = str(error).splitlines()[0] if str(error) else ""
        return replace(device, error=f"{type(error).__name__}: {first_line}")


def free_device_bytes(device: str) -> int | None:
    """Memory that is free on a card, None for devices that share the machine's."""
    if device != "cuda":
        return None
    import torch

    return int(torch.cuda.mem_get_info()[0])


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asdict(look_at_torch()))}\n")
