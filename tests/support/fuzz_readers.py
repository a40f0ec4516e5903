"""Who reads which file. A reader gets the folder that holds all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym.cli.train import parse_train, resolve_flags
from mission_gym.errors import TrustError, UsageError
from mission_gym.fleet.sweep.study import Study
from mission_gym.plan import cache
from mission_gym.run import preview
from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.start import start_run
from mission_gym.store import trusted
from mission_gym.store.rundir import RunDir
from mission_gym.store.sweeps import Axis
from mission_gym_missions.capture.scenario import load_scenario
from mission_gym_missions.placement.rules import load_mission

PLANNED = "CartPole-v1"  # whose plan is kept
SEARCHED = [
    Axis(path="ppo.gamma", low=0.9, high=0.99, scale="gap"),
    Axis(path="policy.activation", choices=["tanh", "relu"]),
]


def _command(*args: str, view: bool = True) -> Callable[[Path], None]:
    """A command, as a view and as JSON; each gives a result or one message."""

    def read(home: Path) -> None:
        where = [arg.format(home=home) for arg in args]
        for form in ([], ["--json"]) if view else ([],):
            sys.stderr.flush()
            start = sys.stderr.buffer.tell()
            code = main([*where, *form])
            sys.stderr.flush()
            told = sys.stderr.buffer.getvalue()[start:].decode()
            messages = [line for line in told.splitlines() if line.startswith("mission-gym: ")]
            assert code in (0, 2, 3), (code, told)
            assert len(messages) == (code != 0) or args[0] == "check", told
            sys.stdout.flush()
            if code == 2:
                raise UsageError(told)

    return read


def _resume(run: str) -> Callable[[Path], None]:
    def read(home: Path) -> None:
        with resume_run(RunDir(home / "runs" / run), lambda event: None):
            pass

    return read


def _train(home: Path) -> None:
    args = ["--config", str(home / "given.yaml"), "--no-tune", "--runs-dir", str(home / "new")]
    resolved = resolve_flags(parse_train(args))
    if resolved.config.vector.vector in ("auto", "serial", "batched"):  # no processes
        with start_run(resolved, lambda event: None):
            pass


def resolve_planned(home: Path) -> Any:
    return resolve(PLANNED, {"timesteps": 50_000_000, "runs_dir": str(home / "new"), "tensorboard": False})


def _advise(home: Path) -> None:
    preview.advise(resolve_planned(home), 0.1, lambda text: None)


def _start_planned(home: Path) -> None:
    with start_run(resolve_planned(home), lambda event: None):
        pass


def _note_rate(home: Path) -> None:
    cache.note_rate("plan", 1000.0)


def _permit(home: Path) -> None:
    trusted.allow("toys:other in /somewhere")
    trusted.permit(["toys:Identity"])
    with pytest.raises(TrustError):
        trusted.permit(["trap:Env"], folder=str(home.parent / "elsewhere"))


def _load_level(home: Path) -> None:
    load_scenario("normal", home / "levels")


def _load_rules(home: Path) -> None:
    load_mission(4, 2, 4, "random", home / "rules.yaml")


def _open_study(home: Path) -> None:
    Study(home / "runs" / "search", "search", SEARCHED, 0).draw(9)


RUNS_DIR = ("--runs-dir", "{home}/runs")
READERS: dict[str, Callable[[Path], None]] = {
    "list": _command("runs", "list", *RUNS_DIR),
    "show": _command("runs", "show", "parent", *RUNS_DIR),
    "compare": _command("runs", "compare", "parent", "child", *RUNS_DIR),
    "compare groups": _command("runs", "compare", "pack", "child", *RUNS_DIR),
    "status": _command("jobs", "status", "pack", *RUNS_DIR),
    "show sweep": _command("sweep", "show", "search", *RUNS_DIR),
    "compare sweeps": _command("runs", "compare", "search", "child", *RUNS_DIR),
    "study": _open_study,
    "check jobs": _command("jobs", "check", "{home}/jobs.yaml"),
    "lineage": _command("runs", "lineage", "parent", *RUNS_DIR),
    "descent": _command("runs", "lineage", "child", *RUNS_DIR),
    "timeline": _command("runs", "timeline", "parent", *RUNS_DIR),
    "clean": _command("runs", "clean", *RUNS_DIR),
    "remove": _command("runs", "clean", "parent", *RUNS_DIR),
    "config": _command("config", "parent", *RUNS_DIR),
    "eval": _command("eval", "parent", "--episodes", "1", *RUNS_DIR, view=False),
    "repro": _command("check", "--repro", "{home}/runs/parent/repro-env0-episode0.json", view=False),
    "load": lambda home: mg.load(home / "runs" / "parent") and None,
    "resume": _resume("parent"),
    "resume other": _resume("other"),
    "train": _train,
    "advise": _advise,
    "start planned": _start_planned,
    "note rate": _note_rate,
    "permit": _permit,
    "level": _load_level,
    "rules": _load_rules,
}
LISTS = ("list", "show", "compare", "lineage", "descent", "clean", "remove")
OPENS = ("eval", "load", "resume")
FAR_READERS = (*OPENS, "lineage", "descent", "train", "repro")  # that import code, or go to other runs


class Kind(NamedTuple):
    """A file that is damaged, and who reads it. signed: checksums are made to fit again."""

    name: str
    path: str
    form: str
    readers: tuple[str, ...]
    signed: bool = False
    num_examples: int = 10


PARENT, LAST = "runs/parent", "runs/parent/checkpoints/step_000000000128"
OTHER_LAST = "runs/other/checkpoints/step_000000000064"
KINDS = (
    Kind("status", f"{PARENT}/status.json", "json", (*LISTS, *OPENS, "config")),
    Kind("lineage", f"{PARENT}/lineage.json", "json", (*LISTS, *OPENS)),
    Kind("config", f"{PARENT}/config.yaml", "yaml", (*LISTS, *OPENS, "config"), num_examples=24),
    Kind("group", "runs/pack/group.json", "json", ("compare groups", "status")),
    Kind("journal", "runs/pack/journal.jsonl", "lines", ("status",)),
    Kind("sweep", "runs/search/sweep.json", "json", ("show sweep", "compare sweeps")),
    Kind("study", "runs/search/study.log", "lines", ("study",)),
    Kind("job file", "jobs.yaml", "yaml", ("check jobs",), num_examples=16),
    Kind("config file", "given.yaml", "yaml", ("train",), num_examples=10),
    Kind("metrics", f"{PARENT}/metrics.jsonl", "lines", ("timeline", "show", "resume")),
    Kind("evaluation", f"{PARENT}/eval/step_000000000128-select.json", "json", (*LISTS, *OPENS)),
    Kind("confirmation", f"{PARENT}/eval/step_000000000128-confirm.json", "json", (*LISTS, *OPENS)),
    Kind("pins", f"{PARENT}/pins.json", "json", ("clean", "remove", "lineage", "show")),
    Kind("plan", f"{PARENT}/plan.json", "json", ("show", "resume")),
    Kind("environment files", f"{PARENT}/env-files.json", "json", OPENS),
    Kind("environment rules", f"{PARENT}/env/rules.yaml", "yaml", OPENS, num_examples=6),
    Kind("checkpoint head", f"{LAST}/meta.json", "json", (*LISTS, *OPENS)),
    Kind("checkpoint head, signed", f"{LAST}/meta.json", "json", (*LISTS, *OPENS), signed=True),
    Kind("checkpoint counters", f"{LAST}/state.json", "json", OPENS, num_examples=6),
    Kind("checkpoint counters, signed", f"{LAST}/state.json", "json", ("resume",), signed=True),
    Kind("checkpoint policy", f"{LAST}/policy.safetensors", "arrays", OPENS, num_examples=6),
    Kind("checkpoint policy, signed", f"{LAST}/policy.safetensors", "arrays", OPENS, signed=True),
    Kind("checkpoint state, signed", f"{LAST}/state.safetensors", "arrays", ("resume",), signed=True),
    Kind("replay", f"{OTHER_LAST}/replay.safetensors", "arrays", ("resume other",), num_examples=4),
    Kind("replay, signed", f"{OTHER_LAST}/replay.safetensors", "arrays", ("resume other",), signed=True),
    Kind("bundle", f"{PARENT}/repro-env0-episode0.json", "json", ("repro",), num_examples=8),
    Kind("kept plan", "user/mission-gym/plans/plan.json", "json", ("advise", "start planned", "note rate")),
    Kind("trusted", "user/mission-gym/trusted", "text", ("permit", "train"), num_examples=6),
    Kind("level", "levels/normal.yaml", "yaml", ("level",), num_examples=16),
    Kind("units", "levels/units.yaml", "yaml", ("level",)),
    Kind("reward", "levels/reward.yaml", "yaml", ("level",)),
    Kind("rules", "rules.yaml", "yaml", ("rules",)),
)
