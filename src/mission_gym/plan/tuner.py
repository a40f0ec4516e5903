"""Measures and plans: for `tune` with its own time budget, for a new run within a twentieth of its time.

The run's config stores the chosen values with the source "plan". The plan is cached by machine, environment,
config and versions, so that equal runs get equal plans. A resumed run keeps its config and is not planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil
from typing import Any

import psutil

from mission_gym.check.devices import device_memory
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import DEFAULT_ENVS, fix_num_envs
from mission_gym.config.schema import Config, Settled
from mission_gym.env.pace import time_steps
from mission_gym.errors import ConfigError, DeviceMemoryError, MissionGymError, TargetSilent
from mission_gym.plan.cache import (
    apply_plan,
    find_max_rollout,
    is_open,
    make_plan_key,
    read_plan,
    size_paths,
    write_plan,
)
from mission_gym.plan.costs import NUM_BLOCKS, Builder, measure_act, measure_collect, rehearse
from mission_gym.plan.env_costs import mean_memory, measure_env
from mission_gym.plan.facts import (
    Choice,
    EnvFacts,
    PlanFacts,
    PlanInput,
    RunLayout,
    UpdateCost,
)
from mission_gym.plan.memory import check_memory, count_bytes, fits, layout_of, read_own_machine
from mission_gym.plan.planner import (
    MARGIN,
    choose,
    list_scaling,
    make_scaling,
    model_collect_s,
    shortlist,
    show_time,
)
from mission_gym.plan.setups import (
    LearnerSetup,
    choose_overlap,
    device_exists,
    list_threaded,
    measure_others,
)
from mission_gym.procs.machine import count_threads

Say = Callable[[str], None]
RUN_SHARE = 0.05  # of a run's predicted time, for tuning it
RUN_MAX_S = 10.0
RUN_MIN_S = 1.5  # a shorter budget is too short to measure anything
PROBE_S = 0.05  # time for steps while the environment is probed
_MIN_STEPS = 30_000  # runs with fewer steps are not measured
_SLOWEST_UPDATE_S = 500e-6  # per transition; assumed to find out that a run is short
_START_S = 20.0  # for processes to start on a busy machine; one that hangs costs this much, once
_TRIAL_BLOCK_S = 0.15
_ACTING_STEPS = 16  # of the blocks that compare where the policy acts
_REHEARSAL_S = 2.0  # for rollouts as short as DQN's, whose first hundreds say little
_LONG_S = 15.0  # a budget for many trials
_REHEARSAL_SHARE = 0.4  # of the time, reserved for a rehearsal of the choice


@dataclass(frozen=True, slots=True)
class Tuned:
    """The config of a run, and the plan that it comes from, if there is one."""

    resolved: Resolved
    key: str = ""
    entry: dict[str, Any] | None = None  # as cached: values, steps_per_s, reasons, changes, scaling, ...
    notes: tuple[str, ...] = ()


def tune_run(builder: Builder, resolved: Resolved, say: Say) -> Tuned:
    """Plan a new run: from the cache, or by a measurement if that takes a small part of the run."""
    default = fix_num_envs(resolved)
    is_auto = resolved.config.vector.n_envs == "auto"
    if not resolved.config.compute.tune:
        if is_auto:
            raise ConfigError(
                "n_envs=auto needs a plan, and --no-tune disables it; give a number, or remove it"
                f" [{resolved.sources['vector.n_envs']}]"
            )
        return Tuned(default)
    key = make_plan_key(resolved, builder.spec)
    entry = read_plan(key)
    rate = entry["steps_per_s"] if entry else _guess_rate(builder, default)
    if rate is not None and entry is None:
        write_plan(key, {"steps_per_s": rate})  # so that an equal run decides the same
    budget_s = 0.0 if rate is None else min(RUN_MAX_S, RUN_SHARE * default.config.run.timesteps / rate)
    if budget_s < RUN_MIN_S:
        note = f"n_envs=auto: the run is too short for a measurement, {DEFAULT_ENVS} are used"
        return Tuned(default, notes=(note,) if is_auto else ())
    device = (entry or {}).get("values", {}).get("compute.device", "cpu")
    if entry is None or "values" not in entry or entry.get("missed") or not device_exists(device):
        if entry and entry.get("missed"):
            say("the last run missed its plan by over 15 %; measuring again")
        elif not device_exists(device):
            say(f"the cached plan is for {device}, which is not available; measuring again")
        try:
            entry = Tuner(builder, resolved, budget_s, say, entry).run()
        except (ConfigError, TargetSilent):
            raise
        except MissionGymError as error:  # the run itself handles failures and reports them
            return Tuned(default, notes=(f"not tuned: {str(error).splitlines()[0]}",))
        write_plan(key, entry)
        say(f"tuned in {entry['spent_s']:.1f} s of {budget_s:.1f}")
    elif entry["values"].get("compute.threads", 1) > 1 and measure_others():
        # It was measured at another load; the run times its threads again.
        entry = entry | {"values": entry["values"] | {"compute.threads": "auto"}}
    notes = tuple(f"planned: {change}" for change in entry["changes"])
    return Tuned(apply_plan(default, entry["values"]), key, entry, notes)


def may_plan(config: Config) -> bool:
    """Whether a run of this config may be worth a measurement."""
    return config.compute.tune and config.run.timesteps >= _MIN_STEPS


def layout_values(layout: RunLayout, given: Config) -> dict[str, Any]:
    """The config values of a layout, without those that the config fixes."""
    sizes = (layout.n_envs, layout.n_steps_per_env)
    values: dict[str, Any] = dict(zip(size_paths(given), sizes, strict=True))
    if layout.batch_size is not None:
        values[f"{given.run.algo}.batch_size"] = layout.batch_size
    if given.vector.vector == "auto":
        values["vector.vector"] = layout.backend.name
    if given.vector.num_workers == "auto":
        values["vector.num_workers"] = layout.num_workers
    return values


def make_plan_input(
    builder: Builder, resolved: Resolved, default: Settled, previous: RunLayout | None = None
) -> PlanInput:
    """What this config fixes and leaves open. default: the config without a plan."""
    given, algorithm = resolved.config, builder.algorithm
    layout = layout_of(default, builder.backends[default.vector.vector])
    others = (each for each in builder.backends.values() if not each.for_waiting)
    envs, steps = size_paths(given)

    @cache
    def overlaps(layout: RunLayout, update: UpdateCost) -> bool:
        if given.compute.overlap != "auto":
            return given.compute.overlap == "on"
        vector = {"vector": layout.backend.name, "num_workers": layout.num_workers, "n_envs": layout.n_envs}
        compute = {"device": update.device, "threads": update.threads}
        sizes = {"n_steps_per_env": layout.n_steps_per_env}
        if layout.batch_size is not None:
            sizes["batch_size"] = layout.batch_size
        changed = {"vector": vector, "compute": compute, "algorithm": sizes}
        sections = {name: getattr(default, name).model_copy(update=new) for name, new in changed.items()}
        return choose_overlap(default.model_copy(update=sections), layout.backend, algorithm).value == "on"

    return PlanInput(
        default=layout,
        backends=tuple(dict.fromkeys((layout.backend, *others))),
        previous=previous,
        batch_size=algorithm.fixed_batch(resolved),
        minibatch=algorithm.minibatch(default),
        max_rollout=max(layout.rollout, find_max_rollout(given)),
        overlaps=overlaps,
        open_envs=is_open(resolved, envs),
        open_steps=not resolved.explicit(steps),
        open_workers=given.vector.num_workers == "auto",
        trace_decay=algorithm.trace_decay(given),
        chunk=algorithm.chunk(default),
        **count_bytes(default, builder.spec, layout.backend),
        base_bytes=int(psutil.Process().memory_info().rss) + algorithm.held_bytes(default, builder.spec),
    )


class Tuner:
    """One measurement of about `budget_s`: the environment, acting, learner setups, then trials of the best
    layouts. earlier: the cached plan, if there is one."""

    def __init__(
        self,
        builder: Builder,
        resolved: Resolved,
        budget_s: float,
        say: Say,
        earlier: dict[str, Any] | None = None,
    ) -> None:
        self._start = time.perf_counter()
        self._builder, self._resolved, self._budget_s, self._say = builder, resolved, budget_s, say
        self._base = fix_num_envs(resolved)
        self._default = builder.settle(self._base)
        check_memory(self._default, builder.backend, builder.spec, builder.algorithm)
        self._machine = read_own_machine()
        previous, backends = None, builder.backends
        if earlier and (kept := earlier.get("layout")) and kept["backend"] in backends:
            previous = RunLayout(**kept | {"backend": backends[kept["backend"]]})
        self._weights = builder.make_learner(self._default).weights()
        self._inputs = make_plan_input(builder, resolved, self._default, previous)

    def run(self) -> dict[str, Any]:
        """Return the plan as it is cached. The default layout and its best rival are tried first, others as
        long as there is time."""
        with device_memory(self._default):
            return self._measure()

    def _measure(self) -> dict[str, Any]:
        given = self._resolved.config
        first, *others = list_threaded(
            given, self._default, self._builder.algorithm, self._builder.spec, count_threads()
        )
        facts = self._measure_facts(*first)
        for layout in shortlist(facts, 2):
            facts = self._try(facts, layout)
        for setup, threads in others:
            if self._left_s() > _REHEARSAL_SHARE * self._budget_s:
                facts = self._add_update(facts, setup, threads)
        num_trials = 2 if self._budget_s < 5 else 4 if self._budget_s < _LONG_S else 8
        for layout in shortlist(facts, num_trials)[2:]:
            facts = self._try(facts, layout)
        choice, num_tried = choose(facts), -1
        while choice.layout not in facts.trials and len(facts.trials) > num_tried:
            num_tried = len(facts.trials)
            facts = self._try(facts, choice.layout)
            choice = choose(facts)
        for layout in list_scaling(facts, choice.update) if self._budget_s >= _LONG_S else ():
            # Only for the scaling table: the choice is made.
            if layout not in facts.trials and fits(self._machine, facts.env, facts.inputs, layout):
                facts = self._try(facts, layout)
        return self._finish(facts, choice)

    def _measure_facts(self, setup: LearnerSetup, threads: int) -> PlanFacts:
        """Measure the environment, acting and the default learner setup."""
        builder, inputs, machine, env = self._builder, self._inputs, self._machine, EnvFacts(1e-6)
        if not builder.backend.own_vector_form:
            self._say("timing the environment, alone and on every core")
            env = measure_env(
                builder.factory,
                builder.spec,
                machine.usable_cores,
                min(max(self._budget_s / 20, 0.1), 0.5),
                timeout_s=max(_START_S, 0.6 * self._budget_s),
            )
            if env.waits and inputs.open_workers:
                waiting = (each for each in builder.backends.values() if each.for_waiting)
                inputs = replace(inputs, backends=tuple(dict.fromkeys((*inputs.backends, *waiting))))
        act = measure_act(builder, self._default, self._weights)
        if builder.cluster is not None:  # environments use the cluster's CPUs
            cores = builder.cluster.count_cpus()
            machine = replace(machine, allowed_cores=cores, cpu_quota=None, efficiency_cores=0)
        return PlanFacts(machine, env, act, (self._time_update(setup, threads),), inputs)

    def _add_update(self, facts: PlanFacts, setup: LearnerSetup, threads: int) -> PlanFacts:
        """Time another learner setup; a device that fails is reported and left out."""
        try:
            return replace(facts, updates=(*facts.updates, self._time_update(setup, threads)))
        except (RuntimeError, TypeError, DeviceMemoryError, ConfigError) as error:  # border: drivers
            if setup.device == "cpu":
                raise
            self._say(f"{setup} is left out: {str(error).splitlines()[0]}")
            return facts

    def _time_update(self, setup: LearnerSetup, threads: int) -> UpdateCost:
        self._say(f"timing an update: {setup}, {threads} thread{'s' if threads > 1 else ''}")
        values = {f"compute.{name}": value for name, value in setup._asdict().items()}
        config = self._builder.settle(self._base.with_values(values | {"compute.threads": threads}, "plan"))
        seconds = self._builder.measure_update_s(config)
        return UpdateCost(setup.device, setup.kernel, threads, seconds, setup.precision)

    def _try(self, facts: PlanFacts, layout: RunLayout) -> PlanFacts:
        """Collect with this layout, if there is time; a layout that fails is left out."""
        if len(facts.trials) > 1 and self._left_s() < _REHEARSAL_SHARE * self._budget_s:
            return facts
        self._say(f"trying {layout}")
        step_s = max(model_collect_s(facts, layout) * layout.n_envs * layout.num_agents, 1e-9)
        num_steps = min(max(ceil(_TRIAL_BLOCK_S / step_s), 8), layout.n_steps_per_env)
        config = self._builder.settle(apply_plan(self._base, layout_values(layout, self._base.config)))
        try:
            seconds = min(max(self._budget_s / 40, 0.15), 0.5)
            vec, collector, _ = self._builder.make_collector(config)
            with vec, device_memory(config):
                collect_s = measure_collect(collector, self._weights, num_steps, NUM_BLOCKS, seconds).step_s
                worker_bytes = mean_memory(vec.pids())
        except MissionGymError as error:
            if layout == facts.inputs.default:
                raise
            self._say(f"{layout} failed: {str(error).splitlines()[0]}")
            return facts
        env = facts.env
        if worker_bytes is not None:
            own = worker_bytes - env.memory_bytes * layout.n_envs // layout.num_workers
            env = replace(env, worker_bytes=max(own, 0))
        if layout.backend.own_vector_form:
            env = replace(env, step_s=collect_s)
        return replace(facts, env=env, trials={**facts.trials, layout: collect_s})

    def _compare_acting(self, choice: Choice, config: Settled) -> tuple[str, str] | None:
        """The faster acting form of an MLP if an accelerator learns, and the measured times; None if the form
        is fixed.

        It is measured after the device is chosen and could not change that choice: if acting is expensive,
        an update on the CPU, which passes through the network in every epoch, costs many times more.
        """
        device = choice.update.device
        is_open = (self._resolved.config.compute.acting, config.compute.acting) == ("auto", "numpy")
        if not is_open or device == "cpu" or self._left_s() < _REHEARSAL_SHARE * self._budget_s:
            return None
        self._say(f"trying to act on {device}")
        numpy_s = self._time_acting(config, "numpy")
        try:
            torch_s = self._time_acting(config, "torch")
        except (RuntimeError, TypeError, DeviceMemoryError) as error:  # border: drivers
            return "numpy", f"acting with numpy: {device} failed: {str(error).splitlines()[0]}"
        chosen = "torch" if numpy_s > MARGIN * torch_s else "numpy"
        times = f"{show_time(numpy_s)} per step with NumPy, {show_time(torch_s)} on {device}"
        return chosen, f"acting with {chosen}: collecting takes {times}"

    def _time_acting(self, config: Settled, acting: str) -> float:
        compute = config.compute.model_copy(update={"acting": acting})
        vec, collector, _ = self._builder.make_collector(config.model_copy(update={"compute": compute}))
        with vec, device_memory(config):
            return measure_collect(collector, self._weights, _ACTING_STEPS, NUM_BLOCKS).step_s

    def _finish(self, facts: PlanFacts, choice: Choice) -> dict[str, Any]:
        """Rehearse the choice if there is time, and return the plan."""
        given, reasons = self._resolved.config, list(choice.reasons)
        values = layout_values(choice.layout, given)
        for name in ("device", "kernel", "precision", "threads"):
            if getattr(given.compute, name) == "auto":
                values[f"compute.{name}"] = getattr(choice.update, name)
        config = self._builder.settle(apply_plan(self._base, values))
        if acting := self._compare_acting(choice, config):
            values["compute.acting"], reason = acting
            reasons.append(reason)
            config = self._builder.settle(apply_plan(self._base, values))
        rate, cycle_s = choice.steps_per_s, config.rollout_size / choice.steps_per_s
        if rehearsed := self._left_s() > 0.5 + 2.5 * cycle_s:
            self._say("rehearsing the choice")
            seconds = min(self._left_s() - 0.5 - cycle_s, max(4 * cycle_s + 0.5, _REHEARSAL_S))
            rate = rehearse(self._builder, config, seconds)
        gain = rate / choice.steps_per_s
        machine = self._machine
        return asdict(choice) | {
            "values": values,
            "reasons": reasons,
            "layout": choice.layout.document(),
            "steps_per_s": rate,
            "scaling": [
                point | {"steps_per_s": point["steps_per_s"] * gain}
                for point in make_scaling(facts, choice.update)
            ],
            "measured": {
                "env": asdict(facts.env),
                "act": asdict(facts.act),
                "updates": [asdict(each) for each in facts.updates],
                "trials": [
                    {"layout": layout.document(), "collect_s": collect_s}
                    for layout, collect_s in facts.trials.items()
                ],
                "rehearsed": rehearsed,
            },
            "machine": {name: getattr(machine, name) for name in ("cpu", "usable_cores", "memory_bytes")},
            "budget_s": self._budget_s,
            "spent_s": time.perf_counter() - self._start,
        }

    def _left_s(self) -> float:
        return self._budget_s - (time.perf_counter() - self._start)


def _guess_rate(builder: Builder, resolved: Resolved) -> float | None:
    """Steps per second, from the time of a step and an update; None for a run that is short in any case."""
    if not may_plan(resolved.config):
        return None
    step_s = builder.step_s
    if builder.backend.runs_here and not builder.backend.own_vector_form:
        with suppress(MissionGymError):  # the run itself reports the failure
            step_s = time_steps(builder.factory, builder.spec, PROBE_S).step_s
    step_s /= float(builder.spec.num_agents)
    if RUN_SHARE * resolved.config.run.timesteps * (step_s + _SLOWEST_UPDATE_S) < RUN_MIN_S:
        return None
    config = builder.settle(resolved)
    check_memory(config, builder.backend, builder.spec, builder.algorithm)
    return 1.0 / (step_s / config.vector.num_workers + builder.measure_update_s(config))
