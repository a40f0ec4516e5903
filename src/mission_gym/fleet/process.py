"""The process of one job: how it is started and asked to stop, and how it ended.

It is the command line that a user would type, in its own session, with its output in a log. It outlives its
supervisor and holds the job's lock while it lives. The lock's file contains its pid and attempt number, so
that a later supervisor knows as much as the one that started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mission_gym.errors import RunStateError
from mission_gym.procs.machine import CORES
from mission_gym.store import END_FILE, GROUP, JOB_LOCK, RUN_FILE, lock
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.files import check_plain, disk_errors, open_plain
from mission_gym.store.groups import GroupDir, Job, read_code
from mission_gym.store.rundir import RunDir

_LOCK_WAIT_S = 1.0  # readers hold it for microseconds
_TAIL_BYTES = 4096
_GONE = "the process was killed"  # the cause in the status of a run whose process was killed
_USAGE = 2  # exit code of errors that a retry would repeat


class JobEnd(NamedTuple):
    """How a job's process ended."""

    state: str  # done, failed or stopped
    cause: str
    may_retry: bool = False


def start_process(
    group: GroupDir, job: Job, parent_run: Path | None, variables: Mapping[str, str], program: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start the process of a job with additional environment variables. RunStateError if the job has a living
    process, OSError if none can be started. program: the module to run and its first arguments; a proxy runs
    the command elsewhere and ends with its exit code."""
    request, name = job.request, job.name
    words = _choose_command(job, parent_run)
    if words[0] != "resume":
        with disk_errors(group.run_file(name)):
            group.run_file(name).unlink(missing_ok=True)
    environ = os.environ | request.variables | dict(variables)
    environ |= {CORES: str(job.cores), GROUP: group.name}
    environ |= {RUN_FILE: str(group.run_file(name)), END_FILE: str(group.end_file(name))}
    check_plain(group.path, ["jobs"])
    with (
        lock.hold(group.lock(name), wait_s=_LOCK_WAIT_S) as held,
        open(open_plain(group.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log,
    ):
        environ[JOB_LOCK] = str(held)
        # -P: files in the job's folder must not replace modules that we need.
        return subprocess.Popen(
            [request.python, "-P", "-m", *program, *words],
            cwd=request.folder, env=environ, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(held,),
            preexec_fn=partial(lock.sign, held, str(job.attempts)),
        )  # fmt: skip


def _choose_command(job: Job, parent_run: Path | None) -> list[str]:
    """Resume the job's run if it has a checkpoint; otherwise start it."""
    request = job.request
    trust = ["--trust"] if request.trust else []
    if job.run is not None and job.attempts > 1 and list_checkpoints(RunDir(job.run).checkpoints):
        # The names that the job was allowed are remembered here; the run may have been changed since.
        return ["resume", str(job.run), *(trust if request.cluster is not None else [])]
    if request.parent is not None:
        return ["branch", f"{parent_run}@{request.point}", *request.arguments, *trust]
    return ["train", *request.arguments, *trust]


def stop_process(group: GroupDir, job: Job, *, kill: bool = False) -> None:
    """Ask a living job to save and end. kill: end it at once, with its whole process group."""
    holder = group.find_process(job)
    if holder is not None and group.is_alive(job.name):
        send_signal(holder, signal.SIGKILL if kill else signal.SIGTERM, to_group=kill)


def send_signal(holder: lock.Holder, number: signal.Signals, *, to_group: bool = False) -> None:
    """Signal the holder of a lock, or its process group, unless its pid belongs to another process by now."""
    descriptor = None
    with suppress(ProcessLookupError):
        with suppress(AttributeError, PermissionError, NotImplementedError):  # no pidfd on this system
            descriptor = os.pidfd_open(holder.pid)
        try:
            if not holder.is_alive:
                return
            if to_group:
                os.killpg(holder.pid, number)
            elif descriptor is not None:
                signal.pidfd_send_signal(descriptor, number)
            else:
                os.kill(holder.pid, number)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def read_job_status(job: Job) -> dict[str, Any]:
    """The status of a job's run; empty if there is none or it is damaged."""
    if job.run is None:
        return {}
    try:
        return RunDir(job.run).read_status()
    except RunStateError:
        return {}


def read_end(group: GroupDir, job: Job, code: int | None) -> JobEnd:
    """How a job ended whose process is gone. code: its exit code, None if another process started it."""
    pid = group.read_pid(job)
    code = read_code(group.end_file(job.name), pid) if code is None else code
    status = read_job_status(job)
    if status.get("pid") != pid:  # written by an earlier attempt
        status = {}
    state, cause = status.get("state"), str(status.get("cause", ""))
    if state == "done" or (state == "stopped" and cause == "max_time reached"):
        return JobEnd("done", cause)
    if state == "stopped":
        return JobEnd("stopped", cause)
    if job.stop_asked and cause in ("", _GONE):
        return JobEnd("stopped", "ended before it could save" if job.run else "stopped before it started")
    if cause in ("", _GONE):
        last = read_last_message(group.log(job.name), job.log_bytes)
        cause = _explain_code(code) or last or _GONE
        cause += f"; its last output: {last}" if last not in ("", cause) else ""
    return JobEnd("failed", cause, may_retry=code != _USAGE)


def _explain_code(code: int | None) -> str:
    if code is None or code >= 0:
        return ""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL; the machine may have run out of memory"
    return f"killed by signal {-code}"


def read_last_message(log: Path, start: int = 0) -> str:
    """The last message of `mission-gym` in a log from byte `start` on, or else its last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    messages = [line.removeprefix("mission-gym: ") for line in lines if line.startswith("mission-gym: ")]
    return next(iter([*messages[-1:], *[line for line in lines if line][-1:]]), "")
