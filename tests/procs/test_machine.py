"""Machines that are not here, as the files of their systems describe them."""

import os
from pathlib import Path

import pytest

from mission_gym.procs.machine import (
    count_physical,
    count_threads,
    count_usable,
    find_efficiency_cores,
    parse_cpu_list,
    read_cpu_name,
    read_cpu_quota,
    read_machine,
    read_memory_limit,
    read_nvidia,
    read_thread_cap,
    set_thread_caps,
    usable_cores,
)

CPU = "sys/devices/system/cpu"


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_v2_container_has_the_smallest_quota_on_the_way_up(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/pod7/box\n",
            "sys/fs/cgroup/pods/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pods/pod7/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/pods/pod7/box/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/pods/pod7/box/memory.max": "4000000000\n",
            "sys/fs/cgroup/pods/pod7/box/memory.current": "3000000000\n",
            "sys/fs/cgroup/pods/pod7/box/memory.stat": "anon 1\ninactive_file 500000000\n",
        },
    )
    assert read_cpu_quota(root) == 2.5
    assert read_memory_limit(root) == (4_000_000_000, 1_500_000_000)


def test_a_v1_container_whose_own_path_is_not_mounted(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "147483648\n",
            "sys/fs/cgroup/memory/memory.stat": "cache 9\ntotal_inactive_file 1000\n",
        },
    )
    assert read_cpu_quota(root) == 1.5
    assert read_memory_limit(root) == (2_147_483_648, 2_000_001_000)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
        {
            "proc/self/cgroup": "3:cpu:/\n4:memory:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
        },
    ],
)
def test_no_container_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    root = lay(tmp_path, files)
    assert read_cpu_quota(root) is None
    assert read_memory_limit(root) == (None, None)


def test_intel_and_arm_tell_their_slow_cores(tmp_path: Path) -> None:
    intel = lay(tmp_path / "intel", {"sys/devices/cpu_atom/cpus": "8-15\n"})
    assert find_efficiency_cores(range(4, 12), intel) == {8, 9, 10, 11}
    speeds = (1024, 1024, 446, 446)
    arm = lay(tmp_path / "arm", {f"{CPU}/cpu{i}/cpu_capacity": f"{n}\n" for i, n in enumerate(speeds)})
    assert find_efficiency_cores(range(4), arm) == {2, 3}
    assert find_efficiency_cores(range(4), tmp_path) == set()


def test_hyperthreads_are_counted_by_siblings(tmp_path: Path) -> None:
    pairs = {f"{CPU}/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}\n" for i in range(8)}
    root = lay(tmp_path, pairs)
    assert count_physical(range(8), root) == 4
    assert count_physical({0, 4, 1}, root) == 2
    assert count_physical({99}, root) is None


def test_a_driver_without_torch_is_found(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n",
            "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA RTX 4070\nIRQ: 5\n",
            "proc/cpuinfo": "processor : 0\nmodel name\t: Intel(R) Core(TM) i9\n",
        },
    )
    assert read_nvidia(root) == ("535.129.03", ("NVIDIA RTX 4070",))
    assert read_nvidia(tmp_path / "nothing") == (None, ())
    assert read_cpu_name(root) == "Intel(R) Core(TM) i9"


def test_counts() -> None:
    assert parse_cpu_list("0-3,8") == {0, 1, 2, 3, 8}
    assert [count_usable(8, quota) for quota in (None, 16.0, 2.9, 0.5)] == [8, 8, 2, 1]


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    facts = read_machine(tmp_path / "not" / "there" / "yet")
    assert 1 <= facts.usable_cores == usable_cores() <= facts.logical_cores
    assert 0 < facts.memory_free_bytes <= facts.memory_bytes
    assert facts.disk_writable


def test_a_share_of_the_cores_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISSION_GYM_CORES", "1")
    assert usable_cores() == 1
    for given in ("", "0", "many"):
        monkeypatch.setenv("MISSION_GYM_CORES", given)
        assert usable_cores() == read_machine().usable_cores >= 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "1"}, (1, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "4,2", "MKL_NUM_THREADS": "3"}, (3, "MKL_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "many", "MKL_NUM_THREADS": "0"}, None),
        ({"OPENBLAS_NUM_THREADS": "1"}, None),
    ],
)
def test_thread_caps_are_those_of_the_user(
    given: dict[str, str], expected: tuple[int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MISSION_GYM_OWN_CAPS"):
        monkeypatch.delenv(name, raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    with monkeypatch.context() as undo:  # as the command line does, and a process that it starts again
        undo.setattr(os, "environ", dict(os.environ))
        for _ in range(2):
            set_thread_caps()
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
            assert read_thread_cap() == expected
    assert read_thread_cap() == expected
    assert count_threads() == min(usable_cores(), expected[0] if expected else usable_cores())
