"""Checks the machine for `mission-gym doctor`: packages, cores, memory, torch, devices.

Code that may be broken is tried in a child process before this one loads it. `diagnose` is pure, so that
other machines can be judged by their recorded facts. An error is something broken; a warning costs speed or
will break a run; an info is worth knowing; an ok was tested.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mission_gym.check.devices import DeviceFacts, TorchFacts, read_torch
from mission_gym.check.findings import Finding, make_finding, sort_findings
from mission_gym.check.packages import DEADLINE_S, PACKAGES, Attempt, judge_package, try_code
from mission_gym.procs.machine import MachineFacts, read_machine

_GB = 1e9
_INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl"
# The oldest driver branch (Linux) for each CUDA release, newest first.
_DRIVERS = ((13, 580), (12, 525), (11, 450))
_SLOW_CALL_S = 5e-3  # a tenth of a segment of 50 ms
_COUNTS = re.compile(r"[1-9]\d*(,[1-9]\d*)*")


@dataclass(frozen=True, slots=True)
class MachineReport:
    """The facts and their findings."""

    machine: MachineFacts
    torch: TorchFacts
    findings: list[Finding]


def check_machine(runs_dir: Path, deadline_s: float = DEADLINE_S) -> MachineReport:
    """Test every package, run a kernel on each device, read this machine, and judge."""
    with ThreadPoolExecutor(
        len(PACKAGES)
    ) as pool:  # all at once, so that several that hang take one deadline
        attempts = list(pool.map(lambda package: try_code(package.code, deadline_s), PACKAGES))
    errors = {package.module: attempt.error for package, attempt in zip(PACKAGES, attempts, strict=True)}
    for module, error in errors.items():
        if error:  # an import of it in this process fails at once
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    torch = TorchFacts(None, errors["torch"]) if errors["torch"] else read_torch(deadline_s)
    machine = read_machine(runs_dir)
    findings = [*map(judge_package, PACKAGES, attempts), *diagnose(machine, torch)]
    return MachineReport(machine, torch, sort_findings(findings))


def diagnose(machine: MachineFacts, torch: TorchFacts) -> list[Finding]:
    """Judge the facts; findings have the command that fixes them."""
    findings = [
        *_judge_cores(machine),
        *_judge_memory(machine),
        *_judge_disk(machine),
        *_judge_torch(machine, torch),
        *_judge_threads(machine),
        *_judge_surroundings(machine),
    ]
    return sort_findings(findings)


def judge_verification(attempt: Attempt) -> list[Finding]:
    """Judge the JSON of a child process: failures of gradient steps by device and precision."""
    if attempt.error:
        return [make_finding("verification", "broken", error=attempt.error)]
    causes = json.loads(attempt.output)
    return [
        make_finding("verification", "fails" if cause else "holds", way=way, cause=cause)
        for way, cause in causes.items()
    ]


def judge_cluster(attempt: Attempt) -> list[Finding]:
    """Judge a Ray cluster by the JSON that a child process printed: its nodes and the cost of messages."""
    if attempt.error:
        error = attempt.error.partition("Error: ")[2] or attempt.error
        return [make_finding("cluster", "broken", error=error)]
    found = json.loads(attempt.output)
    costs, nodes = found["costs"], found["nodes"]
    cpus = sum(node["num_cpus"] for node in nodes)
    facts = {
        "address": found["address"],
        "num": len(nodes),
        "cpus": cpus,
        "nodes": ", ".join(f"{node['host']} {node['num_cpus']}" for node in nodes),
        "versions": ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
    }
    times = {
        "call_ms": 1e3 * costs["latency_s"],
        "put_ms": 1e3 * costs["put_s"] + 1e9 * costs["put_byte_s"],
        "carry_ms": 1e9 * costs["carry_byte_s"],
        "calls": 1 / costs["call_s"],
    }
    return [
        make_finding("cluster", "reached" if cpus else "empty", **facts),
        make_finding("messages", "slow" if costs["latency_s"] > _SLOW_CALL_S else "fast", **times),
    ]


def _judge_cores(machine: MachineFacts) -> Iterator[Finding]:
    why = ""
    if machine.cpu_quota is not None and machine.cpu_quota < machine.allowed_cores:
        why = f"the container's quota grants {machine.cpu_quota:g} cores"
    elif machine.allowed_cores < machine.logical_cores:
        why = f"this process may run on {machine.allowed_cores} of them (affinity)"
    fix = "start the container with --cpus N, or the process with taskset"
    if machine.usable_cores > 1:
        yield make_finding("cores", "some" if why else "all", m=machine, why=why, fix=fix)
    elif why:
        yield make_finding("cores", "one", m=machine, why=why, fix=fix)
    else:
        why, fix = "collection and learning share it", "use a machine with more cores, if there is one"
        yield make_finding("cores", "one", m=machine, why=why, fix=fix)
    if machine.physical_cores is not None and machine.physical_cores < machine.allowed_cores:
        yield make_finding("hyperthreads", "shared", m=machine)
    if machine.efficiency_cores:
        yield make_finding("hybrid", "slow", m=machine, fast=machine.allowed_cores - machine.efficiency_cores)


def _judge_memory(machine: MachineFacts) -> Iterator[Finding]:
    free, limit = machine.memory_free_bytes, machine.memory_limit_bytes
    if not machine.memory_bytes:  # unknown without psutil
        return
    inside = f", within the container's limit of {limit / _GB:.1f} GB" if limit is not None else ""
    what = f"{free / _GB:.1f} of {machine.memory_bytes / _GB:.1f} GB are free{inside}"
    fix = "close other programs" if limit is None else "start the container with --memory 8g"
    yield make_finding("memory", _rank(free, 0.7e9, none="none"), what=what, fix=fix)
    shm = machine.dev_shm_free_bytes
    if shm is not None and shm < 256 << 20:
        yield make_finding("shared memory", "libraries", mb=shm / 1e6)
    if machine.shared_free_bytes < 256 << 20:
        yield make_finding("shared memory", "ours", mb=machine.shared_free_bytes / 1e6)


def _judge_disk(machine: MachineFacts) -> Iterator[Finding]:
    free = machine.disk_free_bytes
    case = _rank(free, 0.2e9, none="full") if machine.disk_writable else "closed"
    yield make_finding("disk", case, m=machine, gb=free / _GB)


def _rank(free: float, needed: float, *, none: str) -> str:
    """Return the case of an amount of free bytes."""
    return none if free < needed else "little" if free < 2e9 else "enough"


def _judge_torch(machine: MachineFacts, torch: TorchFacts) -> Iterator[Finding]:
    if torch.version is None:  # reported with the packages
        return
    if torch.error:
        fix = (
            "update the driver, or hide the GPU: export CUDA_VISIBLE_DEVICES=-1"
            if machine.nvidia_gpus
            else "pip install --force-reinstall torch"
        )
        yield make_finding("devices", "broken", torch=torch, fix=fix)
        return
    build = f"CUDA {torch.cuda_build}" if torch.cuda_build else "no CUDA"
    yield make_finding("build", "fine", torch=torch, build=build, m=machine)
    if machine.nvidia_gpus and not any(device.name.startswith("cuda") for device in torch.devices):
        yield _explain_missing_gpu(machine, torch)
    for device in torch.devices:
        yield _judge_device(device, torch, machine.nvidia_driver or "")


def _explain_missing_gpu(machine: MachineFacts, torch: TorchFacts) -> Finding:
    """Explain why torch does not see an existing NVIDIA GPU."""
    gpu, driver = machine.nvidia_gpus[0], machine.nvidia_driver or "unknown"
    install = f"{_INSTALL}/{_wheel_for(driver)}"
    if torch.cuda_build is None:
        return make_finding("gpu", "no_cuda", gpu=gpu, install=install)
    major = int(torch.cuda_build.split(".")[0])
    need = next((branch for release, branch in _DRIVERS if major >= release), 0)
    case = "old_driver" if 0 < _driver_branch(driver) < need else "unseen"
    return make_finding("gpu", case, gpu=gpu, driver=driver, torch=torch, need=need, install=install)


def _judge_device(device: DeviceFacts, torch: TorchFacts, driver: str) -> Finding:
    title = f"{device.name} {device.title}".strip()
    if device.capability is not None and not _has_code_for(device.capability, torch.architectures):
        capability, built = "".join(map(str, device.capability)), ", ".join(torch.architectures)
        install = f"{_INSTALL}/{_wheel_for(driver, device.capability)}"
        return make_finding(
            "gpu", "no_code", title=title, capability=capability, built=built, install=install
        )
    if device.error:
        fix = "pip install --force-reinstall torch" if device.name == "cpu" else "train with --device cpu"
        return make_finding("device", "broken", title=title, error=device.error, fix=fix)
    assert device.matmul_s is not None
    memory = f", {device.memory_bytes / _GB:.0f} GB" if device.memory_bytes else ""
    return make_finding(
        "device", "fine", title=title, memory=memory, ms=1e3 * device.matmul_s, gflops=device.gflops
    )


def _has_code_for(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Binary code runs on later GPUs of the same generation, PTX (`compute_`) on all later ones."""
    for name in architectures:
        kind, _, digits = name.partition("_")
        number = re.match(r"\d+", digits)
        if number is None:
            continue
        built = divmod(int(number[0]), 10)
        if kind == "compute" and built <= capability:
            return True
        if built[0] == capability[0] and built[1] <= capability[1]:
            return True
    return False


def _wheel_for(driver: str, capability: tuple[int, int] = (8, 0)) -> str:
    """Return the newest wheels that a driver supports and that have code for a GPU."""
    branch = _driver_branch(driver)
    old = "cu118" if 450 <= branch < 525 else "cu126"
    if capability < (7, 5):  # left out of wheels after CUDA 12.6
        return old
    if branch >= 580:
        return "cu130"
    return "cu128" if capability >= (10, 0) else old


def _driver_branch(driver: str) -> int:
    """Return 580 for `580.65.06`; 0 if it is unknown."""
    number = driver.split(".")[0]
    return int(number) if number.isdigit() else 0


def _judge_threads(machine: MachineFacts) -> Iterator[Finding]:
    given = machine.thread_variables
    counts = {name: text for name, text in given.items() if name.endswith("THREADS")}
    for name, text in counts.items():
        if not _COUNTS.fullmatch(text):
            yield make_finding("threads", "no_number", name=name, text=text)
        elif int(text.split(",")[0]) > machine.usable_cores:
            yield make_finding("threads", "too_many", name=name, text=text, m=machine)
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}={text}" for name, text in counts.items())
        yield make_finding("threads", "contradict", shown=shown, names=" ".join(counts))
    for name in given.keys() - counts.keys():
        if given[name].lower() not in ("false", "none", "disabled", ""):
            yield make_finding("threads", "bound", name=name, text=given[name])


def _judge_surroundings(machine: MachineFacts) -> Iterator[Finding]:
    if machine.notebook:
        yield make_finding("notebook", "here")
    if not machine.display:
        yield make_finding("display", "none")
