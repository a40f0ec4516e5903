import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mission_gym.errors import DiskError, RunStateError
from mission_gym.store.checkpoints import (
    delete_checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_last_good,
    recover,
    save_checkpoint,
)
from timeouts import LONG_S

FILES = ["meta.json", "policy.safetensors", "state.json", "state.safetensors"]


def save(folder, step, value=0.0, **meta):
    arrays = {"w": np.full((3, 2), value, np.float32)}
    return save_checkpoint(folder, step, policy=arrays, state={}, state_json={"value": value}, meta=meta)


def steps(folder):
    return [info.step for info in list_checkpoints(folder)]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def test_what_is_saved_comes_back(folder):
    policy = {
        "w": np.arange(6.0).reshape(2, 3).T,
        "scalar": np.asarray(3.0),
        "empty": np.zeros((0, 2), np.int8),
    }
    state = {"mask": np.array([True, False]), "count": np.array([1 << 60], np.int64)}
    state_json = {"best": float("-inf"), "rng": 1 << 127, "text": "é"}
    path = save_checkpoint(
        folder, 1048576, policy=policy, state=state, state_json=state_json, meta={"score": np.float64(1.5)}
    )
    assert path.name == "step_000001048576"
    assert sorted(os.listdir(path)) == FILES
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.path, loaded.meta) == (1048576, path, {"score": 1.5})
    assert loaded.state_json == state_json
    for given, got in ((policy, loaded.policy), (state, loaded.state)):
        assert given.keys() == got.keys()
        for name in given:
            np.testing.assert_array_equal(given[name], got[name], strict=True)
            assert got[name].flags.writeable


def test_equal_content_gives_equal_bytes(folder):
    first, second = save(folder, 1), save(folder, 2)
    assert (first / "policy.safetensors").read_bytes() == (second / "policy.safetensors").read_bytes()


def test_the_same_step_is_superseded(folder):
    save(folder, 5, 1.0)
    path = save(folder, 5, 2.0)
    assert load_checkpoint(path).state_json == {"value": 2.0}
    assert os.listdir(folder) == [path.name]


def test_list_has_committed_ones_in_order(folder):
    assert list_checkpoints(folder) == []
    for step in (300, 20, 10**13):
        save(folder, step, score=step)
    (folder / ".tmp-step_000000000400").mkdir()
    (folder / "notes").mkdir()
    infos = list_checkpoints(folder)
    assert [info.step for info in infos] == [20, 300, 10**13]
    assert infos[0].meta == {"score": 20}
    assert infos[0].size_bytes == sum(file.stat().st_size for file in infos[0].path.iterdir())


def test_recover_puts_a_superseded_one_back(folder):
    path = save(folder, 5, 1.0)
    path.rename(folder / f".old-{path.name}")
    shutil.copytree(folder / f".old-{path.name}", folder / f".tmp-{path.name}")
    assert load_last_good(folder)[0].step == 5  # a reader sees it before anyone recovers
    recover(folder)
    assert os.listdir(folder) == [path.name]


def test_recover_removes_a_superseded_one_with_successor(folder):
    path = save(folder, 5, 2.0)
    shutil.copytree(path, folder / f".old-{path.name}")
    (folder / f".old-{path.name}" / "meta.json").unlink()
    recover(folder)
    assert os.listdir(folder) == [path.name]
    recover(folder / "missing")


def test_a_file_that_is_a_link_to_nowhere_is_told(folder):
    save(folder, 4, 1.0)
    path = save(folder, 5, 1.0)
    (path / "policy.safetensors").unlink()
    (path / "policy.safetensors").symlink_to("nowhere")
    checkpoint, notes = load_last_good(folder)
    assert checkpoint.step == 4
    assert "checkpoint 5 is not usable" in notes[0]


def test_recover_removes_the_head_that_a_kill_left_half_written(folder):
    path = save(folder, 5, 1.0)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (path / f".tmp-meta.json-{dead.pid}").write_text("{")
    assert load_last_good(folder)[0].step == 5
    recover(folder)
    assert not list(path.glob(".tmp-*"))


def test_recover_leaves_the_files_of_others(folder):
    save(folder, 5, 1.0)
    theirs = [
        folder / name for name in (".tmp-work/a.txt", ".old-work/a.txt", ".tmp-step_000000000006/a.txt")
    ]
    for path in theirs:
        path.parent.mkdir()
        path.write_text("theirs")
    (folder / ".tmp-step_000000000006" / "meta.json").write_text("ours")
    recover(folder)
    assert all(path.read_text() == "theirs" for path in theirs)
    assert os.listdir(folder / ".tmp-step_000000000006") == ["a.txt"]
    save(folder, 6)
    assert steps(folder) == [5, 6]


def test_a_linked_checkpoint_is_not_deleted(folder, tmp_path):
    save(folder, 5).rename(tmp_path / "elsewhere")
    link = folder / "step_000000000005"
    link.symlink_to(tmp_path / "elsewhere")
    delete_checkpoint(link)
    assert steps(folder) == [5]


def test_delete(folder):
    path = save(folder, 5)
    save(folder, 6)
    delete_checkpoint(path)
    assert steps(folder) == [6]
    with pytest.raises(DiskError, match=r"can't write .*No such file"):
        delete_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_any_altered_byte_is_found(folder, name):
    path = save(folder, 5, 1.0, score=0.5)
    data = (path / name).read_bytes()
    for position in range(len(data)):
        altered = bytearray(data)
        altered[position] ^= 1
        (path / name).write_bytes(altered)
        if name == "meta.json" and _same_json(data, bytes(altered)):
            continue  # white space
        with pytest.raises(RunStateError, match=r"truncated or altered|has format"):
            load_checkpoint(path)


def _same_json(data, altered):
    try:
        return json.loads(data) == json.loads(altered)
    except ValueError:
        return False


@pytest.mark.parametrize("name", FILES)
def test_truncated_or_missing_file_is_named(folder, name):
    path = save(folder, 5)
    with (path / name).open("r+b") as file:
        file.truncate((path / name).stat().st_size // 2)
    with pytest.raises(RunStateError, match=rf"{re.escape(name)} is truncated or altered"):
        load_checkpoint(path)
    (path / name).unlink()
    with pytest.raises(RunStateError, match=rf"{re.escape(name)}.*(No such file|missing)"):
        load_checkpoint(path)


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("name", ["policy.pt", "extra.pkl", "extra.safetensors"])
def test_a_foreign_file_is_refused(folder, tmp_path, name):
    path = save(folder, 5)
    (path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    with pytest.raises(
        RunStateError, match=rf"{re.escape(name)} does not belong .*never loaded; nothing was run"
    ):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_with_a_forged_checksum_is_refused(folder, tmp_path, monkeypatch):
    bomb = pickle.dumps(Bomb(tmp_path / "ran"))

    def write(path, arrays):
        path.write_bytes(bomb)
        return hashlib.sha256(bomb).hexdigest()

    with monkeypatch.context() as patch:
        patch.setattr("mission_gym.store.checkpoints.write_arrays", write)
        path = save(folder, 5)
    with pytest.raises(
        RunStateError, match=r"policy\.safetensors is not in the format of its name .*nothing was run"
    ):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_a_newer_format_is_refused(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("mission_gym.store.checkpoints.FORMAT", 2)
        path = save(folder, 5)
    with pytest.raises(RunStateError, match="has format 2; this version reads 1; upgrade"):
        load_checkpoint(path)


@pytest.mark.parametrize("key", ["step", "files", "meta"])
@pytest.mark.parametrize("value", [None, [], "x", {"score": "high", "a": 1}, {"update": None}])
def test_a_signed_head_of_other_types_is_refused(folder, key, value):
    path = save(folder, 1) / "meta.json"
    head = json.loads(path.read_bytes()) | {key: value}
    del head["sha256"]
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(head | {"sha256": digest}))
    with pytest.raises(RunStateError, match=rf"meta\.json is damaged: {key}.* should be"):
        load_checkpoint(path.parent)
    assert [(info.step, info.meta) for info in list_checkpoints(folder)] == [(1, {})]


def test_hidden_files_of_the_desktop_do_no_harm(folder):
    path = save(folder, 5)
    (path / ".DS_Store").touch()
    assert load_checkpoint(path).step == 5


def test_the_last_good_one_is_used_and_said(folder):
    for step in (1, 2, 3):
        save(folder, step)
    (list_checkpoints(folder)[-1].path / "meta.json").write_text("{")
    (list_checkpoints(folder)[-2].path / "state.json").write_text("{}")
    assert list_checkpoints(folder)[-1].meta == {}
    checkpoint, notes = load_last_good(folder)
    assert checkpoint.step == 1
    assert re.search(r"checkpoint 3 is not usable: .*meta\.json is truncated", notes[0])
    assert re.search(r"checkpoint 2 is not usable: .*state\.json is truncated", notes[1])
    assert notes[2] == "using checkpoint 1 instead"
    (checkpoint.path / "state.json").write_text("{}")
    with pytest.raises(RunStateError, match=r"holds no checkpoint that can be loaded\ncheckpoint 3 is"):
        load_last_good(folder)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_keeps_the_checkpoints_there_are(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True
    ).returncode:
        pytest.skip("mount is not allowed")
    try:
        folder = disk / "checkpoints"
        save(folder, 1, 1.0)
        (disk / "ballast").write_bytes(bytes(150 * 1024))
        big = {"w": np.zeros(1 << 15)}
        for step in (1, 2):
            with pytest.raises(DiskError, match=r"can't write .*No space left on device; free some space"):
                save_checkpoint(folder, step, policy=big, state={}, state_json={}, meta={})
        assert os.listdir(folder) == ["step_000000000001"]
        assert load_last_good(folder)[0].state_json == {"value": 1.0}
        (disk / "ballast").unlink()
        save(folder, 2)
        assert steps(folder) == [1, 2]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_at_200_random_moments_loses_no_checkpoint(folder):
    folder.mkdir()
    script = Path(__file__).parents[1] / "support" / "saving_loop.py"
    result = subprocess.run(
        [sys.executable, script, folder, "200", "7"],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("kills 200")
