"""The actor of a job on a node of a cluster: it starts the job's command there and transfers files.

Every method can be called again if its answer was lost. The command and the scratch folder end with the
actor, however it ends.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from mission_gym.procs.start import end_process, start_command
from mission_gym.ray.cluster import node_versions
from mission_gym.store import RUN_FILE, lock
from mission_gym.store.groups import read_announced

_KEPT_BYTES = 1 << 20  # of the output until it is fetched
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_PATH = "PYTHONPATH"

Listing = dict[str, tuple[int, int]]  # path below a folder -> size in bytes and modification time


class NodeInfo(NamedTuple):
    """Facts about a node."""

    host: str
    versions: dict[str, str]
    folder: str  # the user's code, as it was uploaded
    scratch: str
    is_shared: bool  # files and locks of the calling machine are visible


class JobProgress(NamedTuple):
    """New output and the state of the command."""

    output: bytes
    position: int  # after the output
    run: str | None  # its run directory
    code: int | None  # its exit code


class NodeAgent:
    """The class of the actor."""

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="mission-gym-job-"))
        self._leash = _remove_after_us(self._scratch)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read_output, name="output of the job", daemon=True)
        self._guard = threading.Lock()
        self._output, self._first = bytearray(), 0  # kept output, and the position of its first byte

    def probe(self, mark: str, text: str, folder: str) -> NodeInfo:
        """Describe the node. mark, text: a file that its writer has locked, and its contents. folder: the
        user's."""
        is_shared = False
        with suppress(OSError):
            is_shared = Path(mark).read_text() == text and lock.is_held(Path(mark)) and os.path.isdir(folder)
        return NodeInfo(platform.node(), node_versions(), os.getcwd(), str(self._scratch), is_shared)

    def start(self, words: Sequence[str], folder: str, variables: Mapping[str, str], num_gpus: int) -> None:
        """Start a `mission-gym` command in a folder."""
        if self._process is not None:
            return
        os.environ.pop("OMP_NUM_THREADS", None)  # set by Ray; the plan chooses
        paths = [os.environ.get(_PATH, ""), variables.get(_PATH, "")]  # our uploaded code comes first
        given = {
            **variables,
            RUN_FILE: str(self._scratch / "run"),
            _PATH: os.pathsep.join(filter(None, paths)),
        }
        if not num_gpus:
            given[_VISIBLE_GPUS] = ""
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', folder]
        command = [sys.executable, "-m", "mission_gym", *words]
        self._process = start_command([*inside, *command], separate_stderr=False, variables=given)
        self._reader.start()

    def progress(self, position: int) -> JobProgress:
        """The output from a position on, and the state of the command."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self._reader.join()
        with self._guard:
            fetched = max(0, position - self._first)
            del self._output[:fetched]
            self._first += fetched
            output = bytes(self._output)
            end = self._first + len(output)
        run = read_announced(self._scratch / "run")
        return JobProgress(output, end, None if run is None else str(run), code)

    def stop(self) -> bool:
        """Ask the command to save and end; False if it has no process yet."""
        import psutil

        assert self._process is not None
        with suppress(psutil.Error):
            below = psutil.Process(self._process.pid).children()  # of its subreaper
            eldest = min(below, key=lambda process: process.create_time(), default=None)
            if eldest is not None:
                eldest.send_signal(signal.SIGTERM)
                return True
        return False

    def list_files(self, folder: str) -> Listing:
        """The files below a folder, without hidden ones."""
        found: Listing = {}
        for parent, folders, names in os.walk(folder):  # tolerates files that vanish
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in [os.path.join(parent, name) for name in names if not name.startswith(".")]:
                with suppress(OSError):
                    about = os.stat(path)
                    found[os.path.relpath(path, folder)] = (about.st_size, about.st_mtime_ns)
        return found

    def read(self, path: str, start: int, size: int) -> bytes | None:
        """A part of a file; None if it is gone."""
        try:
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(size)
        except OSError:
            return None

    def write(self, path: str, start: int, data: bytes) -> None:
        """Write a part of a file below the scratch folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if start else "wb") as file:
            file.seek(start)
            file.write(data)

    def close(self) -> None:
        """End the command and remove the scratch folder."""
        if self._process is not None:
            end_process(self._process, 0.0)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._leash.close()

    def _read_output(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(1 << 16):
            with self._guard:
                self._output += chunk
                dropped = max(0, len(self._output) - _KEPT_BYTES)
                del self._output[:dropped]
                self._first += dropped


def _remove_after_us(folder: Path) -> IO[bytes]:
    """Remove a folder when the result is closed or this process is gone. A grandchild does it, because Ray
    kills the children of a process that it ends; it waits until the command has been killed."""
    script = 'exec 3<&0; (cat <&3; sleep 2; rm -rf "$0") >/dev/null 2>&1 &'
    shell = subprocess.Popen(["sh", "-c", script, str(folder)], stdin=subprocess.PIPE, start_new_session=True)
    shell.wait()
    assert shell.stdin is not None
    return shell.stdin
