"""The devices that torch computes on: what its build can use, and one real kernel timed on each.

They are looked at in a process of its own, which runs this file: a driver may crash or hang.
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
    from mission_gym.check.packages import read_version
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
    if not device.startswith("cuda"):
        return None
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # ours, to be reused
    free = int(torch.cuda.mem_get_info(device)[0]) + cached
    # Windows gives a full card memory of the machine, which is slow, where others fail.
    return int(0.9 * free) if sys.platform == "win32" else free


def peak_device_bytes(device: str) -> int | None:
    """The most memory that tensors of this process had on a card, activations included."""
    if not device.startswith("cuda"):
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def name_card(device: str) -> str:
    """The card that computes, on which bits depend; empty where none does."""
    if not device.startswith("cuda"):
        return ""
    import torch

    return str(torch.cuda.get_device_name(device))


def computes_exactly(device: str) -> bool:
    """Whether a computation that is repeated gives equal bits."""
    if device == "cpu":
        return True
    import torch

    return torch.are_deterministic_algorithms_enabled()


@contextmanager
def device_memory(config: Settled, *, acting: bool = False) -> Iterator[None]:
    """Within, a device without memory is a DeviceMemoryError that says what to try. acting: with a policy
    that was trained, whose sizes are what they are."""
    try:
        yield
    except RuntimeError as error:
        told = explain_memory(error, config, acting=acting)
        if told is not error:
            raise told from error
        raise


def explain_memory(error: BaseException, config: Settled, *, acting: bool = False) -> BaseException:
    """The error itself, or a DeviceMemoryError in its place."""
    from mission_gym.errors import DeviceMemoryError

    # CUDA and MPS raise different ones, in equal words.
    if not isinstance(error, RuntimeError) or "out of memory" not in str(error):
        return error
    tries = _ACTING_TRIES if acting else _list_tries(config)
    return DeviceMemoryError(f"{_say_what_lacks(str(error), config.compute.device)}; try {tries}")


def _say_what_lacks(error: str, device: str) -> str:
    wanted = re.search(r"[Tt]ried to allocate ([0-9.]+ \w+)", error)
    free = free_device_bytes(device)
    facts = [f"{wanted[1]} were wanted"] if wanted else []
    facts += [] if free is None else [f"{free / (1 << 20):.2f} MiB are free"]
    return f"{device} is out of memory{': ' if facts else ''}{' and '.join(facts)}"


_ACTING_TRIES = (
    "fewer observations at once, ending what else uses it, or hiding it (CUDA_VISIBLE_DEVICES=), so that the "
    "policy acts on the CPU"
)


def _list_tries(config: Settled) -> str:
    batch, envs, arch = config.algorithm.batch_size, config.vector.n_envs, config.policy.network_arch
    # Half of each; a divisor of the minibatch still divides the rollout.
    smaller = next((size for size in range(batch // 2, 0, -1) if batch % size == 0), None)
    tries = [f"--batch-size {smaller}"] if smaller else []
    if config.policy.network is None and max(arch) > 1:
        tries.append(f"--network-arch {','.join(str(max(1, width // 2)) for width in arch)}")
    tries += [f"--n-envs {envs // 2}"] if envs > 1 else []
    return f"{', '.join([*tries, '--device cpu'])}, in a new run or a branch"


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asdict(look_at_torch()))}\n")
