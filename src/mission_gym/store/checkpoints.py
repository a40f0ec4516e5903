"""Checkpoints: a folder per step, committed by one rename, verified before anything in it is parsed.

In and out go dictionaries of NumPy arrays (`policy`, `state`) and JSON values. `.tmp-*` is a folder
being written or removed; `.old-*` is the one being superseded, which counts until its successor is
there. So a kill at any moment leaves every committed checkpoint loadable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mission_gym.data import Array
from mission_gym.errors import RunStateError
from mission_gym.store.files import (
    TEMPORARY,
    disk_errors,
    plain,
    read_json,
    sync_folder,
    write_atomic,
    write_synced,
)

FORMAT = 1
_OLD = ".old-"
_NAME = re.compile(rf"(?:{re.escape(_OLD)})?step_(\d{{12,}})")
_META = "meta.json"
_CONTENT = ("policy.safetensors", "state.safetensors", "state.json")
_REPLAY = "replay.safetensors"  # of the last checkpoint alone
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
    content = (_pack(policy), _pack(state), json.dumps(state_json).encode())
    files = {name: hashlib.sha256(data).hexdigest() for name, data in zip(_CONTENT, content, strict=True)}
    head = {"format": FORMAT, "step": step, "files": files, "meta": plain(meta)}
    final, temporary = folder / step_name(step), folder / f"{TEMPORARY}{step_name(step)}"
    with disk_errors(final):
        folder.mkdir(exist_ok=True)
        recover(folder)
        try:
            temporary.mkdir()
            for name, data in zip(_CONTENT, content, strict=True):
                write_synced(temporary / name, data)
            if replay:
                files[_REPLAY] = _write_arrays(temporary / _REPLAY, replay)
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
        for old in folder.glob(f"{_OLD}*"):
            final = folder / old.name.removeprefix(_OLD)
            if final.exists():
                delete_checkpoint(old)
            else:
                old.rename(final)
        for temporary in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(temporary, ignore_errors=True)


def delete_checkpoint(path: Path) -> None:
    """Remove a checkpoint; a kill on the way leaves all of it or none."""
    doomed = path.with_name(f"{TEMPORARY}gone-{path.name}")
    with disk_errors(path):
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


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
    foreign = sorted(names - {*_CONTENT, _META, _REPLAY})
    if foreign:
        raise RunStateError(
            f"{path / foreign[0]} does not belong in a checkpoint ({', '.join((*_CONTENT, _META))}); "
            f"such a file (a pickle, a .pt) is never loaded; nothing was run; remove it to use the rest"
        )
    head = _read_head(path / _META)
    policy, state, state_json = (_read_verified(path / name, head["files"].get(name)) for name in _CONTENT)
    return Checkpoint(
        step=head["step"],
        path=path,
        policy=_parse(path / _CONTENT[0], policy, _unpack),
        state=_parse(path / _CONTENT[1], state, _unpack),
        state_json=_parse(path / _CONTENT[2], state_json, json.loads),
        meta=head["meta"],
    )


def load_replay(checkpoint: Checkpoint) -> dict[str, Array] | None:
    """The replay of a checkpoint, verified; None if it was saved without one."""
    from safetensors.numpy import load_file

    path = checkpoint.path / _REPLAY
    expected = _read_head(checkpoint.path / _META)["files"].get(_REPLAY)
    if expected is None:
        return None
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunStateError(f"{path} is missing or unreadable: {error.strerror or error}") from error
    if digest != expected:
        raise RunStateError(f"{path} is truncated or altered: its checksum does not fit meta.json")
    return load_file(path)


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


def plan_retention(
    infos: Sequence[CheckpointInfo],
    *,
    keep_last: int,
    keep_best: int,
    budget_bytes: int | None,
    pinned: Collection[int],
) -> list[int]:
    """The steps to delete: all but the last, the best, the log-spaced and the pinned.

    Log-spaced is the first of each power of two, which stays the same choice as a run grows. Above
    the budget the log-spaced go first, then the others, oldest first, but never the last one, the
    best one (`meta["score"]`, ties to the later) or a pinned one.
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


def _pack(arrays: dict[str, Array]) -> bytes:
    from safetensors.numpy import save

    # safetensors copies memory as it lies, so a transposed view would come back scrambled.
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def _write_arrays(path: Path, arrays: dict[str, Array]) -> str:
    """Write safetensors without a copy of the arrays in memory; returns the file's checksum."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *map(_raw, arrays.values())):
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _raw(array: Array) -> memoryview | bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


_SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip


def _unpack(data: bytes) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _sign(head: dict[str, Any]) -> bytes:
    return json.dumps({**head, "sha256": _digest(head)}, indent=2).encode()


def _digest(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def _describe(step: int, path: Path) -> CheckpointInfo | None:
    try:
        size_bytes = sum(entry.stat().st_size for entry in path.iterdir())
    except FileNotFoundError:  # the run that writes it has just deleted it
        return None
    try:
        return CheckpointInfo(step, path, size_bytes, _read_head(path / _META)["meta"])
    except RunStateError:
        return CheckpointInfo(step, path, size_bytes, {})  # loading it says what is wrong


def _read_head(path: Path) -> dict[str, Any]:
    head = read_json(path)
    form = head.get("format") if isinstance(head, dict) else None
    if form != FORMAT:
        raise RunStateError(f"{path} has format {form!r}; this version reads {FORMAT}; upgrade mission-gym")
    if head.pop("sha256", None) != _digest(head):
        raise RunStateError(f"{path} is truncated or altered: its checksum does not fit")
    return dict(head)


def _read_verified(path: Path, expected: str | None) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunStateError(f"{path} is missing or unreadable: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != expected:
        raise RunStateError(f"{path} is truncated or altered: its checksum does not fit meta.json")
    return data


def _parse(path: Path, data: bytes, parser: Callable[[bytes], _T]) -> _T:
    try:
        return parser(data)
    except ValueError as error:
        raise RunStateError(
            f"{path} is not what its name says ({error}); a pickle is never loaded; nothing was run"
        ) from error
