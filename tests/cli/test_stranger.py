"""The property behind tests/cli/test_trust.py, for every command and in every process that it starts.

While a command opens a stranger's run, nothing in the run is imported or executed, nothing connects, and
nothing precious is written. tests/audit/sitecustomize.py watches all processes with audit hooks.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlsplit

import imageio_ffmpeg
import pytest
import yaml

import mission_gym
from mission_gym.cli.main import main
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import Axis, Question, StartingPoint, SweepRecord, write_sweep
from mission_gym_bench.faults.trust import edit_values
from timeouts import LONG_S

TESTS = Path(__file__).parents[1]
SRC = Path(mission_gym.__file__).parents[1]
EVIL = """
import pathlib

pathlib.Path({canary!r}).touch()
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Env(CartPoleEnv):
    pass


def make(*args, **kwargs):
    return Env()
"""
DRIVER = """
import json, sys
sys.path.remove("")
from mission_gym.cli.main import main
print(json.dumps([main(args) for args in json.loads(sys.argv[1])]), file=sys.stderr)
"""
SMALL = ("--timesteps", "512", "--n-envs", "2", "--n-steps", "128", "--batch-size", "64", "--eval-freq", "0")
SWEEP = (
    "--trials", "1", "--retest", "1", "--retest-seeds", "2", "--over", "learning_rate=1e-4..1e-3",
    "--timesteps", "512",
)  # fmt: skip
WRITTEN = (
    ".lock",
    ".pins-lock",
    "metrics.jsonl",
    "monitor.csv",
    "log.txt",
    "progress.csv",
    "eval",
    "pins.json",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert main(["train", "CartPole-v1", "--no-tune", "--runs-dir", str(folder), *SMALL]) == 0
    return next(folder.iterdir())


class Gift:
    """A stranger's run in a project of the user, who also has a precious folder."""

    def __init__(self, trained, root):
        self.project, self.precious, self.canary = root / "project", root / "precious", root / "canary"
        self.run = RunDir(self.project / "runs" / "gift-20261116-000000")
        shutil.copytree(trained, self.run.path)
        self.precious.mkdir()
        self.root, self.folder = root, self.project
        self.run.env.mkdir(exist_ok=True)
        (self.run.env / "evil.py").write_text(EVIL.format(canary=str(self.canary)))
        self._program = self.run.path / "evil.sh"
        self._program.write_text(f"#!/bin/sh\ntouch {self.canary}\n")
        self._program.chmod(0o755)
        self.groups = [self._make_group("theirs", "jobs"), self._make_group("sought", "sweep")]

    def _make_group(self, name, kind):
        """A group of the stranger's, whose journal names a program in the run."""
        job = JobRequest(
            name=f"{name}-job", variant="a", arguments=(), folder=str(self.project), python=str(self._program)
        )
        group = GroupDir.create(self.run.path.parent, name, kind, [job])
        if kind == "sweep":
            start = StartingPoint(source="default", values={"learning_rate": 1e-3}, given={})
            question = Question(
                values={"env": f"bridge:touch {self.canary}", "timesteps": 512}, asked={}, over="",
                axes=[Axis(path="ppo.learning_rate", low=1e-5, high=1e-2, scale="log")], starts=[start],
                measure="return", trials=1, budget_s=None, seeds=[0], retest=1, retest_seeds=[1],
                folder=str(self.project),
            )  # fmt: skip
            write_sweep(group, SweepRecord(question=question))
        return group.path

    def edit(self, section="env", **values):
        edit_values(self.run, section, **values)

    def commands(self):
        run, name, runs_dir = str(self.run.path), self.run.name, str(self.run.path.parent)
        stored = yaml.safe_load(self.run.config_yaml.read_text())["env"]
        bundle = self.run.path / "repro-env0-episode0.json"
        facts = {key: stored[key] for key in ("env_id", "env_kwargs", "wrap")}
        bundle.write_text(json.dumps(facts | {"seed": 1, "actions": [0]}))
        job_file = self.root / "jobs.yaml"
        job_file.write_text(
            json.dumps({"jobs": [{"name": "a", "config": str(self.run.config_yaml), "retries": 0}]})
        )
        greedy_file = self.root / "greedy.yaml"
        greedy = {"env": "--trust", "set": [f"env.env_id=bridge:touch {self.canary}"]}
        greedy_file.write_text(json.dumps({"defaults": greedy, "jobs": [{"name": "b", "retries": 0}]}))
        where = ["--runs-dir", runs_dir]
        return [
            ["runs", "list", *where],
            ["runs", "show", run],
            ["runs", "compare", run, run],
            ["runs", "lineage", run],
            ["runs", "timeline", run],
            ["config", run],
            ["report", run, "--out", str(self.root / "report.html")],
            ["eval", run, "--episodes", "1"],
            ["record", run],
            ["branch", run, "--timesteps", "1024", *where],
            ["resume", run, "--timesteps", "1024"],
            ["check", "--repro", str(bundle)],
            ["train", "--config", str(self.run.config_yaml), "--timesteps", "512", *where],
            ["tune", "CartPole-v1", "--config", str(self.run.config_yaml), "--budget", "2s"],
            [
                "sweep",
                "CartPole-v1",
                "--config",
                str(self.run.config_yaml),
                "--run-name",
                "s",
                *SWEEP,
                *where,
            ],
            ["jobs", "example", "four-jobs"],
            ["jobs", "check", str(job_file)],
            ["jobs", "run", str(job_file), *where],
            ["jobs", "run", str(greedy_file), *where],
            ["jobs", "add", str(job_file), *where],
            ["jobs", "wait", "jobs", *where],
            ["jobs", "logs", "jobs/a", *where],
            ["jobs", "status", *where],
            *[
                words
                for group in map(str, self.groups)
                for words in (
                    ["jobs", "status", group],
                    ["jobs", "logs", f"{group}/{Path(group).name.split('-')[0]}-job"],
                    ["jobs", "wait", group],
                    ["jobs", "resume", group],
                    ["jobs", "stop", group],
                    ["report", group, "--out", str(self.root / "group.html")],
                    ["runs", "show", group],
                )
            ],
            ["sweep", "show", str(self.groups[1])],
            ["watch", "--terminal", *where],
            ["runs", "clean", name, "--yes", *where],
        ]

    def open_with_all(self):
        """Run all commands below the hooks, and return what they should not have done."""
        log = self.root / "log"
        rules = {
            "log": str(log), "data": [str(self.run.path)], "precious": str(self.precious),
            "programs": [os.path.realpath(sys.executable), os.path.realpath(imageio_ffmpeg.get_ffmpeg_exe())],
        }  # fmt: skip
        path = os.pathsep.join([str(TESTS / "audit"), str(SRC)])
        state = {"XDG_STATE_HOME": str(self.root / "state"), "XDG_CACHE_HOME": str(self.root / "cache")}
        environ = os.environ | state | {"MISSION_GYM_AUDIT": json.dumps(rules), "PYTHONPATH": path}
        self._browse(environ)
        argv = [sys.executable, "-c", DRIVER, json.dumps(self.commands())]
        done = subprocess.run(
            argv, cwd=self.folder, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        codes = json.loads(done.stderr.splitlines()[-1])
        assert set(codes) <= {0, 2, 3}, list(zip(self.commands(), codes, strict=True))
        assert not self.canary.exists()
        return log.read_text() if log.exists() else ""

    def _browse(self, environ):
        """Read every page of the run in the dashboard."""
        words = ["watch", "--port", "0", "--runs-dir", str(self.run.path.parent)]
        code = f"import sys; sys.path.remove(''); from mission_gym.cli.main import main; main({words!r})"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", code], cwd=self.folder, env=environ, **pipes) as server:
            address = server.stdout.readline().strip()
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            opener.open(address, timeout=LONG_S).close()
            base, name = f"http://{urlsplit(address).netloc}", self.run.name
            inner = ("", "/rows?low=0&high=9", "/panels", "/video/x.mp4")
            pages = ["/", "/api/runs", f"/run/{name}", f"/api/compare?run={name}&run={name}", "/compare"]
            for page in [*pages, *(f"/api/run/{name}{each}" for each in inner)]:
                with suppress(urllib.error.HTTPError):  # a run with links is not shown
                    opener.open(base + page, timeout=LONG_S).close()
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=LONG_S)


def shadow(gift):
    """The user opens the run from inside it."""
    for name in ("numpy", "psutil", "queue", "yaml"):
        (gift.run.path / f"{name}.py").write_text(EVIL.format(canary=str(gift.canary)))
    gift.folder = gift.run.path


def link(gift):
    for name in WRITTEN:
        target = gift.precious / name
        target.mkdir() if name == "eval" else target.write_text("mine")
        path = gift.run.path / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(target)


GIFTS = {
    "nothing": lambda gift: None,
    "a dotted name": lambda gift: gift.edit(env_id=f"runs.{gift.run.name}.env.evil:Env"),
    "a dotted wrapper": lambda gift: gift.edit(wrap=[f"runs.{gift.run.name}.env.evil:make"]),
    "shadowing files": shadow,
    "links": link,
    "a cluster": lambda gift: gift.edit("vector", vector="ray", ray_address="127.0.0.1:9"),
    "a host": lambda gift: gift.edit(
        env_id="mission_gym/Explore-v0", env_kwargs={"served_at": "http://127.0.0.1:9/"}
    ),
    "a benchmark": lambda gift: gift.edit(
        env_id="mission_gym_bench.faults.hazard:Hazard",
        env_kwargs={"kind": "background process", "once": str(gift.precious / "once")},
    ),
    "a tracker": lambda gift: gift.edit("run", track=["wandb"]),
    "a variable": lambda gift: gift.edit(env_kwargs={"sutton_barto_reward": "env:PATH"}),
    "a command": lambda gift: gift.edit(env_id=f"bridge:touch {gift.canary}"),
}


@pytest.mark.parametrize("name", GIFTS)
def test_a_strangers_run_can_do_nothing(trained, tmp_path, name):
    gift = Gift(trained, tmp_path)
    GIFTS[name](gift)
    assert gift.open_with_all() == ""


def test_the_hooks_notice(tmp_path, trained):
    """Each forbidden act leaves a line."""
    gift = Gift(trained, tmp_path)
    rules = {"log": str(tmp_path / "log"), "data": [str(gift.run.path)], "precious": str(gift.precious)}
    environ = os.environ | {"MISSION_GYM_AUDIT": json.dumps(rules | {"programs": []})}
    code = (
        "import os, socket, subprocess, sys; sys.path.insert(0, sys.argv[1]); import evil\n"
        "open(sys.argv[2] + '/file', 'w').close(); subprocess.run(['true'])\n"
        "socket.socket().connect_ex(('127.0.0.1', 9))"
    )
    argv = [sys.executable, "-c", code, str(gift.run.env), str(gift.precious)]
    subprocess.run(argv, env=environ | {"PYTHONPATH": str(TESTS / "audit")}, check=True)
    words = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert set(words) == {"imports", "executes", "writes", "starts", "connects"}
