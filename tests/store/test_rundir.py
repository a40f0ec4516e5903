import os
import signal
import subprocess
import sys
from datetime import datetime

import pytest

from mission_gym.errors import RunStateError, UsageError
from mission_gym.store.files import write_json
from mission_gym.store.rundir import RunDir, slug

NOW = datetime(2026, 3, 4, 5, 6, 7)
HOLDER = """
import sys
from pathlib import Path
from mission_gym.store.rundir import RunDir
run = RunDir(Path(sys.argv[1]))
with run.lock():
    run.write_status(state="running", step=7)
    print("locked", flush=True)
    sys.stdin.read()
    run.write_status(state="done")
"""


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path / "runs", "cartpole-v1", NOW)


@pytest.fixture
def holder(run):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "cartpole-v1"),
        ("mission_gym/Capture-v0", "capture-v0"),
        ("my.envs:make_it", "my.envs-make_it"),
        ("envs:ns/Big World-v0", "big-world-v0"),
        ("::", "run"),
    ],
)
def test_slug(env_id, name):
    assert slug(env_id) == name


def test_names_carry_the_time_and_a_suffix_if_taken(tmp_path):
    names = [RunDir.create(tmp_path / "new" / "runs", "a", NOW).name for _ in range(3)]
    assert names == ["a-20260304-050607", "a-20260304-050607-2", "a-20260304-050607-3"]


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a@1", ".a", "-a", "latest", "a b"])
def test_names_that_do_not_fit(tmp_path, name):
    with pytest.raises(UsageError, match=r"run name .* is not allowed; use letters.*\[--run-name\]"):
        RunDir.create(tmp_path, name)


def test_an_unwritable_place_is_refused_at_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"can't make a run in .*; give another folder \[--runs-dir\]"):
        RunDir.create(tmp_path / "file" / "runs", "a")


def test_a_full_disk_is_refused_at_start(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises(UsageError, match=r"can't write .*, or give another folder \[--runs-dir\]"):
            RunDir.create(tmp_path, "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_status_merges_and_none_removes(run):
    with run.lock():
        run.write_status(state="running", step=1, cause="x")
        run.write_status(durable=False, step=2, cause=None)
        status = run.read_status()
        assert status.pop("heartbeat") >= status.pop("created")
        assert status == {"state": "running", "step": 2, "pid": os.getpid()}


def test_a_damaged_status_does_not_stop_the_run(run):
    run.status_json.write_bytes(b"")
    with pytest.raises(RunStateError, match=r"status\.json is truncated or altered"):
        run.read_status()
    run.write_status(state="stopped", cause=None)
    assert run.read_status()["state"] == "stopped"


def test_a_second_process_is_refused(run, holder):
    assert run.read_status()["state"] == "running"
    with (
        pytest.raises(RunStateError, match=rf"is in use by process {holder.pid}; .*wait for that one"),
        run.lock(),
    ):
        pytest.fail("locked twice")
    holder.stdin.close()
    holder.wait()
    assert run.read_status()["state"] == "done"
    with run.lock():
        pass


def test_a_dead_process_holds_no_lock(run, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    status = run.read_status()
    assert (status["state"], status["cause"], status["step"]) == ("failed", "the process was killed", 7)
    with run.lock():
        run.write_status(state="running")
        assert "cause" not in run.read_status()


def test_the_lock_is_not_taken_twice_by_one_process(run):
    with run.lock(), pytest.raises(RunStateError, match=f"process {os.getpid()}"), RunDir(run.path).lock():
        pytest.fail("locked twice")


def test_locking_clears_what_a_kill_left(run):
    run.checkpoints.mkdir()
    (run.checkpoints / ".tmp-step_000000000001").mkdir()
    write_json(run.path / f".tmp-status.json-{os.getpid()}", {})
    with run.lock():
        pass
    assert os.listdir(run.checkpoints) == []
    assert sorted(os.listdir(run.path)) == [".lock", "checkpoints", "status.json"]


def test_a_path_is_normal(run):
    assert RunDir(run.path / "checkpoints" / "..").name == run.name
    assert run.exists
    assert not RunDir(run.path.parent).exists
