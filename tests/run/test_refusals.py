"""Runs on systems that refuse processes, threads or shared memory: they need fewer, or name the flag."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mission_gym.config.layers import Resolved
from mission_gym.errors import ResourceRefused
from mission_gym.procs import memory
from mission_gym.procs import start as starting
from mission_gym.run.config import read_config, resolve
from mission_gym.run.start import start_run
from mission_gym.store.rundir import RunDir
from runs import NO_EVALS, PPO, drain, final_state, resume, rows, silent

SERIAL = r"use --vector serial, which steps environments in the training process"
# Python runs this in the fork server when it starts: its processes may fork this often.
LIMIT = """
import errno, os
_fork, _left = os.fork, [int(os.environ["NUM_FORKS"])]
def fork():
    if not _left[0]:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    _left[0] -= 1
    return _fork()
os.fork = fork
"""
Refuse = Callable[[int], None]
linux = pytest.mark.skipif(sys.platform != "linux", reason="children are forked only on Linux")


@pytest.fixture
def limit_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Limits the forks of a fork server and of each of its children; one worker takes two."""
    folder = tmp_path / "limit"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LIMIT)

    def limit(count: int) -> None:
        monkeypatch.setenv("NUM_FORKS", f"{count}")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))

    return limit


def refuse_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **streams: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(starting, "_run", refuse)


def refuse_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(memory, "_fill_memory_file", refuse)


def plan_workers(env: str, tmp_path: Path, backend: str = "workers", **flags: Any) -> Resolved:
    """A config for which a plan has chosen two workers."""
    given = {**PPO, **NO_EVALS, "vector": None, "runs_dir": str(tmp_path / "runs")} | flags
    resolved = resolve(env, {name: value for name, value in given.items() if value is not None})
    return resolved.with_values({"vector.vector": backend, "vector.num_workers": 2}, "plan")


def finish(resolved: Resolved) -> RunDir:
    with start_run(resolved, silent) as session:
        run = drain(session)
    assert run.read_status()["state"] == "done"
    return run


def read_notes(run: RunDir) -> list[str]:
    notes: list[str] = json.loads(run.plan_json.read_text())["notes"]
    return notes


def read_source(run: RunDir, path: str) -> str:
    return read_config(run.config_yaml).sources[path]


@pytest.mark.parametrize(
    ("refuse", "cause"),
    [
        (refuse_processes, "the system refuses another process or thread ([Errno 11] "),
        (refuse_memory, "MB of shared memory are not available ([Errno 28] "),
    ],
)
@linux
def test_trusted_code_runs_in_the_training_process(
    refuse: Callable[[pytest.MonkeyPatch], None],
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = finish(plan_workers("CartPole-v1", tmp_path))
    refuse(monkeypatch)
    run = finish(plan_workers("CartPole-v1", tmp_path))
    (note,) = [note for note in read_notes(run) if cause in note]
    assert note.startswith("serial backend: ")
    assert read_source(run, "vector.vector").startswith("plan: ")
    assert final_state(run) == final_state(plain)


@linux
@pytest.mark.parametrize("forks", [0, 1])
def test_refused_forks_are_a_refusal_too(forks: int, tmp_path: Path, limit_forks: Refuse) -> None:
    """The fork of the fork server, and that of the child for its subreaper."""
    limit_forks(forks)
    run = finish(plan_workers("CartPole-v1", tmp_path))
    assert any(note.startswith("serial backend: the system refuses") for note in read_notes(run))


@linux
def test_fewer_workers_start_if_not_all_can(tmp_path: Path, limit_forks: Refuse) -> None:
    plain = finish(plan_workers("hazards:Hazard", tmp_path))
    limit_forks(2)
    run = finish(plan_workers("hazards:Hazard", tmp_path))
    assert any(note.startswith("workers backend, 1 worker: the system refuses") for note in read_notes(run))
    assert read_source(run, "vector.num_workers").startswith("plan: the system refuses")
    assert final_state(run) == final_state(plain)


@linux
def test_a_run_continues_with_fewer_workers_exactly(tmp_path: Path, limit_forks: Refuse) -> None:
    whole = finish(plan_workers("hazards:Hazard", tmp_path))
    part = finish(plan_workers("hazards:Hazard", tmp_path, timesteps=192))
    limit_forks(2)
    notes = resume(part, timesteps=384)
    assert any(note.startswith("workers backend, 1 worker: the system refuses") for note in notes)
    assert final_state(part) == final_state(whole)


@linux
def test_untrusted_code_is_not_moved_into_the_training_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_processes(monkeypatch)
    with (
        pytest.raises(ResourceRefused, match=rf"^the system refuses another process .*{SERIAL}$"),
        start_run(plan_workers("hazards:Hazard", tmp_path), silent),
    ):
        pass
    assert not (tmp_path / "runs").exists()


@linux
def test_shared_memory_for_untrusted_code_is_refused_with_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_memory(monkeypatch)
    with (
        pytest.raises(ResourceRefused, match=rf"shared memory are not available .*{SERIAL}$"),
        start_run(plan_workers("hazards:Hazard", tmp_path), silent),
    ):
        pass
    assert not list((tmp_path / "runs").iterdir())


@linux
def test_explicit_processes_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**PPO, **NO_EVALS, "vector": "workers", "num_workers": 2, "runs_dir": str(tmp_path / "runs")}
    resolved = resolve("CartPole-v1", {name: value for name, value in given.items() if value is not None})
    refuse_memory(monkeypatch)
    with (
        pytest.raises(ResourceRefused, match=rf"{SERIAL} \[.*num.workers.*\]$"),
        start_run(resolved, silent),
    ):
        pass


@linux
def test_threads_that_are_refused_become_one_worker(tmp_path: Path) -> None:
    resolved = plan_workers("hazards:no_threads", tmp_path, "threads")
    run = finish(resolved.with_values({"vector.num_workers": 1}, "plan"))
    assert any(note.startswith("workers backend, 1 worker: the system refuses") for note in read_notes(run))


@linux
def test_an_evaluation_without_processes_is_a_warning(tmp_path: Path, limit_forks: Refuse) -> None:
    limit_forks(2)  # enough for the training
    run = finish(plan_workers("hazards:Hazard", tmp_path, eval_freq=128, eval_episodes=2))
    warnings = [row["message"] for row in rows(run, "warning")]
    assert any(message.startswith("not evaluated: the system refuses") for message in warnings)


def limited(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without processes: RLIMIT_NPROC does not limit root."""
    keep = "+dac_read_search,+dac_override"  # the interpreter may be in root's home
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={keep}"]
    user += [f"--ambient-caps={keep}", f"--bounding-set=-all,{keep}", "prlimit", "--nproc=1"]
    return subprocess.run([*user, sys.executable, *args], capture_output=True, text=True)


@linux
@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(not shutil.which("setpriv") or not shutil.which("prlimit"), reason="needs util-linux")
@pytest.mark.parametrize(
    ("env", "code", "message"), [("CartPole-v1", 0, "done: all steps made"), ("hazards:Hazard", 3, SERIAL)]
)
def test_a_user_without_processes(env: str, code: int, message: str, tmp_path: Path) -> None:
    sizes = [
        "--overlap",
        "on",
        "--timesteps",
        "256",
        "--n-envs",
        "4",
        "--n-steps",
        "64",
        "--batch-size",
        "64",
    ]
    done = limited("-m", "mission_gym", "train", env, "--runs-dir", str(tmp_path), "--trust", *sizes)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert message in done.stderr + done.stdout
    unmeasured = "the use of CPU, GPU and memory is not measured: can't start new thread"
    assert (unmeasured in done.stderr + done.stdout) == (code == 0)
