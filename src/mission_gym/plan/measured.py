"""Values that follow from the costs of collecting and learning: the `auto` of `AlgorithmSection.MEASURED`.

They are chosen after the layout of the run, so collecting is as fast as the plan makes it. Costs are stored
with the plan, so that equal runs choose equally.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mission_gym.config.layers import Resolved
from mission_gym.plan.cache import make_plan_key, read_plan, write_plan
from mission_gym.plan.costs import NUM_BLOCKS, Builder, measure_collect, predict_fps, prime_steps
from mission_gym.plan.tuner import Say, Tuned


class _Costs(NamedTuple):
    """Seconds per transition, with provisional values."""

    collect_s: float
    update_s: float


def fill_measured(builder: Builder, tuned: Tuned, say: Say) -> Tuned:
    """Replace each `auto` that follows from costs, measured in the planned layout or stored before."""
    resolved, entry = tuned.resolved, tuned.entry
    if not resolved.config.algorithm.open_names():
        return tuned
    key = f"costs-{make_plan_key(resolved, builder.spec)}" if entry is None else tuned.key
    stored = read_plan(key) or {} if entry is None else entry
    is_new = "costs" not in stored
    costs = _measure(builder, resolved, say) if is_new else _Costs(*stored["costs"])
    values, reason = builder.algorithm.choose_measured(resolved, *costs)
    resolved = resolved.with_values(values, f"measured: {reason}")
    if entry is not None and is_new:  # the plan's rate was that of the provisional values
        config = builder.settle(resolved)
        rate = predict_fps(config, costs.collect_s, builder.measure_update_s(config))
        stored = stored | {"steps_per_s": rate}
    if is_new:
        write_plan(key, stored | {"costs": costs})
    if entry is None:
        return replace(tuned, resolved=resolved, notes=(*tuned.notes, f"planned: {reason}"))
    shown = stored | {"reasons": [*stored["reasons"], reason]}
    return replace(tuned, resolved=resolved, entry=shown)


def _measure(builder: Builder, resolved: Resolved, say: Say) -> _Costs:
    say("timing a block and an update")
    config = builder.settle(resolved)
    vec, collector, _ = builder.make_collector(config)
    with vec:
        weights = builder.make_learner(config).weights()
        collect_s = measure_collect(collector, weights, prime_steps(config), NUM_BLOCKS).step_s
    return _Costs(collect_s, builder.measure_update_s(config))
