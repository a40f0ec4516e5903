"""Values that follow the absolute step, so that a resume or a branch continues where its parent was."""

from __future__ import annotations

from dataclasses import dataclass

from mission_gym.config.schema import AlgorithmSection


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value that changes linearly from `start` to `end`, which it reaches after `total` steps."""

    start: float
    end: float
    total: int

    def at(self, step: int) -> float:
        share = min(step / self.total, 1.0)
        return self.start + (self.end - self.start) * share


def schedule_of(section: AlgorithmSection, name: str, total: int) -> Schedule:
    """The schedule of a field with a `_final` value, which may be None."""
    start, end = getattr(section, name), getattr(section, f"{name}_final")
    return Schedule(start, start if end is None else end, total)
