"""CUDA MPS: when runs go through it, and the daemon, with a stand-in for NVIDIA's control program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mission_gym.errors import UsageError
from mission_gym.fleet import mps
from mission_gym.fleet.mps import MpsDaemon, MpsMode, check_mps, choose_mps
from mission_gym.procs.machine import Vram, read_vram
from mission_gym.store.groups import Job
from queue_jobs import Crew

CONTROL = """#!/bin/sh
[ "$1" = -d ] && words="-d" || read -r words
echo "$words" >> "$CREW_SIGNS/mps"
if [ -e "$CREW_SIGNS/broken" ]; then echo "no device" >&2; exit 1; fi
if [ "$words" = -d ]; then : > "$CUDA_MPS_PIPE_DIRECTORY/up"; exit 0; fi
[ -e "$CUDA_MPS_PIPE_DIRECTORY/up" ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
[ "$words" = quit ] && rm "$CUDA_MPS_PIPE_DIRECTORY/up"
exit 0
"""


@pytest.fixture
def control(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in on the PATH; returns the file with the commands that it got."""
    program = crew.signs / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(mps, "_PATH_CHARS", 1000)
    return crew.signs / "mps"


def words(control: Path) -> list[str]:
    return control.read_text().split() if control.exists() else []


@pytest.mark.parametrize(
    ("mode", "others", "shared", "by_turns", "is_only", "expected"),
    [
        ("off", [True], {2: 9.0}, {}, False, False),
        ("on", [False], {}, {}, True, True),
        ("auto", [], {}, {}, True, False),  # alone it gains nothing
        ("auto", [], {}, {}, False, True),  # tried first
        ("auto", [True], {}, {}, False, True),  # ways are not mixed
        ("auto", [False, False], {}, {}, False, False),
        ("auto", [True, False], {}, {}, False, False),
        ("auto", [], {1: 1.0, 2: 1.8}, {1: 1.0}, False, False),  # then the other
        ("auto", [], {1: 1.0, 2: 1.8}, {2: 1.2}, False, True),
        ("auto", [], {1: 1.0, 2: 1.1}, {2: 1.2}, False, False),
        ("auto", [], {2: 1.8, 3: 1.7}, {2: 1.2, 3: 1.75}, False, True),  # the best of each
    ],
)
def test_the_faster_way_is_chosen(
    mode: MpsMode,
    others: list[bool],
    shared: Mapping[int, float],
    by_turns: Mapping[int, float],
    is_only: bool,
    expected: bool,
) -> None:
    assert choose_mps(mode, others, {True: shared, False: by_turns}, is_only=is_only) is expected


def test_one_daemon_is_started_found_again_and_ended(crew: Crew, control: Path) -> None:
    folder = crew.signs / "queue"
    assert MpsDaemon(folder).open() == ""
    assert words(control) == ["-d", "get_server_list"]
    assert MpsDaemon(folder).open() == ""  # of a supervisor that came later
    assert words(control)[2:] == ["get_server_list"]
    (folder / "up").unlink()  # it was killed
    assert MpsDaemon(folder).open() == ""
    assert words(control)[3:] == ["get_server_list", "-d", "get_server_list"]
    MpsDaemon(folder).close()
    MpsDaemon(folder).close()
    assert words(control)[6:] == ["quit"]
    assert not (folder / "up").exists()


def test_problems_of_the_daemon_are_reported(
    crew: Crew, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (crew.signs / "broken").touch()
    assert MpsDaemon(crew.signs).open() == "nvidia-cuda-mps-control ended with 1: no device"
    monkeypatch.setattr(mps, "_PATH_CHARS", 5)
    assert "too long for sockets" in MpsDaemon(crew.signs / "other").open()
    monkeypatch.setenv("PATH", "/nowhere")
    assert MpsDaemon(crew.signs / "other").open() == "nvidia-cuda-mps-control is not on the PATH"


def test_unavailable_mps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert check_mps("auto", uses_gpu=True) == "auto"
    assert check_mps("off", uses_gpu=False) == "off"
    with pytest.raises(UsageError, match="none of these runs may use an NVIDIA GPU"):
        check_mps("on", uses_gpu=False)
    with pytest.raises(UsageError, match="nvidia-cuda-mps-control, which is not on the PATH"):
        check_mps("on", uses_gpu=True)
    with pytest.raises(UsageError, match="'yes' is not a choice; use off, on or auto"):
        check_mps("yes", uses_gpu=True)


def finish(crew: Crew, *notes: str, **more: Any) -> dict[str, Job]:
    requests = [crew.request(f"j{n}", note, uses_gpu=True, **more) for n, note in enumerate(notes)]
    jobs = crew.finish(crew.group(*requests))
    crew.supervisor.close()
    return jobs


def test_runs_that_share_a_gpu_go_through_the_daemon_which_ends_with_the_queue(
    crew: Crew, control: Path
) -> None:
    jobs = finish(crew, "pass", "pass")
    assert [(job.state, job.under_mps) for job in jobs.values()] == [("done", True), ("done", False)]
    assert crew.said.count("runs share the GPU through CUDA MPS") == 1
    assert words(control) == ["-d", "get_server_list", "quit"]


@pytest.mark.parametrize(
    ("mode", "state", "cause"),
    [
        ("auto", "done", "all steps made"),
        ("on", "failed", "cuda_mps=on is not possible: nvidia-cuda-mps-control ended with 1"),
    ],
)
def test_a_daemon_that_does_not_start(crew: Crew, control: Path, mode: str, state: str, cause: str) -> None:
    (crew.signs / "broken").touch()
    jobs = finish(crew, "pass", "pass", cuda_mps=mode)
    assert {job.state for job in jobs.values()} == {state}
    assert all(job.cause.startswith(cause) and not job.under_mps for job in jobs.values())
    if mode == "auto":
        assert [text for text in crew.said if "MPS" in text] == [
            "CUDA MPS is not used: nvidia-cuda-mps-control ended with 1: no device"
        ]


def test_a_run_that_fails_under_it_is_tried_again_without(crew: Crew, control: Path) -> None:
    jobs = finish(crew, "die-mps", "pass")
    assert [(job.state, job.attempts, job.under_mps) for job in jobs.values()] == [
        ("done", 2, False), ("done", 1, False),
    ]  # fmt: skip
    assert "CUDA MPS is not used: j0 failed with it before its first step" in crew.said


def test_a_daemon_of_the_users_own_is_left_alone(crew: Crew, control: Path) -> None:
    jobs = finish(crew, "pass", "pass", variables={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"})
    assert {(job.state, job.under_mps) for job in jobs.values()} == {("done", False)}
    assert words(control) == []


class FakeNvml:
    """NVML with two GPUs; the driver reports no processes under MPS."""

    NVMLError = RuntimeError

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-b":
            raise RuntimeError("Not Found")
        return 1

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:
        return SimpleNamespace(free=(5, 7)[gpu])

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        return [SimpleNamespace(pid=3, usedGpuMemory=2), SimpleNamespace(pid=4, usedGpuMemory=None)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: int) -> list[Any]:
        raise RuntimeError("Not Supported")


@pytest.mark.parametrize(
    ("visible", "free"), [("", 5), ("1", 7), ("1,0", 7), ("GPU-b", 7), ("MIG-x", 5), ("GPU-c", None)]
)
def test_memory_of_the_first_visible_gpu_is_read(
    monkeypatch: pytest.MonkeyPatch, visible: str, free: int | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert read_vram(FakeNvml()) == (None if free is None else Vram(free, {3: 2, 4: 0}))


def test_without_a_driver_nothing_is_known() -> None:
    pytest.importorskip("pynvml")
    assert read_vram() is None or os.path.exists("/proc/driver/nvidia")
