"""Runs the faults, a few in parallel, and makes a row per group: tried, held, and the failures."""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

import mission_gym
from mission_gym.errors import UsageError
from mission_gym.procs import usable_cores
from mission_gym_bench.faults.clocks import make_clock_faults
from mission_gym_bench.faults.disks import make_disk_faults
from mission_gym_bench.faults.environments import make_environment_faults
from mission_gym_bench.faults.files import make_file_faults
from mission_gym_bench.faults.fleet import make_fleet_faults
from mission_gym_bench.faults.harness import FaultCase, Harness, NotHeld, RunCache, SkippedFault
from mission_gym_bench.faults.kills import make_kills
from mission_gym_bench.faults.launcher import Launcher
from mission_gym_bench.faults.surroundings import make_surrounding_faults
from mission_gym_bench.faults.trust import make_safety_faults, make_trust_faults
from mission_gym_bench.runner import Row, make_row


class FaultReport(NamedTuple):
    """The result of a fault: `problem` is empty if it held, `skipped` if it could be injected."""

    fault: FaultCase
    problem: str = ""
    skipped: str = ""


def make_faults() -> list[FaultCase]:
    """Return every fault."""
    return [
        *make_kills(),
        *make_environment_faults(),
        *make_file_faults(),
        *make_disk_faults(),
        *make_trust_faults(),
        *make_safety_faults(),
        *make_surrounding_faults(),
        *make_clock_faults(),
        *make_fleet_faults(),
    ]


def measure_faults(*, full: bool) -> list[Row]:
    """One row per group."""
    faults = [fault for fault in make_faults() if full or fault.quick]
    rows = make_rows(run_faults(faults, at_once=2 * usable_cores()))  # many of them wait for a timeout
    command = f"mission-gym bench faults{' --full' if full else ''}"
    return [row | {"command": command} for row in rows]


def find_toys() -> Path:
    """Return the folder of the toy environments; UsageError if this is not a checkout."""
    folder = Path(mission_gym.__file__).parents[2] / "tests" / "support"
    if not (folder / "toys.py").is_file():
        raise UsageError("bench faults needs a checkout of the project: tests/support/toys.py is missing")
    return folder


def run_faults(faults: Sequence[FaultCase], *, at_once: int) -> list[FaultReport]:
    """Inject the faults, `at_once` in parallel, and report each on stderr as it ends."""
    toys = find_toys()
    reports: list[FaultReport] = []
    with TemporaryDirectory(prefix="mission-gym-faults-") as folder:
        run_cache = RunCache(Path(folder) / "run_cache")
        run_cache.folder.mkdir()
        launchers: queue.SimpleQueue[Launcher] = queue.SimpleQueue()
        started = [Launcher(toys) for _ in range(at_once)]
        for launcher in started:
            launchers.put(launcher)

        def inject(item: tuple[int, FaultCase]) -> FaultReport:
            number, fault = item
            launcher = launchers.get()
            begun = time.monotonic()
            try:
                report = _inject(fault, Harness(Path(folder) / str(number), launcher, run_cache))
            finally:
                launchers.put(launcher)
            word = report.problem or report.skipped or "held"
            seconds = time.monotonic() - begun
            print(
                f"[{number}/{len(faults)}] {fault.group}: {fault.name}: {word} ({seconds:.1f} s)",
                file=sys.stderr,
            )
            return report

        try:
            with ThreadPoolExecutor(at_once) as pool:
                reports = list(pool.map(inject, enumerate(faults, 1)))
        finally:
            for launcher in started:
                launcher.close()
    return reports


def _inject(fault: FaultCase, harness: Harness) -> FaultReport:
    try:
        fault.inject(harness)
    except NotHeld as error:
        return FaultReport(fault, problem=str(error))
    except SkippedFault as error:
        return FaultReport(fault, skipped=str(error))
    except Exception as error:  # noqa: BLE001  border: a check that fails proves nothing
        return FaultReport(fault, problem=f"{type(error).__name__}: {error}")
    finally:
        for process in harness.find_processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
    shutil.rmtree(harness.folder, ignore_errors=True)
    return FaultReport(fault)


def make_rows(reports: Sequence[FaultReport]) -> list[Row]:
    """One row per group, in order; skipped faults do not count as tried."""
    rows: list[Row] = []
    for group in dict.fromkeys(report.fault.group for report in reports):
        mine = [report for report in reports if report.fault.group == group]
        tried = sum(report.fault.tried for report in mine if not report.skipped)
        failures = {report.fault.name: report.problem for report in mine if report.problem}
        lost = sum(report.fault.tried for report in mine if report.problem)
        skipped = {report.fault.name: report.skipped for report in mine if report.skipped}
        counts = {"tried": tried, "held": tried - lost, "holds": not lost}
        row = make_row(f"faults: {group}", tried - lost, "held", failures=failures, skipped=skipped)
        rows.append(row | counts)
    return rows
