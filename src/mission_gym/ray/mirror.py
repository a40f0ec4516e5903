"""A run directory that is written on another machine, and its copy at home.

The status comes home at every look. All else comes with each new checkpoint, and at the end: checkpoints
first, each committed by one rename, so that the copy is a run that can be resumed at any moment.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from mission_gym.ray.node_agent import Listing
from mission_gym.store.checkpoints import delete_checkpoint, recover, step_of
from mission_gym.store.files import TEMPORARY, disk_errors

_CHUNK_BYTES = 8 << 20
_STATUS = "status.json"


class Far(Protocol):
    """What is asked of the other machine (`Outpost`)."""

    def list_files(self, folder: str) -> Listing: ...
    def read(self, path: str, start: int, size: int) -> bytes | None: ...
    def write(self, path: str, start: int, data: bytes) -> None: ...


def send_run(far: Far, home: Path, there: str) -> None:
    """Copy a run to the other machine; locks and what is half written stay."""
    for folder, folders, names in os.walk(home):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            path = Path(folder, name)
            target = os.path.join(there, path.relative_to(home))
            with path.open("rb") as file:
                far.write(target, 0, file.read(_CHUNK_BYTES))
                while data := file.read(_CHUNK_BYTES):
                    far.write(target, file.tell() - len(data), data)


class Mirror:
    """Brings a run home. `home` is held by a lock of this process."""

    def __init__(self, far: Far, there: str, home: Path) -> None:
        self._far, self._there, self._home = far, there, home
        self._brought: dict[str, Listing] = {}  # a checkpoint, or a file alone, as it was when it came

    def bring(self, *, whole: bool) -> bool:
        """Bring what has changed; whole: also without a new checkpoint. Whether all that there is was
        looked at."""
        found: defaultdict[str, Listing] = defaultdict(dict)
        for path, stamp in self._far.list_files(self._there).items():
            found[_unit(path)][path] = stamp
        new = {unit for unit in found if unit not in self._brought and _is_checkpoint(unit)}
        whole = whole or bool(new)
        for unit in sorted(found, key=lambda unit: (unit == _STATUS, not _is_checkpoint(unit))):
            if (whole or unit == _STATUS) and self._brought.get(unit) != found[unit]:
                with disk_errors(self._home / unit):
                    is_here = self._bring_unit(unit, found[unit])
                if is_here:
                    self._brought[unit] = found[unit]
        if any(map(_is_checkpoint, found)):  # else the only one is being superseded
            for unit in [unit for unit in self._brought if unit not in found]:
                del self._brought[unit]
                if _is_checkpoint(unit):
                    delete_checkpoint(self._home / unit)
        return whole

    def _bring_unit(self, unit: str, files: Listing) -> bool:
        """Whether it was still there, and is at home."""
        final = self._home / unit
        if not _is_checkpoint(unit):
            temporary = final.with_name(f"{TEMPORARY}{final.name}-{os.getpid()}")
            temporary.parent.mkdir(parents=True, exist_ok=True)
            try:
                if self._fetch(unit, temporary) is None:
                    return False
                os.replace(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)
            return True
        temporary = final.with_name(f"{TEMPORARY}{final.name}")
        recover(final.parent)
        temporary.mkdir(parents=True, exist_ok=True)
        for path, (size, _) in files.items():
            if self._fetch(path, temporary / Path(path).name) != size:
                recover(final.parent)  # it was thinned out, or superseded
                return False
        if final.exists():
            final.rename(final.with_name(f".old-{final.name}"))
        temporary.rename(final)
        recover(final.parent)
        return True

    def _fetch(self, path: str, target: Path) -> int | None:
        """Copy a file; its bytes, or None if it is gone."""
        start = 0
        with target.open("wb") as file:
            while True:
                data = self._far.read(os.path.join(self._there, path), start, _CHUNK_BYTES)
                if data is None:
                    return None
                file.write(data)
                start += len(data)
                if len(data) < _CHUNK_BYTES:
                    return start


def _unit(path: str) -> str:
    """What comes home at once: a checkpoint, or a file alone."""
    folder = os.path.dirname(path)
    return folder if _is_checkpoint(folder) else path


def _is_checkpoint(unit: str) -> bool:
    return os.path.dirname(unit) == "checkpoints" and step_of(Path(unit)) is not None
