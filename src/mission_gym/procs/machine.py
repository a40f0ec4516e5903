"""Facts about this machine: cores, memory, disk, GPUs, and versions of software.

Everything is read from the system, limits of containers included; nothing is measured. Readers take the root
of the file system, so that recorded files of other machines can be read too.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

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
_USER_CAPS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # also limit the learner's threads, if the user set them
_OWN_CAPS = "MISSION_GYM_OWN_CAPS"  # environment variable: names of those that we have set
CORES = "MISSION_GYM_CORES"  # environment variable: number of cores granted to this process
_PACKAGES = ("mission-gym", "numpy", "torch", "gymnasium", "numba", "scipy")
_ROOT = Path("/")
_NO_LIMIT = 1 << 60  # cgroup v1 writes a number near 2**63 for no limit


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """This machine from the view of one process, for `doctor` and the planner."""

    cpu: str
    logical_cores: int
    allowed_cores: int  # by affinity
    physical_cores: int | None  # of the allowed ones; None if unknown
    efficiency_cores: int  # of the allowed ones
    cpu_quota: float | None  # cores that the container grants; None without a limit
    memory_bytes: int
    memory_free_bytes: int  # within the container's limit
    memory_limit_bytes: int | None  # of the container
    dev_shm_free_bytes: int | None  # of /dev/shm; None without one
    shared_free_bytes: int  # for our own shared memory
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
    """Return the number of cores that this process may use: its affinity, limited by its container."""
    return count_usable(len(_allowed_cores()), read_cpu_quota())


def count_usable(allowed: int, quota: float | None) -> int:
    """Return the whole cores of an affinity and a quota; a fraction of a core is not enough for a worker."""
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Return the free memory of the machine, limited by the container."""
    _, free = _read_memory(root)
    _, left = read_memory_limit(root)
    return free if left is None else min(free, left)


def _read_memory(root: Path) -> tuple[int, int]:
    """Return total and available bytes, from Linux or psutil; 0 without both."""
    lines = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines}
    if {"MemTotal:", "MemAvailable:"} <= kilobytes.keys():  # psutil reads the same, and takes 20 ms to load
        return 1024 * kilobytes["MemTotal:"], 1024 * kilobytes["MemAvailable:"]
    try:
        import psutil
    except ImportError:  # a broken installation, which `doctor` diagnoses
        return 0, 0
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def read_cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the cores granted by the container (its smallest parent limit) or by our scheduler; None without
    a limit."""
    granted = read_share()
    shares = [] if granted is None else [float(granted)]
    for folder in _groups("cpu", root):
        words = _words(folder / "cpu.max")
        words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0] not in ("max", "-1"):
            shares.append(int(words[0]) / int(words[1]))
    return min(shares, default=None)


def read_share() -> int | None:
    """Return the cores that our scheduler granted to this process; None for all."""
    granted = os.environ.get(CORES, "")
    return int(granted) if granted.isdigit() and int(granted) else None


def set_thread_caps() -> None:
    """Give libraries one thread, unless the user gave a number: BLAS threads slow down NumPy on the small
    batches of acting, and the learner sets torch's threads itself. Call it before libraries are loaded."""
    own = [name for name in (*_USER_CAPS, "OPENBLAS_NUM_THREADS") if name not in os.environ]
    os.environ.update(dict.fromkeys(own, "1"))
    os.environ[_OWN_CAPS] = ",".join([*own, os.environ.get(_OWN_CAPS, "")])


def read_thread_cap() -> tuple[int, str] | None:
    """Return the fewest threads that the user's environment variables allow, and the variable; None without a
    limit."""
    own = os.environ.get(_OWN_CAPS, "").split(",")
    texts = {name: os.environ.get(name, "").split(",")[0] for name in _USER_CAPS if name not in own}
    caps = [(int(text), name) for name, text in texts.items() if text.isdigit() and int(text)]
    return min(caps, key=lambda cap: cap[0], default=None)


def count_threads() -> int:
    """Return the most threads for the learner: the usable cores, limited by the user's variables."""
    cap = read_thread_cap()
    return usable_cores() if cap is None else min(usable_cores(), cap[0])


def measure_use(seconds: float) -> float:
    """Return how many of the usable cores all processes use; this process sleeps meanwhile."""
    import psutil

    shares = psutil.cpu_percent(seconds, percpu=True)
    return sum(shares[core] for core in _allowed_cores() if core < len(shares)) / 100.0


def read_memory_limit(root: Path = _ROOT) -> tuple[int | None, int | None]:
    """Return the container's memory limit and the rest of it (page cache counts as free); None without a
    limit."""
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
    """Return the slower cores of a hybrid processor, if the system reports them."""
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
    """Return the number of physical cores of the allowed logical ones; None if the system does not report
    it."""
    siblings = set()
    for core in allowed:
        words = _words(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        if not words:
            return None
        siblings.add(words[0])
    return len(siblings)


def read_nvidia(root: Path = _ROOT) -> tuple[str | None, tuple[str, ...]]:
    """Return the NVIDIA driver's version and the names of its GPUs, whether torch can use them or not."""
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
    names = [
        line.partition(":")[2].strip()
        for gpu in sorted(folder.glob("gpus/*/information"))
        for line in _text(gpu).splitlines()
        if line.startswith("Model")
    ]
    return (numbers[0] if numbers else None), tuple(names)


def read_cpu_name(root: Path = _ROOT) -> str:
    """Return the processor's model, or its architecture if the system does not report the model."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def parse_cpu_list(text: str) -> set[int]:
    """Parse a list of cores like `0-3,8`."""
    cores: set[int] = set()
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the control groups of this process for a controller, from its own up to the root of the mount.

    In a container the kernel may report paths that are not mounted; those are skipped.
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
    """Memory files are in memory if the system has them, and otherwise in the temporary folder."""
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


class Vram(NamedTuple):
    """Memory of the GPU that runs use; processes in other containers may be missing."""

    free_bytes: int
    by_pid: dict[int, int]


def read_vram(nvml: Any = None) -> Vram | None:
    """Read the memory of the first GPU of CUDA_VISIBLE_DEVICES; None without a driver.

    nvml: NVIDIA's bindings, for tests.
    """
    nvml = nvml or importlib.import_module("pynvml")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    try:
        nvml.nvmlInit()
        if visible.startswith("GPU-"):
            gpu = nvml.nvmlDeviceGetHandleByUUID(visible)
        else:
            gpu = nvml.nvmlDeviceGetHandleByIndex(int(visible) if visible.isdigit() else 0)
        free = int(nvml.nvmlDeviceGetMemoryInfo(gpu).free)
    except nvml.NVMLError:
        return None
    by_pid: dict[int, int] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
        with suppress(nvml.NVMLError):  # the driver does not report it
            by_pid |= {each.pid: int(each.usedGpuMemory or 0) for each in getattr(nvml, name)(gpu)}
    return Vram(free, by_pid)


def versions(gpu: str = "") -> dict[str, str]:
    """Return the versions that bits depend on: a resume under other versions is only statistically equal.

    gpu: the name of the GPU that computes.
    """
    return {name: version(name) for name in _PACKAGES} | {
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {platform.system()}",
        **({"card": gpu} if gpu else {}),
    }


def compare_versions(recorded: Mapping[str, str], gpu: str = "") -> tuple[list[str], list[str]]:
    """Describe what changed since versions were recorded; also return names that were not recorded."""
    now = versions(gpu)
    changed = [f"{name} {old} -> {now.get(name)}" for name, old in recorded.items() if now.get(name) != old]
    return changed, [name for name in now if name not in recorded]
