"""`mission-gym bench NAME`: reproduces a table of the docs on this machine, peers in the same run.

In: the name of a contest. Out: rows with `case, ours, peers, ratio` and more, each with the machine; the
same rows in bench-results/. A ratio above 1 means that ours is better. Progress goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from mission_gym.errors import UsageError, nearest
from mission_gym.store.files import disk_errors, write_json
from mission_gym_bench.accounting import measure_accounting
from mission_gym_bench.bridge import BridgeGrid, measure_bridge
from mission_gym_bench.capture import CaptureGrid, measure_capture
from mission_gym_bench.contest import Row, describe_machine
from mission_gym_bench.defaults.cases import CASES
from mission_gym_bench.defaults.main import DefaultsGrid, measure_defaults
from mission_gym_bench.dqn import LEARNING, DqnGrid, measure_dqn
from mission_gym_bench.fleet import FleetGrid, measure_fleet
from mission_gym_bench.gpu import count_gpu, measure_gpu
from mission_gym_bench.images import ImageGrid, measure_images
from mission_gym_bench.learning import ALL_CASES, LearningGrid, measure_learning
from mission_gym_bench.overlap import OverlapGrid, measure_overlap
from mission_gym_bench.ppo import PpoGrid, measure_ppo
from mission_gym_bench.territory import TerritoryGrid, measure_territory
from mission_gym_bench.tune import TuneGrid, measure_tune
from mission_gym_bench.vector import FULL, VectorGrid, measure_vector
from mission_gym_bench.waiting import WaitingGrid, measure_waiting
from mission_gym_bench.watch import WatchGrid, measure_watch

_FOLDER = Path("bench-results")


def _ppo(full: bool) -> list[Row]:
    return measure_ppo(PpoGrid(repeats=7) if full else PpoGrid())


def _dqn(full: bool) -> list[Row]:
    return measure_dqn(DqnGrid(num_steps=60_000, repeats=7, learning=LEARNING) if full else DqnGrid())


def _learning(full: bool) -> list[Row]:
    return measure_learning(LearningGrid(ALL_CASES, seeds=(1, 2, 3, 4, 5)) if full else LearningGrid())


def _defaults(full: bool) -> list[Row]:
    return measure_defaults(DefaultsGrid(CASES, seeds=(1, 2, 3, 4, 5)) if full else DefaultsGrid())


def _vector(full: bool) -> list[Row]:
    return measure_vector(VectorGrid(FULL) if full else VectorGrid())


def _waiting(full: bool) -> list[Row]:
    return measure_waiting(WaitingGrid(seconds=5.0, repeats=5) if full else WaitingGrid())


def _faults(full: bool) -> list[Row]:
    from mission_gym_bench.faults.main import measure_faults  # what Windows does not have

    return measure_faults(full=full)


def _soak(full: bool) -> list[Row]:
    from mission_gym_bench.soak import Troubles, measure_soak

    return measure_soak(Troubles(1800.0, full_disk_s=60.0) if full else Troubles(180.0))


def _capture(full: bool) -> list[Row]:
    larger = (("heavy", 3), ("beast", 1)) if full else ()
    return measure_capture(CaptureGrid(presets=(*CaptureGrid().presets, *larger)))


def _accounting(full: bool) -> list[Row]:
    return measure_accounting(500_000 if full else 100_000)


def _overlap(full: bool) -> list[Row]:
    lander = (("LunarLander-v3", 500_000),) if full else ()
    return measure_overlap(OverlapGrid(cases=(*lander, *OverlapGrid().cases)))


def _watch(full: bool) -> list[Row]:
    return measure_watch(WatchGrid(window_s=20.0, num_windows=10) if full else WatchGrid())


def _tune(full: bool) -> list[Row]:
    return measure_tune(TuneGrid(budget_s=30.0, repeats=5) if full else TuneGrid())


def _fleet(full: bool) -> list[Row]:
    return measure_fleet(FleetGrid())


def _bridge(full: bool) -> list[Row]:
    return measure_bridge(BridgeGrid(num_kills=100) if full else BridgeGrid())


def _territory(full: bool) -> list[Row]:
    return measure_territory(
        TerritoryGrid(((64, 5), (128, 10), (256, 50)), repeats=5) if full else TerritoryGrid()
    )


def _images(full: bool) -> list[Row]:
    return measure_images(ImageGrid(seconds=3.0, repeats=5) if full else ImageGrid())


def _ray(full: bool) -> list[Row]:
    from mission_gym_bench.ray import RayGrid, measure_ray  # its clusters are not for Windows

    return measure_ray(RayGrid(loss_s=300.0, seeds=(1, 2, 3, 4, 5)) if full else RayGrid(every_s=10.0))


CONTESTS: dict[str, Callable[[bool], list[Row]]] = {
    "ppo": _ppo,
    "dqn": _dqn,
    "learning": _learning,
    "defaults": _defaults,
    "vector": _vector,
    "waiting": _waiting,
    "soak": _soak,
    "faults": _faults,
    "capture": _capture,
    "accounting": _accounting,
    "overlap": _overlap,
    "tune": _tune,
    "watch": _watch,
    "fleet": _fleet,
    "bridge": _bridge,
    "gpu": measure_gpu,
    "territory": _territory,
    "images": _images,
    "ray": _ray,
}


def run_bench(name: str, *, full: bool, pretend: bool = False) -> list[Row]:
    """Run a contest, `full` for its whole grid, and keep its rows in the current folder's bench-results.
    pretend: of `gpu`, what can be counted without one."""
    if name not in CONTESTS:
        known = ", ".join(CONTESTS)
        raise UsageError(
            f"no benchmark is called {name!r}{nearest(name, CONTESTS)}; choose one of {known} [bench NAME]"
        )
    if pretend and CONTESTS[name] is not measure_gpu:
        raise UsageError(f"--pretend is for `bench gpu`, and {name} has no use for it; remove it [--pretend]")
    path = _FOLDER / f"{name}-{datetime.now():%Y%m%d-%H%M%S}.json"
    with disk_errors(path):  # before the minutes that would be lost
        _FOLDER.mkdir(exist_ok=True)
    machine = describe_machine()
    made = count_gpu() if pretend else CONTESTS[name](full)
    rows = [row | {"machine": machine} for row in made]
    write_json(path, rows)
    print(f"kept in {path}", file=sys.stderr)
    return rows
