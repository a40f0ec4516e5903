"""Real short runs that are damaged and read, and what must hold then.

Every reader ends with success or with one MissionGymError. Another exception, a hang, memory without bounds
or code that a file named and that was run are faults.
"""

from __future__ import annotations

import faulthandler
import io
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

import mission_gym as mg
from fuzz_damage import Edit, Literal, Put, apply
from fuzz_readers import PLANNED, READERS, SEARCHED, Kind, resolve_planned
from mission_gym.check.repro import write_bundle
from mission_gym.cli.main import main
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import EnvFailure, MissionGymError, UsageError
from mission_gym.fleet.sweep.study import Study
from mission_gym.plan import tuner
from mission_gym.run import preview
from mission_gym.store import trusted
from mission_gym.store.evals import read_evals, write_eval
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import Candidate, Question, SweepRecord, write_sweep
from mission_gym_bench.faults.trust import sign
from mission_gym_missions.capture.scenario import SHIPPED as LEVELS
from mission_gym_missions.placement.rules import SHIPPED as RULES
from timeouts import LONG_S, scale_timeout

LIMIT_S = 60.0  # of computing in one reading: most take a tenth of a second, some compile a kernel
MEMORY_BYTES = 4 << 30  # that a reading may take beside what is there
ENV_ID = "mission_gym/Placement-v0"
SMALL: dict[str, Any] = {
    "env_kwargs": {"num_sites": 4, "num_stations": 2, "num_demand": 4},
    "n_envs": 2,
    "network_arch": "8",
    "eval_freq": 64,
    "eval_episodes": 2,
    "tune": False,
    "tensorboard": False,
}
JOBS = """name: q
seeds: 2
defaults: {env: CartPole-v1, timesteps: 20k, gamma: 0.9}
jobs:
- {name: base, grid: {n_epochs: [1, 2]}, priority: 1, retries: 0}
- {name: more, branch: base-n_epochs-1@best, timesteps: 40k}
"""
TRAP = "import pathlib\npathlib.Path({canary!r}).touch()\n"


class Home:
    """Real short runs, the user's own files beside them, and a copy of all that in which damage is done."""

    def __init__(self, folder: Path) -> None:
        self.pristine, self.damaged = folder / "pristine", folder / "damaged"
        self.canary, self.elsewhere, self.here = folder / "canary", folder / "elsewhere", folder / "here"
        for path in (self.pristine, self.elsewhere, self.here):
            path.mkdir()
        (self.elsewhere / "trap.py").write_text(TRAP.format(canary=str(self.canary)))
        with quiet(), self.standing_in(self.pristine, measuring=True):
            self._train("parent", 192, n_steps=32)
            flags = ["--run-name", "child", "--gamma", "0.9", "--runs-dir", str(self.pristine / "runs")]
            assert main(["branch", "parent@64", *flags, "--timesteps", "128"]) == 0
            self._drop_stamps()
            self._confirm()
            self._group()
            self._sweep()
            _write_parts(self.pristine)

    def _train(self, name: str, step: int, **flags: Any) -> None:
        """A run that was stopped there, before the evaluation of that step."""
        runs_dir = str(self.pristine / "runs")
        for update in mg.iterate(ENV_ID, runs_dir=runs_dir, run_name=name, timesteps=512, **SMALL, **flags):
            if update.step >= step:
                break

    def _confirm(self) -> None:
        """What the parent would have got at its end."""
        run = RunDir(self.pristine / "runs" / "parent")
        candidates = [result for result in read_evals(run) if result["suite"] == "select"]
        assert len(candidates) == 2
        write_eval(run, 128, "confirm", {"best": 64, "episodes": 2, "candidates": candidates})

    def _group(self) -> None:
        """A group of the two runs, as it looks when it is over, and a job file."""
        (self.pristine / "jobs.yaml").write_text(JOBS)
        group = GroupDir(self.pristine / "runs" / "pack")
        (group.path / "jobs").mkdir(parents=True)
        asked = {"variant": "v", "arguments": (), "folder": str(self.here), "python": sys.executable}
        group.add(JobRequest(name=name, **asked) for name in ("parent", "child"))
        for name, run in zip(("parent", "child"), self._runs, strict=True):
            group.note("started", name, cores=1)
            group.note("run", name, run=run)
            group.note("ended", name, state="done", cause="all steps made")
        group.write(name="pack", kind="seeds", runs=list(self._runs), created=1.0, iqm=1.0)

    def _sweep(self) -> None:
        """A sweep whose winner is the two runs, and its study."""
        group = GroupDir(self.pristine / "runs" / "search")
        (group.path / "jobs").mkdir(parents=True)
        asked = {
            "variant": "retest-t000",
            "arguments": (),
            "folder": str(self.here),
            "python": sys.executable,
        }
        group.add(JobRequest(name=name, **asked) for name in ("parent", "child"))
        for name, run in zip(("parent", "child"), self._runs, strict=True):
            group.note("started", name, cores=1)
            group.note("run", name, run=run)
            group.note("ended", name, state="done", cause="all steps made")
        group.write(name="search", kind="sweep", runs=list(self._runs), created=1.0, iqm=1.0)
        study = Study(group.path, "search", SEARCHED, 0)
        for number in range(3):
            values = {"gamma": 0.95, "activation": "relu"}
            study.add("default" if number == 0 else "search", values, values)
        study.finish(0, 1.0, 2.0)
        study.drop(1, "NotFiniteError")
        rows = [trial.row for trial in study.list_trials()]
        question = Question(
            asked={}, values={"env": ENV_ID}, over="", axes=SEARCHED, starts=[], measure="return", trials=3,
            budget_s=None, seeds=[0], retest=1, retest_seeds=[1, 2], folder=str(self.here),
        )  # fmt: skip
        bounds = {"iqm": 1.0, "low": 0.5, "high": 2.0, "seeds": 2, "seconds": 1.0}
        winner = Candidate(trial=0, source="default", values=rows[0].values, **bounds)
        record = SweepRecord(
            question=question, spent_s=9.0, is_done=True, trials=rows, importance={"gamma": 1.0},
            candidates=[winner], best_trial=0, verdict="it stays",
        )  # fmt: skip
        write_sweep(group, record)

    def prepare(self, kind: Kind) -> None:
        """Make what few kinds need, where it is needed."""
        if (self.pristine / kind.path).exists():
            return
        with quiet(), self.standing_in(self.pristine, measuring=True):
            if kind.path.startswith("user/"):
                preview.advise(resolve_planned(self.pristine), 1.0, lambda text: None)
            else:
                self._train("other", 64, algo="dqn")
                self._drop_stamps()

    def _drop_stamps(self) -> None:
        """Give the runs short names, and names of where they will be read, so that all readers find them."""
        runs_dir = self.pristine / "runs"
        stamped = {path.name: path.name.partition("-")[0] for path in runs_dir.iterdir()}
        for path in [*runs_dir.glob("*/lineage.json"), *runs_dir.glob("*/pins.json")]:
            text = path.read_text().replace(str(runs_dir), str(self.damaged / "runs"))
            for name, short in stamped.items():
                text = text.replace(name, short)
            path.write_text(text)
        for name, short in stamped.items():
            (runs_dir / name).rename(runs_dir / short)

    @property
    def words(self) -> tuple[str, ...]:
        """Texts that mean something to a reader, names of code that must not run among them."""
        return (
            "trap:Env", "trap", "os:system", "subprocess:getoutput", "builtins:exec", "toys:Identity", ENV_ID,
            PLANNED, str(self.elsewhere), *self._runs, "child", "parent", "select", "ppo", "dqn", "batched",
            "compiled", "torch", "step", "done", "running", "best", "event", "timeline", "end",
        )  # fmt: skip

    @property
    def _runs(self) -> tuple[str, ...]:
        return tuple(str(self.damaged / "runs" / name) for name in ("parent", "child"))

    def list_attacks(self, kind: Kind) -> list[list[Edit]]:
        """What chance would take long to find: commands with their arguments, sizes that fit together but not
        into a machine, origins in a circle."""
        touch = f"touch {self.canary}"
        named: list[list[Edit]] = []
        env = () if kind.name == "bundle" else ("env",)
        for name, argument in (("os:system", "command"), ("subprocess:getoutput", "cmd"), ("trap:Env", "x")):
            named.append([Put((*env, "env_id"), name), Put((*env, "env_kwargs"), {argument: touch})])
        named.append([Put((*env, "wrap"), ["trap:Env"])])
        if kind.name in ("config", "config file"):
            tag = Literal(f"!!python/object/apply:os.system ['{touch}']")
            huge = [Put(("vector", "n_envs"), 10**12), Put(("run", "timesteps"), 10**18)]
            return [*named, [Put(("policy", "network"), "trap:Net")], [Put(("run", "notes"), tag)], huge]
        if kind.name == "lineage":
            return [[Put(("parent_path",), run), Put(("parent",), Path(run).name)] for run in self._runs]
        if kind.name == "environment files":
            return [[Put(("rules_file",), "../../../../pristine/rules.yaml")]]
        return named if kind.name == "bundle" else []

    def read_pristine(self, kind: Kind) -> bytes:
        """What is damaged."""
        self.prepare(kind)
        return (self.pristine / kind.path).read_bytes()

    @contextmanager
    def standing_in(self, home: Path, *, measuring: bool = False) -> Iterator[None]:
        """In an empty folder, as a user whose own files are in `home`, and whose kept plan has one name."""
        before, path, allowed = os.getcwd(), list(sys.path), set(trusted._here)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(home / "user"))
            patch.setenv("XDG_STATE_HOME", str(home / "user"))
            for module in (tuner, preview):
                patch.setattr(module, "make_plan_key", lambda *args: "plan")
                if not measuring:
                    patch.setattr(module, "Tuner", _refuse_to_measure)
            os.chdir(self.here)
            try:
                yield
            finally:
                os.chdir(before)
                sys.path[:] = path
                trusted._here.clear()
                trusted._here.update(allowed)

    def try_reader(self, kind: Kind, name: str, damage: list[Edit], *, may_refuse: bool = True) -> None:
        """Damage the copy, read it, and see that all is well."""
        self.prepare(kind)
        shutil.rmtree(self.damaged, ignore_errors=True)
        shutil.copytree(self.pristine, self.damaged)
        (self.damaged / "runs" / "parent" / "trap.py").write_text(TRAP.format(canary=str(self.canary)))
        path = self.damaged / kind.path
        path.write_bytes(apply(path.read_bytes(), kind.form, damage))
        if kind.signed:
            with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):  # beyond that
                sign(path)
        with self.standing_in(self.damaged), quiet(), watchdog(f"{name} of {kind.path}"):
            try:
                READERS[name](self.damaged)
            except MissionGymError:
                if not may_refuse:
                    raise
        ran, _ = self.canary.exists(), self.canary.unlink(missing_ok=True)
        assert not ran, f"{name} ran code that {kind.path} names"


def _write_parts(home: Path) -> None:
    """What training did not leave: a bundle, lines of trust, missions, a config file."""
    run = RunDir(home / "runs" / "parent")
    error = EnvFailure("broke")
    error.facts = {"env_index": 0, "episode": 0, "seed": 7, "actions": [0, 1, 0], "step": 2}
    write_bundle(run, error, EnvRequest(PLANNED, {}, ()))
    shutil.copytree(LEVELS, home / "levels")
    shutil.copy(RULES, home / "rules.yaml")
    shutil.copy(run.config_yaml, home / "given.yaml")
    trusted.allow("toys:make in /somewhere")


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is shown, but all of it must be fit to be: a terminal takes UTF-8."""
    with (
        redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")),
        redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")),
    ):
        yield


class _Hang(BaseException):
    """Raised in whatever is running when the time is over."""


@contextmanager
def watchdog(what: str) -> Iterator[None]:
    """Turn a hang and a flood of memory into failures; a hang in C ends the process, with its stack."""

    def strike(number: int, frame: Any) -> None:
        raise _Hang

    # By the time that it computes, which a busy machine does not lengthen; a mere wait is found later.
    wait_s = scale_timeout(LONG_S)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = {number: signal.signal(number, strike) for number in (signal.SIGPROF, signal.SIGALRM)}
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, hard))
    faulthandler.dump_traceback_later(2 * wait_s, exit=True, file=sys.__stderr__)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, wait_s)
    try:
        yield
    except _Hang as hang:
        raise AssertionError(f"{what} hangs") from hang
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_to_measure(*args: Any, **kwargs: Any) -> Any:
    raise UsageError("a plan that can't be read would be measured again here")
