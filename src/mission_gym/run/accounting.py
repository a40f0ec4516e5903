"""Phase accounting: from the seconds that clocks counted to phases that add up to each role's wall time.

Coarse phases include the fine ones of their role, so what is left of a coarse phase is a phase of its own:
of `collect` the copying of rows, of `update` the gradient steps. What no phase explains is `idle`.
"""

from __future__ import annotations

from mission_gym.clock import ROLES
from mission_gym.data import Phases


def account(phases: Phases, wall_s: float) -> dict[str, dict[str, float]]:
    """Seconds by role and phase; the phases of a role, idle among them, sum up to `wall_s`."""
    table: dict[str, dict[str, float]] = {
        role: {name: phases.seconds.get((role, name), 0.0) for name in names} for role, names in ROLES.items()
    }
    collector, learner = table["collector"], table["learner"]
    collect_s = phases.seconds.get(("collector", "collect"), 0.0)
    # Workers time themselves, so that what is left may be below nothing by what clocks differ.
    collector["copy"] = max(0.0, collect_s - collector["act"] - collector["env"] - collector["wait"])
    learner["update"] -= learner["values"]
    for row in table.values():
        row["idle"] = wall_s - sum(row.values())
    return table


def compute_overlap(collect_s: float, learn_s: float, wall_s: float) -> float | None:
    """The share of collecting and learning that ran at the same time as the other: 0 for one after the
    other, 0.5 at most. `wall_s` is without what the main role does."""
    both_s = collect_s + learn_s
    return max(0.0, 1.0 - wall_s / both_s) if both_s > 0 else None


def phase_metrics(phases: Phases, wall_s: float) -> dict[str, float]:
    """The keys `phase/*` of a row over the last `wall_s` seconds."""
    table = account(phases, wall_s)
    collector, learner, main = table["collector"], table["learner"], table["main"]
    collect_s, learn_s = wall_s - collector["idle"], wall_s - learner["idle"]
    seconds = {"wall": wall_s, "collect": collect_s, "learn": learn_s}
    for role, row in table.items():
        seconds |= {f"{role}_idle" if name == "idle" else name: spent for name, spent in row.items()}
    seconds["collect_cpu"] = phases.seconds.get(("collector", "cpu"), 0.0)
    metrics = {f"phase/{name}_s": round(spent, 6) for name, spent in seconds.items()}
    overlap = compute_overlap(collect_s, learn_s, main["idle"])
    return metrics if overlap is None else metrics | {"phase/overlap": round(overlap, 4)}
