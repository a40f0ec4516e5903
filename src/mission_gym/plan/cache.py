"""Plans that were made on this machine, by a key of all that they depend on; in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from mission_gym.errors import DiskError, RunStateError
from mission_gym.store.files import disk_errors, read_json, to_json, user_folder, write_json

MISS = 0.15  # of the prediction: a plan that was further off is measured again


def find_cache() -> Path:
    """The folder of the plans."""
    return user_folder("cache") / "plans"


def make_key(content: dict[str, Any]) -> str:
    """A short hash of plain values."""
    text = json.dumps(to_json(content), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def read_plan(key: str) -> dict[str, Any] | None:
    """The plan that was kept, None without one that can be read, or where it is not as it was written."""
    try:
        entry = read_json(find_cache() / f"{key}.json")
    except RunStateError:
        return None
    is_whole = isinstance(entry, dict) and entry.pop("key", None) == make_key(entry)
    return entry if is_whole else None


def write_plan(key: str, entry: dict[str, Any]) -> bool:
    """Keep a plan; False where the folder can't be written, which costs another measurement and no more."""
    path = find_cache() / f"{key}.json"
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, entry | {"key": make_key(entry)}, durable=False)
    except DiskError:
        return False
    return True


def note_rate(key: str, achieved: float) -> None:
    """Keep what a run of this plan achieved, and whether that makes another measurement due."""
    entry = read_plan(key)
    if entry is not None:
        missed = abs(achieved / entry["steps_per_s"] - 1.0) > MISS
        write_plan(key, entry | {"achieved_steps_per_s": achieved, "missed": missed})
