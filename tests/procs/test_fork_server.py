"""Forked children: as separate as processes that were started on their own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mission_gym.errors import WorkerDied
from mission_gym.procs import BoundedLog, Child, Region, hold_fork_server
from mission_gym.procs.children import LATER
from timeouts import LONG_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are forked only on Linux")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    fds = set(os.listdir("/proc/self/fd"))
    yield
    assert set(psutil.Process().children(recursive=True)) == before
    assert len(set(os.listdir("/proc/self/fd")) - fds) <= 0


def start(service: str, setup: Any = None, module: str = __name__, **options: Any) -> Child:
    return Child(f"{module}:{service}", setup, on_output=BoundedLog(None), **options)


def answer(child: Child) -> Any:
    (reply,) = child.wait(LONG_S)
    return reply


def parents(child: Child) -> tuple[psutil.Process, psutil.Process]:
    """Its subreaper and its fork server."""
    subreaper, server, *_ = psutil.Process(child.pid).parents()
    return subreaper, server


def describe(link: Any, setup: Any) -> None:
    """What a process can tell of itself, until it is told to go."""
    done = subprocess.run([sys.executable, "-S", "-c", "print(5)"], capture_output=True, text=True)
    link.send(
        {
            "draws": (random.random(), np.random.random(), np.random.default_rng().random()),
            "fds": sorted(os.readlink(f"/proc/self/fd/{fd}").partition(":")[0] for fd in range(64)
                          if os.path.exists(f"/proc/self/fd/{fd}")),
            "session": os.getsid(0) == os.getpid(),
            "signals": signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
            "ran": done.stdout,
            "threads": threading.active_count(),
            "variable": os.environ.get("MG_TEST"), "caps": os.environ["OMP_NUM_THREADS"],
            "folder": os.getcwd(), "path": list(sys.path), "argv": sys.argv,
        }
    )  # fmt: skip
    link.recv()


def test_siblings_share_a_fork_server_and_nothing_else() -> None:
    region = Region(64)
    children = [start("describe", regions=[region]) for _ in range(3)]
    told = [answer(child) for child in children]
    assert len({parents(child)[1].pid for child in children}) == 1
    assert len({parents(child)[0].pid for child in children}) == 3
    for draws in zip(*(each.pop("draws") for each in told), strict=True):
        assert len(set(draws)) == 3
    assert told[0] == told[1] == told[2]
    alone = {"session": True, "signals": True, "ran": "5\n", "threads": 1, "caps": "1"}
    assert {name: told[0][name] for name in alone} == alone
    # Its own pipes, and nobody else's: one to be told, two to tell and to print, one given to nobody.
    assert told[0]["fds"].count("pipe") == 4
    assert told[0]["fds"].count("socket") == 0
    for child in children:
        child.end()
    region.close()


def test_the_end_of_one_shows_at_once_while_its_siblings_live() -> None:
    first, second = start("describe"), start("describe")
    answer(first), answer(second)
    os.kill(first.pid, signal.SIGSEGV)
    with pytest.raises(WorkerDied, match="was killed by SIGSEGV"):
        first.wait(LONG_S)
    assert not second.is_gone()
    first.end()
    second.end()


def test_what_changed_since_is_what_a_child_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start("describe")
    answer(first)
    monkeypatch.setenv("MG_TEST", "new")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    second = start("describe")
    told = answer(second)
    assert (told["variable"], told["folder"]) == ("new", str(tmp_path))
    assert str(tmp_path) in told["path"]
    assert parents(first)[1] != parents(second)[1]
    first.end()
    second.end()


@pytest.mark.parametrize(
    "target",
    ["mission_gym.vector.worker:serve", "mission_gym.rollout.worker:serve_collecting",
     "mission_gym.plan.env_costs:serve_timing", "mission_gym.check.repro:serve_replay"],
)  # fmt: skip
def test_what_children_run_starts_no_thread(target: str) -> None:
    child = Child(target, LATER, on_output=BoundedLog(None))
    while psutil.Process(child.pid).ppid() == os.getpid():  # its fork server, until it reports its pid
        assert child.wait(0.02) == []
    assert psutil.Process(child.pid).cmdline() == parents(child)[1].cmdline()
    child.end()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module that a child can run."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "strange.py").write_text(text + f"\nfrom {__name__} import describe\n")
        return "strange"

    return write


def test_a_fork_server_with_threads_does_not_fork(module: Any) -> None:
    begin = "threading.Thread(target=threading.Event().wait).start()"
    name = module(f"import os, threading\nif os.getppid() == {os.getpid()}: {begin}")
    child = start("describe", module=name)
    assert answer(child)["threads"] == 1
    assert psutil.Process(child.pid).cmdline() != parents(child)[1].cmdline()
    child.end()


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("raise ImportError('torn')", "ended with code 1"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("import sys; sys.exit(3)", "ended with code 1"),
    ],
)
def test_a_module_that_can_not_be_imported_ends_its_child_alone(module: Any, text: str, end: str) -> None:
    child = start("describe", module=module(text))
    with pytest.raises(WorkerDied, match=end):
        child.wait(LONG_S)
    child.end()
    assert ("torn" in child.tail()) == ("torn" in text)
    other = start("describe")
    assert answer(other)["ran"] == "5\n"
    other.end()


def test_children_outlive_a_fork_server_that_was_killed() -> None:
    first = start("describe")
    answer(first)
    server = parents(first)[1]
    server.kill()
    server.wait(LONG_S)
    second = start("describe")
    assert answer(second)["ran"] == "5\n"
    assert not first.is_gone()
    first.send("go")
    assert first.describe_end() == "ended with code 0"
    first.end()
    second.end()


def test_a_fork_server_is_kept_between_two_children() -> None:
    pids = []
    with hold_fork_server(f"{__name__}:describe"):
        for _ in range(2):
            child = start("describe")
            answer(child)
            pids.append(parents(child)[1].pid)
            child.end()
    assert pids[0] == pids[1]
    assert not psutil.pid_exists(pids[0])


def test_a_child_that_is_ended_before_it_began_is_never_there(module: Any) -> None:
    child = start("describe", module=module("import time; time.sleep(0.2)"))
    child.end()
    assert child.is_gone()


def test_a_fork_server_that_hangs_is_killed_with_its_child(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mission_gym.procs import children

    monkeypatch.setattr(children, "_END_S", 0.3)
    text = "import sys, time; print('begun', file=sys.stderr, flush=True); time.sleep(600)"
    child = start("describe", module=module(text))
    while "begun" not in child.tail():
        assert child.wait(0.02) == []
    assert "strange.py" in child.read_stack()
    child.end()
    assert child.is_gone()
