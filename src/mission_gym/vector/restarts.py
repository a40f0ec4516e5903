"""When an environment counts as failed, and how often it may: bounded restarts, then one last error."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from mission_gym.errors import MissionGymError, WorkerError

FIRST_TIMEOUT_S = 300.0  # building and the first reset
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker counts as hung or greedy, and how often an environment may fail."""

    timeout_s: float = 60.0
    max_restarts: int = 5
    memory_bytes: int | None = None  # of one worker; None: an equal share of what is free

    @property
    def reset_timeout_s(self) -> float:
        """Of a reset, which may take as long as the first."""
        return max(self.timeout_s, FIRST_TIMEOUT_S)


class RestartBudget:
    """Counts the failures of each environment since its last finished episode. pause: waits so many
    seconds."""

    def __init__(self, max_restarts: int, pause: Callable[[float], None] = time.sleep) -> None:
        self.max_restarts = max_restarts
        self.total = 0
        self._pause = pause
        self._failures: dict[int, int] = {}

    def spend(self, env_id: int, failure: MissionGymError, details: str = "") -> None:
        """Pause before another attempt; raise the failure if there have been too many.

        The first attempt comes at once. details: the original traceback, where `failure` has no cause.
        """
        self.total += 1
        count = self._failures[env_id] = self._failures.get(env_id, 0) + 1
        if count > self.max_restarts:
            if not details and failure.__cause__ is not None:
                details = "".join(traceback.format_exception(failure.__cause__))
            rule = f"environment {env_id} failed {count} times without a finished episode in between"
            message = f"{failure}\n{rule}; the limit is {self.max_restarts} restarts [--max-restarts]"
            last = type(failure)(f"{message}\n{details.rstrip()}" if details else message)
            if isinstance(last, WorkerError) and isinstance(failure, WorkerError):
                last.facts = failure.facts
            raise last from failure
        if count > 1:
            self._pause(min(_FIRST_PAUSE_S * 2 ** (count - 2), _LONGEST_PAUSE_S))

    def forget(self, env_id: int) -> None:
        """An episode was finished: what was before no longer counts."""
        if self._failures:
            self._failures.pop(env_id, None)

    def forget_all(self) -> None:
        """Begin to count anew."""
        self.total = 0
        self._failures.clear()
