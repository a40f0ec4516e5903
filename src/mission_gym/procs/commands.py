"""Commands of the user's as child processes below a keeper: nothing that they start outlives them, or us.

In: words of a command. Out: a Popen whose pipes are the command's, and whose end is the command's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from mission_gym.errors import UsageError
from mission_gym.procs import subreaper

_END_S = 5.0  # for a keeper to end all that is below it


def start_command(
    words: Sequence[str], *, folder: str = "", speaks: bool = True, variables: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command. folder: removed with it, whatever ends us. speaks: its stdout and its stderr are a
    pipe each, else stdout has both."""
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"there is no program {words[0]!r} (looked for in PATH, from {os.getcwd()})")
    argv = [program, *words[1:]]
    if hasattr(os, "fork"):
        script = (
            f"import sys; sys.path[:] = {[entry or os.getcwd() for entry in sys.path]!r}\n"
            f"exec(open({subreaper.__file__!r}).read()); keep({os.getpid()}, folder={folder!r})\n"
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"  # Python ignores it, and that is inherited
            f"os.execv({program!r}, {argv!r})"
        )
        argv = [sys.executable, "-I", "-S", "-c", script]
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if speaks else subprocess.STDOUT,
        bufsize=0,
        env=os.environ | (variables or {}),
        start_new_session=True,
    )


def end_command(process: subprocess.Popen[bytes], grace_s: float) -> bool:
    """End a command with all that it started; grace_s: to end by itself, once nothing more is sent, and
    whether it did."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    if grace_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    by_itself = process.poll() is not None
    if not hasattr(os, "fork"):
        from mission_gym.procs.children import ProcessTree

        ProcessTree(process.pid).end()
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:  # something can't be killed, or the keeper was stopped
        process.kill()
        process.wait()
    return by_itself


def read_cpu_s(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a command and of what it has started and not yet ended; its keeper takes none."""
    from mission_gym.procs.children import ProcessTree

    return ProcessTree(process.pid).read_cpu_s()
