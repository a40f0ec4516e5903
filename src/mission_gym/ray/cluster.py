"""Ray clusters: started, connected to, described and left. Nothing that we start outlives us.

`open_cluster(address)` returns this process's Cluster, which all its users share, because Ray has one
connection per process. With address None it starts a cluster of this machine alone, with a token and without
a dashboard, which ends with its last holder or with us. With `auto` or HOST:PORT it uses a running cluster
and uploads our code to it, so that every actor and task runs this version, and the user's folder if needed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mission_gym.errors import UsageError, WorkerDied
from mission_gym.names import is_in_run
from mission_gym.procs.machine import free_memory_bytes, usable_cores
from mission_gym.procs.start import end_process, start_command

_START_S = 120.0  # a cold start of Ray's processes on a busy machine
_REACH_S = 5.0
_CHECK_S = 1.0
_TOKEN = secrets.token_hex(32)  # of the clusters that this process starts; Ray reads it once
# Logs are small files that replace each other. How soon a node counts as dead stays Ray's choice: this
# machine is the only one and must not be given up because it is busy. Ray would run workers at niceness 15.
_VARIABLES = {
    "RAY_ROTATION_MAX_BYTES": "1000000",
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_worker_niceness": "0",
}
_NOT_UPLOADED = (  # names in the user's folder: large folders, and files that usually contain secrets
    ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", "wandb*", "mlruns",
    ".env*", ".netrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    ".aws", ".azure", ".docker", ".git-credentials", ".gnupg", ".kube", ".npmrc", ".pypirc", ".ssh",
    "credentials", "credentials.json", "secrets.json", "secrets.toml", "secrets.y*ml",
)  # fmt: skip
_STORE_SHARE = 0.2  # of the free memory, for blocks and weights in transit
_STORE_BYTES = (100 << 20, 2 << 30)  # at least and at most


class Node(NamedTuple):
    """A machine of a cluster, and its resources."""

    name: str  # Ray's id
    host: str
    num_cpus: int
    num_gpus: int
    memory_bytes: int
    is_here: bool  # it is this machine


class Upload(NamedTuple):
    """The files of a folder that nodes of a cluster get."""

    folder: Path
    num_files: int
    size_bytes: int
    left_out: list[str]  # paths below the folder, with everything below them

    def describe(self) -> str:
        """Describe the upload to the user."""
        text = (
            f"up to {self.num_files:,} files ({self.size_bytes / 1e6:,.1f} MB) of {self.folder} are uploaded"
        )
        shown = ", ".join(self.left_out[:3])
        more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
        return f"{text} to the cluster, without {shown}{more}" if shown else f"{text} to the cluster"

    def exclude(self) -> list[str]:
        """Return the patterns of .gitignore that exclude exactly the paths that are left out."""
        return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) for path in self.left_out]


def plan_upload(folder: Path) -> Upload:
    """List the files of the user's folder for a cluster, without runs, secrets, large folders, and links that
    lead out of it. Ray also leaves out the files that a .gitignore names."""
    root, left_out, sizes = os.path.realpath(folder), list[str](), list[int]()
    for parent, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = os.path.join(parent, name)
            is_named = any(fnmatch(name.lower(), pattern) for pattern in _NOT_UPLOADED)
            is_data = name in folders and (path == os.path.join(folder, "runs") or is_in_run(Path(path)))
            leaves = not os.path.realpath(path).startswith(root + os.sep) or not os.path.exists(path)
            if is_named or is_data or leaves:
                left_out.append(os.path.relpath(path, folder))
                if name in folders:
                    folders.remove(name)
            elif name in files:
                sizes.append(os.path.getsize(path))
    return Upload(Path(folder), len(sizes), sum(sizes), sorted(left_out))


class Cluster:
    """This process's connection to a cluster; `open_cluster` makes it."""

    def __init__(self, address: str | None, num_cpus: int | None, *, folder: str = "") -> None:
        self.ray = load_ray()
        self.is_own = address is None
        self._is_lost, self._checked = False, time.monotonic()
        # Other machines lack the user's folder.
        self.upload = plan_upload(Path(folder)) if folder and address is not None else None
        head = None if address is not None else _Head(num_cpus or usable_cores())
        self._end = weakref.finalize(self, _leave, self.ray, head)  # also at the end of the interpreter
        try:
            if head is not None:
                os.environ |= head.variables
                read_token(self.ray)
                self.address = _connect(self.ray, head.address)
            else:
                self.address = _join(self.ray, address or "", self.upload)
        except BaseException:
            self._end()
            raise

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def is_lost(self, since_s: float = _CHECK_S) -> bool:
        """Whether its head no longer answers. Ray itself would end this process: at once if it uses the
        object store, else after a minute. since_s: how old the last check may be."""
        if not self._is_lost and time.monotonic() - self._checked >= since_s:
            self._is_lost = _try_reach(self.address) is not None
            self._checked = time.monotonic()
        return self._is_lost

    def close(self) -> None:
        """Leave the cluster, for all holders, and end it if we started it."""
        self._end()

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        here = self.ray.get_runtime_context().get_node_id()
        return [_describe(each, here) for each in self.ray.nodes() if each["Alive"]]

    def count_cpus(self) -> int:
        """The CPUs of all nodes, at least one."""
        return max(1, sum(node.num_cpus for node in self.nodes()))


_running: weakref.WeakValueDictionary[str, Cluster] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_cluster(address: str | None = None, *, num_cpus: int | None = None, folder: str = "") -> Cluster:
    """Start a cluster, connect to one, or share the existing connection. num_cpus: of a cluster that is
    started. folder: the user's code to upload to a running one."""
    with _lock:
        key = address or ""
        for lost in [each for each in _running.values() if not each.is_closed and each.is_lost()]:
            lost.close()
        running = _running.get(key)
        if running is not None and not running.is_closed:
            return running
        if find_cluster() is not None:
            raise UsageError(
                "this process is connected to another Ray cluster; leave that one first, or use its address"
                " [--ray-address]"
            )
        made = _running[key] = Cluster(address, num_cpus, folder=folder)
        return made


def find_cluster() -> Cluster | None:
    """The cluster that this process is connected to."""
    return next((each for each in _running.values() if not each.is_closed), None)


def load_ray() -> ModuleType:
    """Ray's module; UsageError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "Ray is not installed, and it is needed to train on a cluster; pip install 'mission-gym[ray]'"
        ) from error
    found: ModuleType = ray
    return found


def check_versions(versions: dict[str, str], host: str) -> None:
    """UsageError if a node has other versions than this process: numbers or pickles would differ."""
    wrong = [
        f"{name} {versions.get(name)} (here {own})"
        for name, own in node_versions().items()
        if versions.get(name) != own
    ]
    if wrong:
        raise UsageError(
            f"the node {host} has {', '.join(wrong)}; install the same versions on every node of the cluster"
            " [--ray-address]"
        )


def node_versions() -> dict[str, str]:
    """The versions that must be equal on all nodes. Our own code is uploaded, and Ray compares its own."""
    from importlib.metadata import version

    import mission_gym

    return {
        "mission-gym": mission_gym.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": version("numpy"),
        "gymnasium": version("gymnasium"),
    }


class _Head:
    """A cluster of this machine alone, as a command below a subreaper, which ends all of Ray's processes and
    removes its folder, however we end."""

    def __init__(self, num_cpus: int) -> None:
        short = "/tmp" if os.path.isdir("/tmp") else None  # paths of sockets must be short
        folder = tempfile.mkdtemp(prefix="mission-gym-ray-", dir=short)
        least, most = _STORE_BYTES
        store_bytes = int(min(max(_STORE_SHARE * free_memory_bytes(), least), most))
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            client_port = int(free.getsockname()[1])
        words = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0",
            f"--num-cpus={num_cpus}", f"--object-store-memory={store_bytes}", f"--temp-dir={folder}",
            "--min-worker-port=0", "--max-worker-port=0", f"--ray-client-server-port={client_port}",
            "--include-dashboard=False", "--include-log-monitor=false", "--disable-usage-stats",
        ]  # fmt: skip
        self._process = start_command(
            words, folder=folder, separate_stderr=False, variables=_VARIABLES | self.variables
        )
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, name="output of ray", daemon=True)
        self._reader.start()
        try:
            self.address = self._wait(Path(folder, "ray_current_cluster"))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        end_process(self._process, 0.0)
        self._reader.join(2.0)

    def _wait(self, file: Path) -> str:
        """Wait until Ray has written its address."""
        end = time.monotonic() + _START_S
        while not (file.exists() and file.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > end:
                output = bytes(self._output).decode("utf-8", "replace").strip()
                raise WorkerDied(f"Ray did not start on this machine; its last output:\n{output}")
            self._reader.join(0.05)
        return file.read_text().strip()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(1 << 14):
            self._output[:] = (self._output + chunk)[-4000:]


def _join(ray: ModuleType, address: str, upload: Upload | None) -> str:
    """Connect to a running cluster and upload our code."""
    if "://" in address:
        raise UsageError(
            f"{address} is an address of a Ray client, through which blocks would be copied twice; run"
            " this on a node of the cluster, with auto or HOST:PORT [--ray-address]"
        )
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(
                f"{address!r} is not the address of a cluster; write auto or HOST:PORT [--ray-address]"
            )
        if (error := _try_reach(address)) is not None:  # Ray itself would try for minutes
            raise UsageError(
                f"no Ray cluster answers at {address} ({error.strerror or error}); start one there with ray"
                " start --head, or leave the address out [--ray-address]"
            ) from error
    uploaded: dict[str, Any] = {"py_modules": [str(Path(__file__).parents[1])]}
    if upload is not None:
        uploaded |= {"working_dir": str(upload.folder), "excludes": upload.exclude()}
    return _connect(ray, address, runtime_env=uploaded)


def _try_reach(address: str) -> OSError | None:
    """Why no process listens at HOST:PORT; None if one does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        return error
    return None


def _connect(ray: ModuleType, address: str, **options: Any) -> str:
    """Connect without output and return the address of the head; UsageError if that is refused."""
    try:
        with _quiet():
            context = ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                **options,
            )
    except (Exception, SystemExit) as error:  # border: Ray exits if it gives up
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if "ersion mismatch" in str(error):
            raise UsageError(
                f"the cluster at {address} has other versions: {' '.join(map(str.strip, lines))}; install the"
                " same ones on every node [--ray-address]"
            ) from error
        raise UsageError(
            f"no Ray cluster can be used at {address}: {lines[0]}; this machine must be a node of it"
            " (ray start --address=HEAD:6379), and if it has a token, RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            " must be set here [--ray-address]"
        ) from error
    return str(context.address_info["gcs_address"])


def _leave(ray: ModuleType, head: _Head | None) -> None:
    with _quiet():
        ray.shutdown()
    if head is not None:
        head.end()
        for name, value in head.variables.items():
            if os.environ.get(name) == value:
                del os.environ[name]
        read_token(ray)


def read_token(ray: ModuleType) -> None:
    """Make Ray read the variables of the token again: it read them when it was imported."""
    inner = importlib.import_module(f"{ray.__name__}._raylet")
    inner.Config.initialize("")
    inner.AuthenticationTokenLoader.instance().reset_cache()


def _describe(node: dict[str, Any], here: str) -> Node:
    name, host = node["NodeID"], node["NodeManagerHostname"]
    resources = ("CPU", "GPU", "memory")
    cpus, gpus, memory = (int(node["Resources"].get(each, 0)) for each in resources)
    return Node(name, host, cpus, gpus, memory, name == here)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what Ray writes to the terminal about its attempts: our errors report their result."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            sys.stderr.flush()
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
