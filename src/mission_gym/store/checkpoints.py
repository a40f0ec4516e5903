"""Checkpoints: a folder per step, committed by one rename, verified before anything in it is parsed.

In and out go dictionaries of NumPy arrays (`policy`, `state`) and JSON values. `.tmp-*` is a folder
being written or removed; `.old-*` is the one being superseded, which counts until its successor is
there. So a kill at any moment leaves every committed checkpoint loadable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from mission_gym.data import Array
from mission_gym.errors import RunStateError
from mission_gym.store.arrays import parse_arrays, read_arrays, write_arrays
from mission_gym.store.checked import Count, Record, check
from mission_gym.store.files import (
    TEMPORARY,
    disk_errors,
    plain,
    read_json,
    remove_leftovers,
    sync_folder,
    write_atomic,
    write_synced,
)

FORMAT = 1
_OLD = ".old-"
_NAME = re.compile(rf"(?:{re.escape(_OLD)})?step_(\d{{12,}})")
_META = "meta.json"
_POLICY, _STATE, _STATE_JSON = "policy.safetensors", "state.safetensors", "state.json"
_CONTENT = (_POLICY, _STATE, _STATE_JSON)
_REPLAY = "replay.safetensors"  # of the last checkpoint alone
FILES = (*_CONTENT, _META, _REPLAY, f"{TEMPORARY}{_META}-*")  # all that we write into one
_LEFT = re.compile(rf"{re.escape(TEMPORARY)}(gone-)?{_NAME.pattern}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint in memory. `meta` is what the run said about it (score, config hash, ...)."""

    step: int
    path: Path
    policy: dict[str, Array]
    state: dict[str, Array]
    state_json: dict[str, Any]
    meta: dict[str, Any]


class CheckpointInfo(NamedTuple):
    """A committed checkpoint on disk; `meta` is empty where it can't be read."""

    step: int
    path: Path
    size_bytes: int
    meta: dict[str, Any]


def step_name(step: int) -> str:
    """The name of a step in folders and files; sorts like the step."""
    return f"step_{step:012d}"


def step_of(path: Path) -> int | None:
    """The step of a checkpoint folder, None if `path` is not named like one."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    policy: dict[str, Array],
    state: dict[str, Array],
    state_json: dict[str, Any],
    meta: dict[str, Any],
    replay: dict[str, Array] | None = None,
) -> Path:
    """Commit a checkpoint and return its folder; one at the same step is superseded. DiskError.

    A `replay` is kept once: those of older checkpoints are dropped after the commit.
    """
    # NaN and infinity stay in state.json as Python writes them: resume is exact.
    counters = json.dumps(state_json).encode()
    files = {_STATE_JSON: hashlib.sha256(counters).hexdigest()}
    head = {"format": FORMAT, "step": step, "files": files, "meta": plain(meta)}
    final, temporary = folder / step_name(step), folder / f"{TEMPORARY}{step_name(step)}"
    with disk_errors(final):
        folder.mkdir(exist_ok=True)
        recover(folder)
        try:
            temporary.mkdir(exist_ok=True)
            write_synced(temporary / _STATE_JSON, counters)
            named = {_POLICY: policy, _STATE: state} | ({_REPLAY: replay} if replay else {})
            for name, arrays in named.items():
                files[name] = write_arrays(temporary / name, arrays)
            write_synced(temporary / _META, _sign(head))
            sync_folder(temporary)
            if final.exists():
                final.rename(folder / f"{_OLD}{final.name}")
            temporary.rename(final)
            sync_folder(folder)
        finally:
            recover(folder)
        if replay:
            for path in folder.glob(f"step_*/{_REPLAY}"):
                if path.parent != final:
                    _drop_replay(path)
    return final


def _drop_replay(path: Path) -> None:
    """Make a checkpoint one without replay; a kill in between leaves a file that counts for nothing."""
    try:
        head = _read_head(path.parent / _META)
    except RunStateError:  # loading it says what is wrong
        head = {"files": {}}
    if head["files"].pop(_REPLAY, None) is not None:
        write_atomic(path.parent / _META, _sign(head))
    path.unlink()


def recover(folder: Path) -> None:
    """Put the checkpoints in order after a kill: superseded ones without successor back, leftovers away."""
    if not folder.is_dir():
        return
    with disk_errors(folder):
        for old in folder.glob(f"{_OLD}step_*"):
            final = folder / old.name.removeprefix(_OLD)
            if final.exists():
                delete_checkpoint(old)
            else:
                old.rename(final)
        for temporary in folder.glob(f"{TEMPORARY}*step_*"):
            if _LEFT.fullmatch(temporary.name):
                _remove(temporary)
        for committed in folder.glob("step_*"):  # whose head was being written anew
            remove_leftovers(committed, (_META,))


def delete_checkpoint(path: Path) -> None:
    """Remove a checkpoint, unless it is a link; a kill on the way leaves all of it or none."""
    if path.is_symlink():
        return
    doomed = path.with_name(f"{TEMPORARY}gone-{path.name}")
    with disk_errors(path):
        _remove(doomed)
        path.rename(doomed)
    _remove(doomed)


def _remove(folder: Path) -> None:
    """Delete our files in the folder of a checkpoint, and the folder itself if nothing else is in it."""
    if folder.is_symlink():
        return
    with suppress(OSError):
        for path in [path for name in FILES for path in folder.glob(name)]:
            path.unlink()
        folder.rmdir()


def list_checkpoints(folder: Path) -> list[CheckpointInfo]:
    """The committed checkpoints by step, with the superseded ones that have no successor yet."""
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("*step_*")):  # ".old-" sorts before "step_", which wins
        step = step_of(path)
        if step is not None and path.is_dir():
            found[step] = path
    infos = [_describe(step, path) for step, path in sorted(found.items())]
    return [info for info in infos if info is not None]


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify every file of a checkpoint, then read it; RunStateError names the file that is wrong."""
    try:
        names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise RunStateError(f"can't read checkpoint {path}: {error.strerror or error}") from error
    foreign = sorted(names - {*FILES})
    if foreign:
        raise RunStateError(
            f"{path / foreign[0]} does not belong in a checkpoint ({', '.join((*_CONTENT, _META))}); "
            f"such a file (a pickle, a .pt) is never loaded; nothing was run; remove it to use the rest"
        )
    head = _read_head(path / _META)
    content = {name: _verify(path / name, head["files"].get(name)).read_bytes() for name in _CONTENT}
    return Checkpoint(
        step=head["step"],
        path=path,
        policy=_parse(path / _POLICY, content[_POLICY], parse_arrays),
        state=_parse(path / _STATE, content[_STATE], parse_arrays),
        state_json=_parse(path / _STATE_JSON, content[_STATE_JSON], json.loads),
        meta=head["meta"],
    )


def load_replay(checkpoint: Checkpoint) -> dict[str, Array] | None:
    """The replay of a checkpoint, verified; None if it was saved without one."""
    expected = _read_head(checkpoint.path / _META)["files"].get(_REPLAY)
    return None if expected is None else read_arrays(_verify(checkpoint.path / _REPLAY, expected))


def load_last_good(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that verifies, and a note for each newer one that does not."""
    notes: list[str] = []
    for info in reversed(list_checkpoints(folder)):
        try:
            checkpoint = load_checkpoint(info.path)
        except RunStateError as error:
            notes.append(f"checkpoint {info.step} is not usable: {error}")
            continue
        if notes:
            notes.append(f"using checkpoint {info.step} instead")
        return checkpoint, notes
    raise RunStateError("\n".join([f"{folder} holds no checkpoint that can be loaded", *notes]))


def _sign(head: dict[str, Any]) -> bytes:
    return json.dumps({**head, "sha256": _digest(head)}, indent=2).encode()


def _digest(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def _describe(step: int, path: Path) -> CheckpointInfo | None:
    try:
        size_bytes = sum(entry.lstat().st_size for entry in path.iterdir())
    except FileNotFoundError:  # the run that writes it has just deleted it
        return None
    try:
        return CheckpointInfo(step, path, size_bytes, _read_head(path / _META)["meta"])
    except RunStateError:
        return CheckpointInfo(step, path, size_bytes, {})  # loading it says what is wrong


class _Meta(Record):
    score: float | None = None
    update: Count = 0


class _Head(Record):
    step: Count
    files: dict[str, str]
    meta: _Meta


_HEAD = TypeAdapter(_Head)


def _read_head(path: Path) -> dict[str, Any]:
    head = read_json(path)
    form = head.get("format") if isinstance(head, dict) else None
    if form != FORMAT:
        raise RunStateError(f"{path} has format {form!r}; this version reads {FORMAT}; upgrade mission-gym")
    if head.pop("sha256", None) != _digest(head):
        raise RunStateError(f"{path} is truncated or altered: its checksum does not fit")
    return check(path, head, _HEAD).model_dump(exclude_unset=True)


def _verify(path: Path, expected: str | None) -> Path:
    """The path of a file that has this checksum; read in pieces, as a replay may be large."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunStateError(f"{path} is missing or unreadable: {error.strerror or error}") from error
    if digest != expected:
        raise RunStateError(f"{path} is truncated or altered: its checksum does not fit meta.json")
    return path


def _parse(path: Path, data: bytes, parser: Callable[[bytes], _T]) -> _T:
    try:
        return parser(data)
    except (ValueError, RecursionError) as error:
        raise RunStateError(
            f"{path} is not what its name says ({error}); a pickle is never loaded; nothing was run"
        ) from error
