"""Sweeps whose runs are a small script instead of a training: their return is known from their learning rate.

The script stands in for Python: it is called as `python -P -m mission_gym train ...`, and leaves what a sweep
reads of a run. It returns most with 1e-3, less with each power of ten from there, and a little more with
higher seeds, and 0.5 more in a re-test; above 5e-3 it fails as a run does that is not finite. So a run costs
milliseconds where a training costs seconds; trainings are in `test_sweeps.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mission_gym.fleet.queue import Queue
from mission_gym.store.groups import GroupDir
from mission_gym.store.sweeps import Axis, Question, StartingPoint, SweepRecord, write_sweep

_PYTHON = sys.executable  # tests put the script in its place
_SCRIPT = """#!{python} -ES
import json, math, os, signal, sys, time
from pathlib import Path

words = sys.argv[4:]
values = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
signs = Path({signs!r})
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))

def write(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(document))
    os.replace(path.with_suffix(".new"), path)

def end(state, cause, code):
    status = {{"state": state, "cause": cause, "pid": os.getpid(), "step": 1000}}
    write(run / "status.json", status | {{"created": 1.0, "heartbeat": 1.0}})
    write(Path(os.environ["MISSION_GYM_END_FILE"]), {{"pid": os.getpid(), "code": code}})
    sys.exit(code)

def evaluate(step, value, suite="select"):
    bounds = {{"return_mean": value, "return_low": value - 1, "return_high": value + 1, "score": value - 1}}
    more = {{"step": step, "suite": suite, "episodes": 20, "length_mean": 1.0, "outcomes": {{}}}}
    write(run / "eval" / f"step_{{step:012}}-{{suite}}.json", bounds | more)

run = Path(values["runs-dir"]) / (values["run-name"] + "-20260101-000000")
write(run / "status.json", {{"state": "starting", "pid": os.getpid(), "created": 1.0}})
(run / ".lock").touch()
write(Path(os.environ["MISSION_GYM_RUN_FILE"]), {{"run": str(run)}})
with open(signs / "starts", "a") as file:
    file.write(run.name + chr(10))
rate, seed = float(values.get("learning-rate", 1e-5)), int(values["seed"])
value = 100.0 - 20.0 * abs(math.log10(rate) + 3.0) + 0.01 * seed
evaluate(500, value / 2)
while (signs / "hold").exists() and not stop:
    time.sleep(0.01)
if stop:
    end("stopped", "SIGTERM", 130)
if rate > 5e-3:
    end("failed", "NotFiniteError: the loss is not finite", 3)
row = {{"event": "progress", "step": 1000, "time/time_elapsed": 1.0 + rate, "rollout/ep_rew_mean": value}}
(run / "metrics.jsonl").write_text(json.dumps(row) + chr(10))
evaluate(1000, value)
if int(values.get("retest-episodes", 0)):
    evaluate(1000, value + 0.5, "retest")
end("done", "all steps made", 0)
"""
# How a process of its own works on a sweep whose runs are the script.
_DRIVE = """
import sys
sys.executable = {script!r}
from mission_gym.cli.main import main
sys.exit(main(["jobs", "resume", {group!r}]))
"""


class Sweepers:
    """Makes sweeps in a folder, and lets this process or others work on them."""

    def __init__(self, folder: Path) -> None:
        self.runs_dir, self.signs, self.script = folder / "runs", folder / "signs", folder / "python"
        self.signs.mkdir()
        self.script.write_text(_SCRIPT.format(python=_PYTHON, signs=str(self.signs)))
        self.script.chmod(0o755)

    def make(self, *, axes: list[Axis] | None = None, **more: Any) -> GroupDir:
        """A sweep over the learning rate of CartPole, from a bad default."""
        starts = [
            StartingPoint(source="default", values={"learning_rate": 1e-5}, given={}),
            StartingPoint(
                source="shipped settings", values={"learning_rate": 1e-4}, given={"learning_rate": 1e-4}
            ),
        ]
        asked: dict[str, Any] = {
            "values": {"env": "CartPole-v1", "n_envs": 8, "timesteps": 1000}, "asked": {}, "over": "",
            "axes": axes or [Axis(path="ppo.learning_rate", low=1e-5, high=1e-2, scale="log")],
            "starts": starts, "measure": "return", "trials": 6, "budget_s": None, "seeds": [0], "retest": 2,
            "retest_seeds": [1, 2], "folder": str(self.signs),
        }  # fmt: skip
        question = Question.model_validate(asked | more)
        queue = Queue()

        def prepare(group: GroupDir) -> None:
            queue.record_own(group, [question])
            write_sweep(group, SweepRecord(question=question))

        return queue.make_group(self.runs_dir, "s", "sweep", [], prepare)

    def drive(self, group: GroupDir) -> subprocess.Popen[str]:
        """A process that works on a sweep to its end."""
        code = _DRIVE.format(script=str(self.script), group=str(group.path))
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([_PYTHON, "-c", code], env=os.environ.copy(), **pipes)

    def hold(self) -> Callable[[], None]:
        """Keep runs from ending; the result lets them."""
        sign = self.signs / "hold"
        sign.touch()
        return sign.unlink

    def starts(self) -> list[str]:
        """The runs that came to life."""
        path = self.signs / "starts"
        return path.read_text().splitlines() if path.exists() else []
