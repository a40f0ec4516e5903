"""The table of backends. Adding one is a module with a record `BACKEND`, and a line here.

A record's module is loaded when it is asked for; a library that only one backend needs is imported inside
its functions. Rooms below `run` are handed records.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mission_gym.backends.record import Backend

if TYPE_CHECKING:
    from mission_gym.data import EnvSpec

BACKENDS = {
    "serial": "mission_gym.backends.serial",
    "workers": "mission_gym.backends.workers",
    "threads": "mission_gym.backends.threads",
    "aio": "mission_gym.backends.aio",
    "batched": "mission_gym.backends.batched",
    "ray": "mission_gym.backends.ray",
}


def load_backend(name: str) -> Backend:
    """The record of a backend in the table."""
    record: Backend = importlib.import_module(BACKENDS[name]).BACKEND
    return record


def load_default(*, trusted: bool) -> Backend:
    """What runs an environment when nothing was asked for: this process only if its code is trusted."""
    return load_backend("serial" if trusted else "workers")


def load_for_coroutines() -> Backend:
    """What runs an environment whose steps are coroutines when nothing was asked for."""
    return next(each for each in map(load_backend, BACKENDS) if each.for_coroutines)


def load_for_cluster() -> Backend:
    """What runs environments on other machines."""
    return next(each for each in map(load_backend, BACKENDS) if each.needs_cluster)


def load_rivals(spec: EnvSpec) -> tuple[Backend, ...]:
    """What a plan may choose instead for environments that anyone wrote: single ones, in other processes."""
    records = map(load_backend, BACKENDS)
    others = (each for each in records if each.user_code == "child")
    return tuple(each for each in others if each.takes(spec))
