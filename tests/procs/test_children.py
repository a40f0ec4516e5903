"""Child processes with either kind of pipes, and the subreapers that end them."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mission_gym.errors import ResourceRefused, WorkerDied, WorkerError, WorkerTimeout
from mission_gym.procs import BoundedLog, Child, Link, Region, memory, pipes, wait_for_replies
from mission_gym.procs import start as start_room
from timeouts import LONG_S

HERE = "test_children"


@pytest.fixture(params=["poll", "threads", "alone"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to talk to a child: the second is that of Windows. The third is not forked, as on macOS."""
    monkeypatch.setattr(pipes, "CAN_POLL", request.param != "threads")
    monkeypatch.setattr(start_room, "FORKS", start_room.FORKS and request.param != "alone")
    before = set(psutil.Process().children(recursive=True))
    yield request.param
    assert set(psutil.Process().children(recursive=True)) == before


def start(service: str, setup: Any = None) -> Child:
    return Child(f"{HERE}:{service}", setup, on_output=BoundedLog(None))


def ask(child: Child) -> list[Any]:
    """The next replies."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        if wait_for_replies([child], 1.0) and (replies := child.take()):
            return replies
    raise AssertionError("no reply")


def echo(link: Any, setup: Any) -> None:
    link.send(("ready", setup))
    while True:
        link.send(link.recv())


def die(link: Any, setup: Any) -> None:
    if setup == "exit":
        os._exit(5)
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(link: Any, setup: Any) -> None:
    link.send("asleep")
    time.sleep(600)


def test_messages_of_every_size_come_back(kind: str) -> None:
    child = start("echo", {"a": 1})
    assert ask(child) == [("ready", {"a": 1})]
    assert wait_for_replies([child], 0.0) == []
    for size in (0, 1, 70_000, 5_000_000):
        child.send(b"x" * size)
        assert ask(child) == [b"x" * size]
    child.end()


def test_many_children_are_waited_for_at_once(kind: str) -> None:
    children = [start("echo", number) for number in range(3)]
    waiting = set(children)
    while waiting:
        for child in wait_for_replies(waiting, LONG_S):
            for reply in child.take():
                assert reply == ("ready", children.index(child))
                waiting.discard(child)
    for child in children:
        child.end()


@pytest.mark.parametrize(
    ("how", "message"), [("exit", "ended with code 5"), ("kill", "was killed by SIGKILL")]
)
def test_the_end_of_a_child_is_seen(kind: str, how: str, message: str) -> None:
    child = start("die", how)
    with pytest.raises(WorkerDied, match=message):
        ask(child)
    assert child.is_gone()
    child.end()


def test_a_command_that_nobody_takes_does_not_block(kind: str) -> None:
    child = start("sleep")
    assert ask(child) == ["asleep"]
    if kind != "threads":
        with pytest.raises(WorkerTimeout, match="accepted no command for 0 s"):
            child.send(b"x" * 1_000_000, timeout_s=0.05)
    else:
        child.send(b"x" * 1_000_000, timeout_s=0.05)
    child.end(grace_s=0.1)


def test_the_childs_end_reads_in_both_ways(kind: str) -> None:
    (read_fd, to_child), (from_child, write_fd) = os.pipe(), os.pipe()
    link = Link(read_fd, write_fd, [])
    for message in ("step", b"x" * 60_000):
        data = pickle.dumps(message)
        os.write(to_child, len(data).to_bytes(4, "little") + data)
        assert link.recv(spin=True) == message
    os.close(to_child)
    for _ in range(2):
        with pytest.raises(EOFError):
            link.recv()
    for fd in (read_fd, from_child, write_fd):
        os.close(fd)


HUNG = """
import sys
sys.path.insert(0, {folder!r})
from test_children import start, ask
children = [start(name, setup) for name, setup in {setups!r}.items()]
print(*(pid for child in children for pid in ask(child)[0]), flush=True)
sys.stdin.read()
"""


def hold_interpreter(link: Any, setup: Any) -> None:
    """Hang in C and never let another thread run."""
    link.send([os.getpid()])
    ctypes.PyDLL(None).sleep(600)


def spawn(marker: str) -> None:
    """A process that nothing ties to this one: an empty environment, a session of its own, no parent."""
    code = "import os, time; os.fork() and os._exit(0); time.sleep(600)"
    subprocess.run([sys.executable, "-S", "-c", code, marker], env={}, start_new_session=True, check=True)


def spawn_and_stop(link: Any, marker: str) -> None:
    """A stopped process, with one that it started."""
    spawn(marker)
    link.send([os.getpid()])
    os.kill(os.getpid(), signal.SIGSTOP)


def spawn_and_obey(link: Any, marker: str) -> None:
    spawn(marker)
    link.send([os.getpid()])
    link.recv()


def with_marker(marker: str) -> list[psutil.Process]:
    """Processes that have it as an argument of their own."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if marker in (process.info["cmdline"] or ()) and process.info["status"] != "zombie":
            found.append(process)
    return found


@pytest.fixture
def marker() -> Iterator[str]:
    name = f"marker-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    for process in with_marker(name):
        process.kill()


def wait_until_gone(marker: str) -> None:
    assert not psutil.wait_procs(with_marker(marker), timeout=LONG_S)[1]
    assert not with_marker(marker)


def test_children_that_can_not_end_themselves_end_with_a_killed_parent(marker: str) -> None:
    setups = {"hold_interpreter": None, "spawn_and_stop": marker}
    script = HUNG.format(folder=str(Path(__file__).parent), setups=setups)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    everything = [*psutil.Process(parent.pid).children(recursive=True)]
    assert len(everything) == 5 + (
        sys.platform == "linux"
    )  # a subreaper each, their children, the fork server
    parent.kill()
    parent.communicate()
    gone, alive = psutil.wait_procs(everything, timeout=LONG_S)
    assert not alive
    assert {process.pid for process in gone} >= set(pids)
    wait_until_gone(marker)


@pytest.mark.parametrize("forks", [True, False])
@pytest.mark.parametrize("how", ["end", "kill", "close"])
def test_nothing_that_a_child_started_outlives_it(
    how: str, forks: bool, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_room, "FORKS", start_room.FORKS and forks)
    child = start("spawn_and_obey", marker)
    (pids,) = ask(child)
    assert pids == [child.pid]
    assert len(with_marker(marker)) == 1
    if how == "kill":
        os.kill(child.pid, signal.SIGKILL)
        assert child.describe_end() == "was killed by SIGKILL"
    elif how == "close":
        child.send("go")
        assert child.describe_end() == "ended with code 0"
    else:
        child.end()
    wait_until_gone(marker)
    child.end()


def test_a_stopped_child_ends_with_its_subreaper(marker: str) -> None:
    child = start("spawn_and_stop", marker)
    (pids,) = ask(child)
    worker = psutil.Process(pids[0])
    subreaper = worker.parent()
    assert subreaper is not None
    assert psutil.Process() in subreaper.parents()
    subreaper.kill()
    assert child.describe_end() == "was killed by SIGKILL"
    assert not psutil.wait_procs([worker], timeout=LONG_S)[1]
    child.end()


def test_memory_without_memfd_has_no_name_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)  # as on macOS
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    region = Region(1000)
    again = Region(1000, os.dup(int(region.handle)))
    region.carver()((10,), "float32")[:] = 3.0
    assert again.carver()((10,), "float32").tolist() == [3.0] * 10
    assert os.fstat(int(region.handle)).st_nlink == 0
    region.close()
    again.close()


def test_too_little_memory_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 64_000_000)
    with pytest.raises(
        WorkerError,
        match=r"^100 MB of shared memory are not available \(.*64 MB are free\); free memory, or use fewer "
        r"environments or steps per environment \[--n-envs, --n-steps-per-env\]$",
    ):
        Region(100_000_000)
    Region(60_000_000).close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="has no memory files")
def test_refused_memory_files_are_replaced_by_temporary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    region = Region(1000)
    assert region.carver()((10,), "float32").tolist() == [0.0] * 10
    region.close()
    monkeypatch.setattr(memory.tempfile, "tempdir", "/nowhere")
    with pytest.raises(ResourceRefused, match=r"the system refuses shared memory \(.*TMPDIR$"):
        Region(1000)


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces")
def test_a_small_temporary_folder_is_refused_with_the_numbers(tmp_path: Path) -> None:
    code = "import os, tempfile; del os.memfd_create; from mission_gym.procs import Region; Region(10**7)"
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    command = f"{mount} && TMPDIR={tmp_path} {sys.executable} -c {code!r}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("not allowed to mount")
    assert "ResourceRefused: 10 MB of shared memory are not available ([Errno 28] No space" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces")
def test_a_small_dev_shm_does_not_matter() -> None:
    """As in a container of 64 MB: our memory is not there."""
    code = "from mission_gym.procs import Region; Region(10**8).carver()((10**8,), 'u1')[:] = 1"
    command = f"mount -t tmpfs -o size=64m tmpfs /dev/shm && {sys.executable} -c {code!r} && echo fine"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("not allowed to mount")
    assert done.stdout == "fine\n", done.stderr


def test_a_child_that_was_ended_is_never_written_to_again() -> None:
    """The numbers of its descriptors may belong to other files by then."""
    child = Child("mission_gym.vector.worker:serve_probe", b"", on_output=BoundedLog(None))
    child.end()
    others = [os.pipe() for _ in range(4)]  # they take the numbers that were freed
    try:
        with pytest.raises(WorkerDied):
            child.send(("close",))
        for read_fd, _ in others:
            os.set_blocking(read_fd, False)
            with pytest.raises(BlockingIOError):
                os.read(read_fd, 1)
    finally:
        for pair in others:
            for fd in pair:
                os.close(fd)
