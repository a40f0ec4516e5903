"""Damaged, missing and circular files of a run: a message or an older checkpoint, never wrong data."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.rundir import RunDir
from mission_gym_bench.faults.harness import FaultCase, Harness, must, must_equal

_CHECKPOINT = ("policy.safetensors", "state.safetensors", "state.json", "meta.json")
_FILES = (
    "status.json",
    "lineage.json",
    "config.yaml",
    "metrics.jsonl",
    "plan.json",
    "pins.json",
    "progress.csv",
    "monitor.csv",
    "eval",
)
_LONGER = "640"  # timesteps of resumed runs
_LOADED = (
    "the damage is detected; an older checkpoint leads to the same bits, or one message names the problem"
)
_READ = "every command ends with a result or one message; the other run is unaffected"
_NOT_EXACT = "the resume is refused, or not reported as exact"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    rng = random.Random(path.name)
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def _truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _nest(path: Path) -> None:
    path.write_text("[" * 100_000)


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "bits flipped": _flip,
    "truncated": _truncate,
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "null": lambda path: path.write_text("null"),
    "a list": lambda path: path.write_text("[1, 2]"),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00" * 50),
    "nested without end": _nest,
    "a dangling link": _link,
}
_QUICK = {("policy.safetensors", "bits flipped"), ("meta.json", "truncated"), ("status.json", "null")}
_QUICK |= {("lineage.json", "a list"), ("config.yaml", "truncated"), ("metrics.jsonl", "bits flipped")}
_QUICK |= {("eval", "null"), ("plan.json", "missing")}


def make_file_faults() -> Iterator[FaultCase]:
    """Yield every damage to every file, and malicious or accidental changes of a run's folder."""
    for file in (*_CHECKPOINT, *_FILES):
        is_checkpoint = file in _CHECKPOINT
        for damage in _DAMAGES:
            inject = partial(_damage_checkpoint if is_checkpoint else _damage_file, file=file, damage=damage)
            holds, is_quick = _LOADED if is_checkpoint else _READ, (file, damage) in _QUICK
            yield FaultCase("files", f"{file}: {damage}", holds, inject, is_quick)
    others: dict[str, tuple[str, Callable[[Harness], None]]] = {
        "lineage in a circle": (_READ, _circle),
        "yaml aliases that grow": (_READ, _alias),
        "yaml nested without end": (_READ, _deep_yaml),
        "linked checkpoints folder": (_READ, partial(_linked, name="checkpoints")),
        "linked eval folder": (_READ, partial(_linked, name="eval")),
        "a folder in place of status.json": (_READ, partial(_foldered, name="status.json")),
        "a folder in place of config.yaml": (_READ, partial(_foldered, name="config.yaml")),
        "gamma altered before a resume": (_NOT_EXACT, partial(_alter, field="gamma", value="0.11")),
        "rate altered before a resume": (_NOT_EXACT, partial(_alter, field="learning_rate", value="0.5")),
        "pickle in a checkpoint": (_LOADED, _pickle),
    }
    quick = ("lineage in a circle", "yaml aliases that grow", "gamma altered before a resume")
    for name, (holds, check) in others.items():
        yield FaultCase("files", name, holds, check, quick=name in quick)


def _straight(harness: Harness) -> RunDir:
    def make() -> Path:
        inner = harness.inner("straight")
        run = inner.copy_run()
        inner.run("resume", str(run.path), "--timesteps", _LONGER).expect(0)
        return run.path

    harness.copy_run_source()
    return RunDir(harness.run_cache.get("longer", make))


def _damage_checkpoint(harness: Harness, file: str, damage: str) -> None:
    run = harness.copy_run()
    newest = list_checkpoints(run.checkpoints)[-1].path
    _DAMAGES[damage](newest / file)
    _must_not_load_wrong(harness, run)


def _must_not_load_wrong(harness: Harness, run: RunDir) -> None:
    straight = _straight(harness)
    ended = harness.run("resume", str(run.path), "--timesteps", _LONGER).expect(0, 2)
    if ended.code == 0:
        must("not usable" in ended.err, "the damaged checkpoint was loaded silently")
        must_equal(run, straight)
    harness.run("eval", str(run.path), "--episodes", "1").expect(0, 2)


def _pickle(harness: Harness) -> None:
    run = harness.copy_run()
    (list_checkpoints(run.checkpoints)[-1].path / "policy.pt").write_bytes(b"\x80\x04.")
    _must_not_load_wrong(harness, run)


def _damage_file(harness: Harness, file: str, damage: str) -> None:
    run = harness.copy_run()
    path = run.path / file
    if file == "eval":
        path = sorted(path.glob("*.json"))[-1]
    if file == "pins.json":
        path.write_text(json.dumps({"64": ["some-child"]}))
    _DAMAGES[damage](path)
    _must_survive_commands(harness, run)


def _must_survive_commands(harness: Harness, run: RunDir) -> None:
    """Every command on the run must end with a result or a message, and another run must still be found by
    name."""
    other = harness.runs_dir / "other-20200102-000000"
    shutil.copytree(harness.copy_run_source(), other)
    where = ("--runs-dir", str(harness.runs_dir))
    listed = harness.run("runs", "list", "--json", *where).expect(0)
    must(other.name in listed.out, "`runs list` does not show the other run")
    harness.run("runs", "show", "other", *where).expect(0)
    for words in (
        ("runs", "show", str(run.path)),
        ("runs", "lineage", str(run.path), *where),
        ("runs", "lineage", str(other), *where),
        ("runs", "timeline", str(run.path)),
        ("runs", "compare", str(run.path), str(other)),
        ("runs", "clean", *where),
        ("config", str(run.path)),
        ("eval", str(run.path), "--episodes", "1"),
        ("resume", str(run.path), "--timesteps", _LONGER),
    ):
        harness.run(*words).expect(0, 2)


def _circle(harness: Harness) -> None:
    runs = [harness.copy_run(), harness.copy_run("second")]
    for run, parent in zip(runs, reversed(runs), strict=True):
        lineage = json.loads(run.lineage_json.read_text())
        lineage |= {"parent": parent.name, "parent_path": str(parent.path), "parent_step": 64}
        run.lineage_json.write_text(json.dumps(lineage))
        run.pins_json.write_text(json.dumps({"64": [parent.name]}))
    _must_survive_commands(harness, runs[0])


def _alias(harness: Harness) -> None:
    run = harness.copy_run()
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 12):
        lines.append(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]")
    run.config_yaml.write_text("\n".join([*lines, "env: *a11", ""]))
    _must_survive_commands(harness, run)


def _deep_yaml(harness: Harness) -> None:
    run = harness.copy_run()
    run.config_yaml.write_text("env: " + "[" * 5000 + "]" * 5000)
    _must_survive_commands(harness, run)


def _linked(harness: Harness, name: str) -> None:
    run = harness.copy_run()
    elsewhere = harness.folder / "elsewhere"
    (run.path / name).rename(elsewhere)
    (run.path / name).symlink_to(elsewhere)
    (elsewhere / ".tmp-mine").mkdir()
    (elsewhere / ".tmp-mine" / "thesis.txt").write_text("mine")
    _must_survive_commands(harness, run)
    must((elsewhere / ".tmp-mine" / "thesis.txt").exists(), "a file behind a link was deleted")


def _foldered(harness: Harness, name: str) -> None:
    run = harness.copy_run()
    (run.path / name).unlink()
    (run.path / name).mkdir()
    _must_survive_commands(harness, run)


def _alter(harness: Harness, field: str, value: str) -> None:
    run = harness.copy_run()
    text, changed = re.subn(
        rf"^( +{field}): [\d.]+$", rf"\1: {value}", run.config_yaml.read_text(), flags=re.MULTILINE
    )
    must(changed == 1, f"{field} is in the config {changed} times")
    run.config_yaml.write_text(text)
    ended = harness.run("resume", str(run.path), "--timesteps", _LONGER).expect(0, 2)
    must("the resume is exact" not in ended.err, "the resume was reported as exact")
