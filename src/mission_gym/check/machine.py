"""The machine's doctor: facts of the machine, of torch and of every package in, findings out, errors first.

Whatever may be broken is tried in a process of its own before this one loads it; what is broken stays out.

`diagnose` is pure, so that machines which are not here can be judged from recorded facts. An error is
something broken; a warning costs speed or will break a run; an info is worth knowing; an ok was tried.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mission_gym.check.devices import DeviceFacts, TorchFacts, read_torch
from mission_gym.check.findings import Finding, sort_findings
from mission_gym.check.packages import PACKAGES, judge_package
from mission_gym.check.trials import DEADLINE_S, run_trial
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


def _judge_cores(machine: MachineFacts) -> Iterator[Finding]:
    usable, logical = machine.usable_cores, machine.logical_cores
    why = ""
    if machine.cpu_quota is not None and machine.cpu_quota < machine.allowed_cores:
        why = f"the container's quota grants {machine.cpu_quota:g} cores"
    elif machine.allowed_cores < logical:
        why = f"this process may run on {machine.allowed_cores} of them (affinity)"
    fix = "start the container with --cpus N, or the process with taskset" if why else ""
    if usable == 1:
        what = f"1 of {logical} cores is usable ({machine.cpu})"
        why = why or "collecting and learning take turns on it"
        fix = fix or "use a machine with more cores, if there is one"
        yield Finding("warning", "cores", what, why, fix)
    elif why:
        yield Finding("info", "cores", f"{usable} of {logical} cores are usable ({machine.cpu})", why, fix)
    else:
        yield Finding("ok", "cores", f"{usable} cores are usable ({machine.cpu})")
    physical = machine.physical_cores
    if physical is not None and physical < machine.allowed_cores:
        what = f"{machine.allowed_cores} logical cores are {physical} physical ones"
        why = "two threads of one core share its units: the second gives a quarter or less; tune measures it"
        yield Finding("info", "hyperthreads", what, why)
    if machine.efficiency_cores:
        fast = machine.allowed_cores - machine.efficiency_cores
        what = f"{fast} fast cores and {machine.efficiency_cores} efficiency cores"
        why = "a rollout waits for its slowest worker; the plan counts the slow cores for what they give"
        yield Finding("info", "hybrid", what, why)


def _judge_memory(machine: MachineFacts) -> Iterator[Finding]:
    free, limit = machine.memory_free_bytes, machine.memory_limit_bytes
    if not machine.memory_bytes:  # not to be known here without psutil
        return
    inside = f", within the container's limit of {limit / _GB:.1f} GB" if limit is not None else ""
    what = f"{free / _GB:.1f} of {machine.memory_bytes / _GB:.1f} GB are free{inside}"
    fix = "close other programs" if limit is None else "start the container with --memory 8g"
    if free < 0.7e9:
        yield Finding("error", "memory", what, "torch and one worker alone need 0.7 GB", fix)
    elif free < 2e9:
        yield Finding("warning", "memory", what, "a run with several workers may not fit", fix)
    else:
        yield Finding("ok", "memory", what)
    shm = machine.dev_shm_free_bytes
    if shm is not None and shm < 256 << 20:
        what = f"{shm / 1e6:.0f} MB are free in /dev/shm"
        why = "Mission Gym does not use it, but libraries inside environments may"
        fix = "start the container with --shm-size=1g"
        yield Finding("info", "shared memory", what, why, fix)
    if machine.shared_free_bytes < 256 << 20:
        what = f"{machine.shared_free_bytes / 1e6:.0f} MB can be shared between processes"
        why = "the rollouts of workers lie there"
        fix = "free memory, or set TMPDIR to a folder with room"
        yield Finding("error", "shared memory", what, why, fix)


def _judge_disk(machine: MachineFacts) -> Iterator[Finding]:
    what = f"{machine.disk_free_bytes / _GB:.1f} GB are free for {machine.runs_dir}"
    if not machine.disk_writable:
        what = f"{machine.runs_dir} can't be written"
        why = "every run keeps its checkpoints there"
        fix = "name another folder with --runs-dir"
        yield Finding("error", "disk", what, why, fix)
    elif machine.disk_free_bytes < 0.2e9:
        yield Finding("error", "disk", what, "a run could not keep its checkpoints", "mission-gym runs clean")
    elif machine.disk_free_bytes < 2e9:
        yield Finding("warning", "disk", what, "a run may keep 2 GB of checkpoints", "mission-gym runs clean")
    else:
        yield Finding("ok", "disk", what)


def _judge_torch(machine: MachineFacts, torch: TorchFacts) -> Iterator[Finding]:
    if torch.version is None:  # said with the packages
        return
    if torch.error:
        what = f"the devices of torch {torch.version} can't be used: {torch.error}"
        why = "a training would end the same way"
        fix = (
            "update the driver, or hide the card: export CUDA_VISIBLE_DEVICES=-1"
            if machine.nvidia_gpus
            else "pip install --force-reinstall torch"
        )
        yield Finding("error", "devices", what, why, fix)
        return
    build = f"CUDA {torch.cuda_build}" if torch.cuda_build else "no CUDA"
    yield Finding("ok", "build", f"torch {torch.version} ({build}), Python {machine.python}")
    cards = [device for device in torch.devices if device.name.startswith("cuda")]
    if machine.nvidia_gpus and not cards:
        yield _explain_missing_card(machine, torch)
    for device in torch.devices:
        yield _judge_device(device, torch, machine.nvidia_driver or "")


def _explain_missing_card(machine: MachineFacts, torch: TorchFacts) -> Finding:
    """Why torch does not see the NVIDIA card that is there."""
    card, driver = machine.nvidia_gpus[0], machine.nvidia_driver or "unknown"
    if torch.cuda_build is None:
        what = f"{card} is there, and this torch is built without CUDA"
        why = "the card is not used; large networks and images would train faster on it"
        fix = f"{_INSTALL}/{_wheel_for(driver)}"
        return Finding("warning", "gpu", what, why, fix)
    major = int(torch.cuda_build.split(".")[0])
    need = next((branch for release, branch in _DRIVERS if major >= release), 0)
    if 0 < _driver_branch(driver) < need:
        what = f"the driver {driver} of {card} is too old for CUDA {torch.cuda_build}, which needs {need}"
        why = "torch does not see the card"
        fix = f"{_INSTALL}/{_wheel_for(driver)}"
        return Finding("error", "gpu", what, why, fix)
    what = f"torch sees no device, though {card} with driver {driver} is there"
    why = (
        "the driver was updated without a restart, the container was started without the card, or"
        " CUDA_VISIBLE_DEVICES hides it"
    )
    fix = "restart the machine, or start the container with --gpus all"
    return Finding("error", "gpu", what, why, fix)


def _judge_device(device: DeviceFacts, torch: TorchFacts, driver: str) -> Finding:
    title = f"{device.name} {device.title}".strip()
    if device.capability is not None and not _has_code_for(device.capability, torch.architectures):
        major, minor = device.capability
        what = (
            f"this torch holds no code for {title} (sm_{major}{minor}); it was built for"
            f" {', '.join(torch.architectures)}"
        )
        why = "every kernel ends with `no kernel image is available`"
        fix = f"{_INSTALL}/{_wheel_for(driver, device.capability)}"
        return Finding("error", "gpu", what, why, fix)
    if device.error:
        what = f"a kernel on {title} failed: {device.error}"
        why = "training on it would fail the same way"
        fix = "pip install --force-reinstall torch" if device.name == "cpu" else "train with --device cpu"
        return Finding("error", "device", what, why, fix)
    assert device.matmul_s is not None
    memory = f", {device.memory_bytes / _GB:.0f} GB" if device.memory_bytes else ""
    what = (
        f"{title}{memory}: a 1024 x 1024 product takes {1e3 * device.matmul_s:.2f} ms"
        f" ({device.gflops:,.0f} GFLOP/s)"
    )
    return Finding("ok", "device", what)


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
            yield Finding(
                "warning", "threads", f"{name}={text} is not a number", "libraries ignore it", f"unset {name}"
            )
        elif int(text.split(",")[0]) > machine.usable_cores:
            what = f"{name}={text} with {machine.usable_cores} usable cores"
            why = "threads beyond the cores wait for each other"
            yield Finding("warning", "threads", what, why, f"unset {name}")
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}={text}" for name, text in counts.items())
        what = f"{shown} contradict each other"
        why = "which one counts depends on the library that is loaded first"
        fix = f"unset {' '.join(counts)}"
        yield Finding("warning", "threads", what, why, fix)
    for name in given.keys() - counts.keys():
        if given[name].lower() not in ("false", "none", "disabled", ""):
            what = f"{name}={given[name]} binds threads to cores"
            why = "workers inherit it and may all be bound to the same cores"
            yield Finding("warning", "threads", what, why, f"unset {name}")


def _judge_surroundings(machine: MachineFacts) -> Iterator[Finding]:
    if machine.notebook:
        why = "an environment that is defined in a cell is sent to workers by value; a module is safer"
        yield Finding("info", "notebook", "this is a notebook", why)
    if not machine.display:
        why = "films and training need none; play opens a window, and needs one"
        fix = "film with mission-gym record"
        yield Finding("info", "display", "there is no display", why, fix)
