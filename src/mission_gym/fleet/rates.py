"""What the machine makes of how many jobs: the aggregate rate of each set of jobs that runs for a while.

Jobs of several kinds count in units of their variant's first rate, so that a fast environment does not drown
a slow one. Times are of a clock that never jumps.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

WINDOW_S = 20.0


class Reading(NamedTuple):
    """Where a running job stands."""

    variant: str
    step: int


class Levels:
    """Takes readings of all running jobs at times. `rates` is the latest aggregate by number of jobs: of
    those that share a GPU through MPS (True), and of others."""

    def __init__(self) -> None:
        self.rates: dict[bool, dict[int, float]] = {False: {}, True: {}}
        self._units: dict[str, float] = {}  # a variant's first rate, of the mean run
        self._since: tuple[float, Mapping[str, Reading]] | None = None

    def see(self, now: float, readings: Mapping[str, Reading], *, under_mps: bool | None = False) -> None:
        """Take in where every job stands; a job that makes no steps yet or any more begins a new window.
        under_mps: None if only some are, which says nothing."""
        if not readings or not all(reading.step for reading in readings.values()):
            self._since = None
            return
        if self._since is None or self._since[1].keys() != readings.keys():
            self._since = (now, readings)
            return
        begun, before = self._since
        if now - begun < WINDOW_S:
            return
        rates = {key: (each.step - before[key].step) / (now - begun) for key, each in readings.items()}
        self._since = (now, readings)
        if min(rates.values()) <= 0.0:  # one that evaluates for long, or goes on from an earlier checkpoint
            return
        for variant in {each.variant for each in readings.values()} - self._units.keys():
            self._units[variant] = mean(
                rates[key] for key, each in readings.items() if each.variant == variant
            )
        if under_mps is not None:
            total = sum(rate / self._units[readings[key].variant] for key, rate in rates.items())
            self.rates[under_mps][len(rates)] = total
