"""Supervised child processes and the memory they share; nothing is left behind whatever dies.

A child is a plain Python process that runs `module:callable` with a Link: commands come in and replies go
out as pickled frames over pipes between our own processes. It has its own session, capped threads, the
parent's import path, and its output in a bounded log. When a child ends, or its parent, by
`kill -9` too, a keeper ends everything that the child started.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mission_gym.procs.children import BoundedLog, Child, Spares, dump_object, wait_for_replies
    from mission_gym.procs.companions import Attendance, Companion, CompanionNeeded, attend, with_companion
    from mission_gym.procs.inside import Link, child_main, describe_error, end_broken
    from mission_gym.procs.machine import MachineFacts, free_memory_bytes, read_machine, usable_cores
    from mission_gym.procs.memory import Carver, Region
    from mission_gym.procs.start import hold_fork_server

# Loaded when first used: the first processes start before the rest of this room is there.
_HOMES = {
    "children": ("BoundedLog", "Child", "Spares", "dump_object", "wait_for_replies"),
    "companions": ("Attendance", "Companion", "CompanionNeeded", "attend", "with_companion"),
    "inside": ("Link", "child_main", "describe_error", "end_broken"),
    "machine": ("MachineFacts", "free_memory_bytes", "read_machine", "usable_cores"),
    "memory": ("Carver", "Region"),
    "start": ("hold_fork_server",),
}

__all__ = [
    "Attendance",
    "BoundedLog",
    "Carver",
    "Child",
    "Companion",
    "CompanionNeeded",
    "Link",
    "MachineFacts",
    "Region",
    "Spares",
    "attend",
    "child_main",
    "describe_error",
    "dump_object",
    "end_broken",
    "free_memory_bytes",
    "hold_fork_server",
    "read_machine",
    "usable_cores",
    "wait_for_replies",
    "with_companion",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"mission_gym.procs.{home}"), name)
    raise AttributeError(f"module 'mission_gym.procs' has no attribute {name!r}")
