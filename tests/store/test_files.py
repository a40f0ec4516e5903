import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mission_gym.errors import DiskError, RunStateError
from mission_gym.plan.cache import read_plan, write_plan
from mission_gym.report.dashboard.guard import keep_token
from mission_gym.store import lock
from mission_gym.store.files import (
    check_plain,
    make_private,
    read_json,
    remove_leftovers,
    to_json,
    user_folder,
    write_atomic,
    write_json,
)
from mission_gym.store.tables import MetricsLog, format_csv_line
from mission_gym.store.trusted import allow

resource = pytest.importorskip("resource")


def test_write_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2}, durable=False)
    assert read_json(path) == {"x": 2}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_limit_on_file_size_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, hard))
    try:
        with pytest.raises(DiskError, match=r"can't write .*a\.txt: File too large; raise the limit"):
            write_atomic(path, b"x" * (1 << 15))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_missing_folder_is_a_disk_error(tmp_path):
    with pytest.raises(DiskError, match=r"can't write .*a\.txt: No such file"):
        write_atomic(tmp_path / "gone" / "a.txt", "x")


def test_json_is_strict_and_plain():
    value = {1: np.float32(0.5), "nan": float("nan"), "inf": [float("inf"), (np.int64(3), None, "a")]}
    assert to_json(value) == {"1": 0.5, "nan": None, "inf": [None, [3, None, "a"]]}


def test_damaged_json_is_named(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"x": 1})[:-1])
    with pytest.raises(RunStateError, match=r"a\.json is truncated or altered"):
        read_json(path)
    with pytest.raises(RunStateError, match=r"can't read .*b\.json"):
        read_json(tmp_path / "b.json")


def test_leftovers_of_dead_writers_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for pid in (dead.pid, os.getppid(), os.getpid()):
        (tmp_path / f".tmp-a.json-{pid}").touch()
    (tmp_path / f".tmp-theirs.json-{dead.pid}").touch()
    (tmp_path / f".tmp-b.json-{dead.pid}").symlink_to(tmp_path)
    remove_leftovers(tmp_path, ("a.json", "b.*"))
    left = {f".tmp-a.json-{os.getppid()}", f".tmp-theirs.json-{dead.pid}", f".tmp-b.json-{dead.pid}"}
    assert set(os.listdir(tmp_path)) == left


def test_one_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "status.json"
    path.write_text("{}")
    os.truncate(path, 3 << 30)
    with pytest.raises(RunStateError, match="it has 3072 MiB, and such files have at most 16 MiB"):
        read_json(path)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "status.json")
    with pytest.raises(RunStateError, match="not a file"):
        read_json(tmp_path / "status.json")


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("target"), os.mkfifo])
def test_links_and_pipes_are_not_written(tmp_path, make):
    (tmp_path / "target").write_text("mine")
    path = tmp_path / ".lock"
    make(path)
    with pytest.raises(DiskError, match="a link, a pipe or a device"), lock.hold(path, wait_s=0.0):
        pass
    with pytest.raises(DiskError, match="a link, a pipe or a device"):
        MetricsLog(path)
    with pytest.raises(RunStateError, match="nothing is written to"):
        check_plain(tmp_path)
    assert (tmp_path / "target").read_text() == "mine"


def test_locks_and_state_folders_are_private(tmp_path):
    os.close(os.open(tmp_path / ".lock", os.O_CREAT, 0o644))  # of an older version
    with lock.hold(tmp_path / ".lock", wait_s=0.0):
        assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600
    folder = tmp_path / "mission-gym" / "fleet"
    folder.mkdir(parents=True, mode=0o755)
    make_private(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    assert tmp_path.stat().st_mode & 0o777 != 0


def test_a_removed_lock_does_not_let_two_processes_in(tmp_path, monkeypatch):
    """A process that waits for a lock that its holder removes locks the new file, not the removed one."""
    path = tmp_path / ".lock"
    attempts = []
    try_lock = lock._try_lock

    def remove_before_the_first(descriptor, *, shared):
        if not attempts:
            path.unlink()
        attempts.append(descriptor)
        return try_lock(descriptor, shared=shared)

    monkeypatch.setattr(lock, "_try_lock", remove_before_the_first)
    with lock.hold(path, wait_s=0.0, remove=True), pytest.raises(RunStateError, match="in use by process"):
        lock.hold(path, wait_s=0.0).__enter__()
    assert len(attempts) == 3
    assert not path.exists()


def test_a_user_without_a_home_gets_one_message(monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    with pytest.raises(DiskError, match="this user has no home; set HOME or XDG_STATE_HOME"):
        user_folder("state")
    assert read_plan("none") is None
    assert not write_plan("none", {})
    assert len(keep_token()) == 48
    allow("line of a user without a home")


def test_cells_are_no_formulas():
    line = format_csv_line(["=1+1", "@x", "-2.5", -3, "+4e1", "-win", "plain", None])
    assert line == "'=1+1,'@x,-2.5,-3,+4e1,'-win,plain,\n"
