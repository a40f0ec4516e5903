"""`bench waiting`: environments that wait 20 ms per step, hundreds of them on one event loop.

Stepping is `make_vec`; collecting is that of a run, with a 64,64 policy. They are compared with the limit
(environments / latency) and with bare coroutines on an asyncio loop. Crawlers of a site that answers after 20
ms are compared with 32 processes of SB3's SubprocVecEnv. Then memory, overlap, and the plan compared with
settings chosen by hand.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import psutil

from mission_gym.env.factory import make_factory
from mission_gym.env.probe import probe
from mission_gym.plan.env_costs import mean_memory
from mission_gym.procs import usable_cores
from mission_gym.procs.companions import start_companion
from mission_gym.run.build import one_blas_thread
from mission_gym.run.environment import choose_acting_rows
from mission_gym.vector.aio import AioVec
from mission_gym.vector.backends import load_for_coroutines
from mission_gym.vector.make_vec import make_vec
from mission_gym_bench.overlap import OverlapGrid, measure_time
from mission_gym_bench.runner import (
    OURS,
    Measure,
    Row,
    find_medians,
    find_spreads,
    make_row,
    measure_in_turn,
)
from mission_gym_bench.synthetic import AwaitedBurn, AwaitedCrawler, Crawler, loop_on_asyncio
from mission_gym_bench.tune import TuneCase, time_plan
from mission_gym_bench.vector import collect, make_weights, step_for

_AWAITED = "mission_gym_bench.synthetic:AwaitedBurn"
_OF_LIMIT, _OF_BARE, _MOST_MB = 0.9, 0.8, 1.0
_PEER_NEEDS = {
    "stable_baselines3": "stable-baselines3",
    "requests": "requests",
    "bs4": "beautifulsoup4",
}  # modules and their packages
_TIMES, _MEMORY_SHARE = 5.0, 0.1  # targets of the comparison with processes


@dataclass(frozen=True, slots=True)
class WaitingGrid:
    """What is measured, and for how long each time."""

    sizes: tuple[int, ...] = (64, 256, 512, 1000)
    wait_s: float = 0.02
    seconds: float = 2.0
    repeats: int = 3
    crawlers: int = 256
    processes: int = 32  # of SB3, with one crawler each
    overlaps: tuple[OverlapGrid, ...] = (
        OverlapGrid(env=_AWAITED, vector="aio"),
        OverlapGrid(env=_AWAITED, vector="aio", longer=1.5),
    )
    plan_s: float = 12.0
    planned: tuple[str, ...] = ("mission_gym_bench.synthetic:Burn", _AWAITED)
    by_hand: int = 64


def measure_waiting(grid: WaitingGrid) -> list[Row]:
    """Rates by size, then bare coroutines, processes, memory, overlap and plans."""
    rows: list[Row] = []
    for size in grid.sizes:
        rows += _measure_size(grid, size)
    rows += [_measure_bare(grid, max(grid.sizes)), _measure_memory(grid, max(grid.sizes))]
    rows += _measure_crawlers(grid)
    rows += [measure_time(each) for each in grid.overlaps]
    with one_blas_thread():
        rows += [_measure_plan(grid, env) for env in grid.planned]
    return rows


def _measure_size(grid: WaitingGrid, size: int) -> list[Row]:
    """Measure one event loop, stepped together and collecting, and the share of a core it takes."""
    factory = make_factory(partial(AwaitedBurn, wait_s=grid.wait_s))
    spec = probe(factory, "burn")
    backend = load_for_coroutines()
    group = choose_acting_rows(size, backend.count_groups(size))
    limit = size / grid.wait_s
    with ExitStack() as stack:
        vec: Any = stack.enter_context(closing(make_vec(factory, size, backend=backend.name)))
        vec.reset(seed=0)
        made = collect([factory] * size, spec, make_weights(spec), group, 32, kind=AioVec, num_workers=1)
        collecting, inner = stack.enter_context(made)
        ways: dict[str, tuple[Measure, Any]]
        ways = {"stepping": (partial(step_for, vec.step, size), vec.inner), "collecting": (collecting, inner)}
        cores: dict[str, list[float]] = {name: [] for name in ways}
        measures: dict[str, Measure] = {
            name: partial(_measure_cpu, *way, cores[name]) for name, way in ways.items()
        }
        rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    print(f"{size} environments: { {name: max(each) for name, each in rates.items()} }", file=sys.stderr)
    return [
        make_row(
            f"{name}, {size} envs that wait {1000 * grid.wait_s:g} ms on one event loop",
            rate,
            "steps/s",
            limit=limit,
            of_limit=rate / limit,
            target=_OF_LIMIT,
            cores=statistics.median(cores[name]),
            spread=[min(rates[name]), max(rates[name])],
        )
        for name, rate in find_medians(rates).items()
    ]


def _measure_cpu(measure: Measure, vec: Any, cores: list[float], seconds: float) -> float:
    """Return the rate; append the share of a core that the processes of a vector took meanwhile."""
    processes = [psutil.Process(pid) for pid in vec.pids()]
    before, begun = sum(sum(each.cpu_times()[:2]) for each in processes), time.perf_counter()
    rate = measure(seconds)
    spent = sum(sum(each.cpu_times()[:2]) for each in processes) - before
    cores.append(spent / (time.perf_counter() - begun))
    return rate


def _measure_bare(grid: WaitingGrid, size: int) -> Row:
    """Compare with as many bare coroutines in their own process. Ours have one event loop per core, like a
    plan when one core is full."""
    factory = make_factory(partial(AwaitedBurn, wait_s=grid.wait_s))
    spec = probe(factory, "burn")
    group = choose_acting_rows(size, load_for_coroutines().count_groups(size))
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(1, spawn))
        loops = usable_cores()
        made = collect([factory] * size, spec, make_weights(spec), group, 32, kind=AioVec, num_workers=loops)
        collecting, _ = stack.enter_context(made)

        def bare(seconds: float) -> float:
            return pool.submit(loop_on_asyncio, size, grid.wait_s, seconds).result()

        measures = {"collecting": collecting, "bare asyncio": bare}
        rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    ours, theirs = find_medians(rates).values()
    case = f"collecting, {size} envs on {loops} event loops, compared with bare coroutines on one"
    peers, spread = {"bare asyncio": theirs}, find_spreads(rates)
    return make_row(case, ours, "steps/s", peers, ours / theirs, target=_OF_BARE, spread=spread)


def _measure_memory(grid: WaitingGrid, size: int) -> Row:
    """Measure the memory of one more environment on an event loop."""
    factory = make_factory(partial(AwaitedBurn, wait_s=grid.wait_s))
    weights = []
    for count in (1, size):
        vec: Any = make_vec(factory, count, backend="aio")
        with closing(vec):
            vec.reset(seed=0)
            step_for(vec.step, count, 0.2)
            weights.append(mean_memory(vec.inner.pids()) or 0)
    each_mb = (weights[1] - weights[0]) / (size - 1) / 1e6
    case = f"memory of one environment, {size} of them on one event loop"
    return make_row(case, each_mb, "MB PSS", target=_MOST_MB, loop_mb=weights[0] / 1e6)


def _measure_crawlers(grid: WaitingGrid) -> list[Row]:
    """Compare pages per second and memory: event loops, and SB3's processes if their packages are installed.
    No rows without the packages of ours."""
    if not all(map(find_spec, ("aiohttp", "selectolax"))):
        print('crawlers are left out; they need: pip install "mission-gym[web]"', file=sys.stderr)
        return []
    from mission_gym_missions.explore.settings import Settings, make_companion

    loops, size = usable_cores(), grid.crawlers
    missing = [package for module, package in _PEER_NEEDS.items() if not find_spec(module)]
    measures: dict[str, Measure] = {}
    memory: dict[str, float] = {}
    with ExitStack() as stack:
        site = Settings(latency_ms=1000 * grid.wait_s, jitter_ms=0.0)
        server = stack.enter_context(closing(start_companion(make_companion(site))))
        home = f"{server.kwargs['served_at']}1/"
        factory = make_factory(partial(AwaitedCrawler, home))
        spec = probe(factory, "crawler")
        group = choose_acting_rows(size, load_for_coroutines().count_groups(size))
        made = collect([factory] * size, spec, make_weights(spec), group, 32, kind=AioVec, num_workers=loops)
        measures[OURS], vec = stack.enter_context(made)
        if not missing:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            theirs = SubprocVecEnv([partial(Crawler, home)] * grid.processes)
            stack.callback(theirs.close)
            theirs.reset()
            measures["sb3"] = partial(step_for, theirs.step, grid.processes)
        rates = find_medians(measure_in_turn(measures, grid.seconds, grid.repeats))
        memory[OURS] = len(vec.pids()) * (mean_memory(vec.pids()) or 0) / 1e6
        if not missing:
            memory["sb3"] = sum(mean_memory([each.pid]) or 0 for each in theirs.processes) / 1e6
    sizes = f"{size} crawlers on {loops} event loops, compared with {grid.processes} processes of SB3"
    note = f"pip install {' '.join(missing)}, for the peer" if missing else ""
    faster, smaller = (None, None) if missing else (rates[OURS] / rates["sb3"], memory["sb3"] / memory[OURS])
    rows = (
        ("steps", "steps/s", rates, faster, _TIMES),
        ("memory", "MB PSS", memory, smaller, 1 / _MEMORY_SHARE),
    )
    return [
        make_row(f"{what}, {sizes}", by[OURS], unit, {"sb3": by.get("sb3")}, ratio, target=target, note=note)
        for what, unit, by, ratio, target in rows
    ]


def _measure_plan(grid: WaitingGrid, env: str) -> Row:
    """Compare the rate of the plan with environments chosen by hand, for a wait of 15 ms."""
    flags = {"n_envs": grid.by_hand, "vector": "threads"}
    case = TuneCase(env, env, kwargs={"wait_s": 0.015})
    planned, measures = time_plan(case, grid.plan_s, flags)
    rates = measure_in_turn(measures, grid.seconds, grid.repeats)
    ours, theirs = (statistics.median(rates[name]) for name in ("planned", "by hand"))
    return make_row(
        f"plan of {env.partition(':')[2]} that waits 15 ms",
        ours,
        "steps/s",
        {f"{grid.by_hand} threads by hand": theirs},
        ours / theirs,
        chosen=planned,
        target=1.0,
        spread=find_spreads(rates),
    )
