"""The machine's doctor: facts of the machine, of torch and of every package in, findings out, errors first.

Whatever may be broken is tried in a process of its own before this one loads it; what is broken stays out.

`diagnose` is pure, so that machines which are not here can be judged from recorded facts. An error is
something broken; a warning costs speed or will break a run; an info is worth knowing; an ok was tried.
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
from mission_gym.check.findings import Finding, sort_findings, tell
from mission_gym.check.packages import PACKAGES, judge_package
from mission_gym.check.trials import DEADLINE_S, Attempt, run_trial
from mission_gym.procs.machine import MachineFacts, read_machine

_GB = 1e9
_INSTALL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl"
# The smallest driver branch (Linux) that a CUDA release runs on, newest first.
_DRIVERS = ((13, 580), (12, 525), (11, 450))
_COUNTS = re.compile(r"[1-9]\d*(,[1-9]\d*)*")


@dataclass(frozen=True, slots=True)
class Examination:
    """What was read, and what it means."""

    machine: MachineFacts
    torch: TorchFacts
    findings: list[Finding]


def examine(runs_dir: Path, deadline_s: float = DEADLINE_S) -> Examination:
    """Try every package, run a kernel on each device, read this machine, and judge."""
    with ThreadPoolExecutor(len(PACKAGES)) as pool:  # all at once, so that all that hang cost one deadline
        trials = list(pool.map(lambda package: run_trial(package.code, deadline_s), PACKAGES))
    errors = {package.module: trial.error for package, trial in zip(PACKAGES, trials, strict=True)}
    for module, error in errors.items():
        if error:  # an import of it here is refused at once
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]
    torch = TorchFacts(None, errors["torch"]) if errors["torch"] else read_torch(deadline_s)
    machine = read_machine(runs_dir)
    findings = [*map(judge_package, PACKAGES, trials), *diagnose(machine, torch)]
    return Examination(machine, torch, sort_findings(findings))


def diagnose(machine: MachineFacts, torch: TorchFacts) -> list[Finding]:
    """Judge the facts; each finding has the one command that fixes it."""
    findings = [
        *_judge_cores(machine),
        *_judge_memory(machine),
        *_judge_disk(machine),
        *_judge_torch(machine, torch),
        *_judge_threads(machine),
        *_judge_surroundings(machine),
    ]
    return sort_findings(findings)


def judge_proof(trial: Attempt) -> list[Finding]:
    """Judge the causes, by device and precision, that a process of its own printed as JSON."""
    if trial.error:
        return [tell("proof", "broken", error=trial.error)]
    causes = json.loads(trial.output)
    return [
        tell("proof", "fails" if cause else "holds", way=way, cause=cause) for way, cause in causes.items()
    ]


def _judge_cores(machine: MachineFacts) -> Iterator[Finding]:
    why = ""
    if machine.cpu_quota is not None and machine.cpu_quota < machine.allowed_cores:
        why = f"the container's quota grants {machine.cpu_quota:g} cores"
    elif machine.allowed_cores < machine.logical_cores:
        why = f"this process may run on {machine.allowed_cores} of them (affinity)"
    fix = "start the container with --cpus N, or the process with taskset"
    if machine.usable_cores > 1:
        yield tell("cores", "some" if why else "all", m=machine, why=why, fix=fix)
    elif why:
        yield tell("cores", "one", m=machine, why=why, fix=fix)
    else:
        why, fix = (
            "collecting and learning take turns on it",
            "use a machine with more cores, if there is one",
        )
        yield tell("cores", "one", m=machine, why=why, fix=fix)
    if machine.physical_cores is not None and machine.physical_cores < machine.allowed_cores:
        yield tell("hyperthreads", "shared", m=machine)
    if machine.efficiency_cores:
        yield tell("hybrid", "slow", m=machine, fast=machine.allowed_cores - machine.efficiency_cores)


def _judge_memory(machine: MachineFacts) -> Iterator[Finding]:
    free, limit = machine.memory_free_bytes, machine.memory_limit_bytes
    if not machine.memory_bytes:  # not to be known here without psutil
        return
    inside = f", within the container's limit of {limit / _GB:.1f} GB" if limit is not None else ""
    what = f"{free / _GB:.1f} of {machine.memory_bytes / _GB:.1f} GB are free{inside}"
    fix = "close other programs" if limit is None else "start the container with --memory 8g"
    yield tell("memory", _rank(free, 0.7e9, none="none"), what=what, fix=fix)
    shm = machine.dev_shm_free_bytes
    if shm is not None and shm < 256 << 20:
        yield tell("shared memory", "libraries", mb=shm / 1e6)
    if machine.shared_free_bytes < 256 << 20:
        yield tell("shared memory", "ours", mb=machine.shared_free_bytes / 1e6)


def _judge_disk(machine: MachineFacts) -> Iterator[Finding]:
    free = machine.disk_free_bytes
    case = _rank(free, 0.2e9, none="full") if machine.disk_writable else "closed"
    yield tell("disk", case, m=machine, gb=free / _GB)


def _rank(free: float, needed: float, *, none: str) -> str:
    """The case of so many bytes."""
    return none if free < needed else "little" if free < 2e9 else "enough"


def _judge_torch(machine: MachineFacts, torch: TorchFacts) -> Iterator[Finding]:
    if torch.version is None:  # said with the packages
        return
    if torch.error:
        fix = (
            "update the driver, or hide the card: export CUDA_VISIBLE_DEVICES=-1"
            if machine.nvidia_gpus
            else "pip install --force-reinstall torch"
        )
        yield tell("devices", "broken", torch=torch, fix=fix)
        return
    build = f"CUDA {torch.cuda_build}" if torch.cuda_build else "no CUDA"
    yield tell("build", "fine", torch=torch, build=build, m=machine)
    cards = [device for device in torch.devices if device.name.startswith("cuda")]
    if machine.nvidia_gpus and not cards:
        yield _explain_missing_card(machine, torch)
    for device in torch.devices:
        yield _judge_device(device, torch, machine.nvidia_driver or "")


def _explain_missing_card(machine: MachineFacts, torch: TorchFacts) -> Finding:
    """Why torch does not see the NVIDIA card that is there."""
    card, driver = machine.nvidia_gpus[0], machine.nvidia_driver or "unknown"
    install = f"{_INSTALL}/{_wheel_for(driver)}"
    if torch.cuda_build is None:
        return tell("gpu", "no_cuda", card=card, install=install)
    major = int(torch.cuda_build.split(".")[0])
    need = next((branch for release, branch in _DRIVERS if major >= release), 0)
    case = "old_driver" if 0 < _driver_branch(driver) < need else "unseen"
    return tell("gpu", case, card=card, driver=driver, torch=torch, need=need, install=install)


def _judge_device(device: DeviceFacts, torch: TorchFacts, driver: str) -> Finding:
    title = f"{device.name} {device.title}".strip()
    if device.capability is not None and not _has_code_for(device.capability, torch.architectures):
        capability, built = "".join(map(str, device.capability)), ", ".join(torch.architectures)
        install = f"{_INSTALL}/{_wheel_for(driver, device.capability)}"
        return tell("gpu", "no_code", title=title, capability=capability, built=built, install=install)
    if device.error:
        fix = "pip install --force-reinstall torch" if device.name == "cpu" else "train with --device cpu"
        return tell("device", "broken", title=title, error=device.error, fix=fix)
    assert device.matmul_s is not None
    memory = f", {device.memory_bytes / _GB:.0f} GB" if device.memory_bytes else ""
    return tell("device", "fine", title=title, memory=memory, ms=1e3 * device.matmul_s, gflops=device.gflops)


def _has_code_for(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Binary code runs on later cards of its generation, PTX (`compute_`) on all later ones."""
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
    """The newest wheels that a driver carries and that hold code for a card."""
    branch = _driver_branch(driver)
    old = "cu118" if 450 <= branch < 525 else "cu126"
    if capability < (7, 5):  # left out of wheels after CUDA 12.6
        return old
    if branch >= 580:
        return "cu130"
    return "cu128" if capability >= (10, 0) else old


def _driver_branch(driver: str) -> int:
    """580 of `580.65.06`, 0 where it is not known."""
    number = driver.split(".")[0]
    return int(number) if number.isdigit() else 0


def _judge_threads(machine: MachineFacts) -> Iterator[Finding]:
    given = machine.thread_variables
    counts = {name: text for name, text in given.items() if name.endswith("THREADS")}
    for name, text in counts.items():
        if not _COUNTS.fullmatch(text):
            yield tell("threads", "no_number", name=name, text=text)
        elif int(text.split(",")[0]) > machine.usable_cores:
            yield tell("threads", "too_many", name=name, text=text, m=machine)
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}={text}" for name, text in counts.items())
        yield tell("threads", "contradict", shown=shown, names=" ".join(counts))
    for name in given.keys() - counts.keys():
        if given[name].lower() not in ("false", "none", "disabled", ""):
            yield tell("threads", "bound", name=name, text=given[name])


def _judge_surroundings(machine: MachineFacts) -> Iterator[Finding]:
    if machine.notebook:
        yield tell("notebook", "here")
    if not machine.display:
        yield tell("display", "none")
