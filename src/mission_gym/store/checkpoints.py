"""Checkpoints: one folder per step, committed by one rename and verified before it is parsed.

They hold dictionaries of NumPy arrays (`policy`, `state`) and JSON values. `.tmp-*` is a folder that is being
written or removed. `.old-*` is a folder that is being replaced; it counts until its successor exists. A kill
at any moment therefore leaves every committed checkpoint loadable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import TypeAdapter

from mission_gym.data import Array
from mission_gym.errors import RunStateError
from mission_gym.store.files import (
    TEMPORARY,
    Count,
    Record,
    disk_errors,
    open_plain,
    read_json,
    remove_leftovers,
    sync_folder,
    to_json,
    validate,
    write_atomic,
    write_synced,
)

FORMAT = 1
_OLD = ".old-"
_NAME = re.compile(rf"(?:{re.escape(_OLD)})?step_(\d{{12,}})")
_META = "meta.json"
_POLICY, _STATE, _STATE_JSON = "policy.safetensors", "state.safetensors", "state.json"
_CONTENT = (_POLICY, _STATE, _STATE_JSON)
_REPLAY = "replay.safetensors"  # only in the last checkpoint
FILES = (*_CONTENT, _META, _REPLAY, f"{TEMPORARY}{_META}-*")  # everything that we write into a checkpoint
_UNCOMMITTED = re.compile(rf"{re.escape(TEMPORARY)}(gone-)?{_NAME.pattern}")
_T = TypeVar("_T")
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint in memory. `meta` is the run's description of it (score, update, ...)."""

    step: int
    path: Path
    policy: dict[str, Array]
    state: dict[str, Array]
    state_json: dict[str, Any]
    meta: dict[str, Any]


class CheckpointInfo(NamedTuple):
    """A committed checkpoint on disk; `meta` is empty if it can't be read."""

    step: int
    path: Path
    size_bytes: int
    meta: dict[str, Any]


class _Meta(Record):
    score: float | None = None
    update: Count = 0


class _CheckpointHead(Record):
    step: Count
    files: dict[str, str]  # name -> SHA-256
    meta: _Meta


_HEAD = TypeAdapter(_CheckpointHead)


def step_name(step: int) -> str:
    """Return the name of a step in folders and files; names sort like steps."""
    return f"step_{step:012d}"


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint folder, None if `path` is not named like one."""
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
    """Commit a checkpoint and return its folder; one at the same step is replaced. DiskError.

    A `replay` is stored once: older checkpoints lose theirs after the commit.
    """
    # state.json keeps NaN and infinity as Python writes them, because resume is exact.
    counters = json.dumps(state_json).encode()
    files = {_STATE_JSON: hashlib.sha256(counters).hexdigest()}
    head = {"format": FORMAT, "step": step, "files": files, "meta": to_json(meta)}
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
    """Remove a replay from its checkpoint's head, then from the disk; a kill leaves at most an unused
    file."""
    try:
        head = _read_head(path.parent / _META)
    except RunStateError:  # loading the checkpoint reports it
        head = {"files": {}}
    if head["files"].pop(_REPLAY, None) is not None:
        write_atomic(path.parent / _META, _sign(head))
    path.unlink()


def recover(folder: Path) -> None:
    """Repair the folder after a kill: restore replaced checkpoints without a successor, remove leftovers."""
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
            if _UNCOMMITTED.fullmatch(temporary.name):
                _remove(temporary)
        for committed in folder.glob("step_*"):  # its head was being replaced
            remove_leftovers(committed, (_META,))


def delete_checkpoint(path: Path) -> None:
    """Remove a checkpoint, unless it is a symbolic link; after a kill it is whole or gone."""
    if path.is_symlink():
        return
    renamed = path.with_name(f"{TEMPORARY}gone-{path.name}")
    with disk_errors(path):
        _remove(renamed)
        path.rename(renamed)
    _remove(renamed)


def _remove(folder: Path) -> None:
    """Delete our files in a checkpoint's folder, then the folder if it is empty."""
    if folder.is_symlink():
        return
    with suppress(OSError):
        for path in [path for name in FILES for path in folder.glob(name)]:
            path.unlink()
        folder.rmdir()


def list_checkpoints(folder: Path) -> list[CheckpointInfo]:
    """List the committed checkpoints by step, including replaced ones that have no successor yet."""
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("*step_*")):  # ".old-" sorts before "step_", which wins
        step = step_of(path)
        if step is not None and path.is_dir():
            found[step] = path
    infos = []
    for step, path in sorted(found.items()):
        with suppress(FileNotFoundError):  # the run that writes it has just deleted it
            size_bytes = sum(entry.lstat().st_size for entry in path.iterdir())
            meta: dict[str, Any] = {}
            with suppress(RunStateError):  # loading the checkpoint reports it
                meta = _read_head(path / _META)["meta"]
            infos.append(CheckpointInfo(step, path, size_bytes, meta))
    return infos


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify every file of a checkpoint, then read it; RunStateError names the wrong file."""
    try:
        names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise RunStateError(f"can't read checkpoint {path}: {error.strerror or error}") from error
    if foreign := sorted(names - {*FILES}):
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
    """Verify and read a checkpoint's replay; None if it was saved without one."""
    expected = _read_head(checkpoint.path / _META)["files"].get(_REPLAY)
    return None if expected is None else read_arrays(_verify(checkpoint.path / _REPLAY, expected))


def load_last_good(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Load the newest checkpoint that verifies; also return a note for each newer one that does not."""
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


def plan_retention(
    infos: Sequence[CheckpointInfo],
    *,
    keep_last: int,
    keep_best: int,
    budget_bytes: int | None,
    pinned: Collection[int],
) -> list[int]:
    """Choose the steps to delete: all but the last, the best, the log-spaced and the pinned.

    Log-spaced is the first of each power of two, a choice that does not change as a run grows. Above the
    budget the log-spaced ones go first, then the others, oldest first, but never the last one, the best one
    (`meta["score"]`, ties to the later) or a pinned one.
    """
    steps = sorted(info.step for info in infos)
    scores = {info.step: info.meta["score"] for info in infos if info.meta.get("score") is not None}
    last = steps[-max(keep_last, 1) :]
    best = sorted(scores, key=lambda step: (scores[step], step), reverse=True)[:keep_best]
    spaced = {step.bit_length(): step for step in reversed(steps)}
    kept = {*last, *best, *spaced.values(), *(step for step in steps if step in pinned)}

    safe = {*last[-1:], *best[:1], *pinned}
    sizes = {info.step: info.size_bytes for info in infos}
    for step in sorted(kept - safe, key=lambda step: (step in last or step in best, step)):
        if budget_bytes is None or sum(sizes[step] for step in kept) <= budget_bytes:
            break
        kept.remove(step)
    return [step for step in steps if step not in kept]


def _sign(head: dict[str, Any]) -> bytes:
    return json.dumps({**head, "sha256": _digest(head)}, indent=2).encode()


def _digest(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def _read_head(path: Path) -> dict[str, Any]:
    head = read_json(path)
    found = head.get("format") if isinstance(head, dict) else None
    if found != FORMAT:
        raise RunStateError(f"{path} has format {found!r}; this version reads {FORMAT}; upgrade mission-gym")
    if head.pop("sha256", None) != _digest(head):
        raise RunStateError(f"{path} is truncated or altered: its checksum is wrong")
    return validate(path, head, _HEAD).model_dump(exclude_unset=True)


def _verify(path: Path, expected: str | None) -> Path:
    """Return the path of a file that has this checksum; a replay may be large, so it is read in pieces."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunStateError(f"{path} is missing or unreadable: {error.strerror or error}") from error
    if digest != expected:
        raise RunStateError(f"{path} is truncated or altered: its checksum differs from meta.json")
    return path


def _parse(path: Path, data: bytes, parser: Callable[[bytes], _T]) -> _T:
    try:
        return parser(data)
    except (ValueError, RecursionError) as error:
        what = f"{path} is not in the format of its name ({error})"
        raise RunStateError(f"{what}; pickles are never loaded; nothing was run") from error


def write_arrays(path: Path, arrays: dict[str, Array]) -> str:
    """Write a file without a second copy of all arrays in memory, sync it, and return its checksum."""
    # The widest dtypes come first, so that each array is aligned.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize))
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *map(_raw, arrays.values())):
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _raw(array: Array) -> memoryview | bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def parse_arrays(data: bytes) -> dict[str, Array]:
    """Parse the content of a file; ValueError if it is not safetensors."""
    from safetensors.numpy import load

    with _value_errors():
        return load(data)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read a file, which may be large; ValueError if it is not safetensors."""
    from safetensors.numpy import load_file

    with _value_errors():
        return load_file(path)


@contextmanager
def _value_errors() -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that NumPy lacks
        raise ValueError(str(error)) from error
