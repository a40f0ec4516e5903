"""The pure planner: facts in, a Choice out. Rates are steps per second of collecting and learning.

A layout is a number of environments on a backend, in a number of processes. If that number is open, learning
stays comparable: the rollout and its gradient steps keep their size, and no segment gets shorter than the
horizon of the advantage's trace. Only environments that wait concurrently may enlarge the rollout; then
minibatches keep their size. The cost model is coarse: it ranks untried layouts, scaled by the nearest trial.
"""

from __future__ import annotations

from math import ceil, exp, log, log2, sqrt
from statistics import fmean
from typing import Any

from mission_gym.errors import ConfigError
from mission_gym.plan.facts import Choice, PlanFacts, RunLayout, UpdateCost
from mission_gym.plan.memory import explain_misfit, fits, predict_memory
from mission_gym.procs import MachineFacts
from mission_gym.vector.record import MOST_PROCESSES, Backend

KNEE = 0.95  # of the best rate: the smallest number of environments that reaches it is chosen
MARGIN = 1.1  # a choice must be this much faster than the default
MODEL_MARGIN = 1.25  # the same if not both were tried
_MAX_ENVS = 1024
_MAX_COLUMNS = 2048  # of the scaling table
SLOW_CORE = 0.6  # speed of an efficiency core relative to a fast one
_SLOT_S = 2e-6  # checks around each step
_BLOCK_S = 1.5e-3  # a command and a reply per block
_WORKER_S = 0.2e-3  # and per worker


def choose(facts: PlanFacts) -> Choice:
    """Choose the plan of a run; ConfigError, with the nearest plan that fits, if none fits in memory."""
    update, inputs = choose_update(facts), facts.inputs
    layouts = _list_fitting(facts)
    if not layouts:
        raise ConfigError(explain_misfit(facts.machine, facts.env, inputs))
    rates = _drop_small_gains(facts, {each: predict_rate(facts, each, update) for each in layouts})
    layouts, best = list(rates), max(rates.values())
    knee = min(each.n_envs for each in layouts if rates[each] >= KNEE * best)
    chosen = max((each for each in layouts if each.n_envs == knee), key=rates.__getitem__)
    if chosen.backend.for_waiting:  # one process is enough unless a second one is clearly faster
        near = [each for each in layouts if (each.backend, each.n_envs) == (chosen.backend, knee)]
        near = [each for each in near if rates[each] >= KNEE * rates[chosen]]
        chosen = min(near, key=lambda each: each.num_workers)
    home = inputs.previous if inputs.previous in rates else inputs.default
    margin = MARGIN if {chosen, home} <= facts.trials.keys() else MODEL_MARGIN
    if home in rates and rates[chosen] < margin * rates[home]:
        chosen = home
    return Choice(
        layout=chosen,
        update=update,
        steps_per_s=rates[chosen],
        memory_bytes=predict_memory(facts.env, inputs, chosen),
        reasons=_explain(facts, chosen, update, rates),
        changes=_list_changes(inputs.default, chosen),
    )


def _drop_small_gains(facts: PlanFacts, rates: dict[RunLayout, float]) -> dict[RunLayout, float]:
    """Drop layouts whose larger rollout gains little: learning gets fewer updates from them."""
    if not facts.inputs.open_steps:  # then the rollout grows with every number of environments
        return rates
    rollout = facts.inputs.default.rollout
    best = max((rate for each, rate in rates.items() if each.rollout <= rollout), default=0.0)
    return {each: rate for each, rate in rates.items() if each.rollout <= rollout or rate >= MARGIN * best}


def choose_update(facts: PlanFacts) -> UpdateCost:
    """The learner setup whose best layout is fastest, or the default unless another clearly wins.

    Learning that overlaps with collecting hides the shorter of the two.
    """
    layouts = _list_fitting(facts) or [facts.inputs.default]
    rates = {each: max(predict_rate(facts, one, each) for one in layouts) for each in facts.updates}
    best = max(rates, key=rates.__getitem__)
    return best if rates[best] > MARGIN * rates[facts.updates[0]] else facts.updates[0]


def shortlist(facts: PlanFacts, most: int) -> list[RunLayout]:
    """The layouts worth a trial: the default, the best of each backend, then the next best.

    A backend whose best layout is predicted to be three times slower than another's is left out. Among
    nearly equal layouts of a backend, the one with the fewest environments counts as the best.
    """
    update, default = choose_update(facts), facts.inputs.default
    costs = {each: 1.0 / predict_rate(facts, each, update) for each in _list_fitting(facts)}
    best = {each.backend: min(costs[one] for one in costs if one.backend == each.backend) for each in costs}
    ranked = sorted(costs, key=costs.__getitem__)
    near = (each for each in ranked if KNEE * costs[each] <= best[each.backend])
    leaders = {each.backend: each for each in sorted(near, key=lambda each: -each.n_envs)}.values()
    wanted = [default, *sorted(leaders, key=costs.__getitem__), *ranked]
    worth = [each for each in wanted if each in costs and costs[each] < 3.0 * costs[ranked[0]]]
    return list(dict.fromkeys([*wanted[: default in costs], *worth]))[:most]


def list_scaling(facts: PlanFacts, update: UpdateCost) -> list[RunLayout]:
    """The best layout for each number of environments, doubling."""
    machine, default = facts.machine, facts.inputs.default
    most = max(64, 4 * machine.usable_cores, 2 * default.n_envs)
    if facts.inputs.open_envs:
        most = max(most, 2 * max(each.n_envs for each in list_layouts(facts)))
    most = min(most, _MAX_COLUMNS)
    counts = sorted({default.n_envs, *(1 << power for power in range(int(log2(most)) + 1))})
    return [
        max(spread(facts, n_envs), key=lambda each: predict_rate(facts, each, update)) for n_envs in counts
    ]


def make_scaling(facts: PlanFacts, update: UpdateCost) -> list[dict[str, Any]]:
    """The best layout for each number of environments as JSON, with the knee marked. tried: whether that
    layout was run, or is predicted."""
    machine, env, inputs = facts.machine, facts.env, facts.inputs
    points = [
        each.document()
        | {
            "steps_per_s": predict_rate(facts, each, update),
            "memory_bytes": predict_memory(env, inputs, each),
            "fits": fits(machine, env, inputs, each),
            "tried": each in facts.trials,
        }
        for each in list_scaling(facts, update)
    ]
    top = max((point["steps_per_s"] for point in points if point["fits"]), default=0.0)
    knee = next((point for point in points if point["fits"] and point["steps_per_s"] >= KNEE * top), None)
    return [point | {"knee": point is knee} for point in points]


def _list_fitting(facts: PlanFacts) -> list[RunLayout]:
    return [each for each in list_layouts(facts) if fits(facts.machine, facts.env, facts.inputs, each)]


def _explain(
    facts: PlanFacts, chosen: RunLayout, update: UpdateCost, rates: dict[RunLayout, float]
) -> list[str]:
    """One sentence for each choice."""
    env, inputs, rate = facts.env, facts.inputs, rates[chosen]
    kind = f"and waits {100 * (1 - env.cpu_share):.0f} % of it" if env.waits else "of CPU time"
    reasons = [f"a step takes {show_time(env.step_s)} {kind}; {facts.machine.usable_cores} cores are usable"]
    if env.one_per_process:
        reasons.append("a process can't build a second environment: one per worker")
    same_size = sorted((each for each in rates if each.n_envs == chosen.n_envs), key=rates.__getitem__)
    backend = chosen.backend
    where = backend.name_workers(chosen.num_workers) or backend.name
    for other in {each.backend: each for each in same_size if each.backend != chosen.backend}.values():
        reasons.append(f"{where}: {rate:,.0f} steps/s, against {rates[other]:,.0f} with {other.backend.name}")
    fewer = [each for each in same_size if each.backend == backend and each.num_workers < chosen.num_workers]
    if fewer:
        reasons.append(f"{where}: {fewer[-1].num_workers} would reach {rates[fewer[-1]]:,.0f} steps/s")
    if not inputs.open_envs:
        reason = "fixed by the config"
    elif chosen == inputs.default:
        reason = "other numbers are not clearly faster"
    elif chosen.n_envs < max(each.n_envs for each in rates):
        reason = "more gain less than 5 %"
    elif any(each.n_envs > chosen.n_envs for each in _list_fitting(facts)):
        reason = "more need a larger rollout, with fewer updates, and gain less than 10 %"
    else:
        limit = "need a larger rollout"
        if inputs.min_steps > 1:
            limit = f"make segments shorter than the horizon of {inputs.min_steps} steps"
        if may_grow(facts, backend):
            limit = f"need rollouts of more than {inputs.max_rollout} transitions, with few updates"
        reason = f"more would {limit}, or would not fit in memory"
    reasons.append(f"{chosen.n_envs} environments: {reason}")
    slower = [f"{show_time(each.step_s)} with the {each}" for each in facts.updates if each != update]
    against = f"; {', '.join(slower)}" if slower else ""
    reasons.append(f"{update}: {show_time(update.step_s)} of update per step{against}")
    collect_s = predict_collect_s(facts, chosen)
    both = "overlaps with" if inputs.overlaps(chosen, update) else "alternates with"
    reasons.append(f"collecting takes {show_time(collect_s)} per step and {both} the update")
    return reasons


def _list_changes(default: RunLayout, chosen: RunLayout) -> list[str]:
    """The differences from the default layout that affect learning."""
    changes = [
        f"{name} {getattr(default, name)} -> {getattr(chosen, name)}"
        for name in ("n_envs", "n_steps_per_env")
        if getattr(default, name) != getattr(chosen, name)
    ]
    if changes and chosen.rollout == default.rollout:
        changes.append(f"the rollout of {default.rollout} transitions and its gradient steps stay the same")
    elif changes:
        size = chosen.batch_size
        same = f"; minibatches of {size} keep the gradient steps per transition" if size else ""
        changes.append(f"the rollout {default.rollout} -> {chosen.rollout}{same}")
    return changes


def show_time(seconds: float) -> str:
    """Seconds in a readable unit: 2 s, 1.5 ms, 12 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def predict_rate(facts: PlanFacts, layout: RunLayout, update: UpdateCost) -> float:
    """Steps per second of training; if collecting and learning overlap, only the slower one counts."""
    collect_s = predict_collect_s(facts, layout)
    if not facts.inputs.overlaps(layout, update):
        return 1.0 / (collect_s + update.step_s)
    if update.device != "cpu":
        # The learner's thread occupies a core while it submits work to the device.
        share, cores = update.step_s / max(collect_s, update.step_s), facts.machine.usable_cores
        collect_s *= max(1.0, (min(layout.num_workers, cores) + share) / cores)
    return 1.0 / max(collect_s, update.step_s)


def predict_collect_s(facts: PlanFacts, layout: RunLayout) -> float:
    """Seconds per collected transition: the model, corrected by the nearest trial of the same backend.

    Without such a trial all of them correct it: other programs on the machine slow every layout down.
    """
    modelled = model_collect_s(facts, layout)
    ratios = {tried: taken / model_collect_s(facts, tried) for tried, taken in facts.trials.items()}
    near = [tried for tried in ratios if tried.backend == layout.backend]
    if near:
        return modelled * ratios[min(near, key=lambda tried: _distance(tried, layout))]
    return modelled * exp(fmean(log(ratio) for ratio in ratios.values())) if ratios else modelled


def _distance(one: RunLayout, other: RunLayout) -> float:
    return abs(log(one.n_envs / other.n_envs)) + abs(log(one.num_workers / other.num_workers))


def model_collect_s(facts: PlanFacts, layout: RunLayout) -> float:
    """Environments of a process are stepped in turn, workers in parallel, with a barrier after each block."""
    env, act, cores = facts.env, facts.act, facts.machine.usable_cores
    n_envs, num_steps, num_workers = layout.n_envs, layout.n_steps_per_env, layout.num_workers
    cpu_s = env.step_s * env.cpu_share
    wait_s = env.step_s - cpu_s
    act_s = act.column_s * layout.num_agents  # per environment
    per_worker = -(-n_envs // num_workers)
    if layout.backend.for_waiting:
        # A group waits together, as long as its slowest environment; computing takes turns.
        group, env_s = layout.backend.group_size(per_worker), cpu_s + act_s + layout.backend.turn_s
        longest_s = wait_s * (1.0 + env.spread * sqrt(2.0 * log(max(group, 2))))
        busy_s = (act.call_s * per_worker / group + per_worker * env_s) * max(1.0, num_workers / cores)
        turn_s = max(longest_s + act.call_s + group * env_s, busy_s)
        return turn_s / (n_envs * layout.num_agents) + _BLOCK_S / layout.rollout
    slower = 1.0 + (env.slowdown - 1.0) * (min(num_workers, cores) - 1) / max(cores - 1, 1)
    if num_workers > _count_fast(facts.machine):
        slower /= SLOW_CORE
    busy_s = slower * (act.call_s + per_worker * (act_s + _SLOT_S + cpu_s))
    # With more processes than cores, those that compute wait for a core.
    turn_s = max(busy_s + per_worker * wait_s, busy_s * num_workers / cores)
    block_s = num_steps * turn_s
    if num_workers > 1:  # the slowest worker ends the block
        block_s *= 1.0 + env.spread * sqrt(2.0 * log(num_workers) / (num_steps * per_worker))
    if not layout.backend.runs_here:
        block_s += _BLOCK_S + num_workers * _WORKER_S
    return block_s / layout.rollout


def list_layouts(facts: PlanFacts) -> list[RunLayout]:
    """Every layout that the inputs allow, the default first."""
    inputs = facts.inputs
    layouts = [inputs.default]
    for n_envs in _list_sizes(facts) if inputs.open_envs else [inputs.default.n_envs]:
        layouts += spread(facts, n_envs)
    for backend in inputs.backends if inputs.open_envs else ():
        for n_envs in _list_grown(facts, backend):
            layouts += [each for each in spread(facts, n_envs) if each.backend == backend]
    return _drop_impossible(facts, list(dict.fromkeys(layouts)))


def spread(facts: PlanFacts, n_envs: int) -> list[RunLayout]:
    """The ways to distribute this many environments over backends and workers."""
    inputs, default = facts.inputs, facts.inputs.default
    layouts = []
    for backend in inputs.backends:
        workers = _list_workers(facts, backend, n_envs) if backend.chooses_workers else [1]
        if backend == default.backend and backend.chooses_workers and not inputs.open_workers:
            workers = [min(default.num_workers, n_envs)]
        steps, batch_size = _fit_steps(facts, backend, n_envs)
        layouts += [
            RunLayout(backend, number, n_envs, steps, default.num_agents, batch_size) for number in workers
        ]
    return _drop_impossible(facts, layouts)


def may_grow(facts: PlanFacts, backend: Backend) -> bool:
    """Whether the rollout may grow with the number of environments."""
    return facts.env.waits and backend.for_waiting


def _fit_steps(facts: PlanFacts, backend: Backend, n_envs: int) -> tuple[int, int | None]:
    """The steps per environment, and the minibatch size of a rollout that grew."""
    inputs, default = facts.inputs, facts.inputs.default
    if not inputs.open_steps:
        grows = may_grow(facts, backend) and n_envs > default.n_envs
        return default.n_steps_per_env, inputs.minibatch if grows else None
    steps = default.n_envs * default.n_steps_per_env // n_envs
    if steps >= inputs.min_steps or not may_grow(facts, backend):
        return max(1, steps), None
    steps, size = inputs.min_steps, inputs.minibatch or 1
    while steps * n_envs * default.num_agents % size:
        steps += inputs.chunk
    return steps, inputs.minibatch


def _list_sizes(facts: PlanFacts) -> list[int]:
    """Numbers of environments with the same rollout size, while no segment gets too short."""
    inputs, default = facts.inputs, facts.inputs.default
    if not inputs.open_steps:
        sizes = [1 << power for power in range(int(log2(_MAX_ENVS)) + 1)]
        batch, steps = inputs.batch_size or 1, default.n_steps_per_env * default.num_agents
        return [number for number in sizes if number * steps % batch == 0]
    rollout = default.rollout // default.num_agents
    most = min(rollout // inputs.min_steps, _MAX_ENVS)
    return [number for number in range(1, most + 1) if rollout % (number * inputs.chunk) == 0]


def _list_grown(facts: PlanFacts, backend: Backend) -> list[int]:
    """Numbers of environments with a larger rollout than the default, up to the largest allowed."""
    inputs, default = facts.inputs, facts.inputs.default
    if not may_grow(facts, backend) or not inputs.open_steps:
        return []
    sizes = [1 << power for power in range(int(log2(backend.most_envs)) + 1)]
    rollouts = {n: n * _fit_steps(facts, backend, n)[0] * default.num_agents for n in sizes}
    return [number for number in sizes if default.rollout < rollouts[number] <= inputs.max_rollout]


def _drop_impossible(facts: PlanFacts, layouts: list[RunLayout]) -> list[RunLayout]:
    """If a process can build only one environment, drop layouts with more; keep all if none is left."""
    if not facts.env.one_per_process:
        return layouts
    return [each for each in layouts if each.num_workers == each.n_envs] or layouts


def _list_workers(facts: PlanFacts, backend: Backend, n_envs: int) -> list[int]:
    """Candidate numbers of processes: powers of two, all fast cores, all cores; more if environments wait."""
    cores, env = facts.machine.usable_cores, facts.env
    if env.one_per_process:
        return [n_envs]
    most = cores
    if env.waits and not backend.for_waiting:
        # Many processes only if no backend waits in one.
        limit = 4 * cores if any(each.for_waiting for each in facts.inputs.backends) else MOST_PROCESSES
        most = max(cores, min(limit, ceil(cores / max(env.cpu_share, 1e-3))))
    most = min(most, n_envs)
    wanted = {_count_fast(facts.machine), cores, most, *(1 << power for power in range(most.bit_length()))}
    return sorted(number for number in wanted if number <= most)


def _count_fast(machine: MachineFacts) -> int:
    """Usable cores that are not efficiency cores, at least 1."""
    return max(1, min(machine.usable_cores, machine.allowed_cores - machine.efficiency_cores))
