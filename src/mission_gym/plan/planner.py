"""The pure planner: facts and wishes in, a Choice out. Rates are those of training: collecting and learning.

Its model of collecting is coarse on purpose: the constants only rank layouts that were not tried, since what
it says is scaled by the nearest trial of the same backend.
"""

from __future__ import annotations

from math import exp, log, log2, sqrt
from statistics import fmean
from typing import Any

from mission_gym.errors import ConfigError
from mission_gym.plan.facts import Choice, Facts, Layout, UpdateCost
from mission_gym.plan.layouts import count_fast, list_layouts, may_grow, spread
from mission_gym.plan.memory import explain_misfit, fits, predict_memory

KNEE = 0.95  # of the best rate: where more environments stop paying
MARGIN = 1.1  # a choice must be this much faster than the fixed rules'
MODEL_MARGIN = 1.25  # the same without a trial of both
_MOST_ROWS = 2048  # of the scaling table
SLOW_CORE = 0.6  # of a fast core's speed: what efficiency cores give
_SLOT_S = 2e-6  # checks around each step
_BLOCK_S = 1.5e-3  # a command and a reply for a block of workers
_WORKER_S = 0.2e-3  # and for each worker of them


def choose(facts: Facts) -> Choice:
    """The plan of a run; ConfigError, with the nearest plan that does, if nothing fits in memory."""
    update, wishes = choose_update(facts), facts.wishes
    layouts = _list_fitting(facts)
    if not layouts:
        raise ConfigError(explain_misfit(facts.machine, facts.env, wishes))
    rates = _leave_worthy(facts, {each: predict_rate(facts, each, update) for each in layouts})
    layouts, best = list(rates), max(rates.values())
    knee = min(each.n_envs for each in layouts if rates[each] >= KNEE * best)
    chosen = max((each for each in layouts if each.n_envs == knee), key=rates.__getitem__)
    if chosen.backend.for_waiting:  # one process waits for all, unless a second one pays
        near = [each for each in layouts if (each.backend, each.n_envs) == (chosen.backend, knee)]
        near = [each for each in near if rates[each] >= KNEE * rates[chosen]]
        chosen = min(near, key=lambda each: each.num_workers)
    home = wishes.held if wishes.held in rates else wishes.layout
    tried = {trial.layout for trial in facts.trials}
    margin = MARGIN if {chosen, home} <= tried else MODEL_MARGIN
    if home in rates and rates[chosen] < margin * rates[home]:
        chosen = home
    return Choice(
        layout=chosen,
        update=update,
        steps_per_s=rates[chosen],
        memory_bytes=predict_memory(facts.env, wishes, chosen),
        reasons=_explain(facts, chosen, update, rates),
        changes=_list_changes(wishes.layout, chosen),
        scaling=make_scaling(facts, update),
    )


def _leave_worthy(facts: Facts, rates: dict[Layout, float]) -> dict[Layout, float]:
    """Without rollouts that grow for a small gain: learning has fewer updates of them."""
    ruled = facts.wishes.layout.rollout
    held = max((rate for each, rate in rates.items() if each.rollout <= ruled), default=0.0)
    given = not facts.wishes.open_steps  # then they grow with every number of environments
    return {
        each: rate for each, rate in rates.items() if given or each.rollout <= ruled or rate >= MARGIN * held
    }


def choose_update(facts: Facts) -> UpdateCost:
    """The way to learn whose best layout is fastest: one that learns beside collecting hides the shorter of
    the two. The fixed rules' own, which is the first, unless another clearly wins."""
    layouts = _list_fitting(facts) or [facts.wishes.layout]
    rates = {each: max(predict_rate(facts, one, each) for one in layouts) for each in facts.updates}
    best = max(rates, key=rates.__getitem__)
    return best if rates[best] > MARGIN * rates[facts.updates[0]] else facts.updates[0]


def shortlist(facts: Facts, most: int) -> list[Layout]:
    """The layouts worth a trial: the fixed rules' own, the best of each backend, then the next best.

    A backend whose best is by the model three times slower than another's is not worth its start. The best of
    several that are nearly as good is the one with the fewest environments.
    """
    update = choose_update(facts)
    costs = {each: 1.0 / predict_rate(facts, each, update) for each in _list_fitting(facts)}
    best = {each.backend: min(costs[one] for one in costs if one.backend == each.backend) for each in costs}
    ranked = sorted(costs, key=costs.__getitem__)
    near = (each for each in ranked if KNEE * costs[each] <= best[each.backend])
    leaders = {each.backend: each for each in sorted(near, key=lambda each: -each.n_envs)}.values()
    wanted = [facts.wishes.layout, *sorted(leaders, key=costs.__getitem__), *ranked]
    worth = [each for each in wanted if each in costs and costs[each] < 3.0 * costs[ranked[0]]]
    return list(dict.fromkeys([*wanted[: facts.wishes.layout in costs], *worth]))[:most]


def list_scaling(facts: Facts, update: UpdateCost) -> list[Layout]:
    """The best layout for each number of environments, doubling."""
    machine, ruled = facts.machine, facts.wishes.layout
    most = max(64, 4 * machine.usable_cores, 2 * ruled.n_envs)
    if facts.wishes.open_envs:
        most = max(most, 2 * max(each.n_envs for each in list_layouts(facts)))
    most = min(most, _MOST_ROWS)
    counts = sorted({ruled.n_envs, *(1 << power for power in range(int(log2(most)) + 1))})
    return [
        max(spread(facts, n_envs), key=lambda each: predict_rate(facts, each, update)) for n_envs in counts
    ]


def make_scaling(facts: Facts, update: UpdateCost) -> list[dict[str, Any]]:
    """The scaling table, with the knee marked: there more environments give less than a twentieth. tried:
    whether a row's layout was, or follows from the nearest that was."""
    machine, env, wishes = facts.machine, facts.env, facts.wishes
    tried = {trial.layout for trial in facts.trials}
    points = [
        each.document()
        | {
            "steps_per_s": predict_rate(facts, each, update),
            "memory_bytes": predict_memory(env, wishes, each),
            "fits": fits(machine, env, wishes, each),
            "tried": each in tried,
        }
        for each in list_scaling(facts, update)
    ]
    top = max((point["steps_per_s"] for point in points if point["fits"]), default=0.0)
    knee = next((point for point in points if point["fits"] and point["steps_per_s"] >= KNEE * top), None)
    return [point | {"knee": point is knee} for point in points]


def _list_fitting(facts: Facts) -> list[Layout]:
    return [each for each in list_layouts(facts) if fits(facts.machine, facts.env, facts.wishes, each)]


def _explain(facts: Facts, chosen: Layout, update: UpdateCost, rates: dict[Layout, float]) -> list[str]:
    """One sentence for each thing that was chosen."""
    env, rate = facts.env, rates[chosen]
    kind = f"of which it waits {100 * (1 - env.cpu_share):.0f} %" if env.waits else "on the processor"
    reasons = [f"a step takes {show_time(env.step_s)} {kind}; {facts.machine.usable_cores} cores are usable"]
    if env.one_per_process:
        reasons.append("a second environment in the same process can't be built: one for each worker")
    same_size = sorted((each for each in rates if each.n_envs == chosen.n_envs), key=rates.__getitem__)
    backend = chosen.backend
    where = backend.name_workers(chosen.num_workers) or backend.name
    for other in {each.backend: each for each in same_size if each.backend != chosen.backend}.values():
        reasons.append(f"{where}: {rate:,.0f} steps/s, against {rates[other]:,.0f} with {other.backend.name}")
    fewer = [each for each in same_size if each.backend == backend and each.num_workers < chosen.num_workers]
    if fewer:
        reasons.append(f"{where}: {fewer[-1].num_workers} would make {rates[fewer[-1]]:,.0f} steps/s")
    if not facts.wishes.open_envs:
        reasons.append(f"{chosen.n_envs} environments are given, not chosen")
    elif chosen == facts.wishes.layout:
        reasons.append(f"{chosen.n_envs} environments: other numbers are not clearly faster")
    elif chosen.n_envs == max(each.n_envs for each in rates):
        least = facts.wishes.min_steps
        end = "make a larger rollout"
        if least > 1:
            end = f"make segments shorter than the horizon of {least} steps"
        if may_grow(facts, backend):
            end = f"make rollouts of more than {facts.wishes.max_rollout} transitions, and few updates"
        reasons.append(f"{chosen.n_envs} environments: more would {end}, or would not fit in memory")
    else:
        reasons.append(f"{chosen.n_envs} environments: more give less than a twentieth")
    slower = [f"{show_time(each.step_s)} with the {each}" for each in facts.updates if each != update]
    against = f"; {', '.join(slower)}" if slower else ""
    reasons.append(f"{update}: {show_time(update.step_s)} of update for each step{against}")
    collect_s = predict_collect_s(facts, chosen)
    both = "runs beside" if facts.wishes.at_once(chosen, update) else "takes turns with"
    reasons.append(f"collecting takes {show_time(collect_s)} for each step and {both} the update")
    return reasons


def _list_changes(ruled: Layout, chosen: Layout) -> list[str]:
    """What learning sees otherwise than without a plan."""
    changes = [
        f"{name} {getattr(ruled, name)} -> {getattr(chosen, name)}"
        for name in ("n_envs", "n_steps_per_env")
        if getattr(ruled, name) != getattr(chosen, name)
    ]
    if changes and chosen.rollout == ruled.rollout:
        changes.append(f"the rollout of {ruled.rollout} transitions and its gradient steps are held")
    elif changes:
        size = chosen.batch_size
        held = f"; minibatches of {size} hold the gradient steps for each transition" if size else ""
        changes.append(f"the rollout {ruled.rollout} -> {chosen.rollout}{held}")
    return changes


def show_time(seconds: float) -> str:
    """Seconds in the unit that fits: 2 s, 1.5 ms, 12 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def predict_rate(facts: Facts, layout: Layout, update: UpdateCost) -> float:
    """Steps per second of training; the slower phase alone counts where they run at once."""
    collect_s = predict_collect_s(facts, layout)
    if not facts.wishes.at_once(layout, update):
        return 1.0 / (collect_s + update.step_s)
    if update.device != "cpu":
        # The learner's thread has a core as long as it gives the device work.
        share, cores = update.step_s / max(collect_s, update.step_s), facts.machine.usable_cores
        collect_s *= max(1.0, (min(layout.num_workers, cores) + share) / cores)
    return 1.0 / max(collect_s, update.step_s)


def predict_collect_s(facts: Facts, layout: Layout) -> float:
    """Seconds for each transition collected: the model times what trials say of it, the nearest of the same
    backend, or else all together: a machine that is busy with other things slows every layout down."""
    modelled = model_collect_s(facts, layout)
    ratios = {trial: trial.collect_s / model_collect_s(facts, trial.layout) for trial in facts.trials}
    near = [trial for trial in ratios if trial.layout.backend == layout.backend]
    if near:
        return modelled * ratios[min(near, key=lambda trial: _distance(trial.layout, layout))]
    return modelled * exp(fmean(log(ratio) for ratio in ratios.values())) if ratios else modelled


def _distance(one: Layout, other: Layout) -> float:
    return abs(log(one.n_envs / other.n_envs)) + abs(log(one.num_workers / other.num_workers))


def model_collect_s(facts: Facts, layout: Layout) -> float:
    """Rows one after the other in a process, workers side by side, a barrier at the end of a block."""
    env, act, cores = facts.env, facts.act, facts.machine.usable_cores
    n_envs, num_steps, num_workers = layout.n_envs, layout.n_steps_per_env, layout.num_workers
    cpu_s = env.step_s * env.cpu_share
    wait_s = env.step_s - cpu_s
    act_s = act.row_s * layout.num_agents  # of one environment
    if layout.backend.for_waiting:
        # A group waits together, the slowest for longest; what needs the processor takes turns.
        mine = -(-n_envs // num_workers)
        rows, row_s = layout.backend.group_rows(mine), cpu_s + act_s + layout.backend.turn_s
        longest_s = wait_s * (1.0 + env.spread * sqrt(2.0 * log(max(rows, 2))))
        busy_s = (act.call_s * mine / rows + mine * row_s) * max(1.0, num_workers / cores)
        turn_s = max(longest_s + act.call_s + rows * row_s, busy_s)
        return turn_s / (n_envs * layout.num_agents) + _BLOCK_S / layout.rollout
    rows = -(-n_envs // num_workers)
    slower = 1.0 + (env.slowdown - 1.0) * (min(num_workers, cores) - 1) / max(cores - 1, 1)
    if num_workers > count_fast(facts.machine):
        slower /= SLOW_CORE
    busy_s = slower * (act.call_s + rows * (act_s + _SLOT_S + cpu_s))
    # Beyond the cores, those that compute wait for one.
    turn_s = max(busy_s + rows * wait_s, busy_s * num_workers / cores)
    block_s = num_steps * turn_s
    if num_workers > 1:  # the slowest of the workers ends the block
        block_s *= 1.0 + env.spread * sqrt(2.0 * log(num_workers) / (num_steps * rows))
    if not layout.backend.runs_here:
        block_s += _BLOCK_S + num_workers * _WORKER_S
    return block_s / layout.rollout
