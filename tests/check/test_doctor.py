"""Recorded facts of machines, and what the doctor says of them."""

from dataclasses import replace
from typing import Any

import pytest

from mission_gym.check.devices import DeviceFacts, TorchFacts, measure_device, read_torch
from mission_gym.check.machine import diagnose, judge_verification
from mission_gym.check.packages import Attempt
from mission_gym.procs import MachineFacts

CPU = DeviceFacts("cpu", matmul_s=0.02)
ADA = DeviceFacts("cuda:0", "RTX 4070", (8, 9), 8_000_000_000, 0.0002)
ARCHITECTURES = ("sm_50", "sm_80", "sm_86", "sm_90")
CPU_TORCH = TorchFacts("2.13.0+cpu", devices=(CPU,))
CUDA_TORCH = TorchFacts("2.13.0", cuda_build="12.6", architectures=ARCHITECTURES, devices=(CPU, ADA))
LAPTOP = MachineFacts(
    cpu="i7",
    logical_cores=16,
    allowed_cores=16,
    physical_cores=8,
    efficiency_cores=0,
    cpu_quota=None,
    memory_bytes=32_000_000_000,
    memory_free_bytes=20_000_000_000,
    memory_limit_bytes=None,
    dev_shm_free_bytes=16_000_000_000,
    shared_free_bytes=20_000_000_000,
    runs_dir="runs",
    disk_free_bytes=100_000_000_000,
    disk_writable=True,
    python="3.11.7",
    system="Linux",
    nvidia_driver="560.35",
    nvidia_gpus=("RTX 4070",),
)


def said(machine: MachineFacts, torch: TorchFacts = CUDA_TORCH) -> list[str]:
    return [f"{each.level}: {each.what}; {each.why}; {each.fix}" for each in diagnose(machine, torch)]


def test_a_sound_machine_has_nothing_to_mend() -> None:
    findings = diagnose(LAPTOP, CUDA_TORCH)
    assert {finding.level for finding in findings} == {"info", "ok"}
    assert any("8 physical ones" in finding.what for finding in findings)
    assert any(finding.what.startswith("cuda:0 RTX 4070, 8 GB: ") for finding in findings)


CASES: list[tuple[str, dict[str, Any], TorchFacts, str, str, str]] = [
    ("quota", {"cpu_quota": 2.0}, CUDA_TORCH, "info", "2 of 16 cores are usable", "--cpus"),
    ("affinity", {"allowed_cores": 4}, CUDA_TORCH, "info", "4 of 16 cores", "taskset"),
    ("one core", {"cpu_quota": 0.5}, CUDA_TORCH, "warning", "1 of 16 cores is usable", "--cpus"),
    ("hybrid", {"efficiency_cores": 8}, CUDA_TORCH, "info", "8 fast cores and 8 efficiency cores", ""),
    ("little memory", {"memory_free_bytes": 10**9}, CUDA_TORCH, "warning", "1.0 of 32.0 GB", "close"),
    (
        "a small container",
        {"memory_free_bytes": 5 * 10**8, "memory_limit_bytes": 10**9},
        CUDA_TORCH,
        "error",
        "within the container's limit of 1.0 GB",
        "--memory 8g",
    ),
    (
        "docker",
        {"dev_shm_free_bytes": 64 << 20},
        CUDA_TORCH,
        "info",
        "67 MB are free in /dev/shm",
        "--shm-size",
    ),
    ("tmp", {"shared_free_bytes": 10**8}, CUDA_TORCH, "error", "100 MB can be shared", "TMPDIR"),
    ("full disk", {"disk_free_bytes": 10**8}, CUDA_TORCH, "error", "0.1 GB are free for runs", "runs clean"),
    ("tight disk", {"disk_free_bytes": 10**9}, CUDA_TORCH, "warning", "1.0 GB are free", "runs clean"),
    ("read only", {"disk_writable": False}, CUDA_TORCH, "error", "runs can't be written", "--runs-dir"),
    (
        "cpu torch",
        {},
        CPU_TORCH,
        "warning",
        "built without CUDA",
        "torch --index-url https://download.pytorch.org/whl/cu126",
    ),
    (
        "old driver",
        {"nvidia_driver": "470.82"},
        replace(CUDA_TORCH, devices=(CPU,)),
        "error",
        "the driver 470.82 of RTX 4070 is too old for CUDA 12.6, which needs 525",
        "whl/cu118",
    ),
    (
        "hidden GPU",
        {},
        replace(CUDA_TORCH, devices=(CPU,)),
        "error",
        "torch sees no device, although there is a RTX 4070",
        "--gpus all",
    ),
    (
        "new GPU",
        {"nvidia_driver": "570.10"},
        replace(CUDA_TORCH, devices=(CPU, replace(ADA, capability=(12, 0), title="RTX 5090"))),
        "error",
        "has no code for cuda:0 RTX 5090 (sm_120)",
        "whl/cu128",
    ),
    (
        "old GPU",
        {"nvidia_driver": "580.1"},
        replace(CUDA_TORCH, architectures=("sm_75",), devices=(CPU, replace(ADA, capability=(6, 1)))),
        "error",
        "(sm_61)",
        "whl/cu126",
    ),
    (
        "failing GPU",
        {},
        replace(CUDA_TORCH, devices=(CPU, replace(ADA, matmul_s=None, error="out of memory"))),
        "error",
        "a kernel on cuda:0 RTX 4070 failed: out of memory",
        "--device cpu",
    ),
    (
        "threads",
        {"thread_variables": {"OMP_NUM_THREADS": "64"}},
        CUDA_TORCH,
        "warning",
        "64 with 16",
        "unset",
    ),
    ("word", {"thread_variables": {"OMP_NUM_THREADS": "all"}}, CUDA_TORCH, "warning", "=all is not", "unset"),
    (
        "contradiction",
        {"thread_variables": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "8"}},
        CUDA_TORCH,
        "warning",
        "OMP_NUM_THREADS=1, MKL_NUM_THREADS=8 contradict each other",
        "unset OMP_NUM_THREADS MKL_NUM_THREADS",
    ),
    (
        "bound",
        {"thread_variables": {"OMP_PROC_BIND": "true"}},
        CUDA_TORCH,
        "warning",
        "binds threads",
        "unset",
    ),
    ("notebook", {"notebook": True}, CUDA_TORCH, "info", "this is a notebook", ""),
    ("server", {"display": False}, CUDA_TORCH, "info", "no display", "mission-gym record"),
]


@pytest.mark.parametrize(
    ("changes", "torch", "level", "what", "fix"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_each_fault_is_named_with_its_fix(
    changes: dict[str, Any], torch: TorchFacts, level: str, what: str, fix: str
) -> None:
    machine = replace(LAPTOP, **changes)
    found = [each for each in diagnose(machine, torch) if what in each.what]
    assert [each.level for each in found] == [level], said(machine, torch)
    assert found[0].why
    assert fix in found[0].fix


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 9), ("sm_80",), True),  # a later card of the generation
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90", "compute_90"), True),  # PTX is compiled for later cards
        ((9, 0), ("sm_90a",), True),
    ],
)
def test_code_for_a_gpu(capability: tuple[int, int], architectures: tuple[str, ...], runs: bool) -> None:
    torch = replace(CUDA_TORCH, architectures=architectures, devices=(replace(ADA, capability=capability),))
    assert any("has no code" in line for line in said(LAPTOP, torch)) is not runs


def test_a_real_kernel_runs_here_and_a_missing_device_is_told() -> None:
    torch = read_torch(600.0)
    assert torch.version
    assert torch.devices[0].name == "cpu"
    assert torch.devices[0].gflops
    lost = measure_device(DeviceFacts("cuda:7"))
    assert lost.matmul_s is None
    assert lost.error


def test_devices_that_crash_are_told_apart_from_an_import_that_does() -> None:
    torch = replace(CUDA_TORCH, error="it was killed by SIGSEGV", devices=())
    (found,) = [each for each in diagnose(LAPTOP, torch) if each.level == "error"]
    assert found.what == "the devices of torch 2.13.0 can't be used: it was killed by SIGSEGV"
    assert "CUDA_VISIBLE_DEVICES" in found.fix


def test_a_device_that_computes_something_else_is_an_error() -> None:
    holds, fails = judge_verification(
        Attempt('{"cuda float32": "", "cuda bf16": "its loss is 2 where the loss gives 1"}')
    )
    assert (holds.level, fails.level) == ("ok", "error")
    assert fails.what.endswith("on cuda bf16 do not match the CPU: its loss is 2 where the loss gives 1")
    (broken,) = judge_verification(Attempt(error="it was killed by SIGSEGV"))
    assert broken.what.endswith("it was killed by SIGSEGV")
