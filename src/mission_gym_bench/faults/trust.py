"""Runs of strangers opened with every command, and `runs clean` on files that are not ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import yaml

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.harness import CommandResult, FaultCase, Harness, must

_COMMANDS = ("eval", "resume", "branch", "record", "train", "check")
_NOTHING_RUN = "the command ends with one message and executes no code named by the run"
_NOTHING_GONE = "only files of runs are written and deleted, no command of a stranger is run"
_WRITTEN = (
    ".lock", ".pins-lock", ".reserve", "metrics.jsonl", "progress.csv", "monitor.csv", "log.txt",
    "status.json", "pins.json", "env-output.txt", "eval", "tensorboard",
)  # fmt: skip
_CODE = """
import pathlib

pathlib.Path({canary!r}).touch()

import gymnasium as gym


def make(*args, **kwargs):
    pathlib.Path({canary!r}).touch()
    return gym.make("CartPole-v1")
"""


def make_trust_faults() -> Iterator[FaultCase]:
    """Yield every way to name code, for every command."""
    for way, plant in _WAYS.items():
        for command in _COMMANDS:
            inject = partial(_open, plant=plant, command=command)
            is_quick = way in ("the standard library", "code inside the run") and command in ("eval", "check")
            yield FaultCase("trust", f"{way}: {command}", _NOTHING_RUN, inject, quick=is_quick)
    for words in (("runs", "list"), ("runs", "show"), ("runs", "lineage"), ("config",)):
        inject = partial(_read, words=words)
        yield FaultCase("trust", f"{' '.join(words)} of a stranger's run", _NOTHING_RUN, inject)


def _plant_code(run: RunDir, canary: Path, folder: Path, section: str = "env", field: str = "env_id") -> None:
    """Write a module into a folder, and name it in the run."""
    folder.mkdir(exist_ok=True)
    (folder / "evil.py").write_text(_CODE.format(canary=str(canary)))
    lineage = json.loads(run.lineage_json.read_text())
    run.lineage_json.write_text(json.dumps(lineage | {"folder": str(folder)}))
    edit_values(run, section, **{field: "evil:make"})


def _plant_standard(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_id="subprocess:getoutput", env_kwargs={"cmd": f"touch {canary}"})


def _plant_system(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_id="os:system", env_kwargs={"command": f"touch {canary}"})


def _plant_wrapper(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", wrap=["subprocess:getoutput"], env_kwargs={"cmd": f"touch {canary}"})


def _plant_network(run: RunDir, canary: Path) -> None:
    _plant_code(run, canary, run.path, "policy", "network")


def _plant_dotted(run: RunDir, canary: Path) -> None:
    """Name code in the run through packages without __init__.py, from the folder above."""
    run.env.mkdir(exist_ok=True)
    (run.env / "evil.py").write_text(_CODE.format(canary=str(canary)))
    lineage = json.loads(run.lineage_json.read_text())
    run.lineage_json.write_text(json.dumps(lineage | {"folder": str(run.path.parent)}))
    edit_values(run, "env", env_id=f"{run.name}.env.evil:make")


def _plant_hazard(run: RunDir, canary: Path) -> None:
    """Name a class of the benchmarks, which starts a process and writes files."""
    hazard = {"kind": "background process", "once": str(canary)}
    edit_values(run, "env", env_id="mission_gym_bench.faults.hazard:Hazard", env_kwargs=hazard)


def _plant_recorder(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", wrap=[f"gymnasium.wrappers:RecordVideo({str(canary)!r})"])


def _plant_line_break(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_id=f"bridge:touch {canary}\nx")


def _plant_host(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_id="mission_gym/Explore-v0", env_kwargs={"served_at": "http://127.0.0.1:9/"})


def _plant_variable(run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_kwargs={"max_episode_steps": "env:PATH"})


def _plant_tracker(run: RunDir, canary: Path) -> None:
    edit_values(run, "run", track=["trackio"])


def _plant_yaml(run: RunDir, canary: Path) -> None:
    text = run.config_yaml.read_text()
    run.config_yaml.write_text(f"{text}\nevil: !!python/object/apply:os.system ['touch {canary}']\n")


_WAYS: dict[str, Callable[[RunDir, Path], None]] = {
    "the standard library": _plant_standard,
    "os.system": _plant_system,
    "code inside the run": lambda run, canary: _plant_code(run, canary, run.path),
    "code among the run's files": lambda run, canary: _plant_code(run, canary, run.env),
    "a folder of the stranger's": lambda run, canary: _plant_code(run, canary, canary.parent / "theirs"),
    "a dotted name into the run": _plant_dotted,
    "a class of the benchmarks": _plant_hazard,
    "a wrapper that writes files": _plant_recorder,
    "a name with a line break": _plant_line_break,
    "a host": _plant_host,
    "an environment variable": _plant_variable,
    "a tracker": _plant_tracker,
    "a wrapper": _plant_wrapper,
    "a network": _plant_network,
    "a yaml tag": _plant_yaml,
}


def _open(harness: Harness, plant: Callable[[RunDir, Path], None], command: str) -> None:
    run, canary = harness.copy_run(), harness.folder / "canary"
    plant(run, canary)
    ended = harness.run(*list_words(harness, run, command))
    must(not canary.exists(), "the stranger's code was executed")
    ended.expect(0, 2) if plant in (
        _plant_yaml,
        _plant_network,
        _plant_tracker,
        _plant_wrapper,
        _plant_recorder,
    ) else ended.expect(2)


def list_words(harness: Harness, run: RunDir, command: str) -> tuple[str, ...]:
    """Return the words of a command that opens a run."""
    where = ("--runs-dir", str(harness.runs_dir))
    match command:
        case "eval":
            return ("eval", str(run.path), "--episodes", "1")
        case "record":
            return ("record", str(run.path))
        case "resume":
            return ("resume", str(run.path), "--timesteps", "640")
        case "branch":
            return ("branch", str(run.path), "--timesteps", "640", *where)
        case "train":
            return ("train", "--config", str(run.config_yaml), *where)
        case _:
            return ("check", "--repro", str(_write_bundle(run)))


def _write_bundle(run: RunDir) -> Path:
    try:
        env = yaml.safe_load(run.config_yaml.read_text())["env"]
    except yaml.YAMLError:
        env = {"env_id": "CartPole-v1", "env_kwargs": {}, "wrap": []}
    bundle = run.path / "repro-env0-episode0.json"
    facts = {key: env[key] for key in ("env_id", "env_kwargs", "wrap")}
    bundle.write_text(json.dumps(facts | {"seed": 1, "actions": [0]}))
    return bundle


def _read(harness: Harness, words: tuple[str, ...]) -> None:
    run, canary = harness.copy_run(), harness.folder / "canary"
    _plant_standard(run, canary)
    target = ("--runs-dir", str(harness.runs_dir)) if words[-1] == "list" else (str(run.path),)
    ended = harness.run(*words, *target)
    must(not canary.exists(), "the stranger's code was executed")
    ended.expect(0)


def make_safety_faults() -> list[FaultCase]:
    """Return the faults about files that must not be deleted or opened."""
    table: dict[str, Callable[[Harness], None]] = {
        "runs clean on a project folder": _clean_project,
        "runs clean on a file of a project": _clean_file,
        "runs clean ./name": _clean_dotted,
        "runs clean on a run with a linked checkpoints folder": _clean_linked,
        "runs clean on a run that is a link": _clean_link,
        "runs clean on a run with foreign files": _clean_foreign,
        "runs clean on the runs folder": _clean_runs,
        "runs clean without names, next to a project": _clean_all,
        "files outside the run": partial(_leave, file="../../../secret.txt"),
        "files outside the run by a link": partial(_leave, file="link"),
        "values of a job file that look like flags": _trust_itself,
        "a changed journal of a group": _change_journal,
        "a status of 3 GB next to other runs": _grow_status,
        "a user without a home": _leave_home,
    }
    table |= {f"a link behind {name}": partial(_link, name=name) for name in _WRITTEN}
    return [
        FaultCase("data safety", name, _NOTHING_GONE, check, quick="link" not in name)
        for name, check in table.items()
    ]


def _make_project(folder: Path) -> Path:
    """Make a folder of the user's that happens to contain a config.yaml."""
    folder.mkdir()
    (folder / "config.yaml").write_text("mine: true\n")
    (folder / "thesis.txt").write_text("three years of work")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "weights.bin").write_text("mine")
    return folder / "thesis.txt"


def _clean(harness: Harness, *words: str) -> None:
    harness.run("runs", "clean", *words, "--yes", "--runs-dir", str(harness.runs_dir)).expect(0, 2, 3)


def _must_stay(*paths: Path) -> None:
    gone = [path.name for path in paths if not path.exists()]
    must(not gone, f"deleted: {gone}")


def _clean_project(harness: Harness) -> None:
    thesis = _make_project(harness.folder / "project")
    _clean(harness, str(thesis.parent))
    _must_stay(thesis, thesis.parent / "checkpoints" / "weights.bin")


def _clean_file(harness: Harness) -> None:
    thesis = _make_project(harness.folder / "project")
    _clean(harness, str(thesis))
    _clean(harness, str(thesis.parent / "config.yaml"))
    _must_stay(thesis)


def _clean_dotted(harness: Harness) -> None:
    """Clean with a run `vic-...` and a folder `vic` of the user's."""
    run = harness.copy_run("vic")
    thesis = _make_project(harness.here / "vic")
    _clean(harness, "./vic")
    _clean(harness, "vic")
    _must_stay(thesis)
    must(not run.path.exists() or bool(list(run.path.iterdir())), "the run is half deleted")


def _clean_linked(harness: Harness) -> None:
    run = harness.copy_run()
    elsewhere = harness.folder / "elsewhere"
    run.checkpoints.rename(elsewhere)
    run.checkpoints.symlink_to(elsewhere)
    (elsewhere / ".tmp-mine").mkdir()
    mine = elsewhere / ".tmp-mine" / "thesis.txt"
    mine.write_text("mine")
    harness.run("resume", str(run.path), "--timesteps", "640").expect(0, 2)
    before = set(elsewhere.rglob("*"))
    _clean(harness)
    _clean(harness, run.name)
    _must_stay(mine, *before)


def _clean_link(harness: Harness) -> None:
    thesis = _make_project(harness.folder / "project")
    for name in ("status.json", "config.yaml"):
        (thesis.parent / name).write_bytes((harness.copy_run_source() / name).read_bytes())
    (harness.runs_dir / "linked-20200101-000000").symlink_to(thesis.parent)
    _clean(harness, "linked")
    _must_stay(thesis)


def _clean_foreign(harness: Harness) -> None:
    run = harness.copy_run()
    mine = run.path / "thesis.txt"
    mine.write_text("mine")
    _clean(harness, run.name)
    _must_stay(mine)


def _clean_runs(harness: Harness) -> None:
    run = harness.copy_run()
    mine = harness.runs_dir / "notes.txt"
    mine.write_text("mine")
    _clean(harness, str(harness.runs_dir))
    _must_stay(mine, run.config_yaml)


def _clean_all(harness: Harness) -> None:
    harness.copy_run()
    thesis = _make_project(harness.runs_dir / "project")
    weights = thesis.parent / "checkpoints" / "step_000000000064"
    weights.mkdir()
    _clean(harness)
    _must_stay(thesis, weights)


def _leave(harness: Harness, file: str) -> None:
    run = harness.copy_run()
    secret = harness.folder / "secret.txt"
    secret.write_text("mine")
    run.env.mkdir(exist_ok=True)
    (run.env / "link").symlink_to(secret)
    (run.path / "env-files.json").write_text(json.dumps({"max_episode_steps": file}))
    for command in ("eval", "resume"):
        harness.run(*list_words(harness, run, command)).expect(2)
    _must_stay(secret)


def _link(harness: Harness, name: str) -> None:
    """Link a name that we write to a file or folder of the user's."""
    run, mine = harness.copy_run(), harness.folder / "mine"
    target = mine if name in ("eval", "tensorboard") else mine / "thesis.txt"
    mine.mkdir()
    if target != mine:
        target.write_text("three years of work")
    path = run.path / name
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)
    for command in ("eval", "record", "branch", "resume"):
        harness.run(*list_words(harness, run, command)).expect(0, 2)
    _clean(harness, run.name)
    found = {each.name: each.read_text() for each in mine.iterdir()}
    must(found == ({} if target == mine else {"thesis.txt": "three years of work"}), f"written: {found}")


def _trust_itself(harness: Harness) -> None:
    canary, file = harness.folder / "canary", harness.here / "gift.yaml"
    values = {"env": "--trust", "timesteps": 320, "set": [f"env.env_id=bridge:touch {canary}"]}
    for defaults in (values, {key: value for key, value in values.items() if key != "env"}):
        file.write_text(json.dumps({"defaults": defaults, "jobs": [{"name": "a", "retries": 0}]}))
        harness.run("jobs", "run", str(file), "--runs-dir", str(harness.runs_dir)).expect(2, 3)
        must(not canary.exists(), "the job file trusted itself")


def _change_journal(harness: Harness) -> None:
    canary, file, evil = harness.folder / "canary", harness.here / "mine.yaml", harness.folder / "evil.sh"
    file.write_text(json.dumps({"defaults": {"env": "CartPole-v1", "gamma": 2}, "jobs": [{"name": "a"}]}))
    harness.run("jobs", "run", str(file), "--runs-dir", str(harness.runs_dir)).expect(2)
    file.write_text(json.dumps({"defaults": {"env": "no_such_module:Env"}, "jobs": [{"name": "a"}]}))
    harness.run("jobs", "run", str(file), "--runs-dir", str(harness.runs_dir)).expect(2, 3)
    (journal,) = harness.runs_dir.glob("mine-*/journal.jsonl")
    evil.write_text(f"#!/bin/sh\ntouch {canary}\n")
    evil.chmod(0o755)
    row = json.loads(journal.read_text().splitlines()[0])
    row["job"] |= {"name": "b", "python": str(evil)}
    journal.write_text(f"{journal.read_text()}{json.dumps(row)}\n")
    harness.run("jobs", "resume", str(journal.parent)).expect(2)
    must(not canary.exists(), "a command of a changed journal was run")


def _grow_status(harness: Harness) -> None:
    other, huge = harness.copy_run("other"), harness.copy_run("huge")
    os.truncate(huge.status_json, 3 << 30)
    listed = harness.run("runs", "list", "--json", "--runs-dir", str(harness.runs_dir)).expect(0)
    must(other.name in listed.out, "the other run is not listed")


def _leave_home(harness: Harness) -> None:
    """Unset HOME for a user who is not in the list of users, as in some containers."""
    code = (
        "import os, pwd, sys\n"
        "def fail(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = fail\n"
        "for name in ('HOME', 'XDG_STATE_HOME', 'XDG_CACHE_HOME'): os.environ.pop(name, None)\n"
        "from mission_gym.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, "jobs", "status"]
    done = subprocess.run(argv, cwd=harness.here, capture_output=True, text=True, check=False)
    CommandResult(("jobs", "status"), done.returncode, done.stdout, done.stderr).expect(2, 3)


def edit_values(run: RunDir, section: str, **values: object) -> None:
    """Change values of config.yaml and of the config in each checkpoint, like a malicious stranger."""
    config = yaml.safe_load(run.config_yaml.read_text())
    config[section] |= values
    run.config_yaml.write_text(yaml.safe_dump(config))
    for state in run.checkpoints.glob("step_*/state.json"):
        document = json.loads(state.read_text())
        document["config"] |= {f"{section}.{name}": value for name, value in values.items()}
        state.write_text(json.dumps(document))
        sign(state)


def sign(file: Path) -> None:
    """Update the checksums of a checkpoint for one of its files and for its head."""
    meta = file.parent / "meta.json"
    head = json.loads(meta.read_bytes())
    if file.name in head["files"]:
        head["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    head.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    meta.write_text(json.dumps(head | {"sha256": digest}))
