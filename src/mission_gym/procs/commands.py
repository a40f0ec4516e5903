"""The user's commands as child processes below a subreaper: nothing that they start outlives them, or us.

In: the words of a command. Out: a Popen whose pipes are the command's and whose exit code is the command's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mission_gym.errors import UsageError
from mission_gym.names import read_path
from mission_gym.procs.start import make_subreaper_code

_END_S = 5.0  # for a subreaper to kill everything below it


def start_command(
    words: Sequence[str],
    *,
    folder: str = "",
    separate_stderr: bool = True,
    variables: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command. folder: is removed when the command ends, even if we are killed. separate_stderr:
    stderr has its own pipe; otherwise stdout's pipe has both. variables: additional environment variables."""
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"there is no program {words[0]!r} (looked for in PATH, from {os.getcwd()})")
    argv = [program, *words[1:]]
    if hasattr(os, "fork"):
        script = (
            f"import sys; sys.path[:] = {read_path(added=False)!r}\n"
            f"{make_subreaper_code(f'{os.getpid()}, folder={folder!r}')}\n"
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"  # Python ignores it, and that is inherited
            f"os.execv({program!r}, {argv!r})"
        )
        argv = [sys.executable, "-I", "-S", "-c", script]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if separate_stderr else subprocess.STDOUT,
        bufsize=0,
        env=os.environ | (variables or {}),
        start_new_session=True,
    )


def end_process(process: Any, grace_s: float) -> bool:
    """End a Popen or ForkedProcess with all its descendants.

    grace_s: time to end by itself after its input was closed. Returns whether it did.
    """
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    if grace_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    ended_by_itself = process.poll() is not None
    if not hasattr(os, "fork"):  # there is no subreaper
        from mission_gym.procs.children import ProcessTree

        ProcessTree(process.pid).end()
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:  # something can't be killed, or the subreaper was stopped
        process.kill()
        process.wait()
    return ended_by_itself
