"""Jobs as real processes that end, fail, die, wait and are stopped, with supervisors that die."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from mission_gym.cli.main import main
from mission_gym.errors import ConfigError, DiskError, RunStateError, UsageError
from mission_gym.fleet import supervisor as supervision
from mission_gym.fleet.groups import ask_jobs, update_jobs
from mission_gym.fleet.process import send_signal
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.supervisor import Supervisor
from mission_gym.fleet.wait import wait_for_jobs
from mission_gym.report.groups import describe_jobs
from mission_gym.store import END_FILE
from mission_gym.store.files import read_json
from mission_gym.store.groups import GroupDir, find_group, list_groups, read_code
from mission_gym.store.lock import Holder, _read_start
from mission_gym.store.rundir import RunDir
from queue_jobs import Crew
from timeouts import LONG_S


def test_jobs_run_to_their_end(crew: Crew) -> None:
    group = crew.group(*(crew.request(name) for name in "abc"))
    jobs = crew.finish(group)
    assert [(job.state, job.attempts, job.cause) for job in jobs.values()] == [
        ("done", 1, "all steps made")
    ] * 3
    assert len(crew.starts()) == 3
    assert crew.queue.list_groups() == []
    record = group.read()
    assert record.runs == [str(job.run) for job in jobs.values()]
    assert all(RunDir(Path(run)).read_status()["state"] == "done" for run in record.runs)
    assert find_group("g", crew.runs_dir) == (group, "")


def test_each_job_has_its_share_of_the_cores(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "usable_cores", lambda: 5)
    group = crew.group(crew.request("a", "wait"), crew.request("b", "wait"))
    crew.tick_until(lambda: len(crew.starts()) == 2)
    crew.tick_until(lambda: all(job.run for job in group.read_jobs().values()))
    crew.go()
    jobs = crew.finish(group)
    assert [job.cores for job in jobs.values()] == [3, 2]
    assert [RunDir(job.run).read_status()["cores"] for job in jobs.values() if job.run] == ["3", "2"]


def test_no_more_run_than_there_are_cores(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "usable_cores", lambda: 2)
    group = crew.group(*(crew.request(name, "wait") for name in "abc"))
    crew.tick_until(lambda: len(crew.starts()) == 2)
    for now in range(20):
        crew.supervisor.tick(1000.0 + now)
    assert sorted(job.state for job in group.read_jobs().values()) == ["queued", "starting", "starting"]
    assert "waiting: all 2 cores are in use" in crew.said
    crew.go()
    assert {job.state for job in crew.finish(group).values()} == {"done"}


def test_later_jobs_start_next_to_one_that_got_all_cores(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "usable_cores", lambda: 3)
    first = crew.group(crew.request("a", "wait"), name="first")
    crew.tick_until(lambda: len(crew.starts()) == 1)
    second = crew.group(*(crew.request(name, "wait") for name in "bcd"), name="second")
    crew.tick_until(lambda: len(crew.starts()) == 3)
    crew.supervisor.tick(1000.0)
    jobs = first.read_jobs() | second.read_jobs()
    assert {name: job.cores for name, job in jobs.items()} == {"a": 3, "b": 1, "c": 1, "d": 0}
    crew.go()
    assert {job.state for job in (crew.finish(first) | crew.finish(second)).values()} == {"done"}


def test_a_run_next_to_the_queue_counts(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "usable_cores", lambda: 2)
    lone = RunDir.create(crew.runs_dir, "lone")
    with lone.lock():
        lone.write_status(state="running", step=1, total=100)
        group = crew.group(crew.request("a", "wait"), crew.request("b", "wait"))
        crew.tick_until(lambda: len(crew.starts()) == 1)
        for now in range(20):
            crew.supervisor.tick(1000.0 + now)
        jobs = group.read_jobs()
        assert [(jobs[name].state, jobs[name].cores) for name in "ab"] == [("starting", 1), ("queued", 0)]
        with ExitStack() as stack:
            crew.queue.try_supervise(stack)
            reason = crew.queue.explain_waiting()
        assert reason == f"all 2 cores are in use; other runs on this machine: {lone.name}"
    assert "no supervisor is running" in crew.queue.explain_waiting()
    crew.tick_until(lambda: len(crew.starts()) == 2)
    crew.go()
    assert {job.state for job in crew.finish(group).values()} == {"done"}


@pytest.mark.parametrize(
    ("notes", "retries", "state", "attempts", "cause"),
    [
        ("refuse", 3, "failed", 1, "gamma=2 is above 1"),  # it would be refused again
        ("fail", 0, "failed", 1, "RuntimeError: the simulator fell over"),
        ("fail", 2, "failed", 3, "RuntimeError: the simulator fell over"),
        ("die", 1, "failed", 2, "killed by SIGKILL; the machine may have run out of memory"),
        ("die-once", 1, "done", 2, "all steps made"),
    ],
)
def test_failures_have_causes_and_retries(
    crew: Crew, notes: str, retries: int, state: str, attempts: int, cause: str
) -> None:
    group = crew.group(crew.request("a", notes, retries=retries))
    job = crew.finish(group)["a"]
    assert (job.state, job.attempts, job.cause) == (state, attempts, cause)


def test_a_retry_resumes_the_run(crew: Crew) -> None:
    job = crew.finish(crew.group(crew.request("a", "die-once")))["a"]
    assert job.run is not None
    assert crew.starts() == [f"{job.run.name} train", f"{job.run.name} resume"]


def test_a_missing_program_fails_the_job(crew: Crew) -> None:
    job = crew.finish(crew.group(crew.request("a", python="/nowhere/python", retries=0)))["a"]
    assert job.state == "failed"
    assert "it can't be started" in job.cause


def test_a_child_waits_for_its_parent(crew: Crew) -> None:
    group = crew.group(crew.request("b", parent="a", point="last"), crew.request("a", "wait"))
    crew.tick_until(lambda: group.read_jobs()["a"].run is not None)
    assert group.read_jobs()["b"].state == "queued"
    crew.go()
    jobs = crew.finish(group)
    assert [job.state for job in jobs.values()] == ["done", "done"]
    assert [line.split()[1] for line in crew.starts()] == ["train", "branch"]


def test_a_child_of_a_failed_parent_fails(crew: Crew) -> None:
    jobs = crew.finish(crew.group(crew.request("b", parent="a"), crew.request("a", "refuse")))
    assert (jobs["b"].state, jobs["b"].cause) == ("failed", "its parent a failed")
    assert jobs["b"].attempts == 0


def test_a_stopped_job_is_resumed_on_request(crew: Crew) -> None:
    group = crew.group(crew.request("a", "wait"), crew.request("b", "wait", parent="a"))
    crew.tick_until(lambda: group.is_running(group.read_jobs()["a"]))
    ask_jobs(group, ["a", "b"], "stop")
    jobs = crew.finish(group)
    assert (jobs["a"].state, jobs["a"].cause) == ("stopped", "SIGTERM")
    assert (jobs["b"].state, jobs["b"].cause) == ("stopped", "stopped before it started")
    crew.go()
    ask_jobs(group, ["a", "b"], "resume")
    crew.queue.register(group)
    assert {job.state for job in crew.finish(group).values()} == {"done"}


def test_a_job_that_ignores_a_stop_request_is_killed(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_GRACE_S", 3.0)
    group = crew.group(crew.request("a", "deaf"))
    crew.tick_until(lambda: group.is_running(group.read_jobs()["a"]))
    ask_jobs(group, ["a"], "stop")
    job = crew.finish(group)["a"]
    assert (job.state, job.cause, job.attempts) == ("stopped", "killed 3 s after it was asked to stop", 1)


def test_a_stop_request_ends_the_retries(crew: Crew) -> None:
    group = crew.group(crew.request("a", "fail", retries=9))
    crew.tick_until(lambda: group.read_jobs()["a"].cause != "")
    ask_jobs(group, ["a"], "stop")
    job = crew.finish(group)["a"]
    assert job.state == "stopped"
    assert job.cause == "not retried after: RuntimeError: the simulator fell over"


def test_a_usage_error_is_not_retried_by_another_supervisor(crew: Crew) -> None:
    """It did not start the process, and so can't be told its exit code by the system."""
    group = crew.group(crew.request("a", "refuse", retries=3))
    crew.supervisor.tick(0.0)
    crew.supervisor._children.popitem()[1].wait(LONG_S)
    crew.supervisor = Supervisor(crew.queue, crew.said.append)
    job = crew.finish(group)["a"]
    assert (job.state, job.attempts, job.cause) == ("failed", 1, "gamma=2 is above 1")


def test_a_command_writes_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(END_FILE, str(tmp_path / "end"))
    assert main(["train", "--gama", "0.9"]) == 2
    assert read_code(tmp_path / "end", os.getpid()) == 2
    assert read_code(tmp_path / "end", os.getpid() + 1) is None  # of another process


def test_a_supervisor_finds_the_jobs_of_one_that_died(crew: Crew) -> None:
    group = crew.group(crew.request("a", "wait"))
    crew.tick_until(lambda: len(crew.starts()) == 1)
    crew.supervisor = Supervisor(crew.queue, crew.said.append)
    crew.go()
    job = crew.finish(group)["a"]
    assert (job.state, job.attempts) == ("done", 1)
    assert len(crew.starts()) == 1


def test_a_supervisor_that_died_before_the_process_was_there_costs_no_attempt(crew: Crew) -> None:
    group = crew.group(crew.request("a", retries=0))
    group.note("started", "a", cores=1)
    job = crew.finish(group)["a"]
    assert (job.state, job.attempts) == ("done", 1)


SUPERVISE = """
import sys
from pathlib import Path
from mission_gym.fleet.process import send_signal
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.wait import serve
print("here", flush=True)
serve(Queue(Path(sys.argv[1])), say=lambda text: None, should_stop=lambda: False)
"""


def start_supervisor(crew: Crew) -> subprocess.Popen[str]:
    args = [sys.executable, "-c", SUPERVISE, str(crew.queue.folder)]
    child = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    return child


def test_a_supervisor_killed_at_any_moment_loses_and_doubles_nothing(crew: Crew) -> None:
    """Five moments here; fifty are in `bench fleet --full`."""
    group = crew.group(*(crew.request(f"j{number}", retries=0) for number in range(6)))
    rng = random.Random(7)
    for _ in range(5):
        child = start_supervisor(crew)
        time.sleep(rng.uniform(0.0, 0.3))  # the moment is what is tried, not waited for
        child.kill()
        child.communicate()
    child = start_supervisor(crew)
    child.communicate(timeout=LONG_S)
    jobs = group.read_jobs()
    assert {(job.state, job.attempts) for job in jobs.values()} == {("done", 1)}
    assert len(crew.starts()) == 6


def test_a_second_supervisor_attaches_and_takes_over(crew: Crew) -> None:
    group = crew.group(crew.request("a", "wait"))
    child = start_supervisor(crew)
    said: list[str] = []
    try:
        while not crew.starts():
            assert child.poll() is None

        def watch(jobs: object) -> None:
            if said and child.poll() is None:
                child.kill()
                crew.go()

        jobs = wait_for_jobs(crew.queue, group, ["a"], say=said.append, watch=watch)
    finally:
        child.kill()
        child.communicate()
    assert f"process {child.pid} supervises the queue; this group has joined it" in said
    assert (jobs["a"].state, jobs["a"].attempts) == ("done", 1)


def test_groups_of_two_terminals_share_the_machine(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "usable_cores", lambda: 2)
    first = crew.group(crew.request("a", "wait"), crew.request("b", "wait"), name="first")
    crew.tick_until(lambda: len(crew.starts()) == 2)
    second = crew.group(crew.request("c", "wait", priority=1), name="second")
    for now in range(5):
        crew.supervisor.tick(float(now))
    assert second.read_jobs()["c"].state == "queued"
    crew.go()
    assert {job.state for job in (crew.finish(first) | crew.finish(second)).values()} == {"done"}


def test_a_full_disk_starts_nothing_and_loses_nothing(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    group = crew.group(crew.request("a"))
    note = GroupDir.note

    def refuse(*args: object, **more: object) -> None:
        raise DiskError("can't write journal.jsonl: No space left on device; free some space")

    monkeypatch.setattr(GroupDir, "note", refuse)
    for now in range(3):
        crew.supervisor.tick(float(now))
    assert crew.starts() == []
    assert [text for text in crew.said if "No space left" in text] == [
        "no job is started: can't write journal.jsonl: No space left on device; free some space"
    ]
    monkeypatch.setattr(GroupDir, "note", note)
    assert crew.finish(group)["a"].state == "done"


def test_a_clock_that_jumps_moves_nothing(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    group = crew.group(crew.request("a", "wait"), crew.request("b", "die-once"))
    crew.tick_until(lambda: len(crew.starts()) >= 1)
    for jump in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1.7e9 + jump)
        crew.supervisor.tick(10.0)
    crew.go()
    assert {job.state for job in crew.finish(group).values()} == {"done"}


def test_a_journal_with_a_partial_last_line_continues(crew: Crew) -> None:
    group = crew.group(crew.request("a"))
    with group.journal.path.open("ab") as file:
        file.write(b'{"event": "started", "na')
    assert crew.finish(group)["a"].state == "done"
    assert b'"na{' not in group.journal.path.read_bytes()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no json\n", "truncated or altered"),
        (b'{"event": "dance", "name": "a"}\n', "is damaged"),
        (b'{"event": "ended", "name": "b", "state": "done"}\n', "job 'b' was never added"),
        (b'{"event": "ended", "name": "a", "state": "happy"}\n', "is damaged"),
    ],
)
def test_a_damaged_journal_is_reported_and_other_groups_continue(
    crew: Crew, line: bytes, message: str
) -> None:
    bad, good = crew.group(crew.request("a"), name="bad"), crew.group(crew.request("b"), name="good")
    with bad.journal.path.open("ab") as file:
        file.write(line)
    with pytest.raises(RunStateError, match=message):
        bad.read_jobs()
    assert crew.finish(good)["b"].state == "done"
    assert len([text for text in crew.said if message in text]) == 1


def test_a_damaged_group_file_is_refused(crew: Crew) -> None:
    group = crew.group(crew.request("a"))
    group.group_json.write_text('{"name": "g", "kind": "dance", "runs": []}')
    with pytest.raises(RunStateError, match=r"group\.json is damaged: kind"):
        group.read()


def test_a_group_whose_folder_was_removed_is_forgotten(crew: Crew) -> None:
    group = crew.group(crew.request("a"))
    group.path.rename(crew.signs / "elsewhere")
    assert crew.supervisor.tick(0.0) == 0


def test_one_queue_per_machine(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    group = crew.group(crew.request("a"))
    Queue().register(group)
    assert Queue().list_groups() == [group]
    (entry,) = (Queue().folder / "groups").iterdir()
    assert read_json(entry) == {"path": str(group.path)}
    assert Queue().supervisor is None


def test_a_stopped_process_is_asked_not_killed(crew: Crew) -> None:
    """A job that a user killed by hand is stopped, not failed."""
    group = crew.group(crew.request("a", "wait"))
    crew.tick_until(lambda: group.is_running(group.read_jobs()["a"]))
    pid = group.read_pid(group.read_jobs()["a"])
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    job = crew.finish(group)["a"]
    assert (job.state, job.cause, job.attempts) == ("stopped", "SIGTERM", 1)


def test_a_group_that_was_not_made_here_needs_trust(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its journal names the programs that would be run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    group = GroupDir.create(crew.runs_dir, "foreign", "jobs", [crew.request("a")])
    assert main(["jobs", "resume", str(group.path)]) == 2
    assert "were not requested by this user" in capsys.readouterr().err
    assert crew.starts() == []
    assert main(["jobs", "resume", str(group.path), "--trust"]) == 0
    assert len(crew.starts()) == 1
    Queue().check_own(group)  # allowed once is allowed
    with pytest.raises(UsageError, match="--trust"):
        crew.queue.check_own(group)


def test_a_changed_journal_is_not_run(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shared folder, or a copy that was unpacked over the group, may hold other commands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    group = Queue().make_group(crew.runs_dir, "mine", "jobs", [crew.request("a")])
    canary, evil = crew.signs / "canary", crew.signs / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {canary}\n")
    evil.chmod(0o755)
    group.add([crew.request("a", python=str(evil)), crew.request("b", python=str(evil))])
    assert main(["jobs", "resume", str(group.path)]) == 2
    assert "changed since (a, b)" in capsys.readouterr().err
    Supervisor(Queue(), crew.said.append).tick(0.0)
    jobs = group.read_jobs()
    assert {job.state for job in jobs.values()} == {"failed"}
    assert "was not requested by this user" in jobs["a"].cause
    assert not canary.exists()


def test_a_process_that_a_job_started_does_not_keep_it_alive(crew: Crew) -> None:
    """Its lock names the process, so that a lock that another process holds shows no life."""
    group = crew.group(crew.request("a", "wait"))
    crew.tick_until(lambda: group.is_running(group.read_jobs()["a"]))
    job = group.read_jobs()["a"]
    pid = group.read_pid(job)
    assert pid is not None
    inherited = [Path(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert any(os.path.realpath(fd) == str(group.lock("a")) for fd in inherited)
    with open(group.lock("a")) as shared:  # as in a process that the job started
        os.kill(pid, signal.SIGKILL)
        crew.tick_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
        fcntl.flock(shared, fcntl.LOCK_SH)
        assert not group.is_alive("a")


def test_a_pid_that_was_reused_is_not_signalled(crew: Crew) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        group = crew.group(crew.request("a"))
        crew.finish(group)
        holder = group.find_process(group.read_jobs()["a"])
        assert holder is not None
        for wrong in (holder._replace(pid=other.pid), Holder(other.pid, _read_start(other.pid), "elsewhere")):
            send_signal(wrong, signal.SIGKILL, to_group=True)
            send_signal(wrong, signal.SIGKILL)
            assert not wrong.is_alive
        assert other.poll() is None
        send_signal(Holder(other.pid, _read_start(other.pid), holder.place), signal.SIGKILL)
        assert other.wait() == -signal.SIGKILL


def test_the_last_output_is_part_of_the_cause(crew: Crew) -> None:
    folder = crew.signs / "project"
    folder.mkdir()
    (folder / "queue.py").write_text("raise RuntimeError('shadowed')")
    python = crew.signs / "dies"
    python.write_text("#!/bin/sh\necho the simulator is on fire\nkill -9 $$\n")
    python.chmod(0o755)
    (job,) = crew.finish(crew.group(crew.request("a", python=str(python), retries=0))).values()
    assert "killed by SIGKILL" in job.cause
    assert job.cause.endswith("its last output: the simulator is on fire")
    more = {"python": sys.executable, "folder": str(folder), "arguments": ("--no-such-flag=1",)}
    (job,) = crew.finish(crew.group(crew.request("b", retries=0, **more), name="h")).values()
    assert "unknown flag '--no-such-flag'" in job.cause  # and not that queue.py is another module


def test_the_queue_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("MISSION_GYM_QUEUE", "the lab")
    assert Queue().folder.name == "the-lab"
    assert Queue().folder.stat().st_mode & 0o777 == 0o700


def test_queues_of_other_names_are_reported(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container that was made again has another host name, and would forget its jobs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    monkeypatch.setenv("MISSION_GYM_QUEUE", "before")
    Queue().make_group(crew.runs_dir, "g", "jobs", [crew.request("a")])
    status = ["jobs", "status", "--runs-dir", str(crew.runs_dir)]
    assert main(status) == 0
    assert "queue of" not in capsys.readouterr().err
    monkeypatch.setenv("MISSION_GYM_QUEUE", "now")
    assert main(status) == 0
    err = capsys.readouterr().err
    assert "unfinished groups in the queue of before: 1" in err
    assert "`MISSION_GYM_QUEUE=before mission-gym jobs resume` continues them" in err


def test_a_group_outside_the_queue_is_not_waited_for(crew: Crew) -> None:
    group = GroupDir.create(crew.runs_dir, "left", "jobs", [crew.request("a")])
    with pytest.raises(RunStateError, match="is not in the queue of this machine"):
        wait_for_jobs(crew.queue, group, ["a"])


def test_a_refused_job_can_be_corrected(crew: Crew) -> None:
    group = crew.group(crew.request("a", "refuse"), crew.request("b"))
    assert [job.state for job in crew.finish(group).values()] == ["failed", "done"]
    update_jobs(crew.queue, group, [crew.request("a", "pass", variables={"CREW": "1"}), crew.request("b")])
    crew.queue.register(group)
    jobs = crew.finish(group)
    assert [(job.state, job.attempts) for job in jobs.values()] == [("done", 2), ("done", 1)]
    assert jobs["a"].request.variables == {"CREW": "1"}
    with pytest.raises(ConfigError, match="job 'b' changed after it started"):
        update_jobs(crew.queue, group, [crew.request("b", "fail")])


def test_a_file_that_is_edited_while_it_runs_changes_nothing(crew: Crew) -> None:
    group = crew.group(crew.request("a", "wait"), crew.request("b"))
    crew.tick_until(lambda: group.is_running(group.read_jobs()["a"]))
    before = group.read_jobs()
    with pytest.raises(ConfigError, match="job 'a' changed after it started"):
        update_jobs(crew.queue, group, [crew.request("a", "fail"), crew.request("b"), crew.request("c")])
    assert [job.request for job in group.read_jobs().values()] == [job.request for job in before.values()]
    crew.go()
    assert {job.state for job in crew.finish(group).values()} == {"done"}


def test_messages_of_stop_and_logs(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    group = Queue().make_group(crew.runs_dir, "g", "jobs", [crew.request("alpha", "wait")])
    folder = ["--runs-dir", str(crew.runs_dir)]
    assert main(["jobs", "status", group.name, "--json", *folder]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["cause"] == "no supervisor is running; `mission-gym jobs resume` starts one"
    for args, code, said in (
        (["logs", "alpha"], 0, "alpha has not started"),
        (["logs", "alhpa"], 2, "no job 'alhpa' (did you mean 'alpha'?), and no group 'alhpa'"),
        (["stop", "alpha"], 0, "alpha stopped: stopped before it started"),
        (["wait", group.name], 130, "continue  mission-gym jobs resume"),
        (["stop", group.name], 0, "there is nothing to stop: all jobs have ended"),
    ):
        assert main(["jobs", *args, *folder]) == code
        assert said in capsys.readouterr().err
    assert crew.starts() == []


def test_status_shows_what_is_at_work_below_the_names_of_groups(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(crew.signs))
    ended = crew.queue.make_group(crew.runs_dir, "old", "jobs", [crew.request("done")])
    crew.go()
    crew.finish(ended)
    folder = ["--runs-dir", str(crew.runs_dir)]
    assert main(["jobs", "status", "--json", *folder]) == 0
    assert [row["group"] for row in json.loads(capsys.readouterr().out)] == [ended.name]  # nothing is at work
    seeds = Queue().make_group(crew.runs_dir, "seeds", "seeds", [crew.request("a", "wait")])
    file = Queue().make_group(crew.runs_dir, "file", "jobs", [crew.request("b", "wait")])
    assert main(["jobs", "status", "--json", *folder]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["group"], row["name"]) for row in rows} == {(seeds.name, "a"), (file.name, "b")}
    assert main(["jobs", "status", *folder]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert {f"{seeds.name} (seeds)", f"{file.name} (jobs)"} <= set(lines)
    assert main(["jobs", "stop", "--all"]) == 0


def test_a_group_is_this_users_before_it_is_seen(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was killed while it was made goes on with it without --trust."""

    def die(self: Queue, group: GroupDir) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Queue, "register", die)
        with pytest.raises(KeyboardInterrupt):
            crew.queue.make_group(crew.runs_dir, "g", "jobs", [crew.request("a")])
    (group,) = list_groups(crew.runs_dir)
    crew.queue.check_own(group)
    assert crew.queue.list_groups() == []


def test_the_next_tick_comes_when_a_job_ends(crew: Crew) -> None:
    group = crew.group(crew.request("a"))
    crew.supervisor.tick(0.0)
    crew.supervisor.rest(LONG_S)  # not waited out
    crew.supervisor.tick(1.0)
    assert group.read_jobs()["a"].state == "done"


def test_jobs_that_ended_without_a_supervisor_show_their_state(crew: Crew) -> None:
    group = crew.group(crew.request("a", "wait"))
    crew.tick_until(lambda: group.is_running(group.read_jobs()["a"]))
    crew.go()
    crew.supervisor._children.popitem()[1].wait(LONG_S)
    (row,) = describe_jobs(group, group.read_jobs())
    assert (row["state"], row["cause"]) == ("done", "all steps made")


def test_a_resumed_job_gets_the_cores_that_it_was_planned_for(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "usable_cores", lambda: 4)
    group = crew.group(crew.request("a", "die-once"))
    crew.tick_until(lambda: group.read_jobs()["a"].attempts == 1 and group.read_jobs()["a"].state == "queued")
    crew.queue.add(group, [crew.request("b", "wait", priority=1)])
    crew.tick_until(lambda: "b" in group.read_jobs() and group.read_jobs()["b"].state == "starting")
    for now in range(20):
        crew.supervisor.tick(1000.0 + now)
    assert group.read_jobs()["a"].state == "queued"  # it has four threads, and b took some cores
    crew.go()
    assert crew.finish(group)["a"].cores == 4


def test_the_cause_is_the_last_message_of_the_last_attempt(crew: Crew) -> None:
    group = crew.group(crew.request("a", "refuse"))
    group.log("a").write_text("mission-gym: words of another time\n" + "x" * 100)
    job = crew.finish(group)["a"]
    assert job.cause == "gamma=2 is above 1"
    assert job.log_bytes == group.log("a").read_bytes().index(b"mission-gym: gamma")


def test_a_disk_that_fails_forgets_no_group(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    group = crew.group(crew.request("a"))

    def fail(path: Path, max_bytes: int) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("mission_gym.store.files.read_bounded", fail)
        assert crew.queue.list_groups() == []
    assert crew.queue.list_groups() == [group]
