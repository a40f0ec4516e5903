"""One job's process: how it is started, whether it lives, how it is asked to stop, and how it ended.

It is the command line that a user would type, in a session of its own, with its output in a log. It outlives
its supervisor, and holds the job's lock as long as it lives; the lock's file tells its pid and which attempt
it is, so that a supervisor that comes later knows as much as the one that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import RunStateError
from mission_gym.procs.machine import CORES
from mission_gym.store import END_FILE, GROUP, RUN_FILE, lock
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.files import disk_errors
from mission_gym.store.groups import GroupDir, Job, read_code
from mission_gym.store.rundir import RunDir

_LOCK_WAIT_S = 1.0  # readers take it for some microseconds
_TAIL_BYTES = 4096
_GONE = "process gone"  # what a status says whose process was killed
_USAGE = 2  # exit code of what fails in the same way again


class Ending(NamedTuple):
    """How a job's process ended."""

    state: str  # done, failed or stopped
    cause: str
    may_retry: bool = False


def start_member(
    group: GroupDir,
    job: Job,
    cores: int,
    parent_run: Path | None,
    variables: Mapping[str, str],
    program: Sequence[str] = ("mission_gym",),
) -> subprocess.Popen[bytes]:
    """Start the process of a job, with environment variables of its own; RunStateError if one lives. OSError
    if it can't be started. program: the module that is run, or one that lets it run elsewhere, stands for it
    and ends as it does, with what comes before the command line."""
    request, name = job.request, job.name
    words = _choose_command(job, parent_run)
    if words[0] != "resume":
        with disk_errors(group.run_file(name)):
            group.run_file(name).unlink(missing_ok=True)
    environ = os.environ | request.variables | dict(variables)
    environ |= {CORES: str(cores), GROUP: group.name}
    environ |= {RUN_FILE: str(group.run_file(name)), END_FILE: str(group.end_file(name))}
    with lock.hold(group.lock(name), wait_s=_LOCK_WAIT_S) as held, group.log(name).open("ab") as log:

        def sign() -> None:
            os.ftruncate(held, 0)
            os.lseek(held, 0, os.SEEK_SET)
            os.write(held, f"{os.getpid()} {job.attempts}".encode())

        return subprocess.Popen(
            [request.python, "-m", *program, *words],
            cwd=request.folder, env=environ, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(held,),
            preexec_fn=sign,
        )  # fmt: skip


def _choose_command(job: Job, parent_run: Path | None) -> list[str]:
    """Go on with the job's run if it has a checkpoint; else begin it."""
    arguments = list(job.request.arguments)
    if job.run is not None and job.attempts > 1 and list_checkpoints(RunDir(job.run).checkpoints):
        return ["resume", str(job.run), *(["--trust"] if "--trust" in arguments else [])]
    if job.request.parent is not None:
        return ["branch", f"{parent_run}@{job.request.point}", *arguments]
    return ["train", *arguments]


def ask_to_stop(group: GroupDir, job: Job) -> None:
    """Ask a living job to save and end."""
    pid = group.read_pid(job)
    if pid is not None and group.is_alive(job.name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def end_member(group: GroupDir, job: Job) -> None:
    """End a living job at once, with all of its process group."""
    pid = group.read_pid(job)
    if pid is not None and group.is_alive(job.name):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def judge_end(group: GroupDir, job: Job, code: int | None) -> Ending:
    """How a job ended whose process is gone. code: its exit code, None for who did not start it."""
    code = read_code(group.end_file(job.name), group.read_pid(job)) if code is None else code
    status = _read_own_status(group, job)
    state, cause = status.get("state"), str(status.get("cause", ""))
    if state == "done" or (state == "stopped" and cause == "max_time reached"):
        return Ending("done", cause)
    if state == "stopped":
        return Ending("stopped", cause)
    if job.stop_asked and cause in ("", _GONE):
        return Ending("stopped", "ended before it could save" if job.run else "stopped before it began")
    if cause in ("", _GONE):
        cause = _explain_code(code) or read_last_words(group.log(job.name), job.log_bytes) or _GONE
    return Ending("failed", cause, may_retry=code != _USAGE)


def _read_own_status(group: GroupDir, job: Job) -> dict[str, Any]:
    """The status of the job's run, if its last attempt wrote it."""
    if job.run is None:
        return {}
    try:
        status = RunDir(job.run).read_status()
    except RunStateError:
        return {}
    return status if status.get("pid") == group.read_pid(job) else {}


def _explain_code(code: int | None) -> str:
    if code is None or code >= 0:
        return ""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL; the machine may have been out of memory"
    return f"killed by signal {-code}"


def read_last_words(log: Path, start: int = 0) -> str:
    """The last message of a log from `start` on, or else its last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    said = [line.removeprefix("mission-gym: ") for line in lines if line.startswith("mission-gym: ")]
    return next(iter([*said[-1:], *[line for line in lines if line][-1:]]), "")
