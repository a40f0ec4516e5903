"""Where the learner computes, with which kernel and in which precision: the fastest that was measured; and
whether it does so beside collecting.

What is possible follows from the config, the algorithm and the machine. If that is more than one way, an
update of each is timed, once in a process, and the plan tells the times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.schema import ComputeSection, Config, Settled
from mission_gym.data import EnvSpec, Fact
from mission_gym.errors import DeviceMemoryError
from mission_gym.learner.contract import Algorithm
from mission_gym.plan.cache import make_key, read_plan, write_plan
from mission_gym.policy.branches import count_work
from mission_gym.procs import read_machine, usable_cores
from mission_gym.procs.versions import versions
from mission_gym.vector.record import Backend

# Another way than the first must be this much faster: times are noisy, and the first is the plainest.
_GAIN = 1.1
# Below this many multiply-adds forward in a minibatch, a second thread gives little or costs more than that.
# PPO's compiled kernel, measured on two cores, gain by the second: 64,64 at batch 64 1.2, at 512 1.6; 128,128
# at 64 1.35; 512,512 at 2048 1.9. torch's threads meet at every product.
_WORK_FOR_THREADS, _WORK_FOR_TORCH_THREADS = 2_500_000, 25_000_000
# Of a layer, on a CPU: narrower products are bound by their calls, and the first in bf16 takes a second.
_BF16_WIDTH = 256
_WORTH_A_START = 20_000  # steps of a run: a shorter one is over before CUDA has started and was measured
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86 and ARM


class Way(NamedTuple):
    """One way to learn."""

    device: str
    kernel: str
    precision: str

    def __str__(self) -> str:
        return " ".join(self)


Measured = float | str  # the seconds of learning a transition, or why there are none
_measured: dict[tuple[Any, ...], dict[Way, Measured]] = {}  # by what an update depends on


def device_exists(device: str) -> bool:
    """Whether this torch sees such a device."""
    if device == "cpu":
        return True
    import torch

    if device.startswith("cuda"):
        return torch.cuda.is_available() and (torch.device(device).index or 0) < torch.cuda.device_count()
    return device == "mps" and torch.backends.mps.is_available()


def has_tf32(device: str) -> bool:
    """Whether the card multiplies in TF32 and bf16; older ones, such as a T4, take float32 as it is."""
    import torch

    return torch.cuda.get_device_capability(device) >= (8, 0)


def find_devices(cards: Sequence[str] = ("cuda",)) -> dict[str, bool]:
    """The devices that there are, each with whether it computes bf16 by itself; of several cards, these."""
    flags = set(_CPUINFO.read_text("utf-8").split()) if _CPUINFO.exists() else set()
    devices = {"cpu": not flags.isdisjoint(_CPU_FLAGS)}
    devices |= {card: has_tf32(card) for card in cards if device_exists(card)}
    if device_exists("mps"):
        devices["mps"] = False
    return devices


def list_possible(config: Config, algorithm: Algorithm, is_mlp: bool, threads: int) -> list[Way]:
    """The ways to learn that the algorithm has for what the config leaves open."""
    asked = config.compute.device
    found = find_devices([asked]) if asked.startswith("cuda") else find_devices()
    devices = {name: has_bf16 and algorithm.has_bf16 for name, has_bf16 in found.items()}
    if config.compute.device == "auto" and config.run.timesteps < _WORTH_A_START:
        devices = {"cpu": devices["cpu"]}
    if is_mlp and max(config.policy.network_arch) < _BF16_WIDTH:
        devices["cpu"] = False
    return list_ways(config.compute, is_mlp and algorithm.has_compiled_kernel(config, threads), devices)


def list_ways(compute: ComputeSection, has_compiled_kernel: bool, devices: Mapping[str, bool]) -> list[Way]:
    """What the config leaves open, the plainest first; empty if its values exclude each other."""
    ways = []
    for device in devices if compute.device == "auto" else [compute.device]:
        precisions = [compute.precision]
        if compute.precision == "auto":
            precisions = ["float32", "bf16"] if devices.get(device) else ["float32"]
        for precision in precisions:
            compiles = has_compiled_kernel and device == "cpu" and precision == "float32"
            kernel = compute.kernel
            if kernel == "auto":
                # For an MLP on the CPU the compiled kernel is faster at every width and number of threads.
                kernel = "compiled" if compiles else "torch"
            if kernel == "torch" or compiles:
                ways.append(Way(device, kernel, precision))
    return ways


def choose_threads(config: Config, spec: EnvSpec, algorithm: Algorithm, is_mlp: bool) -> int:
    """One thread for small networks, all usable cores for large ones."""
    wide = sum(leaf.num_features for leaf in spec.leaves if leaf.kind == "text" or leaf.open_ended)
    widths = (64 + wide, *config.policy.network_arch)
    work = 2 * sum(a * b for a, b in pairwise(widths))
    work += sum(count_work(leaf) for leaf in spec.leaves if not leaf.is_flat)
    shares = is_mlp and algorithm.compiled_kernel_has_threads and config.compute.kernel != "torch"
    enough = _WORK_FOR_THREADS if shares else _WORK_FOR_TORCH_THREADS
    return usable_cores() if work * int(config.algorithm.batch_size) >= enough else 1


def choose_way(
    measured: Mapping[Way, Measured],
    collect_s: float = 0.0,
    beside: Callable[[Way], bool] = lambda way: False,
) -> Way:
    """The first way, or the one whose run is fastest if that gains enough; what failed is out of question.

    collect_s: of a transition, as far as it is known. beside: whether a way learns beside collecting.
    """
    costs = {
        way: (max if beside(way) else sum)((collect_s, taken))
        for way, taken in measured.items()
        if not isinstance(taken, str)
    }
    first, fastest = next(iter(costs)), min(costs, key=costs.__getitem__)
    return fastest if costs[first] > _GAIN * costs[fastest] else first


def measure_ways(
    ways: Sequence[Way], config: Config, spec: EnvSpec, measure: Callable[[Way], float]
) -> dict[Way, Measured]:
    """Time each way, unless that was done in this process, or on this machine; an accelerator that fails is
    left out with its cause."""
    made = _measured.setdefault(_key(config, spec), {})
    kept_as = f"ways-{make_key(_document(config, spec))}"
    for name, taken in (read_plan(kept_as) or {}).items():
        made.setdefault(Way(*name.split()), taken)
    for way in ways:
        if way in made:
            continue
        try:
            made[way] = measure(way)
        except (RuntimeError, TypeError, DeviceMemoryError) as error:  # border: drivers raise what they like
            if way.device == "cpu":
                raise
            made[way] = str(error).splitlines()[0]
    # Equal runs choose equally. What failed may be mended, and is tried again.
    write_plan(kept_as, {str(way): taken for way, taken in made.items() if not isinstance(taken, str)})
    return {way: made[way] for way in ways}


def find_measured(config: Config, spec: EnvSpec) -> dict[str, Measured]:
    """What this process measured for a config, by way."""
    return {str(way): taken for way, taken in _measured.get(_key(config, spec), {}).items()}


def explain_way(config: Settled, spec: EnvSpec) -> str:
    """How the learner computes, and what the alternatives took."""
    compute = config.compute
    precision: str = compute.precision
    if compute.device.startswith("cuda") and precision == "float32" and has_tf32(compute.device):
        precision = "TF32"
    threads = "1 thread" if compute.threads == 1 else f"{compute.threads} threads"
    times = [
        f"{way} failed: {taken}" if isinstance(taken, str) else f"{way} {1e6 * taken:.3g} us"
        for way, taken in find_measured(config, spec).items()
    ]
    measured = f"; learning from a step: {', '.join(times)}" if times else ""
    return f"{compute.kernel} kernel, {precision}, {threads}{measured}"


def _key(config: Config, spec: EnvSpec) -> tuple[Any, ...]:
    # The fields alone: a settled section equals the one it came from.
    own = tuple(config.algorithm.model_dump().items())
    return config.policy, own, config.compute.threads, spec.signature


def _document(config: Config, spec: EnvSpec) -> dict[str, Any]:
    """The same as plain values, with the machine and the versions: what kept times are known by."""
    machine = read_machine()
    return versions() | {
        "policy": config.policy.model_dump(mode="json"),
        "algorithm": config.algorithm.model_dump(mode="json"),
        "rows": config.num_columns,
        "learner_threads": config.compute.threads,
        "spec": spec.signature,
        "machine": [machine.cpu, machine.usable_cores, *machine.nvidia_gpus],
    }


def choose_overlap(config: Settled, backend: Backend, algorithm: Algorithm) -> Fact:
    """`on` where the two phases use different resources and an update moves the policy little."""
    device = config.compute.device
    if config.vector.blocks == "first_ready":
        return Fact("overlap", "off", "segments of first-ready rollouts go on beside updates already")
    if backend.for_waiting:
        reason = "environments wait while the learner computes"
    elif device != "cpu":
        reason = f"environments use the CPU while the learner uses {device}"
    elif config.vector.ray_address is not None:
        reason = "environments are stepped by other machines while the learner computes"
    elif algorithm.overlaps_on_cores and backend.chooses_workers and _has_spare_core(config):
        reason = "the workers leave a core to the learner, and a rollout is too short to wait for"
    else:
        return Fact("overlap", "off", "collecting and learning share the CPU; side by side gains nothing")
    against = algorithm.refuse_lag(config)
    return Fact("overlap", "off", against) if against else Fact("overlap", "on", reason)


def _has_spare_core(config: Settled) -> bool:
    """Whether workers that act for themselves and the learner have cores of their own."""
    wanted = config.vector.num_workers + config.compute.threads
    return config.compute.acting == "numpy" and wanted <= usable_cores()


def explain_overlap(config: Settled, backend: Backend, algorithm: Algorithm) -> Fact:
    """The fact of a plan, from a settled config."""
    chosen, wanted = choose_overlap(config, backend, algorithm), config.compute.overlap
    return chosen if chosen.value == wanted else Fact("overlap", wanted, "as asked for")
