"""Measures, plans and applies: `tune` with its own budget, and a new run within a twentieth of its time.

What is chosen is stored in the run's config with the source "plan", and kept by a key of machine,
environment, config and versions, so that equal runs get equal plans. A resume never comes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from mission_gym.check.devices import device_memory
from mission_gym.config.layers import Resolved
from mission_gym.config.rules import DEFAULT_ENVS, fix_num_envs
from mission_gym.config.schema import Config, Settled
from mission_gym.data import EnvSpec
from mission_gym.env.pace import time_steps
from mission_gym.errors import ConfigError, DeviceMemoryError, MissionGymError
from mission_gym.plan.cache import make_key, read_plan, write_plan
from mission_gym.plan.costs import NUM_BLOCKS, Workshop, measure_act, measure_collect, rehearse
from mission_gym.plan.env_costs import mean_memory, measure_env
from mission_gym.plan.facts import Choice, EnvFacts, Facts, Layout, Trial, UpdateCost
from mission_gym.plan.memory import check_memory, fits, read_own_machine
from mission_gym.plan.planner import (
    MARGIN,
    choose,
    list_scaling,
    make_scaling,
    model_collect_s,
    shortlist,
    show_time,
)
from mission_gym.plan.ways import Way, device_exists
from mission_gym.plan.wishes import (
    apply,
    find_max_rollout,
    is_open,
    layout_values,
    list_learning,
    make_wishes,
    size_paths,
)
from mission_gym.procs import read_machine
from mission_gym.procs.versions import versions
from mission_gym.ray.cluster import find_cluster

Say = Callable[[str], None]
RUN_SHARE = 0.05  # of a run's predicted time, for tuning inside it
RUN_MOST_S = 10.0
RUN_LEAST_S = 1.5  # below this there is no time to learn anything
LOOK_S = 0.05  # for which steps are timed while the environment is looked at anyway
_LEAST_STEPS = 30_000  # of a run, before anything is measured for it
_SLOWEST_UPDATE_S = 500e-6  # a transition, where nothing was measured yet: to tell that a run is short
_PATIENCE_S = 20.0  # for processes to start on a busy machine; one that hangs costs so much, once
_TRIAL_BLOCK_S = 0.15
_ACTING_STEPS = 16  # of the blocks that compare where the policy acts
_REHEARSAL_S = 2.0  # of rollouts as short as DQN's, of which the first hundreds say little
_LONG_S = 15.0  # a budget that allows many trials; those inside a run are shorter
_REHEARSAL_SHARE = 0.4  # of the time, kept for the real loop of the choice, whose rate is promised


@dataclass(frozen=True, slots=True)
class Tuned:
    """A config to run with, and the plan that it came from, if there is one."""

    resolved: Resolved
    key: str = ""
    entry: dict[str, Any] | None = None  # as kept: values, steps_per_s, reasons, changes, scaling, ...
    notes: tuple[str, ...] = ()


def tune_run(workshop: Workshop, resolved: Resolved, say: Say) -> Tuned:
    """The plan of a new run: kept from before, or measured if that takes a small part of the run."""
    plain = fix_num_envs(resolved)
    asked = resolved.config.vector.n_envs == "auto"
    if not resolved.config.compute.tune:
        if asked:
            raise ConfigError(
                "n_envs=auto is left to the plan, and --no-tune makes none; give a number, or remove it"
                f" [{resolved.sources['vector.n_envs']}]"
            )
        return Tuned(plain)
    key = make_plan_key(resolved, workshop.environment.spec)
    entry = read_plan(key)
    rate = entry["steps_per_s"] if entry else _guess_rate(workshop, plain)
    if rate is not None and entry is None:
        write_plan(key, {"steps_per_s": rate})  # so that an equal run decides alike
    budget_s = 0.0 if rate is None else min(RUN_MOST_S, RUN_SHARE * plain.config.run.timesteps / rate)
    if budget_s < RUN_LEAST_S:
        note = f"n_envs=auto: the run is too short to be measured for, {DEFAULT_ENVS} are used"
        return Tuned(plain, notes=(note,) if asked else ())
    device = (entry or {}).get("values", {}).get("compute.device", "cpu")
    if entry is None or "values" not in entry or entry.get("missed") or not device_exists(device):
        if entry and entry.get("missed"):
            say("the last run missed its plan by over 15 %; measuring again")
        elif not device_exists(device):
            say(f"the kept plan is for {device}, which is not here; measuring again")
        try:
            entry = Tuner(workshop, resolved, budget_s, say, entry).run()
        except ConfigError:
            raise
        except MissionGymError as error:  # the run itself contains failures, and tells them
            return Tuned(plain, notes=(f"not tuned: {str(error).splitlines()[0]}",))
        write_plan(key, entry)
        say(f"tuned in {entry['spent_s']:.1f} s of {budget_s:.1f}")
    notes = tuple(f"planned: {change}" for change in entry["changes"])
    return Tuned(apply(plain, entry["values"]), key, entry, notes)


def may_plan(config: Config) -> bool:
    """Whether a run of this config may be worth a measurement."""
    return config.compute.tune and config.run.timesteps >= _LEAST_STEPS


def make_plan_key(resolved: Resolved, spec: EnvSpec) -> str:
    """All that a plan depends on: this machine, the environment, sizes and networks, versions."""
    config, machine = resolved.config, read_machine()
    fields = config.model_dump(
        mode="json",
        include={
            "env": True,
            "vector": {"vector", "blocks", "n_envs", "num_workers", "ray_address", "actor_workers"},
            "policy": {"network_arch", "activation", "network", "critic_keys", "normalize_obs"},
            "compute": True,
            "run": {"algo"},
        },
    )
    fields["max_rollout"] = find_max_rollout(config)
    fields["learning"] = config.algorithm.model_dump(mode="json", include=set(config.algorithm.COSTS))
    cluster = find_cluster()
    lent = [] if cluster is None else [f"{node.num_cpus} CPUs" for node in cluster.nodes()]
    hardware = [machine.cpu, machine.usable_cores, machine.efficiency_cores, *machine.nvidia_gpus, *lent]
    fixed = [path for path in size_paths(config) if not is_open(resolved, path)]
    return make_key(
        {"config": fields, "fixed": fixed, "machine": hardware, "spec": spec.signature} | versions()
    )


class Tuner:
    """One measurement of about `budget_s`: the environment, ways to learn, acting, then real rollouts of the
    best layouts. earlier: the plan that was kept."""

    def __init__(
        self,
        workshop: Workshop,
        resolved: Resolved,
        budget_s: float,
        say: Say,
        earlier: dict[str, Any] | None = None,
    ) -> None:
        self._begun = time.perf_counter()
        self._budget_s, self._say = budget_s, say
        self._workshop, self._resolved, self._environment = workshop, resolved, workshop.environment
        self._base = fix_num_envs(resolved)
        self._spec = self._environment.spec
        self._ruled = workshop.settle(self._base)
        check_memory(self._ruled, self._environment.backend, self._spec, workshop.algorithm)
        self._machine = read_own_machine()
        held, backends = None, self._environment.backends
        if earlier and (kept := earlier.get("layout")) and kept["backend"] in backends:
            held = Layout(**kept | {"backend": backends[kept["backend"]]})
        self._weights = workshop.make_learner(self._ruled).weights()
        self._wishes = make_wishes(workshop, resolved, self._ruled, held)
        self._ways = list(list_learning(workshop, resolved.config, self._ruled, self._machine))

    def run(self) -> dict[str, Any]:
        """What is kept of it. The fixed rules' choice and its best rival come first; the rest as far as time
        goes."""
        with device_memory(self._ruled):
            return self._measure()

    def _measure(self) -> dict[str, Any]:
        facts = self._measure_facts()
        for layout in shortlist(facts, 2):
            facts = self._try(facts, layout)
        for way in self._ways[1:]:
            if self._left_s() > _REHEARSAL_SHARE * self._budget_s:
                facts = self._add_update(facts, *way)
        num_trials = 2 if self._budget_s < 5 else 4 if self._budget_s < _LONG_S else 8
        for layout in shortlist(facts, num_trials)[2:]:
            facts = self._try(facts, layout)
        choice = choose(facts)
        tried = -1
        while choice.layout not in {trial.layout for trial in facts.trials} and len(facts.trials) > tried:
            tried = len(facts.trials)
            facts = self._try(facts, choice.layout)
            choice = choose(facts)
        rows = list_scaling(facts, choice.update) if self._budget_s >= _LONG_S else []
        for layout in rows:  # of the table: nothing is chosen by them
            is_new = layout not in {trial.layout for trial in facts.trials}
            if is_new and fits(self._machine, facts.env, facts.wishes, layout):
                facts = self._try(facts, layout)
        return self._finish(facts, replace(choice, scaling=make_scaling(facts, choice.update)))

    def _measure_facts(self) -> Facts:
        """The environment, the fixed rules' own way to learn, and acting."""
        wishes, env = self._wishes, EnvFacts(1e-6)
        if not self._environment.backend.own_vector_form:
            self._say("timing the environment, alone and on every core")
            env = measure_env(
                self._environment.factory,
                self._spec,
                self._machine.usable_cores,
                min(max(self._budget_s / 20, 0.1), 0.5),
                timeout_s=max(_PATIENCE_S, 0.6 * self._budget_s),
            )
            if env.waits and wishes.open_workers:
                waiting = (each for each in self._environment.rivals if each.for_waiting)
                wishes = replace(wishes, backends=tuple(dict.fromkeys((*wishes.backends, *waiting))))
        act = measure_act(self._workshop, self._ruled, self._weights)
        machine, cluster = self._machine, self._environment.cluster
        if cluster is not None:  # its CPUs are what environments are spread over
            machine = replace(machine, allowed_cores=cluster.count_cpus(), cpu_quota=None, efficiency_cores=0)
        return Facts(machine, env, act, (self._time_update(*self._ways[0]),), wishes)

    def _add_update(self, facts: Facts, way: Way, threads: int) -> Facts:
        """Time another way to learn; a device that fails is left out, aloud."""
        try:
            return replace(facts, updates=(*facts.updates, self._time_update(way, threads)))
        except (RuntimeError, TypeError, DeviceMemoryError, ConfigError) as error:  # border: drivers
            if way.device == "cpu":
                raise
            self._say(f"{way} is left out: {str(error).splitlines()[0]}")
            return facts

    def _try_acting(self, choice: Choice, config: Settled) -> tuple[str, str] | None:
        """The form that acts faster where the network is an MLP and a device learns, measured in the chosen
        layout, and what was measured; None where that is not open.

        It comes behind the choice of the device and could not turn it: where acting costs much, learning,
        which passes through the network for every epoch, costs the processor many times that.
        """
        if (self._resolved.config.compute.acting, config.compute.acting) != ("auto", "numpy"):
            return None
        device = choice.update.device
        if device == "cpu" or self._left_s() < _REHEARSAL_SHARE * self._budget_s:
            return None
        self._say(f"trying to act on {device}")
        seconds = {"numpy": self._time_acting(config, "numpy")}
        try:
            seconds["torch"] = self._time_acting(config, "torch")
        except (RuntimeError, TypeError, DeviceMemoryError) as error:  # border: drivers
            return "numpy", f"acting with numpy: {device} failed: {str(error).splitlines()[0]}"
        chosen = "torch" if seconds["numpy"] > MARGIN * seconds["torch"] else "numpy"
        told = f"collecting takes {show_time(seconds['numpy'])} for each step when NumPy acts"
        return chosen, f"acting with {chosen}: {told}, {show_time(seconds['torch'])} on {device}"

    def _time_acting(self, config: Settled, acting: str) -> float:
        compute = config.compute.model_copy(update={"acting": acting})
        vec, collector, _ = self._workshop.make_collector(config.model_copy(update={"compute": compute}))
        with vec, device_memory(config):
            return measure_collect(collector, self._weights, _ACTING_STEPS, NUM_BLOCKS).step_s

    def _time_update(self, way: Way, threads: int) -> UpdateCost:
        self._say(f"timing an update: {way}, {threads} threads")
        values = {f"compute.{name}": value for name, value in way._asdict().items()}
        config = self._workshop.settle(self._base.with_values(values | {"compute.threads": threads}, "plan"))
        seconds = _measure_update_s(self._workshop, config)
        return UpdateCost(way.device, way.kernel, threads, seconds, way.precision)

    def _try(self, facts: Facts, layout: Layout) -> Facts:
        """Collect for real in this layout, if there is time; one that fails is left out."""
        if len(facts.trials) > 1 and self._left_s() < _REHEARSAL_SHARE * self._budget_s:
            return facts
        self._say(f"trying {layout}")
        block_s = max(model_collect_s(facts, layout) * layout.n_envs * layout.num_agents, 1e-9)
        steps = min(max(ceil(_TRIAL_BLOCK_S / block_s), 8), layout.n_steps_per_env)
        config = self._workshop.settle(apply(self._base, layout_values(layout, self._base.config)))
        try:
            seconds = min(max(self._budget_s / 40, 0.15), 0.5)
            vec, collector, _ = self._workshop.make_collector(config)
            with vec, device_memory(config):
                collect_s = measure_collect(collector, self._weights, steps, NUM_BLOCKS, seconds).step_s
                worker_bytes = mean_memory(vec.pids())
        except MissionGymError as error:
            if layout == facts.wishes.layout:
                raise
            self._say(f"{layout} failed: {str(error).splitlines()[0]}")
            return facts
        env = facts.env
        if worker_bytes is not None:
            own = worker_bytes - env.memory_bytes * layout.n_envs // layout.num_workers
            env = replace(env, worker_bytes=max(own, 0))
        if layout.backend.own_vector_form:
            env = replace(env, step_s=collect_s)
        return replace(facts, env=env, trials=(*facts.trials, Trial(layout, collect_s)))

    def _finish(self, facts: Facts, choice: Choice) -> dict[str, Any]:
        """Rehearse the choice if there is time, and write down what is kept."""
        values = layout_values(choice.layout, self._resolved.config)
        compute = self._resolved.config.compute
        for name in ("device", "kernel", "precision", "threads"):
            if getattr(compute, name) == "auto":
                values[f"compute.{name}"] = getattr(choice.update, name)
        rate, rehearsed = choice.steps_per_s, False
        config = self._workshop.settle(apply(self._base, values))
        reasons = list(choice.reasons)
        if acting := self._try_acting(choice, config):
            values["compute.acting"], reason = acting
            reasons.append(reason)
            config = self._workshop.settle(apply(self._base, values))
        cycle_s = config.rollout_size / choice.steps_per_s
        if self._left_s() > 0.5 + 2.5 * cycle_s:
            self._say("rehearsing the choice")
            wanted_s = max(4 * cycle_s + 0.5, _REHEARSAL_S)
            rehearsed, seconds = True, min(self._left_s() - 0.5 - cycle_s, wanted_s)
            rate = rehearse(self._workshop, config, seconds)
        gain = rate / choice.steps_per_s
        scaling = [each | {"steps_per_s": each["steps_per_s"] * gain} for each in choice.scaling]
        return asdict(choice) | {
            "values": values,
            "reasons": reasons,
            "layout": choice.layout.document(),
            "steps_per_s": rate,
            "scaling": scaling,
            "measured": {
                "env": asdict(facts.env),
                "act": asdict(facts.act),
                "updates": [asdict(each) for each in facts.updates],
                "trials": [
                    {"layout": each.layout.document(), "collect_s": each.collect_s} for each in facts.trials
                ],
                "rehearsed": rehearsed,
            },
            "machine": {
                "cpu": self._machine.cpu,
                "usable_cores": self._machine.usable_cores,
                "memory_bytes": self._machine.memory_bytes,
            },
            "budget_s": self._budget_s,
            "spent_s": time.perf_counter() - self._begun,
        }

    def _left_s(self) -> float:
        return self._budget_s - (time.perf_counter() - self._begun)


def _guess_rate(workshop: Workshop, resolved: Resolved) -> float | None:
    """Steps per second by a first look at a step and an update; None for a run that is short at any rate."""
    if not may_plan(resolved.config):
        return None
    environment = workshop.environment
    step_s = environment.pace.step_s if environment.pace else 0.0
    if environment.backend.runs_here and not environment.backend.own_vector_form:
        with suppress(MissionGymError):  # the run itself tells what fails
            step_s = time_steps(environment.factory, environment.spec, LOOK_S).step_s
    step_s /= float(environment.spec.num_agents)
    if RUN_SHARE * resolved.config.run.timesteps * (step_s + _SLOWEST_UPDATE_S) < RUN_LEAST_S:
        return None
    config = workshop.settle(resolved)
    check_memory(config, environment.backend, environment.spec, workshop.algorithm)
    return 1.0 / (step_s / config.vector.num_workers + _measure_update_s(workshop, config))


def _measure_update_s(workshop: Workshop, config: Settled) -> float:
    learner = workshop.make_learner(config)
    with device_memory(config):
        return workshop.algorithm.measure_update_s(learner, config, workshop.environment.spec)
