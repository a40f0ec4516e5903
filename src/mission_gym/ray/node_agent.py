"""The end of a job on a node of a cluster: an actor, which starts its command line there and hands out files.

Every method may be called again where the answer was lost. The command ends with the actor, and so does the
scratch folder, whatever ends it.
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

from mission_gym.procs.commands import end_process, start_command
from mission_gym.ray.cluster import node_versions
from mission_gym.store import RUN_FILE, lock
from mission_gym.store.groups import read_announced

_KEPT_BYTES = 1 << 20  # of the output, until it is fetched
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_PATH = "PYTHONPATH"

Listing = dict[str, tuple[int, int]]  # path below a folder -> bytes and time of writing


class Surroundings(NamedTuple):
    """What a node is like."""

    host: str
    versions: dict[str, str]
    folder: str  # the user's code, as it was brought
    scratch: str
    is_shared: bool  # files and locks of the asking machine are seen here


class News(NamedTuple):
    """What became of the command."""

    output: bytes
    position: int  # behind it
    run: str | None  # where its run lies
    code: int | None  # how it ended


class Outpost:
    """Ray makes an actor of it."""

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="mission-gym-job-"))
        self._leash = _remove_after_us(self._scratch)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="output of the job", daemon=True)
        self._guard = threading.Lock()
        self._output, self._begin = bytearray(), 0

    def look(self, mark: str, words: str, folder: str) -> Surroundings:
        """What is here. mark, words: a file that its writer holds a lock on, and what is in it. folder: the
        user's."""
        is_shared = False
        with suppress(OSError):
            is_shared = Path(mark).read_text() == words and lock.is_held(Path(mark)) and os.path.isdir(folder)
        return Surroundings(platform.node(), node_versions(), os.getcwd(), str(self._scratch), is_shared)

    def start(self, words: Sequence[str], folder: str, variables: Mapping[str, str], num_gpus: int) -> None:
        """Start a command line of ours in a folder."""
        if self._process is not None:
            return
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's; the plan chooses
        given = dict(variables) | {RUN_FILE: str(self._scratch / "run")}
        paths = [os.environ.get(_PATH, ""), variables.get(_PATH, "")]  # our code first, as it was brought
        given[_PATH] = os.pathsep.join(filter(None, paths))
        if not num_gpus:
            given[_VISIBLE_GPUS] = ""
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', folder]
        command = [sys.executable, "-m", "mission_gym", *words]
        self._process = start_command([*inside, *command], separate_stderr=False, variables=given)
        self._reader.start()

    def news(self, position: int) -> News:
        """What was said since a position, and what has happened."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self._reader.join()
        with self._guard:
            fetched = max(0, position - self._begin)
            del self._output[:fetched]
            self._begin += fetched
            output = bytes(self._output)
            end = self._begin + len(output)
        run = read_announced(self._scratch / "run")
        return News(output, end, None if run is None else str(run), code)

    def stop(self) -> bool:
        """Ask the command to save and end; whether there is one to be asked."""
        import psutil

        assert self._process is not None
        with suppress(psutil.Error):
            below = psutil.Process(self._process.pid).children()  # of its keeper
            eldest = min(below, key=lambda process: process.create_time(), default=None)
            if eldest is not None:
                eldest.send_signal(signal.SIGTERM)
                return True
        return False

    def list_files(self, folder: str) -> Listing:
        """The files of a run that others may read."""
        found: Listing = {}
        for path, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if not name.startswith("."):
                    with suppress(OSError):
                        about = os.stat(os.path.join(path, name))
                        found[os.path.relpath(os.path.join(path, name), folder)] = (
                            about.st_size,
                            about.st_mtime_ns,
                        )
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
        """A part of a file below the scratch folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if start else "wb") as file:
            file.seek(start)
            file.write(data)

    def close(self) -> None:
        """End what is still there."""
        if self._process is not None:
            end_process(self._process, 0.0)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._leash.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(1 << 16):
            with self._guard:
                self._output += chunk
                lost = max(0, len(self._output) - _KEPT_BYTES)
                del self._output[:lost]
                self._begin += lost


def _remove_after_us(folder: Path) -> IO[bytes]:
    """Have a folder removed when what is returned is closed, or this process is gone. By a grandchild: Ray
    kills the children of a process that it ends, keepers too. The command is then being killed: it waits."""
    script = 'exec 3<&0; (cat <&3; sleep 2; rm -rf "$0") >/dev/null 2>&1 &'
    shell = subprocess.Popen(["sh", "-c", script, str(folder)], stdin=subprocess.PIPE, start_new_session=True)
    shell.wait()
    assert shell.stdin is not None
    return shell.stdin
