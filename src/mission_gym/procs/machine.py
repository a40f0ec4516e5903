"""What this machine lets us use: cores, memory, shared memory, disk, and what the surroundings are.

All is read from the system, limits of containers included, and nothing is measured. Readers take the root
of the file system, so that the files of machines which are not here can be read as well.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
)
CORES = "MISSION_GYM_CORES"  # the share of the cores that a process is to plan for, where it has one
_ROOT = Path("/")
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2**63 where there is no limit


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """One machine as one process sees it; `doctor` and the planner judge these."""

    cpu: str
    logical_cores: int
    allowed_cores: int  # by affinity
    physical_cores: int | None  # of the allowed ones; None: not known
    efficiency_cores: int  # of the allowed ones
    cpu_quota: float | None  # cores of a container's share, None without one
    memory_bytes: int
    memory_free_bytes: int  # within the container's limit
    memory_limit_bytes: int | None  # of the container
    dev_shm_free_bytes: int | None  # of /dev/shm, None without one
    shared_free_bytes: int  # what our own shared memory can be made of
    runs_dir: str
    disk_free_bytes: int
    disk_writable: bool
    python: str
    system: str
    nvidia_driver: str | None
    nvidia_gpus: tuple[str, ...] = ()
    thread_variables: dict[str, str] = field(default_factory=dict)
    notebook: bool = False
    display: bool = True

    @property
    def usable_cores(self) -> int:
        return count_usable(self.allowed_cores, self.cpu_quota)


def read_machine(runs_dir: Path = Path("runs"), root: Path = _ROOT) -> MachineFacts:
    """Read the facts of this machine."""
    allowed = _allowed_cores()
    limit, _ = read_memory_limit(root)
    driver, gpus = read_nvidia(root)
    folder = _existing(runs_dir.absolute())
    shm = root / "dev/shm"
    return MachineFacts(
        cpu=read_cpu_name(root),
        logical_cores=os.cpu_count() or 1,
        allowed_cores=len(allowed),
        physical_cores=count_physical(allowed, root),
        efficiency_cores=len(find_efficiency_cores(allowed, root)),
        cpu_quota=read_cpu_quota(root),
        memory_bytes=_read_memory(root)[0],
        memory_free_bytes=free_memory_bytes(root),
        memory_limit_bytes=limit,
        dev_shm_free_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        shared_free_bytes=_shared_free_bytes(root),
        runs_dir=str(runs_dir),
        disk_free_bytes=shutil.disk_usage(folder).free,
        disk_writable=os.access(folder, os.W_OK),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        nvidia_driver=driver,
        nvidia_gpus=gpus,
        thread_variables={name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        notebook="ipykernel" in sys.modules or "google.colab" in sys.modules,
        display=_has_display(),
    )


def usable_cores() -> int:
    """Cores this process may keep busy: its affinity, within the share of its container."""
    return count_usable(len(_allowed_cores()), read_cpu_quota())


def count_usable(allowed: int, quota: float | None) -> int:
    """Whole cores of an affinity and a quota; a part of a core is not one to give to a worker."""
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Memory that can still be taken: of the machine, and within the limit of the container."""
    _, free = _read_memory(root)
    _, left = read_memory_limit(root)
    return free if left is None else min(free, left)


def _read_memory(root: Path) -> tuple[int, int]:
    """Total and available bytes: Linux tells them, elsewhere psutil does, or they are 0."""
    lines = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines}
    if {"MemTotal:", "MemAvailable:"} <= kilobytes.keys():  # psutil takes 20 ms to load, and reads the same
        return 1024 * kilobytes["MemTotal:"], 1024 * kilobytes["MemAvailable:"]
    try:
        import psutil
    except ImportError:  # a broken installation, which `doctor` looks at
        return 0, 0
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def read_cpu_quota(root: Path = _ROOT) -> float | None:
    """Cores that the container grants, the smallest share on the way up, or who packed this process beside
    others; None without a limit."""
    granted = read_share()
    shares = [] if granted is None else [float(granted)]
    for folder in _groups("cpu", root):
        words = _words(folder / "cpu.max")
        words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0] not in ("max", "-1"):
            shares.append(int(words[0]) / int(words[1]))
    return min(shares, default=None)


def read_share() -> int | None:
    """The cores that who started this process beside others gave it; None for all."""
    granted = os.environ.get(CORES, "")
    return int(granted) if granted.isdigit() and int(granted) else None


def read_memory_limit(root: Path = _ROOT) -> tuple[int | None, int | None]:
    """The container's memory limit and what is left below it (page cache counts as left); None without."""
    limits: list[tuple[int, int]] = []
    for folder in _groups("memory", root):
        limit = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
        if not limit or not used or limit[0] == "max" or int(limit[0]) >= _NO_LIMIT:
            continue
        words = _words(folder / "memory.stat")
        stat = dict(zip(words[::2], words[1::2], strict=False))
        cache = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
        limits.append((int(limit[0]), max(0, int(limit[0]) - int(used[0]) + cache)))
    if not limits:
        return None, None
    return min(limit for limit, _ in limits), min(left for _, left in limits)


def find_efficiency_cores(allowed: Iterable[int], root: Path = _ROOT) -> set[int]:
    """The slower cores of a hybrid processor, where the system tells them."""
    cores = set(allowed)
    atom = root / "sys/devices/cpu_atom/cpus"  # Intel
    if atom.exists():
        return cores & parse_cpu_list(" ".join(_words(atom)))
    speeds = {}
    for core in cores:  # ARM
        words = _words(root / f"sys/devices/system/cpu/cpu{core}/cpu_capacity")
        if words:
            speeds[core] = int(words[0])
    return {core for core, speed in speeds.items() if speed < 0.9 * max(speeds.values())}


def count_physical(allowed: Iterable[int], root: Path = _ROOT) -> int | None:
    """Physical cores behind the allowed logical ones; None where the system does not tell."""
    siblings = set()
    for core in allowed:
        words = _words(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        if not words:
            return None
        siblings.add(words[0])
    return len(siblings)


def read_nvidia(root: Path = _ROOT) -> tuple[str | None, tuple[str, ...]]:
    """The NVIDIA driver's version and the names of its cards, whatever torch can do with them."""
    if root == _ROOT and importlib.util.find_spec("pynvml"):
        nvml = importlib.import_module("pynvml")
        try:
            nvml.nvmlInit()
            names = [
                nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))
                for index in range(nvml.nvmlDeviceGetCount())
            ]
            return str(nvml.nvmlSystemGetDriverVersion()), tuple(map(str, names))
        except nvml.NVMLError:  # no driver, or one without NVML
            pass
    folder = root / "proc/driver/nvidia"
    lines = _text(folder / "version").splitlines()
    numbers = [word for word in " ".join(lines[:1]).split() if word[0].isdigit() and "." in word]
    cards = sorted(folder.glob("gpus/*/information"))
    names = [
        line.partition(":")[2].strip()
        for card in cards
        for line in _text(card).splitlines()
        if line.startswith("Model")
    ]
    return (numbers[0] if numbers else None), tuple(names)


def read_cpu_name(root: Path = _ROOT) -> str:
    """The processor's model where the system tells it, else its kind."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def parse_cpu_list(text: str) -> set[int]:
    """The cores of a list like `0-3,8`."""
    cores: set[int] = set()
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The control groups of this process for a controller, from its own up to the root of the mount.

    In a container the path that the kernel tells may lie outside of what is mounted: those are left out.
    """
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base = mount / names if names else mount
        if names and not base.is_dir():
            base = mount / controller
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_dir():
                yield folder
            if folder == base:
                break


def _allowed_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _shared_free_bytes(root: Path) -> int:
    """A memory file is plain memory where there is one; elsewhere it lies in the temporary folder."""
    if hasattr(os, "memfd_create") or sys.platform == "win32":
        return free_memory_bytes(root)
    return shutil.disk_usage(tempfile.gettempdir()).free


def _has_display() -> bool:
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _words(path: Path) -> tuple[str, ...]:
    return tuple(_text(path).split())


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
