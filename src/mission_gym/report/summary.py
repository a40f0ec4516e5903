"""The last words of a run: how it ended, how fast it was, where the time went, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from mission_gym.report.documents import best_evaluation
from mission_gym.report.formats import MISSING, run_argument, show_count, show_duration, show_path, show_rate
from mission_gym.report.tables import (
    list_stage,
    list_verdict,
    make_pairs,
    show_confirmed,
    show_failures,
    show_interval,
    show_outcome,
)
from mission_gym.report.timing import list_machine
from mission_gym.store.rundir import RunDir

_STATE_STYLES = {"done": "bold green", "stopped": "bold yellow", "failed": "bold red"}
_NUM_TERMS = 5  # of the reward that are named
_PHASES = {
    "collect": "collecting",
    "learn": "learning",
    "evaluate": "evaluating",
    "save": "saving",
    "record": "recording",
}


def view_summary(
    run: RunDir,
    status: Mapping[str, Any],
    end: Mapping[str, Any],
    phases: Mapping[str, float],
    elapsed_s: float,
    metrics: Mapping[str, Any],
) -> RenderableType:
    """The summary from a run's status and `end` event; phases and elapsed time are seconds of this process,
    metrics its last row."""
    made = end["time/process_steps"]
    now = "" if made == end["step"] else f", {show_count(made)} of them now,"
    rows = [
        ("steps", f"{show_count(end['step'])}{now} in {show_duration(end['time/elapsed_s'])}"),
        *list_stage(status),
        ("rate", _show_rates(status, end)),
        ("best", _show_best(run)),
        *_show_shares(metrics),
        *_show_slowest(metrics),
        *_show_losses(status),
        ("time", _show_phases(phases, elapsed_s)),
        *list_machine(end.get("time/machine") or {}),
        *list_verdict(end.get("time/verdict")),
        ("run", show_path(run.path)),
    ]
    saved = f"; saved at step {show_count(end['step'])}" if end["state"] == "stopped" else ""
    cause = end["cause"].partition("\n")[0]  # a failure's whole text comes with the error itself
    head = Text.assemble((end["state"], _STATE_STYLES[end["state"]]), f": {cause}{saved}")
    return Group(Text(), head, make_pairs(rows))


def list_next_commands(
    run: RunDir, status: Mapping[str, Any], end: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Commands that make sense now, each with what it does."""
    name = run_argument(run.path)
    is_whole = end["state"] == "done" and end["step"] >= (status.get("total") or 0)
    resume = f"mission-gym resume {name}" + (f" --timesteps {2 * end['step']}" if is_whole else "")
    commands = [
        (f"mission-gym eval {name}", "100 held-out episodes"),
        (f"mission-gym branch {name} --timesteps {2 * end['step']}", "a child run, with changes"),
    ]
    if not end["goal"]:  # a run that has reached its goal has nothing left to do
        commands.insert(0, (resume, "go on"))
    if run.tensorboard.exists():
        commands.append((f"tensorboard --logdir {shlex.quote(show_path(run.tensorboard))}", "curves"))
    return commands


def _show_rates(status: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    """The prediction is about collecting and learning, so that is what it is held against."""
    predicted = show_count(status.get("predicted_fps"))
    overall = f"{show_count(end['time/fps'] or None)} with everything"
    return f"{show_count(end['time/train_fps'])} steps/s of training, predicted {predicted}; {overall}"


def _show_best(run: RunDir) -> str:
    best = best_evaluation(run)
    if best is None:
        return MISSING
    outcomes = "".join(
        f", {name} {show_outcome(rate)}" for name, rate in (best.get("outcomes") or {}).items()
    )
    confirmed = show_confirmed(best.get("confirmed"))
    return f"return {show_interval(best, 'return')}{outcomes} at step {show_count(best['step'])}{confirmed}"


def _show_shares(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the reward is made of, the largest terms first; no row where the environment tells no terms."""
    prefix = "reward_share/"
    shares = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
    largest = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    shown = [f"{name} {show_rate(shares[name])}" for name in largest[:_NUM_TERMS]]
    rest = sum(shares[name] for name in largest[_NUM_TERMS:])
    return [("reward", ", ".join([*shown, f"others {show_rate(rest)}"] if rest else shown))] if shown else []


def _show_slowest(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The environment that gave the least data; no row where all give the same."""
    if "rollout/share_min" not in metrics:
        return []
    env_id, least, most = (metrics[f"rollout/share_{which}"] for which in ("min_env", "min", "max"))
    return [
        ("data", f"{100 * least:.1f} % from environment {env_id:.0f}, the least; {100 * most:.1f} % the most")
    ]


def _show_losses(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What failed; no row where nothing did."""
    any_lost = status.get("env_failures") or status.get("worker_restarts")
    return [("failures", show_failures(status))] if any_lost else []


def _show_phases(phases: Mapping[str, float], elapsed_s: float) -> str:
    counted = sum(phases.get(name, 0.0) for name in _PHASES)  # above the total where phases overlap
    total = max(elapsed_s, phases.get("wall", 0.0))

    def share(seconds: float) -> str:
        return show_rate(seconds / total if total else None)

    parts = {text: share(phases.get(name, 0.0)) for name, text in _PHASES.items()}
    inside = {"environments": "env", "acting": "act", "waiting": "wait"}
    shown = ", ".join(f"{text} {share(phases.get(name, 0.0))}" for text, name in inside.items())
    parts["collecting"] += f" ({shown})"
    parts["other"] = share(max(total - counted, 0.0))
    return ", ".join(f"{text} {shown}" for text, shown in parts.items())
