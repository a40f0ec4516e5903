"""group.json: what a group of runs keeps in its own folder below the runs folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from mission_gym.store.checked import Record, Str, read_checked

GROUP_JSON = "group.json"


class Group(Record):
    """What is read of a group by name: its runs by path, and its final evaluation over them."""

    name: Str
    kind: Str = ""
    runs: tuple[Str, ...] = ()
    iqm: float | None = None
    low: float | None = None
    high: float | None = None


_GROUP = TypeAdapter(Group)


def read_group(folder: Path) -> Group:
    """The group of a folder; RunStateError if its file is missing or damaged."""
    return read_checked(folder / GROUP_JSON, _GROUP)
