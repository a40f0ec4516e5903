import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mission_gym.errors import DiskError, RunStateError
from mission_gym.store.files import read_json, remove_leftovers, to_json, write_atomic, write_json

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
