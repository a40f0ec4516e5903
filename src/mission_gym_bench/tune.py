"""`bench tune`: the plan compared with a small grid of layouts, each trained for a moment, in turn.

One row per case: the training rate of the chosen plan over the best of the grid, the error of the prediction,
predicted and measured peak memory, and the seconds that tuning took.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil

from mission_gym.config.layers import Resolved
from mission_gym.config.rules import apply_rules, fix_num_envs
from mission_gym.plan.cache import apply_plan
from mission_gym.plan.costs import Builder, rehearse
from mission_gym.plan.facts import RunLayout
from mission_gym.plan.memory import layout_of
from mission_gym.plan.tuner import Tuner, layout_values, make_plan_input
from mission_gym.procs import usable_cores
from mission_gym.run.build import one_blas_thread
from mission_gym.run.config import resolve
from mission_gym.run.environment import open_environment
from mission_gym.run.settle import make_builder
from mission_gym_bench.runner import Measure, Row, find_medians, find_spreads, make_row
from mission_gym_bench.synthetic import measure_spins_per_us

_BURN = "mission_gym_bench.synthetic:Burn"
_SIZES = (8, 32)  # environments of the grid, if their number is free and a rollout has room for them
_SAMPLE_S = 0.05


@dataclass(frozen=True, slots=True)
class TuneCase:
    """An environment. step_us: CPU time per step of the synthetic one."""

    name: str
    env_id: str = _BURN
    step_us: float = 0.0
    kwargs: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)  # of `mission-gym train`


CASES = (
    TuneCase("CartPole-v1", "CartPole-v1"),
    TuneCase("LunarLander-v3", "LunarLander-v3"),
    TuneCase("capture mission", "mission_gym/Capture-v0"),
    TuneCase("10 us", step_us=10),
    TuneCase("100 us", step_us=100),
    TuneCase("1,000 us", step_us=1000),
    TuneCase("10 us, jitter", step_us=10, kwargs={"jitter": True}),
    TuneCase("100 us, jitter", step_us=100, kwargs={"jitter": True}),
    TuneCase("1,000 us, jitter", step_us=1000, kwargs={"jitter": True}),
    TuneCase("waits 20 ms", kwargs={"wait_s": 0.02}),
    # One epoch: ten epochs of convolutions on the CPU take half a minute per rollout.
    TuneCase("image, 100 us", step_us=100, kwargs={"image": True}, flags={"n_epochs": 1}),
    TuneCase("LunarLander-v3, dqn", "LunarLander-v3", flags={"algo": "dqn"}),
    TuneCase("1,000 us, dqn", step_us=1000, flags={"algo": "dqn"}),
)


@dataclass(frozen=True, slots=True)
class TuneGrid:
    """What is measured."""

    cases: tuple[TuneCase, ...] = CASES
    budget_s: float = 12.0
    repeats: int = 3
    seconds: float = 1.5  # per training, or one update if that takes longer


def measure_tune(grid: TuneGrid) -> list[Row]:
    """One row per case."""
    spins = measure_spins_per_us()
    with one_blas_thread():
        return [_measure(case, grid, spins) for case in grid.cases]


def _open_case(case: TuneCase, flags: dict[str, Any], kwargs: dict[str, Any]) -> tuple[Builder, Resolved]:
    """Open the environment of a case; return its builder, and its config before tuning."""
    resolved = resolve(case.env_id, flags | {"env_kwargs": kwargs, "eval_freq": 0})
    first, _ = apply_rules(resolved)
    environment = open_environment(first.config, dict(kwargs))
    return make_builder(environment, first), resolved


def _tune(builder: Builder, resolved: Resolved, budget_s: float) -> dict[str, Any]:
    return Tuner(builder, resolved, budget_s, lambda message: None).run()


def time_plan(case: TuneCase, budget_s: float, by_hand: dict[str, Any]) -> tuple[str, dict[str, Measure]]:
    """Return a description of a case's plan, and measures of its rate and of the rate with other flags."""
    builder, resolved = _open_case(case, case.flags, case.kwargs)
    entry = _tune(builder, resolved, budget_s)
    config = builder.settle(apply_plan(fix_num_envs(resolved), entry["values"]))
    layout = layout_of(config, builder.backends[config.vector.vector])
    chosen = f"{layout}, rollout {layout.rollout}, predicted {entry['steps_per_s']:,.0f} steps/s"
    other, unplanned = _open_case(case, case.flags | by_hand, case.kwargs)
    return chosen, {
        "planned": partial(rehearse, builder, config),
        "by hand": partial(rehearse, other, other.settle(fix_num_envs(unplanned))),
    }


def _measure(case: TuneCase, grid: TuneGrid, spins_per_us: float) -> Row:
    kwargs = case.kwargs | ({"spins": int(case.step_us * spins_per_us)} if case.env_id == _BURN else {})
    builder, resolved = _open_case(case, case.flags, kwargs)
    entry = _tune(builder, resolved, grid.budget_s)
    base = fix_num_envs(resolved)
    chosen = builder.settle(apply_plan(base, entry["values"]))
    planned = layout_of(chosen, builder.backends[chosen.vector.vector])
    compute = {path: value for path, value in entry["values"].items() if path.startswith("compute.")}
    plans = {"chosen": chosen} | {
        str(layout): builder.settle(apply_plan(base, layout_values(layout, resolved.config) | compute))
        for layout in _make_grid(builder, resolved, entry)
        if layout != planned
    }
    rates: dict[str, list[float]] = {name: [] for name in plans}
    peaks: list[int] = []
    for _ in range(grid.repeats):
        for name, config in plans.items():
            rate, most = _watch_memory(partial(rehearse, builder, config, grid.seconds))
            rates[name].append(rate)
            if name == "chosen":
                peaks.append(most)
    medians = find_medians(rates)
    ours, best = medians["chosen"], max(medians, key=medians.__getitem__)
    memory, peak = entry["memory_bytes"], statistics.median(peaks)
    print(
        f"{case.name}: {planned}, {ours:,.0f} steps/s, best {best} {medians[best]:,.0f}, predicted"
        f" {entry['steps_per_s']:,.0f}",
        file=sys.stderr,
    )
    return make_row(
        f"tune: {case.name}",
        ours,
        "steps/s",
        {"best of the grid": medians[best]},
        ours / medians[best],
        chosen=str(planned),
        best=best,
        spread=find_spreads(rates),
        grid=medians,
        predicted=entry["steps_per_s"],
        prediction_error=entry["steps_per_s"] / ours - 1.0,
        memory_predicted_mb=memory / 1e6,
        memory_measured_mb=peak / 1e6,
        memory_error=memory / peak - 1.0,
        tuning_s=entry["spent_s"],
    )


def _make_grid(builder: Builder, resolved: Resolved, entry: dict[str, Any]) -> list[RunLayout]:
    """Return layouts of every backend that may be chosen, one worker and one per core, few and many
    environments."""
    inputs = make_plan_input(builder, resolved, builder.settle(fix_num_envs(resolved)))
    waits = entry["measured"]["env"]["cpu_share"] < 0.5
    backends = [
        *inputs.backends,
        *(each for each in builder.backends.values() if each.for_waiting and waits),
    ]
    rollout = inputs.default.rollout
    sizes = _SIZES if rollout >= max(_SIZES) else (1, rollout)
    layouts = []
    for n_envs in sizes if inputs.open_envs else [inputs.default.n_envs]:
        steps = rollout // n_envs
        for backend in backends:
            # One layout of workers that wait is enough: they are ten times slower than threads.
            if waits and backend.chooses_workers and n_envs < max(sizes):
                continue
            most = min(usable_cores(), n_envs)
            counts = {most} if waits else {1, most}
            for workers in counts if backend.chooses_workers else {1}:
                layouts.append(RunLayout(backend, workers, n_envs, steps))
    return layouts


def _watch_memory(call: Callable[[], float]) -> tuple[float, int]:
    """Return the result of a call, and the peak memory of this process and its children meanwhile."""
    done = threading.Event()
    peak = [_tree_bytes()]  # in case the call ends before the first sample

    def sample() -> None:
        while not done.wait(_SAMPLE_S):
            peak[0] = max(peak[0], _tree_bytes())

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        return call(), peak[0]
    finally:
        done.set()
        watcher.join()


def _tree_bytes() -> int:
    """Return the resident memory of this process plus the proportional memory of its children."""
    me = psutil.Process()
    total = int(me.memory_info().rss)
    for child in me.children(recursive=True):
        try:
            info = child.memory_full_info()
        except psutil.Error:
            continue
        total += int(getattr(info, "pss", info.rss))
    return total
