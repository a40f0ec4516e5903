"""CUDA MPS, by which the processes of one GPU share it instead of taking turns: when, and the daemon itself.

The daemon is ours: it has a folder of its own, is started with the first job that goes through it, found
again by a supervisor that comes later, and ended with the queue. A daemon of the user's own is left alone.
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

Wish = Literal["off", "on", "auto"]
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_PROGRAM = "nvidia-cuda-mps-control"
_ANSWER_S = 10.0
_PATH_CHARS = 80  # of the folder: the path of a socket in it has 108 at most


def choose_mps(
    wish: Wish, others: Sequence[bool], rates: Mapping[bool, Mapping[int, float]], *, is_only: bool
) -> bool:
    """Whether a job that starts on the GPU goes through MPS. others: whether those that are there do. rates:
    aggregate rates by way and number at once. is_only: none waits behind it.

    The ways are not mixed; where the GPU is free, each is tried once, and then the better one is taken.
    """
    if wish != "auto":
        return wish == "on"
    if others:
        return all(others)
    if is_only:
        return False
    shared, by_turns = (
        max((rate for number, rate in rates.get(way, {}).items() if number > 1), default=0.0)
        for way in (True, False)
    )
    return not shared or 0.0 < by_turns < shared


def check_mps(wish: str, *, uses_gpu: bool) -> Wish:
    """The wish as it was typed; UsageError where it is not one, or can't be had."""
    if wish not in ("off", "on", "auto"):
        raise UsageError(f"cuda_mps={wish!r} is not a choice; use off, on or auto [--cuda-mps]")
    if wish == "on" and not uses_gpu:
        raise UsageError("cuda_mps=on is not used: no run here may learn on an NVIDIA GPU [--cuda-mps]")
    if wish == "on" and shutil.which(_PROGRAM) is None:
        raise UsageError(
            f"cuda_mps=on needs {_PROGRAM}, which is not on the PATH; NVIDIA's driver for Linux brings it;"
            " install that, or leave the flag out [--cuda-mps]"
        )
    return cast(Wish, wish)


class MpsDaemon:
    """The daemon of one queue, by its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "started"  # stays until it is told to quit
        self._refused = ""

    @property
    def variables(self) -> dict[str, str]:
        """What a process must be given to go through it."""
        return {PIPES: str(self._folder), _LOGS: str(self._folder / "log")}

    def open(self) -> str:
        """Start it unless it runs; an empty text, or why it can't be had, which is final."""
        if not self._refused and not (self._mark.exists() and self._ask("get_server_list") == ""):
            self._refused = self._start()
        return self._refused

    def give_up(self, cause: str) -> None:
        """Don't use it any more."""
        self._refused = cause

    def close(self) -> None:
        """End it, if one was started in this folder, by whichever process."""
        if self._mark.exists():
            self._ask("quit")
            with suppress(OSError):
                self._mark.unlink()

    def _start(self) -> str:
        if shutil.which(_PROGRAM) is None:
            return f"{_PROGRAM} is not on the PATH"
        if len(str(self._folder)) > _PATH_CHARS:
            return f"the path of {self._folder} is too long for sockets; set XDG_STATE_HOME to a shorter one"
        try:
            (self._folder / "log").mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        except OSError as error:
            return f"{self._folder} can't be written: {error.strerror}"
        return self._call(["-d"]) or self._ask("get_server_list")

    def _ask(self, command: str) -> str:
        return self._call([], f"{command}\n")

    def _call(self, args: Sequence[str], words: str = "") -> str:
        """Call the control program; an empty text, or what is wrong."""
        try:
            done = subprocess.run(
                [_PROGRAM, *args], input=words, env=os.environ | self.variables, timeout=_ANSWER_S,
                capture_output=True, text=True, errors="replace", start_new_session=True, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{_PROGRAM}: {error}"
        said = " ".join((done.stderr or done.stdout).split())
        return f"{_PROGRAM} ended with {done.returncode}: {said[:200]}" if done.returncode else ""
