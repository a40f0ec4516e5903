"""The devices of torch: what its build supports, one timed kernel on each, and their memory.

Devices are tested in a child process, which runs this file, because a driver may crash or hang.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the child runs this file without the package
    from mission_gym.config.schema import Settled

_SIZE = 1024  # of the square matrices that are multiplied
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device, and the seconds of one product of two 1024 x 1024 float32 matrices on it."""

    name: str  # cpu, cuda:0, mps
    title: str = ""
    capability: tuple[int, int] | None = None  # of an NVIDIA GPU
    memory_bytes: int | None = None
    matmul_s: float | None = None
    error: str = ""  # exception of the kernel

    @property
    def gflops(self) -> float | None:
        """Speed of the product in 10**9 operations per second."""
        return None if self.matmul_s is None else 2e-9 * _SIZE**3 / self.matmul_s


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The installed torch; `version` is None if it can't be imported.

    error: of the import, or of the test of its devices.
    """

    version: str | None
    error: str = ""
    cuda_build: str | None = None  # CUDA version that it was built for
    architectures: tuple[str, ...] = ()  # sm_80, compute_90, ... that the build supports
    devices: tuple[DeviceFacts, ...] = ()


def read_torch(deadline_s: float) -> TorchFacts:
    """List the devices of torch and run the kernel on each, in a child process."""
    from mission_gym.check.packages import read_version, try_code

    attempt = try_code(f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')", deadline_s)
    if attempt.error:
        return TorchFacts(read_version("torch"), attempt.error)
    facts = json.loads(attempt.output)
    for device in facts["devices"]:
        device["capability"] = device["capability"] and tuple(device["capability"])
    facts["devices"] = tuple(DeviceFacts(**device) for device in facts["devices"])
    return TorchFacts(**facts | {"architectures": tuple(facts["architectures"])})


def inspect_torch() -> TorchFacts:
    """Inspect torch and its devices in this process."""
    import torch

    devices = [DeviceFacts("cpu")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            capability = (int(gpu.major), int(gpu.minor))
            devices.append(DeviceFacts(f"cuda:{index}", gpu.name, capability, int(gpu.total_memory)))
    if torch.backends.mps.is_available():
        devices.append(DeviceFacts("mps", "Apple GPU"))
    return TorchFacts(
        version=str(torch.__version__),
        cuda_build=torch.version.cuda,
        architectures=tuple(torch.cuda.get_arch_list()) if torch.version.cuda else (),
        devices=tuple(map(measure_device, devices)),
    )


def time_product(device: str, size: int, repeats: int = 3) -> float:
    """Return the best seconds of a product of square float32 matrices; ArithmeticError if it is wrong."""
    import torch

    matrix: Any = torch.full((size, size), 0.5, device=device)
    seconds = []
    for _ in range(1 + repeats):  # the first one loads the library
        start = time.perf_counter()
        total = float((matrix @ matrix)[0, 0].item())  # reading the result waits for the device
        seconds.append(time.perf_counter() - start)
    if total != 0.25 * size:
        raise ArithmeticError(f"a product is {total} instead of {0.25 * size}")
    return min(seconds)


def measure_device(device: DeviceFacts) -> DeviceFacts:
    """Time the kernel on a device."""
    try:
        return replace(device, matmul_s=time_product(device.name, _SIZE, _REPEATS))
    except Exception as error:  # noqa: BLE001  border: drivers
        first_line = str(error).splitlines()[0] if str(error) else ""
        return replace(device, error=f"{type(error).__name__}: {first_line}")


def free_device_bytes(device: str) -> int | None:
    """Return the free memory of a GPU; None for devices that use the machine's memory."""
    if not device.startswith("cuda"):
        return None
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
        device
    )  # ours, which torch reuses
    free = int(torch.cuda.mem_get_info(device)[0]) + cached
    # Windows extends a full GPU by the machine's memory, which is slow, where other systems fail.
    return int(0.9 * free) if sys.platform == "win32" else free


def peak_device_bytes(device: str) -> int | None:
    """Return the peak memory of this process's tensors on a GPU, activations included."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def name_gpu(device: str) -> str:
    """Return the name of the GPU that computes, on which bits depend; empty for other devices."""
    if not device.startswith("cuda"):
        return ""
    import torch

    return str(torch.cuda.get_device_name(device))


def computes_exactly(device: str) -> bool:
    """Return whether a repeated computation gives equal bits."""
    if device == "cpu":
        return True
    import torch

    return torch.are_deterministic_algorithms_enabled()


@contextmanager
def device_memory(config: Settled, *, acting: bool = False) -> Iterator[None]:
    """Turn a device's out-of-memory error in the block into a DeviceMemoryError with remedies.

    acting: with a trained policy, whose sizes can't be changed.
    """
    try:
        yield
    except RuntimeError as error:
        explained = explain_memory(error, config, acting=acting)
        if explained is not error:
            raise explained from error
        raise


def explain_memory(error: BaseException, config: Settled, *, acting: bool = False) -> BaseException:
    """Return a DeviceMemoryError for an out-of-memory error, and any other error unchanged."""
    from mission_gym.errors import DeviceMemoryError

    # CUDA and MPS raise different classes with the same words.
    if not isinstance(error, RuntimeError) or "out of memory" not in str(error):
        return error
    tries = _ACTING_TRIES if acting else _list_tries(config)
    return DeviceMemoryError(f"{_describe_shortage(str(error), config.compute.device)}; try {tries}")


def _describe_shortage(error: str, device: str) -> str:
    wanted = re.search(r"[Tt]ried to allocate ([0-9.]+ \w+)", error)
    free = free_device_bytes(device)
    facts = [f"{wanted[1]} were requested"] if wanted else []
    facts += [] if free is None else [f"{free / (1 << 20):.2f} MiB are free"]
    return f"{device} is out of memory{': ' if facts else ''}{' and '.join(facts)}"


_ACTING_TRIES = (
    "fewer observations at once, ending other programs that use it, or hiding it (CUDA_VISIBLE_DEVICES=), so "
    "that the policy acts on the CPU"
)


def _list_tries(config: Settled) -> str:
    batch, envs, arch = config.algorithm.batch_size, config.vector.n_envs, config.policy.network_arch
    # Halves; a divisor of the minibatch size still divides the rollout.
    smaller = next((size for size in range(batch // 2, 0, -1) if batch % size == 0), None)
    tries = [f"--batch-size {smaller}"] if smaller else []
    if config.policy.network is None and max(arch) > 1:
        tries.append(f"--network-arch {','.join(str(max(1, width // 2)) for width in arch)}")
    tries += [f"--n-envs {envs // 2}"] if envs > 1 else []
    return f"{', '.join([*tries, '--device cpu'])}, in a new run or a branch"


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asdict(inspect_torch()))}\n")
