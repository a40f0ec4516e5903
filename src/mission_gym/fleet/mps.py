"""CUDA MPS, with which processes share a GPU instead of taking turns: when to use it, and its daemon.

Our daemon has its own folder. It starts with the first job that uses it, a later supervisor finds it again,
and it ends with the queue. A daemon that the user started is left alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, cast

from mission_gym.errors import UsageError

MpsMode = Literal["off", "on", "auto"]
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_PROGRAM = "nvidia-cuda-mps-control"
_ANSWER_S = 10.0
_PATH_CHARS = 80  # of the folder: the path of a socket in it may have 108


def choose_mps(
    mode: MpsMode, others: Sequence[bool], rates: Mapping[bool, Mapping[int, float]], *, is_only: bool
) -> bool:
    """Whether a job that starts on the GPU uses MPS. others: whether the running jobs do. rates: aggregate
    rates with and without MPS, by number of jobs. is_only: no other job waits.

    Jobs with and without MPS are not mixed. When the GPU is free, each is tried once; then the faster is
    used.
    """
    if mode != "auto":
        return mode == "on"
    if others:
        return all(others)
    if is_only:
        return False
    shared, by_turns = (
        max((rate for number, rate in rates.get(under_mps, {}).items() if number > 1), default=0.0)
        for under_mps in (True, False)
    )
    return not shared or 0.0 < by_turns < shared


def check_mps(mode: str, *, uses_gpu: bool) -> MpsMode:
    """The mode that the user gave; UsageError if it is unknown or unavailable."""
    if mode not in ("off", "on", "auto"):
        raise UsageError(f"cuda_mps={mode!r} is not a choice; use off, on or auto [--cuda-mps]")
    if mode == "on" and not uses_gpu:
        raise UsageError("cuda_mps=on has no effect: none of these runs may use an NVIDIA GPU [--cuda-mps]")
    if mode == "on" and shutil.which(_PROGRAM) is None:
        raise UsageError(
            f"cuda_mps=on needs {_PROGRAM}, which is not on the PATH; NVIDIA's driver for Linux contains it;"
            " install the driver, or omit the flag [--cuda-mps]"
        )
    return cast(MpsMode, mode)


class MpsDaemon:
    """The daemon of one queue, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "started"  # exists while the daemon should run
        self._refused = ""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a process that uses it."""
        return {PIPES: str(self._folder), _LOGS: str(self._folder / "log")}

    def open(self) -> str:
        """Start it unless it runs; returns an empty text, or why it is unavailable, which is final."""
        if not self._refused and not (self._mark.exists() and self._call("get_server_list") == ""):
            self._refused = self._start()
        return self._refused

    def give_up(self, cause: str) -> None:
        """Stop using it."""
        self._refused = cause

    def close(self) -> None:
        """End the daemon of this folder, whichever process started it."""
        if self._mark.exists():
            self._call("quit")
            with suppress(OSError):
                self._mark.unlink()

    def _start(self) -> str:
        if shutil.which(_PROGRAM) is None:
            return f"{_PROGRAM} is not on the PATH"
        if len(str(self._folder)) > _PATH_CHARS:
            return f"the path of {self._folder} is too long for sockets; set XDG_STATE_HOME to a shorter path"
        try:
            (self._folder / "log").mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        except OSError as error:
            return f"{self._folder} can't be written: {error.strerror}"
        return self._call("", "-d") or self._call("get_server_list")

    def _call(self, command: str, *args: str) -> str:
        """Call the control program; returns an empty text, or the error."""
        try:
            done = subprocess.run(
                [_PROGRAM, *args], input=f"{command}\n", env=os.environ | self.variables, timeout=_ANSWER_S,
                capture_output=True, text=True, errors="replace", start_new_session=True, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{_PROGRAM}: {error}"
        output = " ".join((done.stderr or done.stdout).split())
        return f"{_PROGRAM} ended with {done.returncode}: {output[:200]}" if done.returncode else ""
