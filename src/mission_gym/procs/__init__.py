"""Supervised child processes, the memory they share with us, and facts about this machine.

`children` has the parent's side of a child, `link` the child's side: a plain Python process that runs
`module:callable` with a Link and exchanges pickled messages over pipes. It has its own session, one thread
per library, our import path, and its output in a bounded log. `start` starts it: on Linux `fork_server` forks
it, and above each child a process of `subreaper` kills everything that it started when it or its parent ends,
even by `kill -9`. Other programs start that way too. `companions` are services next to environments.
Below them are `pipes` and `memory`; `machine` reads cores, memory, GPUs and versions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mission_gym.procs.children import BoundedLog, Child, Spares, dump_object, wait_for_replies
    from mission_gym.procs.companions import (
        Companion,
        CompanionNeeded,
        RunningCompanion,
        start_companion,
        with_companion,
    )
    from mission_gym.procs.link import Link, child_main, describe_error, exit_with_traceback
    from mission_gym.procs.machine import MachineFacts, free_memory_bytes, read_machine, usable_cores
    from mission_gym.procs.memory import Carver, Region
    from mission_gym.procs.start import hold_fork_server

__all__ = [
    "BoundedLog", "Carver", "Child", "Companion", "CompanionNeeded", "Link", "MachineFacts", "Region",
    "RunningCompanion", "Spares", "child_main", "describe_error", "dump_object", "exit_with_traceback",
    "free_memory_bytes", "hold_fork_server", "read_machine", "start_companion", "usable_cores",
    "wait_for_replies", "with_companion",
]  # fmt: skip

# Imported when first used: the first processes start before most of this package is loaded.
_HOMES = {
    "children": ("BoundedLog", "Child", "Spares", "dump_object", "wait_for_replies"),
    "companions": (
        "Companion", "CompanionNeeded", "RunningCompanion", "start_companion", "with_companion"
    ),
    "link": ("Link", "child_main", "describe_error", "exit_with_traceback"),
    "machine": ("MachineFacts", "free_memory_bytes", "read_machine", "usable_cores"),
    "memory": ("Carver", "Region"),
    "start": ("hold_fork_server",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"mission_gym.procs.{home}"), name)
    raise AttributeError(f"module 'mission_gym.procs' has no attribute {name!r}")
