"""Learner setups: device, kernel and precision; and whether learning overlaps with collecting.

Config, algorithm and machine determine the possible setups. If there are several, one update of each is
timed, once per process, and the printed plan shows the times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.config.schema import ComputeSection, Config, Settled
from mission_gym.data import EnvSpec, Fact
from mission_gym.errors import ConfigError, DeviceMemoryError
from mission_gym.learner.contract import Algorithm
from mission_gym.plan.cache import make_key, read_plan, write_plan
from mission_gym.policy.layout import count_work
from mission_gym.procs import read_machine, usable_cores
from mission_gym.procs.machine import count_threads, measure_use, read_thread_cap, versions
from mission_gym.vector.record import Backend

# Another setup than the first must be this much faster: times are noisy, and the first is the simplest.
_GAIN = 1.1
# Multiply-adds of a minibatch's forward pass below which a second thread gains little or costs time.
# PPO's compiled kernel on two cores, gain of the second thread: 64,64 at batch 64 1.2, at 512 1.6; 128,128
# at 64 1.35; 512,512 at 2048 1.9. torch synchronizes its threads at every product.
_WORK_FOR_THREADS, _WORK_FOR_TORCH_THREADS = 2_500_000, 25_000_000
# Width of a layer on a CPU: calls dominate narrower products, and the first bf16 product takes a second.
_BF16_WIDTH = 256
_LOAD_S, _LOADED = 0.1, 0.25  # time to look at the cores; the share of them that makes the machine busy
_LOAD_LASTS_S, _PRODUCTS_S, _MOST_ROWS = 60.0, 0.15, 1024
_MIN_STEPS_FOR_GPU = 20_000  # a shorter run ends before CUDA has started and was measured
_CPUINFO = Path("/proc/cpuinfo")
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86 and ARM


class LearnerSetup(NamedTuple):
    """Where and how the learner computes."""

    device: str
    kernel: str
    precision: str

    def __str__(self) -> str:
        return " ".join(self)


_at_load: dict[tuple[int, int, int], tuple[float, str]] = {}  # when threads were compared, and the result
Measured = float | str  # seconds of learning per transition, or the error
_measured: dict[tuple[Any, ...], dict[LearnerSetup, Measured]] = {}  # by everything that an update depends on


def device_exists(device: str) -> bool:
    """Whether torch can use this device."""
    if device == "cpu":
        return True
    import torch

    if device.startswith("cuda"):
        return torch.cuda.is_available() and (torch.device(device).index or 0) < torch.cuda.device_count()
    return device == "mps" and torch.backends.mps.is_available()


def has_tf32(device: str) -> bool:
    """Whether the GPU supports TF32 and bf16; older ones, such as a T4, do not."""
    import torch

    return torch.cuda.get_device_capability(device) >= (8, 0)


def find_devices(gpus: Sequence[str] = ("cuda",)) -> dict[str, bool]:
    """The available devices, each with whether it supports bf16 in hardware. gpus: those to look for."""
    flags = set(_CPUINFO.read_text("utf-8").split()) if _CPUINFO.exists() else set()
    devices = {"cpu": not flags.isdisjoint(_CPU_FLAGS)}
    devices |= {gpu: has_tf32(gpu) for gpu in gpus if device_exists(gpu)}
    if device_exists("mps"):
        devices["mps"] = False
    return devices


def list_setups(
    config: Config, algorithm: Algorithm, has_compiled_form: bool, threads: int
) -> list[LearnerSetup]:
    """The setups that the algorithm supports for this config."""
    device = config.compute.device
    found = find_devices([device]) if device.startswith("cuda") else find_devices()
    devices = {name: has_bf16 and algorithm.has_bf16 for name, has_bf16 in found.items()}
    if device == "auto" and config.run.timesteps < _MIN_STEPS_FOR_GPU:
        devices = {"cpu": devices["cpu"]}
    if has_compiled_form and max(config.policy.network_arch) < _BF16_WIDTH:
        devices["cpu"] = False
    if config.policy.recurrent != "none":  # rounding would add up in the memory
        devices = dict.fromkeys(devices, False)
    return combine(
        config.compute, has_compiled_form and algorithm.has_compiled_kernel(config, threads), devices
    )


def combine(
    compute: ComputeSection, has_compiled_kernel: bool, devices: Mapping[str, bool]
) -> list[LearnerSetup]:
    """The combinations that the config leaves open, the simplest first; empty if its values contradict."""
    setups = []
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
                setups.append(LearnerSetup(device, kernel, precision))
    return setups


def list_threaded(
    given: Config, default: Settled, algorithm: Algorithm, spec: EnvSpec, cores: int
) -> Iterator[tuple[LearnerSetup, int]]:
    """The open setups, each with a number of threads; the default first."""
    own = default.compute
    first = (LearnerSetup(own.device, own.kernel, own.precision), own.threads)
    yield first
    has_form, wanted = algorithm.layout(default, spec).has_compiled_form, given.compute.threads
    for threads in sorted({1, max(cores // 2, 1), cores}) if wanted == "auto" else [wanted]:
        for setup in list_setups(given, algorithm, has_form, threads):
            if (setup, threads) != first and (setup.device == "cpu" or threads == 1 or wanted != "auto"):
                yield setup, threads


def choose_threads(config: Config, spec: EnvSpec, algorithm: Algorithm, has_compiled_form: bool) -> int:
    """One thread for small networks; for large ones all usable cores, or as many as the user's environment
    variables allow."""
    wide = sum(leaf.num_features for leaf in spec.leaves if leaf.kind == "text" or leaf.open_ended)
    widths = (64 + wide, *config.policy.network_arch)
    work = 2 * sum(a * b for a, b in pairwise(widths))
    work += sum(count_work(leaf) for leaf in spec.leaves if not leaf.is_flat)
    is_threaded = (
        has_compiled_form and algorithm.compiled_kernel_has_threads and config.compute.kernel != "torch"
    )
    enough = _WORK_FOR_THREADS if is_threaded else _WORK_FOR_TORCH_THREADS
    return count_threads() if work * _batch_of(config) >= enough else 1


def _batch_of(config: Config) -> int:
    """The batch size, after the rules between fields were applied."""
    batch = config.algorithm.batch_size
    assert isinstance(batch, int)
    return batch


def measure_others() -> float:
    """Cores that other processes use now; 0 if they use little."""
    used = measure_use(_LOAD_S)
    return used if used >= _LOADED * usable_cores() else 0.0


def prefer_one_thread(config: Config, threads: int) -> str:
    """Why one thread learns faster than several at the present load; empty if it does not.

    Threads wait for each other after every product, so the products of this network are compared. The answer
    holds for a minute, since planning settles many configs.
    """
    shape = min(_batch_of(config), _MOST_ROWS), max(config.policy.network_arch)
    since, cause = _at_load.get((*shape, threads), (-math.inf, ""))
    if time.monotonic() - since < _LOAD_LASTS_S:
        return cause
    cause = ""
    if others := measure_others():
        one_s, several_s = (_time_product(*shape, count) for count in (1, threads))
        if one_s < several_s:
            cause = (
                f"other processes use {others:.2g} of {usable_cores()} cores, and a product of the network"
                f" takes {1e3 * one_s:.2g} ms with 1 thread, {1e3 * several_s:.2g} ms with {threads}"
            )
    _at_load[(*shape, threads)] = time.monotonic(), cause
    return cause


def _time_product(num_rows: int, width: int, threads: int) -> float:
    """Mean seconds of a product of a layer with so many threads, after a first one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs, weights = torch.ones(num_rows, width), torch.ones(width, width)
        _ = inputs @ weights  # starts the threads
        num, begun = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begun) < _PRODUCTS_S or not num:
            _ = inputs @ weights
            num += 1
        return elapsed / num
    finally:
        torch.set_num_threads(before)


def choose_setup(
    measured: Mapping[LearnerSetup, Measured],
    collect_s: float = 0.0,
    overlaps: Callable[[LearnerSetup], bool] = lambda setup: False,
) -> LearnerSetup:
    """The first setup, or the fastest if it gains enough; setups that failed are left out.

    collect_s: seconds of collecting a transition, as far as known.
    """
    costs = {
        setup: (max if overlaps(setup) else sum)((collect_s, taken))
        for setup, taken in measured.items()
        if not isinstance(taken, str)
    }
    first, fastest = next(iter(costs)), min(costs, key=costs.__getitem__)
    return fastest if costs[first] > _GAIN * costs[fastest] else first


def measure_setups(
    setups: Sequence[LearnerSetup], config: Config, spec: EnvSpec, measure: Callable[[LearnerSetup], float]
) -> dict[LearnerSetup, Measured]:
    """Time each setup that was not timed yet, in this process or on this machine. An accelerator that fails
    is left out with its error; if all setups fail, raises DeviceMemoryError or ConfigError."""
    known = _measured.setdefault(_key(config, spec), {})
    stored_as = f"setups-{make_key(_document(config, spec))}"
    for name, taken in (read_plan(stored_as) or {}).items():
        known.setdefault(LearnerSetup(*name.split()), taken)
    shortage: DeviceMemoryError | None = None
    for setup in setups:
        if setup in known:
            continue
        try:
            known[setup] = measure(setup)
        except (RuntimeError, TypeError, DeviceMemoryError) as error:  # border: drivers raise anything
            if setup.device == "cpu":
                raise
            known[setup] = str(error).splitlines()[0]
            shortage = error if isinstance(error, DeviceMemoryError) else shortage
    failed = [setup for setup in setups if isinstance(known[setup], str)]
    if len(failed) == len(setups):
        causes = {known.pop(setup): str(setup) for setup in failed}  # the next attempt measures again
        if shortage is not None:
            raise shortage
        reasons = "; ".join(f"{setup}: {cause}" for cause, setup in causes.items())
        raise ConfigError(f"device={config.compute.device} is not possible: {reasons}; use cpu [--device]")
    # Equal runs must choose equally, so times are stored. Failures are not: the next process tries again.
    write_plan(stored_as, {str(setup): taken for setup, taken in known.items() if not isinstance(taken, str)})
    return {setup: known[setup] for setup in setups}


def find_measured(config: Config, spec: EnvSpec) -> dict[str, Measured]:
    """The times that this process measured for a config, by setup."""
    return {str(setup): taken for setup, taken in _measured.get(_key(config, spec), {}).items()}


def describe_setup(config: Settled, spec: EnvSpec) -> str:
    """The learner's setup, and the times of the alternatives."""
    compute = config.compute
    precision: str = compute.precision
    if compute.device.startswith("cuda") and precision == "float32" and has_tf32(compute.device):
        precision = "TF32"
    threads = "1 thread" if compute.threads == 1 else f"{compute.threads} threads"
    cap = read_thread_cap()
    if cap is not None and compute.threads == cap[0] < usable_cores():
        threads += f" (at most {cap[0]} by {cap[1]})"
    times = [
        f"{setup} failed: {taken}" if isinstance(taken, str) else f"{setup} {1e6 * taken:.3g} us"
        for setup, taken in find_measured(config, spec).items()
    ]
    measured = f"; update time per step: {', '.join(times)}" if times else ""
    return f"{compute.kernel} kernel, {precision}, {threads}{measured}"


def _key(config: Config, spec: EnvSpec) -> tuple[Any, ...]:
    # Field values only, so that a settled section has the key of the section it was made from.
    own = tuple(config.algorithm.model_dump().items())
    return config.policy, own, config.num_columns, config.compute.threads, spec.signature


def _document(config: Config, spec: EnvSpec) -> dict[str, Any]:
    """The key of stored times, as plain values: also machine and versions."""
    machine = read_machine()
    return versions() | {
        "policy": config.policy.model_dump(mode="json"),
        "algorithm": config.algorithm.model_dump(mode="json"),
        "columns": config.num_columns,
        "learner_threads": config.compute.threads,
        "spec": spec.signature,
        "machine": [machine.cpu, machine.usable_cores, *machine.nvidia_gpus],
    }


def choose_overlap(config: Settled, backend: Backend, algorithm: Algorithm) -> Fact:
    """`on` if collecting and learning use different resources and an update changes the policy little."""
    device = config.compute.device
    if config.vector.blocks == "first_ready":
        return Fact("overlap", "off", "first-ready rollouts already collect during updates")
    if backend.for_waiting:
        reason = "environments wait while the learner computes"
    elif device != "cpu":
        reason = f"environments use the CPU while the learner uses {device}"
    elif config.vector.ray_address is not None:
        reason = "other machines step the environments while the learner computes"
    elif algorithm.overlaps_on_cores and backend.chooses_workers and _has_spare_core(config):
        reason = "the workers leave a core for the learner, and rollouts are short"
    else:
        return Fact("overlap", "off", "collecting and learning share the CPU, so overlap gains nothing")
    against = algorithm.refuse_lag(config)
    return Fact("overlap", "off", against) if against else Fact("overlap", "on", reason)


def _has_spare_core(config: Settled) -> bool:
    """Whether there are enough cores for the learner and for workers that act themselves."""
    wanted = config.vector.num_workers + config.compute.threads
    return config.compute.acting == "numpy" and wanted <= usable_cores()


def explain_overlap(config: Settled, backend: Backend, algorithm: Algorithm) -> Fact:
    """The plan's row about overlap, for a settled config."""
    chosen, wanted = choose_overlap(config, backend, algorithm), config.compute.overlap
    return chosen if chosen.value == wanted else Fact("overlap", wanted, "set by the config")
