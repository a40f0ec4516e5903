"""Ray clusters: started, connected to, looked at and left; nothing that we start outlives us.

`open_cluster(address)` gives the Cluster of this process, which all its users share: Ray has one connection
in a process. address None: one of this machine alone is started, below a keeper, with a token and without a
dashboard, and ends with its last holder, or with us. `auto` or HOST:PORT: one that runs is used as it is;
UsageError where there is none, or where it has other versions; our own code is uploaded to it, so that every
actor and task runs this version, and the user's folder where its code is needed there. Then `cluster.ray` is
Ray's module, `cluster.nodes()` tells what is there, `close()` leaves it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import platform
import secrets
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mission_gym.errors import UsageError, WorkerDied
from mission_gym.procs.commands import end_process, start_command
from mission_gym.procs.machine import free_memory_bytes, usable_cores

_START_S = 120.0  # a cold start of Ray's processes on a busy machine
_REACH_S = 5.0
_LOOK_S = 1.0
_TOKEN = secrets.token_hex(32)  # of the clusters that this process starts; Ray reads it once
# Logs are small files that replace each other. How soon a node counts as dead stays Ray's: this machine is
# the only one, and must not be given up because it is busy. Ray would let workers run at niceness 15.
_VARIABLES = {
    "RAY_ROTATION_MAX_BYTES": "1000000",
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_worker_niceness": "0",
}
_NOT_CODE = ["/runs", ".git", ".venv", "venv", "node_modules", "__pycache__"]  # of the user's folder
_STORE_SHARE = 0.2  # of the free memory, for blocks and weights that are on their way
_STORE_BYTES = (100 << 20, 2 << 30)  # at least and at most


class Node(NamedTuple):
    """A machine of a cluster, and what it lends."""

    name: str  # Ray's id of it
    host: str
    num_cpus: int
    num_gpus: int
    memory_bytes: int
    store_bytes: int
    is_here: bool  # it is this machine's


class Cluster:
    """This process's connection to a cluster; `open_cluster` makes it."""

    def __init__(
        self, address: str | None, num_cpus: int | None, *, dashboard: bool = False, folder: str = ""
    ) -> None:
        self.ray = load_ray()
        self.is_own = address is None
        self._is_lost, self._looked = False, time.monotonic()
        head = None if address is not None else _Head(num_cpus or usable_cores(), dashboard=dashboard)
        self._end = weakref.finalize(self, _leave, self.ray, head)  # at the end of the interpreter, too
        try:
            if head is not None:
                os.environ |= head.variables
                read_token(self.ray)
            self.address = (
                _connect(self.ray, head.address) if head else _join(self.ray, address or "", folder)
            )
        except BaseException:
            self._end()
            raise

    @property
    def is_closed(self) -> bool:
        return not self._end.alive

    def is_lost(self, since_s: float = _LOOK_S) -> bool:
        """Whether its head answers no more. Ray itself ends this process over that: at once where it uses the
        store, else after a minute. since_s: how long ago it may have been looked at."""
        if not self._is_lost and time.monotonic() - self._looked >= since_s:
            host, _, port = self.address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), _REACH_S).close()
            except OSError:
                self._is_lost = True
            self._looked = time.monotonic()
        return self._is_lost

    def close(self) -> None:
        """Leave it, whoever holds it, and end what we started of it."""
        self._end()

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        here = self.ray.get_runtime_context().get_node_id()
        return [_describe(each, here) for each in self.ray.nodes() if each["Alive"]]

    def count_cpus(self) -> int:
        """CPUs of all nodes, one at least."""
        return max(1, sum(node.num_cpus for node in self.nodes()))


_running: weakref.WeakValueDictionary[str, Cluster] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def open_cluster(
    address: str | None = None, *, num_cpus: int | None = None, dashboard: bool = False, folder: str = ""
) -> Cluster:
    """Start a cluster or connect to one, or share the connection that there is. num_cpus, dashboard: of one
    that is started. folder: what one that runs needs of the user's code."""
    with _lock:
        key = address or ""
        for lost in [each for each in _running.values() if not each.is_closed and each.is_lost()]:
            lost.close()
        running = _running.get(key)
        if running is not None and not running.is_closed:
            return running
        if any(not other.is_closed for other in _running.values()):
            raise UsageError(
                "this process is connected to another Ray cluster; leave that one first, or use its address"
                " [--ray-address]"
            )
        made = _running[key] = Cluster(address, num_cpus, dashboard=dashboard, folder=folder)
        return made


def find_cluster() -> Cluster | None:
    """The cluster that this process is connected to."""
    return next((each for each in _running.values() if not each.is_closed), None)


def load_ray() -> ModuleType:
    """Ray's module; UsageError where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "Ray is not installed, and it is needed to train on a cluster; pip install 'mission-gym[ray]'"
        ) from error
    found: ModuleType = ray
    return found


def check_versions(versions: dict[str, str], host: str) -> None:
    """UsageError if a node computes with other versions than this process: numbers, or pickles, would
    differ."""
    mine = node_versions()
    wrong = [
        f"{name} {versions.get(name)} (here {own})" for name, own in mine.items() if versions.get(name) != own
    ]
    if wrong:
        raise UsageError(
            f"the node {host} has {', '.join(wrong)}; install the same versions on every node of the cluster"
            " [--ray-address]"
        )


def node_versions() -> dict[str, str]:
    """What must be equal on all nodes: our own code comes with the job, Ray compares itself."""
    from importlib.metadata import version

    import mission_gym

    python = ".".join(platform.python_version_tuple()[:2])
    return {
        "mission-gym": mission_gym.__version__,
        "python": python,
        "numpy": version("numpy"),
        "gymnasium": version("gymnasium"),
    }


class _Head:
    """A cluster of this machine alone, as a command below a keeper, which ends all that Ray starts and then
    removes its folder, whatever ends us."""

    def __init__(self, num_cpus: int, *, dashboard: bool) -> None:
        short = "/tmp" if os.path.isdir("/tmp") else None  # sockets have short paths
        folder = tempfile.mkdtemp(prefix="mission-gym-ray-", dir=short)
        least, most = _STORE_BYTES
        store_bytes = int(min(max(_STORE_SHARE * free_memory_bytes(), least), most))
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
        words = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0",
            f"--num-cpus={num_cpus}", f"--object-store-memory={store_bytes}", f"--temp-dir={folder}",
            "--min-worker-port=0", "--max-worker-port=0", f"--ray-client-server-port={_free_port()}",
            f"--include-dashboard={dashboard}", "--include-log-monitor=false", "--disable-usage-stats",
        ]  # fmt: skip
        self._process = start_command(
            words, folder=folder, separate_stderr=False, variables=_VARIABLES | self.variables
        )
        self._words = bytearray()
        self._drain = threading.Thread(target=self._read, name="output of ray", daemon=True)
        self._drain.start()
        try:
            self.address = self._wait(Path(folder, "ray_current_cluster"))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        end_process(self._process, 0.0)
        self._drain.join(2.0)

    def _wait(self, told: Path) -> str:
        """The address, once Ray has written it down."""
        end = time.monotonic() + _START_S
        while not (told.exists() and told.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > end:
                words = bytes(self._words).decode("utf-8", "replace").strip()
                raise WorkerDied(f"Ray did not start on this machine; its last words:\n{words}")
            self._drain.join(0.05)
        return told.read_text().strip()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(1 << 14):
            self._words[:] = (self._words + chunk)[-4000:]


def _join(ray: ModuleType, address: str, folder: str) -> str:
    """Connect to a cluster that runs, and bring our code."""
    _reach(address)
    brought: dict[str, Any] = {"py_modules": [str(Path(__file__).parents[1])]}
    if folder:
        brought |= {"working_dir": folder, "excludes": _NOT_CODE}
    return _connect(ray, address, runtime_env=brought)


def _connect(ray: ModuleType, address: str, **options: Any) -> str:
    """Connect, silently; UsageError where that is refused. Returns where the head is."""
    try:
        with _quiet():
            context = ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                **options,
            )
    except (Exception, SystemExit) as error:  # border: Ray exits where it gives up
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if "ersion mismatch" in str(error):
            raise UsageError(
                f"the cluster at {address} has other versions: {' '.join(map(str.strip, lines))}; install the"
                " same ones on every node [--ray-address]"
            ) from error
        raise UsageError(
            f"no Ray cluster can be used at {address}: {lines[0]}; this machine must be a node of it"
            " (ray start --address=HEAD:6379), and where it has a token, RAY_AUTH_MODE=token and"
            " RAY_AUTH_TOKEN must be set here [--ray-address]"
        ) from error
    return str(context.address_info["gcs_address"])


def _reach(address: str) -> None:
    """UsageError where nobody listens: Ray itself would try for minutes."""
    if "://" in address:
        raise UsageError(
            f"{address} is an address of a Ray client, through which blocks would be copied twice; run"
            " this on a node of the cluster, with auto or HOST:PORT [--ray-address]"
        )
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdigit():
        raise UsageError(
            f"{address!r} is not the address of a cluster; write auto or HOST:PORT [--ray-address]"
        )
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one there with ray start"
            " --head, or leave the address out [--ray-address]"
        ) from error


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
    """Let Ray see the variables that tell whether there is a token: it read them when it was imported."""
    inner = importlib.import_module(f"{ray.__name__}._raylet")
    inner.Config.initialize("")
    inner.AuthenticationTokenLoader.instance().reset_cache()


def _describe(node: dict[str, Any], here: str) -> Node:
    lent = node["Resources"]
    return Node(
        node["NodeID"],
        node["NodeManagerHostname"],
        int(lent.get("CPU", 0)),
        int(lent.get("GPU", 0)),
        int(lent.get("memory", 0)),
        int(lent.get("object_store_memory", 0)),
        node["NodeID"] == here,
    )


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What Ray writes to the terminal by itself, of its attempts, goes nowhere: we tell what came of them."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            sys.stderr.flush()
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
