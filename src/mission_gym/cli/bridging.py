"""`bridge`: the client libraries of the bridge, one file for each language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from mission_gym.cli.flags import parse
from mission_gym.errors import UsageError
from mission_gym.store.files import disk_errors

_FILES = {"python": "mission_gym_bridge.py", "js": "mission-gym-bridge.cjs"}


@dataclass(kw_only=True)
class BridgeFlags:
    """Flags of `bridge`."""

    client: Annotated[Literal["python", "js"], tyro.conf.arg(help="The language: python, or js for Node.")]
    out: Annotated[
        Path, tyro.conf.arg(metavar="FOLDER", help="Folder for the file, which must not be there yet.")
    ] = Path()


def bridge(args: Sequence[str]) -> None:
    """`mission-gym bridge --client python|js`."""
    flags = parse(BridgeFlags, args, "bridge", "Write a client library for a game in another process.")
    import mission_gym.bridge.clients

    name = _FILES[flags.client]
    target = flags.out / name
    if target.exists():
        raise UsageError(f"{target} is there already; remove it, or give another folder [--out]")
    text = (Path(mission_gym.bridge.clients.__path__[0]) / name).read_bytes()
    with disk_errors(target):
        target.write_bytes(text)
    print(f"wrote {target}; its head shows a game, and docs/bridge.md the protocol")
