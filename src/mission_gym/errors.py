"""Every exception that a user can see, with the exit code of the command line.

Exit codes: 2 for usage, config, environment contract or run state; 3 for an unrecoverable failure of an
environment, worker, disk, device memory or numerics. Any other exception is a bug: exit code 1.

A message has the wrong value, the rule, the remedy and the source of the value:
`batch_size=1000 does not divide the rollout of 8192 (32 envs x 256 steps); use 1024 or auto [--batch-size]`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class MissionGymError(Exception):
    """The base class; the command line returns `exit_code`.

    facts: of an error of the user's environment, what happened where: the content of a repro bundle.
    """

    exit_code = 3
    facts: dict[str, Any] | None = None


class UsageError(MissionGymError):
    """The request is not possible; nothing was started."""

    exit_code = 2


class WrongValue(UsageError, ValueError):
    """A wrong value, for callers that expect a ValueError as from Gymnasium or SB3."""


class WrongType(UsageError, TypeError):
    """A value of a wrong type, for callers that expect a TypeError."""


class TrustError(UsageError):
    """A run or a config file names code that the user has not allowed; `line` records the permission.

    done: how much of the code has already been run."""

    def __init__(self, what: str, line: str, done: str = "nothing was run") -> None:
        super().__init__(what, line, done)
        self.what, self.line, self.done = what, line, done

    def __str__(self) -> str:
        return f"{self.what}; {self.done}; review it, then allow it with --trust (in Python trust=True)"


class ConfigError(UsageError):
    """Some values of the config are wrong; `problems` lists all of them."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class EnvContractError(UsageError, RuntimeError):
    """The environment breaks Gymnasium's contract or is not supported. It is a RuntimeError because
    Gymnasium's vectors raise one for environments that differ."""


class RunStateError(MissionGymError):
    """The state of the run directory does not allow this (locked, missing, altered, finished)."""

    exit_code = 2


class WorkerError(MissionGymError):
    """The user's environment failed beyond recovery."""


class EnvFailure(WorkerError):
    """An environment raised; the message has its index, seed, step and action."""


class WorkerDied(WorkerError):
    """A worker process ended: exit, segmentation fault, kill, or memory limit."""


class WorkerTimeout(WorkerError):
    """A worker process did not answer in time; the message has its stack if it is available."""


class TargetSilent(WorkerError):
    """The service that an environment depends on does not answer. An environment that raises it ends the run,
    since every further episode would fail too."""


class ResourceRefused(WorkerError):
    """The system refused a process, a thread or shared memory."""


class DiskError(MissionGymError):
    """A necessary write to the disk failed."""


class DeviceMemoryError(MissionGymError):
    """The computing device is out of memory."""


class RunGoneError(MissionGymError):
    """The run directory was moved or removed during the run."""


class NotFiniteError(MissionGymError):
    """NaN or infinity in an observation, a reward, a loss or a gradient; the weights are intact."""


def describe(error: BaseException) -> str:
    """Return `ValueError: text`; the text of a user's exception may raise too."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001  border: the user's exception classes
        return f"{name} (its text can't be read)"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, or an empty string."""
    names = list(known)
    close = difflib.get_close_matches(name, names, cutoff=0.5)
    if not close:
        return ""
    scores = {each: difflib.SequenceMatcher(None, each, name).ratio() for each in close}
    best = min(close, key=lambda each: (-scores[each], names.index(each)))  # of equals the first
    return f" (did you mean {best!r}?)"
