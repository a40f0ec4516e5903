"""A stranger's run opened with every command, and `runs clean` on what is not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.forge import edit_values
from mission_gym_bench.faults.lab import Fault, Lab, must

_COMMANDS = ("eval", "resume", "branch", "record", "train", "check")
_NOTHING_RUN = "the command ends with one message, and nothing that the run names was executed"
_NOTHING_GONE = "no file that is not a run's own is deleted"
_CODE = """
import pathlib

pathlib.Path({canary!r}).touch()

import gymnasium as gym


def make(*args, **kwargs):
    pathlib.Path({canary!r}).touch()
    return gym.make("CartPole-v1")
"""


def make_trust_faults() -> list[Fault]:
    """Every way to name code, through every command."""
    faults = []
    for way, plant in _WAYS.items():
        for command in _COMMANDS:
            inject = partial(_open, plant=plant, command=command)
            is_quick = way in ("the standard library", "code inside the run") and command in ("eval", "check")
            faults.append(Fault("trust", f"{way}: {command}", _NOTHING_RUN, inject, quick=is_quick))
    for words in (("runs", "list"), ("runs", "show"), ("runs", "lineage"), ("config",)):
        inject = partial(_read, words=words)
        faults.append(Fault("trust", f"{' '.join(words)} of a stranger's run", _NOTHING_RUN, inject))
    return faults


def _set_folder(run: RunDir, folder: Path) -> None:
    lineage = json.loads(run.lineage_json.read_text())
    run.lineage_json.write_text(json.dumps(lineage | {"folder": str(folder)}))


def _plant_standard(lab: Lab, run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_id="subprocess:getoutput", env_kwargs={"cmd": f"touch {canary}"})


def _plant_system(lab: Lab, run: RunDir, canary: Path) -> None:
    edit_values(run, "env", env_id="os:system", env_kwargs={"command": f"touch {canary}"})


def _plant_inside(lab: Lab, run: RunDir, canary: Path) -> None:
    (run.path / "evil_inside.py").write_text(_CODE.format(canary=str(canary)))
    _set_folder(run, run.path)
    edit_values(run, "env", env_id="evil_inside:make")


def _plant_env(lab: Lab, run: RunDir, canary: Path) -> None:
    run.env.mkdir(exist_ok=True)
    (run.env / "evil_env.py").write_text(_CODE.format(canary=str(canary)))
    _set_folder(run, run.env)
    edit_values(run, "env", env_id="evil_env:make")


def _plant_folder(lab: Lab, run: RunDir, canary: Path) -> None:
    folder = lab.folder / "his"
    folder.mkdir()
    (folder / "evil_folder.py").write_text(_CODE.format(canary=str(canary)))
    _set_folder(run, folder)
    edit_values(run, "env", env_id="evil_folder:make")


def _plant_wrapper(lab: Lab, run: RunDir, canary: Path) -> None:
    edit_values(run, "env", wrap=["subprocess:getoutput"])
    edit_values(run, "env", env_kwargs={"cmd": f"touch {canary}"})


def _plant_network(lab: Lab, run: RunDir, canary: Path) -> None:
    (run.path / "evil_network.py").write_text(_CODE.format(canary=str(canary)))
    _set_folder(run, run.path)
    edit_values(run, "policy", network="evil_network:make")


def _plant_yaml(lab: Lab, run: RunDir, canary: Path) -> None:
    text = run.config_yaml.read_text()
    run.config_yaml.write_text(f"{text}\nevil: !!python/object/apply:os.system ['touch {canary}']\n")


_WAYS: dict[str, Callable[[Lab, RunDir, Path], None]] = {
    "the standard library": _plant_standard,
    "os.system": _plant_system,
    "code inside the run": _plant_inside,
    "code among the run's files": _plant_env,
    "a folder of his own": _plant_folder,
    "a wrapper": _plant_wrapper,
    "a network": _plant_network,
    "a yaml tag": _plant_yaml,
}


def _open(lab: Lab, plant: Callable[[Lab, RunDir, Path], None], command: str) -> None:
    run, canary = lab.copy_run(), lab.folder / "canary"
    plant(lab, run, canary)
    ended = lab.run(*_words(lab, run, command))
    must(not canary.exists(), "the stranger's code was executed")
    ended.expect(0, 2) if plant in (_plant_yaml, _plant_network, _plant_wrapper) else ended.expect(2)


def _words(lab: Lab, run: RunDir, command: str) -> tuple[str, ...]:
    where = ("--runs-dir", str(lab.runs_dir))
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


def _read(lab: Lab, words: tuple[str, ...]) -> None:
    run, canary = lab.copy_run(), lab.folder / "canary"
    _plant_standard(lab, run, canary)
    target = ("--runs-dir", str(lab.runs_dir)) if words[-1] == "list" else (str(run.path),)
    ended = lab.run(*words, *target)
    must(not canary.exists(), "the stranger's code was executed")
    ended.expect(0)


def make_safety_faults() -> list[Fault]:
    """What deleting and opening must leave alone."""
    table: dict[str, Callable[[Lab], None]] = {
        "runs clean on a project folder": _clean_project,
        "runs clean on a file of a project": _clean_file,
        "runs clean ./name": _clean_dotted,
        "runs clean on a run with a linked checkpoints folder": _clean_linked,
        "runs clean on a run that is a link": _clean_link,
        "runs clean on a run with foreign files": _clean_foreign,
        "runs clean on the runs folder": _clean_runs,
        "runs clean without names, beside a project": _clean_all,
        "files that leave the run": partial(_leave, file="../../../secret.txt"),
        "files that leave the run by a link": partial(_leave, file="link"),
    }
    return [
        Fault("data safety", name, _NOTHING_GONE, check, quick=not name.endswith("link"))
        for name, check in table.items()
    ]


def _make_project(folder: Path) -> Path:
    """A folder of the user's that happens to hold a config.yaml."""
    folder.mkdir()
    (folder / "config.yaml").write_text("mine: true\n")
    (folder / "thesis.txt").write_text("three years of work")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "weights.bin").write_text("mine")
    return folder / "thesis.txt"


def _clean(lab: Lab, *words: str) -> None:
    lab.run("runs", "clean", *words, "--yes", "--runs-dir", str(lab.runs_dir)).expect(0, 2, 3)


def _must_stay(*paths: Path) -> None:
    gone = [path.name for path in paths if not path.exists()]
    must(not gone, f"deleted: {gone}")


def _clean_project(lab: Lab) -> None:
    thesis = _make_project(lab.folder / "project")
    _clean(lab, str(thesis.parent))
    _must_stay(thesis, thesis.parent / "checkpoints" / "weights.bin")


def _clean_file(lab: Lab) -> None:
    thesis = _make_project(lab.folder / "project")
    _clean(lab, str(thesis))
    _clean(lab, str(thesis.parent / "config.yaml"))
    _must_stay(thesis)


def _clean_dotted(lab: Lab) -> None:
    """A run `vic-...` and a folder `vic` of the user's."""
    run = lab.copy_run("vic")
    thesis = _make_project(lab.here / "vic")
    _clean(lab, "./vic")
    _clean(lab, "vic")
    _must_stay(thesis)
    must(not run.path.exists() or bool(list(run.path.iterdir())), "the run is half deleted")


def _clean_linked(lab: Lab) -> None:
    run = lab.copy_run()
    elsewhere = lab.folder / "elsewhere"
    run.checkpoints.rename(elsewhere)
    run.checkpoints.symlink_to(elsewhere)
    (elsewhere / ".tmp-mine").mkdir()
    mine = elsewhere / ".tmp-mine" / "thesis.txt"
    mine.write_text("mine")
    lab.run("resume", str(run.path), "--timesteps", "640").expect(0, 2)
    before = set(elsewhere.rglob("*"))
    _clean(lab)
    _clean(lab, run.name)
    _must_stay(mine, *before)


def _clean_link(lab: Lab) -> None:
    thesis = _make_project(lab.folder / "project")
    for name in ("status.json", "config.yaml"):
        (thesis.parent / name).write_bytes((lab.copy_run_source() / name).read_bytes())
    (lab.runs_dir / "linked-20200101-000000").symlink_to(thesis.parent)
    _clean(lab, "linked")
    _must_stay(thesis)


def _clean_foreign(lab: Lab) -> None:
    run = lab.copy_run()
    mine = run.path / "thesis.txt"
    mine.write_text("mine")
    _clean(lab, run.name)
    _must_stay(mine)


def _clean_runs(lab: Lab) -> None:
    run = lab.copy_run()
    mine = lab.runs_dir / "notes.txt"
    mine.write_text("mine")
    _clean(lab, str(lab.runs_dir))
    _must_stay(mine, run.config_yaml)


def _clean_all(lab: Lab) -> None:
    lab.copy_run()
    thesis = _make_project(lab.runs_dir / "project")
    weights = thesis.parent / "checkpoints" / "step_000000000064"
    weights.mkdir()
    _clean(lab)
    _must_stay(thesis, weights)


def _leave(lab: Lab, file: str) -> None:
    run = lab.copy_run()
    secret = lab.folder / "secret.txt"
    secret.write_text("mine")
    run.env.mkdir(exist_ok=True)
    (run.env / "link").symlink_to(secret)
    (run.path / "env-files.json").write_text(json.dumps({"max_episode_steps": file}))
    for command in ("eval", "resume"):
        lab.run(*_words(lab, run, command)).expect(2)
    _must_stay(secret)
