"""Every exception a user can meet. Each knows the exit code of the command line.

Exit codes: 2 usage, config, environment contract or run state; 3 environment, worker, disk, device
memory or non-finite failure beyond recovery. Anything that is not a MissionGymError is a bug: exit 1.

A message says what is wrong with the values, the rule, what to do, and where it came from:
`batch_size=1000 does not divide the rollout of 8192 (32 envs x 256 steps); use 1024 or auto [--batch-size]`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class MissionGymError(Exception):
    """The root of the tree; `exit_code` is what the command line returns for it."""

    exit_code = 3


class UsageError(MissionGymError):
    """The user asked for something that can't be done; nothing was started."""

    exit_code = 2


class WrongValue(UsageError, ValueError):
    """A value that can't be taken, where code written for Gymnasium or SB3 expects a ValueError."""


class WrongType(UsageError, TypeError):
    """A value of a type that can't be taken, where such code expects a TypeError."""


class TrustError(UsageError):
    """A run or a config file names code that the user has not allowed; `line` is what to remember."""

    def __init__(self, what: str, line: str) -> None:
        super().__init__(what, line)
        self.what, self.line = what, line

    def __str__(self) -> str:
        return f"{self.what}; nothing was run; look at it, and allow it with --trust (in Python trust=True)"


class ConfigError(UsageError):
    """One or more values of the config are wrong; `problems` lists them all."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class EnvContractError(UsageError, RuntimeError):
    """The environment breaks Gymnasium's contract, or uses what we do not support. A RuntimeError, as
    Gymnasium's own vectors raise for environments that are not alike."""


class RunStateError(MissionGymError):
    """The run directory is not in a state that allows this (locked, missing, altered, finished)."""

    exit_code = 2


class WorkerError(MissionGymError):
    """The user's environment failed beyond recovery; `facts` is what a repro bundle needs."""

    facts: dict[str, Any] | None = None


class EnvFailure(WorkerError):
    """An environment raised; the message names index, seed, episode step and action."""


class WorkerDied(WorkerError):
    """A worker process ended: exit, segmentation fault, kill, memory over its limit."""


class WorkerTimeout(WorkerError):
    """A worker process did not answer in time; the message holds its stack where it could be had."""


class DiskError(MissionGymError):
    """The disk refused a write that can't be done without."""


class DeviceMemoryError(MissionGymError):
    """The device that computes has no memory left."""


class RunGoneError(MissionGymError):
    """The run directory was moved or removed while the run was at work."""


class NotFiniteError(MissionGymError):
    """NaN or infinity in an observation, a reward, a loss or a gradient; weights are unharmed."""


def describe(error: BaseException) -> str:
    """`ValueError: text` of an exception that anyone may have written: its text may raise in turn."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001  border: the user's exception classes
        return f"{name} (its text can't be read)"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
