"""A queue of a test's own, and jobs whose process is a small script instead of a training.

The script stands in for Python: it is called as `python -P -m mission_gym train ...`, makes a real run
directory, announces it, holds its lock, and ends as the word behind `--notes=` says. So a test of the queue
costs milliseconds where a training would cost seconds; trainings are in `test_groups.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mission_gym.fleet.queue import Queue
from mission_gym.fleet.supervisor import Supervisor
from mission_gym.store.groups import GroupDir, Job, JobRequest
from timeouts import LONG_S

_SCRIPT = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
from mission_gym.store.groups import announce_end, announce_run
from mission_gym.store.rundir import RunDir

words = sys.argv[4:]
values = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
signs = Path(os.environ["CREW_SIGNS"])
if words[0] == "resume":
    run = RunDir(Path(words[1]))
    notes = json.loads(run.config_yaml.read_text())["notes"]
else:
    notes = values["notes"]
    if notes == "refuse":
        print("mission-gym: gamma=2 is above 1", flush=True)
        announce_end(2)
        sys.exit(2)
    run = RunDir.create(Path(values["runs-dir"]), values["run-name"])
    run.config_yaml.write_text(json.dumps({{"notes": notes}}))
with run.lock():
    announce_run(run.path)
    with open(signs / "starts", "a") as file:
        file.write(f"{{run.name}} {{words[0]}}\\n")
    mps = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    run.write_status(state="running", step=0 if mps else 1, total=100, cores=os.environ["MISSION_GYM_CORES"])
    if notes == "die-mps" and mps:
        sys.exit(3)
    if notes == "die" or (notes == "die-once" and words[0] != "resume"):
        (run.checkpoints / "step_000000000001").mkdir(parents=True, exist_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if notes == "fail":
        run.write_status(state="failed", cause="RuntimeError: the simulator fell over")
        sys.exit(3)
    while notes in ("wait", "deaf") and not (signs / "go").exists() and not (stop and notes == "wait"):
        time.sleep(0.01)
    if stop:
        run.write_status(state="stopped", cause="SIGTERM")
        sys.exit(130)
    run.write_status(state="done", step=100, cause="all steps made")
"""


class Crew:
    """Makes jobs, and lets a supervisor look after them in this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs_dir, self.signs = folder / "runs", folder / "signs"
        self.signs.mkdir()
        monkeypatch.setenv("CREW_SIGNS", str(self.signs))
        self.queue = Queue(folder / "queue")
        self.python = folder / "python"
        self.python.write_text(_SCRIPT.format(python=sys.executable))
        self.python.chmod(0o755)
        self.said: list[str] = []
        self.supervisor = Supervisor(self.queue, self.said.append)

    def request(self, name: str, notes: str = "pass", **more: Any) -> JobRequest:
        arguments = (f"--notes={notes}", f"--runs-dir={self.runs_dir}", f"--run-name=g-{name}")
        asked = {
            "variant": "v",
            "arguments": arguments,
            "folder": str(self.signs),
            "python": str(self.python),
        }
        return JobRequest.model_validate({"name": name} | asked | more)

    def group(self, *requests: JobRequest, name: str = "g") -> GroupDir:
        return self.queue.make_group(self.runs_dir, name, "jobs", requests)

    def tick_until(self, is_so: Callable[[], bool]) -> None:
        """Tick until it is so; by a clock of the test's own, so that back-offs take no time."""
        begun, now = time.monotonic(), 0.0
        while not is_so():
            assert time.monotonic() - begun < LONG_S, self.said
            self.supervisor.tick(now)
            now += 1.0
            time.sleep(0.01)

    def finish(self, group: GroupDir) -> dict[str, Job]:
        """Tick until all jobs of a group have ended."""
        self.tick_until(lambda: all(job.has_ended for job in group.read_jobs().values()))
        self.supervisor.tick(1e9)
        return group.read_jobs()

    def go(self) -> None:
        """Let jobs that wait pass."""
        (self.signs / "go").touch()

    def starts(self) -> list[str]:
        """The processes that came to life, as `run command`."""
        path = self.signs / "starts"
        return path.read_text().splitlines() if path.exists() else []
