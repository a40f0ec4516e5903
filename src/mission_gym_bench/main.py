"""`mission-gym bench NAME`: reproduces a table of the docs on this machine, with peers in the same run.

In: the name of a benchmark. Out: rows with `case, ours, peers, ratio` and more, each with the machine, also
stored in bench-results/. A ratio above 1 means that ours is better. Progress goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from mission_gym.errors import UsageError, nearest
from mission_gym.store.files import disk_errors, write_json
from mission_gym_bench.bridge import BridgeGrid, measure_bridge
from mission_gym_bench.defaults.main import DefaultsGrid, measure_defaults
from mission_gym_bench.defaults.trials import CASES
from mission_gym_bench.dqn import LEARNING, DqnGrid, measure_dqn
from mission_gym_bench.fleet import FleetGrid, measure_fleet
from mission_gym_bench.gpu import count_gpu, measure_gpu
from mission_gym_bench.images import ImageGrid, measure_images
from mission_gym_bench.memory import MemoryGrid, measure_memory
from mission_gym_bench.missions import CaptureGrid, TerritoryGrid, measure_capture, measure_territory
from mission_gym_bench.overhead import measure_accounting
from mission_gym_bench.overlap import OverlapGrid, measure_overlap
from mission_gym_bench.ppo import ALL_CASES, LearningGrid, PpoGrid, measure_learning, measure_ppo
from mission_gym_bench.runner import Row, describe_machine
from mission_gym_bench.sac import LEARNING as SAC_LEARNING
from mission_gym_bench.sac import SacGrid, measure_sac
from mission_gym_bench.tune import TuneGrid, measure_tune
from mission_gym_bench.vector import FULL, VectorGrid, measure_vector
from mission_gym_bench.waiting import WaitingGrid, measure_waiting
from mission_gym_bench.watch import WatchGrid, measure_watch

_FOLDER = Path("bench-results")
_SEEDS = (1, 2, 3, 4, 5)


def _faults(full: bool) -> list[Row]:
    from mission_gym_bench.faults.main import measure_faults  # needs modules that Windows lacks

    return measure_faults(full=full)


def _soak(full: bool) -> list[Row]:
    from mission_gym_bench.soak import Disturbances, measure_soak

    return measure_soak(Disturbances(1800.0, full_disk_s=60.0) if full else Disturbances(180.0))


def _capture(full: bool) -> list[Row]:
    larger = (("heavy", 3), ("beast", 1)) if full else ()
    return measure_capture(CaptureGrid(presets=(*CaptureGrid().presets, *larger)))


def _overlap(full: bool) -> list[Row]:
    lander = (("LunarLander-v3", 500_000),) if full else ()
    return measure_overlap(OverlapGrid(cases=(*lander, *OverlapGrid().cases)))


def _territory(full: bool) -> list[Row]:
    maps = ((64, 5), (128, 10), (256, 50))
    return measure_territory(TerritoryGrid(maps, repeats=5) if full else TerritoryGrid())


def _ray(full: bool) -> list[Row]:
    from mission_gym_bench.ray import RayGrid, measure_ray  # its clusters do not run on Windows

    return measure_ray(RayGrid(loss_s=300.0, seeds=_SEEDS) if full else RayGrid(every_s=10.0))


# name -> function; its argument is True for the whole grid
BENCHMARKS: dict[str, Callable[[bool], list[Row]]] = {
    "ppo": lambda full: measure_ppo(PpoGrid(repeats=7) if full else PpoGrid()),
    "dqn": lambda full: measure_dqn(
        DqnGrid(num_steps=60_000, repeats=7, learning=LEARNING) if full else DqnGrid()
    ),
    "sac": lambda full: measure_sac(
        SacGrid(num_steps=5_000, seconds=3.0, repeats=7, learning=SAC_LEARNING) if full else SacGrid()
    ),
    "memory": lambda full: measure_memory(MemoryGrid(seeds=_SEEDS, repeats=3) if full else MemoryGrid()),
    "learning": lambda full: measure_learning(LearningGrid(ALL_CASES, _SEEDS) if full else LearningGrid()),
    "defaults": lambda full: measure_defaults(DefaultsGrid(CASES, _SEEDS) if full else DefaultsGrid()),
    "vector": lambda full: measure_vector(VectorGrid(FULL) if full else VectorGrid()),
    "waiting": lambda full: measure_waiting(WaitingGrid(seconds=5.0, repeats=5) if full else WaitingGrid()),
    "soak": _soak,
    "faults": _faults,
    "capture": _capture,
    "accounting": lambda full: measure_accounting(500_000 if full else 100_000),
    "overlap": _overlap,
    "tune": lambda full: measure_tune(TuneGrid(budget_s=30.0, repeats=5) if full else TuneGrid()),
    "watch": lambda full: measure_watch(WatchGrid(window_s=20.0, num_windows=10) if full else WatchGrid()),
    "fleet": lambda full: measure_fleet(FleetGrid()),
    "bridge": lambda full: measure_bridge(BridgeGrid(num_kills=100) if full else BridgeGrid()),
    "gpu": measure_gpu,
    "territory": _territory,
    "images": lambda full: measure_images(ImageGrid(seconds=3.0, repeats=5) if full else ImageGrid()),
    "ray": _ray,
}


def run_bench(name: str, *, full: bool, pretend: bool = False) -> list[Row]:
    """Run a benchmark, `full` for its whole grid, and store its rows in bench-results of the current folder.

    pretend: for `gpu`, only the counts that need no GPU.
    """
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise UsageError(
            f"benchmark {name!r} is unknown{nearest(name, BENCHMARKS)}; use one of {known} [bench NAME]"
        )
    if pretend and BENCHMARKS[name] is not measure_gpu:
        raise UsageError(f"--pretend is only for `bench gpu`; remove it for {name} [--pretend]")
    path = _FOLDER / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.json"
    with disk_errors(path):  # before the minutes that would be lost
        _FOLDER.mkdir(exist_ok=True)
    machine = describe_machine()
    made = count_gpu() if pretend else BENCHMARKS[name](full)
    rows = [row | {"machine": machine} for row in made]
    write_json(path, rows)
    print(f"stored in {path}", file=sys.stderr)
    return rows
