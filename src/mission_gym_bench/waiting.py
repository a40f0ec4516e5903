"""`bench waiting`: environments that wait 20 ms a step, by the hundred on one event loop.

Stepping is `make_vec`, collecting what a run does with a 64,64 policy. They are held against the limit
(environments / latency), and against bare coroutines on a plain asyncio loop. Crawlers of a site that answers
after 20 ms are held against 32 processes of SB3's SubprocVecEnv. Then memory, overlap, and the plan against
what was chosen by hand before.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import psutil

from mission_gym.env.factory import make_factory
from mission_gym.env.probe import probe
from mission_gym.plan.env_costs import mean_memory
from mission_gym.procs import usable_cores
from mission_gym.procs.companions import attend
from mission_gym.run.build import one_blas_thread
from mission_gym.run.environment import choose_acting_rows
from mission_gym.vector.aio import AioVec
from mission_gym.vector.backends import load_for_coroutines
from mission_gym.vector.make_vec import make_vec
from mission_gym_bench.burn import AwaitedBurn, loop_on_asyncio
from mission_gym_bench.contest import Row
from mission_gym_bench.crawl import AwaitedCrawler, Crawler
from mission_gym_bench.overlap import OverlapGrid, measure_time
from mission_gym_bench.tune import TuneCase, time_plan
from mission_gym_bench.vector import Measure, closing, collect, make_weights, step_for

_AWAITED = "mission_gym_bench.burn:AwaitedBurn"
_OF_LIMIT, _OF_BARE, _MOST_MB = 0.9, 0.8, 1.0
_PEER_NEEDS = {
    "stable_baselines3": "stable-baselines3",
    "requests": "requests",
    "bs4": "beautifulsoup4",
}  # modules and their packages
_TIMES, _MEMORY_SHARE = 5.0, 0.1  # what the contest against processes must show


@dataclass(frozen=True, slots=True)
class WaitingGrid:
    """What is measured, and for how long each time."""

    sizes: tuple[int, ...] = (64, 256, 512, 1000)
    wait_s: float = 0.02
    seconds: float = 2.0
    repeats: int = 3
    crawlers: int = 256
    processes: int = 32  # of SB3, with a crawler each
    overlaps: tuple[OverlapGrid, ...] = (
        OverlapGrid(env=_AWAITED, vector="aio"),
        OverlapGrid(env=_AWAITED, vector="aio", longer=1.5),
    )
    plan_s: float = 12.0
    planned: tuple[str, ...] = ("mission_gym_bench.burn:Burn", _AWAITED)
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


def _repeat(grid: WaitingGrid, contestants: dict[str, Measure]) -> dict[str, list[float]]:
    """Rates of each, taken in turn."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(grid.repeats):
        for name, measure in contestants.items():
            rates[name].append(measure(grid.seconds))
    return rates


def _measure_size(grid: WaitingGrid, size: int) -> list[Row]:
    """One event loop, stepped together and collecting; the share of a core that it takes."""
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
        contestants: dict[str, Measure] = {
            name: partial(_weigh_cpu, *way, cores[name]) for name, way in ways.items()
        }
        rates = _repeat(grid, contestants)
    print(f"{size} environments: { {name: max(each) for name, each in rates.items()} }", file=sys.stderr)
    return [
        {
            "case": f"{name}, {size} envs that wait {1000 * grid.wait_s:g} ms on one event loop",
            "ours": statistics.median(column), "peers": {}, "ratio": None, "unit": "steps/s", "limit": limit,
            "of_limit": statistics.median(column) / limit, "target": _OF_LIMIT,
            "cores": statistics.median(cores[name]), "spread": [min(column), max(column)],
        }
        for name, column in rates.items()
    ]  # fmt: skip


def _weigh_cpu(measure: Measure, vec: Any, cores: list[float], seconds: float) -> float:
    """The rate, and what the processes of a vector take of a core meanwhile."""
    processes = [psutil.Process(pid) for pid in vec.pids()]
    before, begun = sum(sum(each.cpu_times()[:2]) for each in processes), time.perf_counter()
    rate = measure(seconds)
    spent = sum(sum(each.cpu_times()[:2]) for each in processes) - before
    cores.append(spent / (time.perf_counter() - begun))
    return rate


def _measure_bare(grid: WaitingGrid, size: int) -> Row:
    """As many coroutines with nothing around them, in a process of their own. Ours have an event loop for
    each core, as plans give them when one core is full."""
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

        rates = _repeat(grid, {"collecting": collecting, "bare asyncio": bare})
    ours, theirs = (statistics.median(column) for column in rates.values())
    return {
        "case": f"collecting, {size} envs on {loops} event loops, beside bare coroutines on one",
        "ours": ours,
        "peers": {"bare asyncio": theirs}, "ratio": ours / theirs, "unit": "steps/s", "target": _OF_BARE,
        "spread": {name: [min(column), max(column)] for name, column in rates.items()},
    }  # fmt: skip


def _measure_memory(grid: WaitingGrid, size: int) -> Row:
    """What one environment more takes on an event loop."""
    factory = make_factory(partial(AwaitedBurn, wait_s=grid.wait_s))
    weights = []
    for count in (1, size):
        with closing(make_vec(factory, count, backend="aio")) as vec:
            vec.reset(seed=0)
            step_for(vec.step, count, 0.2)
            weights.append(mean_memory(vec.inner.pids()) or 0)
    return {
        "case": f"memory of one environment, {size} of them on one event loop",
        "ours": (weights[1] - weights[0]) / (size - 1) / 1e6, "peers": {}, "ratio": None, "unit": "MB PSS",
        "target": _MOST_MB, "loop_mb": weights[0] / 1e6,
    }  # fmt: skip


def _measure_crawlers(grid: WaitingGrid) -> list[Row]:
    """Pages of one site for each second, and memory: event loops beside processes of SB3's, where that and
    what its crawlers need is installed. Nothing without what ours need."""
    if not all(map(find_spec, ("aiohttp", "selectolax"))):
        print('no crawlers: they need pip install "mission-gym[web]"', file=sys.stderr)
        return []
    from mission_gym_missions.explore.settings import Settings, make_companion

    loops, size = usable_cores(), grid.crawlers
    missing = [package for module, package in _PEER_NEEDS.items() if not find_spec(module)]
    contestants: dict[str, Measure] = {}
    weights: dict[str, float] = {}
    with ExitStack() as stack:
        site = Settings(latency_ms=1000 * grid.wait_s, jitter_ms=0.0)
        server = stack.enter_context(closing(attend(make_companion(site))))
        home = f"{server.told['served_at']}1/"
        factory = make_factory(partial(AwaitedCrawler, home))
        spec = probe(factory, "crawler")
        group = choose_acting_rows(size, load_for_coroutines().count_groups(size))
        made = collect([factory] * size, spec, make_weights(spec), group, 32, kind=AioVec, num_workers=loops)
        contestants["ours"], vec = stack.enter_context(made)
        if not missing:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            theirs = SubprocVecEnv([partial(Crawler, home)] * grid.processes)
            stack.callback(theirs.close)
            theirs.reset()
            contestants["sb3"] = partial(step_for, theirs.step, grid.processes)
        rates = {name: statistics.median(each) for name, each in _repeat(grid, contestants).items()}
        weights["ours"] = len(vec.pids()) * (mean_memory(vec.pids()) or 0) / 1e6
        if not missing:
            weights["sb3"] = sum(mean_memory([each.pid]) or 0 for each in theirs.processes) / 1e6
    against = f"{size} crawlers on {loops} event loops beside {grid.processes} processes of SB3"
    note = f"pip install {' '.join(missing)}, for the peer" if missing else ""
    common = {"peers": {"sb3": None}, "ratio": None, "note": note}
    steps: Row = common | {"case": f"steps, {against}", "ours": rates["ours"], "unit": "steps/s"}
    memory: Row = common | {"case": f"memory, {against}", "ours": weights["ours"], "unit": "MB PSS"}
    if not missing:
        steps |= {"peers": {"sb3": rates["sb3"]}, "ratio": rates["ours"] / rates["sb3"]}
        memory |= {"peers": {"sb3": weights["sb3"]}, "ratio": weights["sb3"] / weights["ours"]}
    return [steps | {"target": _TIMES}, memory | {"target": 1 / _MEMORY_SHARE}]


def _measure_plan(grid: WaitingGrid, env: str) -> Row:
    """The rate of the plan beside so many environments by hand, for a wait of 15 ms."""
    flags = {"n_envs": grid.by_hand, "vector": "threads"}
    rates: dict[str, Callable[[], float]]
    planned, rates = time_plan(TuneCase(env, env, kwargs={"wait_s": 0.015}), grid.plan_s, grid.seconds, flags)
    made: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(grid.repeats):
        for name, measure in rates.items():
            made[name].append(measure())
    ours, theirs = (statistics.median(made[name]) for name in ("planned", "by hand"))
    return {
        "case": f"plan of {env.partition(':')[2]} that waits 15 ms", "ours": ours,
        "peers": {f"{grid.by_hand} threads by hand": theirs}, "ratio": ours / theirs, "unit": "steps/s",
        "chosen": planned, "target": 1.0,
        "spread": {name: [min(column), max(column)] for name, column in made.items()},
    }  # fmt: skip
