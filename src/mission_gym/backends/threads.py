"""Environments in one other process, a thread each: for those that wait."""

from __future__ import annotations

from functools import partial

from mission_gym.backends.record import Backend
from mission_gym.backends.workers import collect_in_workers, look_in_child, make_workers
from mission_gym.vector import SERVICE

BACKEND = Backend(
    "threads",
    look_in_child,
    partial(make_workers, threads=True),
    "in one other (for environments that wait)",
    user_code="child",
    processes=1,
    for_waiting=True,
    acts_itself=True,
    make_collector=collect_in_workers,
    service=SERVICE,
)
