"""`watch`: its flags, and the table of `--terminal`."""

import os
import pty
import subprocess
import sys

from mission_gym.cli.main import main
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.resolve import list_runs
from mission_gym.store.rundir import RunDir


def test_the_terminal_shows_runs_once_into_a_pipe(family, capsys):
    assert main(["watch", "--terminal", "--runs-dir", str(family)]) == 0
    shown = capsys.readouterr().out
    for run in list_runs(family):
        assert run.name in shown
    assert "2 runs, 0 running" in shown
    assert "done" in shown


def test_the_terminal_shows_groups_and_their_jobs(tmp_path, capsys):
    requests = [
        JobRequest(name=name, variant=name, arguments=(), folder="/", python="python") for name in ("a", "b")
    ]
    group = GroupDir.create(tmp_path, "pair", "jobs", requests)
    group.note("started", "a")
    group.note("ended", "a", state="done")
    odd = RunDir.create(tmp_path, "odd")
    odd.status_json.write_text(
        '{"state": "done", "heartbeat": "x", "now_fps": [1], "outcomes": {"won": "all"}}'
    )
    assert main(["watch", "--terminal", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"group {group.name} (jobs): 1 queued, 1 done" in shown
    assert odd.name in shown


def test_escapes_in_names_do_not_reach_a_terminal(tmp_path):
    run = RunDir.create(tmp_path, "evil")
    run.write_status(state="done", step=1, outcomes={"\x1b]0;gone\x07won\x1b[2J": 0.5}, cause="\x1b[31m")
    run.path.rename(tmp_path / "\x1b[2Jevil")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "mission_gym", "watch", "--terminal", "--runs-dir", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=follower, env=os.environ | {"TERM": "xterm", "NO_COLOR": "1"}
    ) as process:
        os.close(follower)
        said = b""
        while b"won" not in said:
            said += os.read(leader, 1 << 16)
        process.send_signal(2)
    os.close(leader)
    assert b"evil" in said
    assert b"\x1b[2J" not in said.split(b"evil")[0].split(b"runs, ")[-1]
    assert b"gone\x07" not in said
    assert process.returncode == 0


def test_a_public_host_is_reported_and_a_bad_port_refused(tmp_path, capsys):
    assert main(["watch", "--host", "192.0.2.1", "--port", "0", "--runs-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "anyone who can reach 192.0.2.1 and knows the token" in said
    assert "can't listen on 192.0.2.1" in said
