"""A run in the terminal: the plan, one progress line, evaluations and warnings, and the summary at its end.

The input is a run's events, the rows of metrics.jsonl, and its status. The output is rich views and the text
of the progress line.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from mission_gym.config.plain_yaml import read_stored
from mission_gym.errors import ConfigError, RunStateError
from mission_gym.report.documents import best_evaluation
from mission_gym.report.formats import (
    MISSING,
    run_argument,
    show_count,
    show_duration,
    show_number,
    show_path,
    show_rate,
)
from mission_gym.report.overview import find_stall
from mission_gym.report.tables import (
    STATE_STYLES,
    list_failures,
    list_stage,
    list_verdict,
    make_pairs,
    show_choice,
    show_confirmed,
    show_interval,
    show_outcome,
    show_unseen,
    view_plan,
)
from mission_gym.report.timeline import add_phases, list_machine
from mission_gym.store.rundir import RunDir

Event = dict[str, Any]
Document = Mapping[str, Any]
_BAR = (8, 24)  # the shortest and the longest bar
_NUM_TERMS = 5  # of the reward that are named
_PHASES = {
    "collect": "collecting", "learn": "learning", "evaluate": "evaluating", "save": "saving",
    "record": "recording",
}  # fmt: skip


class RunView:
    """The views of one process's work on a run."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._run: RunDir | None = None
        self._main_outcome: str | None = None
        self._status: Event = {}
        self._row: Event = {}  # the latest value of every metric
        self._returns: list[float] = []  # of the rows
        self._phases: dict[str, float] = {}

    def add(self, event: Event) -> list[RenderableType]:
        """Take in an event; returns the views to print."""
        match event["event"]:
            case "plan":
                plan = event["time/plan"]
                return [*self._begin(event), view_plan(plan), *_view_notes(plan["notes"])]
            case "resume":
                step, total = show_count(event["step"]), show_count(event["total"])
                text = Text(f"resumes at step {step} of {total}")
                return [*self._begin(event), text, *_view_notes(event["notes"])]
            case "status":
                self._status = event
            case "progress":
                self._row |= event  # not every row has the use of the machine
                if event.get("rollout/ep_rew_mean") is not None:
                    self._returns.append(event["rollout/ep_rew_mean"])
                add_phases(self._phases, event)
                return [_view_warning(message) for message in event.get("time/alarms", ())]
            case "eval":
                return [Text(self._show_eval(event))]
            case "confirm":
                return [Text(_show_confirmation(event))]
            case "stage":
                return [Text(_show_stage(event))]
            case "note":
                return [Text(event["message"], style="dim")]
            case "warning":
                return [_view_warning(event["message"])]
            case "failure":
                # The error itself follows the summary.
                return [] if event["is_last"] else [_view_warning(event["message"])]
            case "end":
                return self._end(event)
        return []

    def _begin(self, event: Event) -> list[RenderableType]:
        self._run = RunDir(Path(event["run"]))
        self._main_outcome = event["main_outcome"]
        self._start_s = time.monotonic()
        return [Text(f"run {show_path(self._run.path)}", style="bold")]

    def _end(self, event: Event) -> list[RenderableType]:
        add_phases(self._phases, event)
        if self._run is None:
            return []
        elapsed_s = time.monotonic() - self._start_s
        try:
            status = self._run.read_status()
        except RunStateError:  # damaged in the meantime
            status = self._status
        commands = [
            Text(f"  {command}", no_wrap=True).append(f"  # {why}", style="dim")
            for command, why in list_next_commands(self._run, status, event)
        ]
        if event["state"] == "failed":
            summary = view_failure(self._run, status, event)
        else:
            summary = view_summary(self._run, status, event, self._phases, elapsed_s, self._row)
        curve = [_Curve(self._returns)] if len(self._returns) > 2 else []
        return [summary, *curve, Text("next", style="bold"), *commands]

    def show_progress(self) -> str:
        """The progress line without a bar."""
        return "  ".join(self._list_parts())

    def _list_parts(self) -> list[str]:
        """The parts of the progress line, the least important last."""
        now = self._status
        if now.get("step") is None:  # before the training
            return [f"{now['phase']}, {show_duration(time.time() - now['phase_since'])}"]
        parts = [
            f"{show_count(now['step'])}/{show_count(now['total'])}",
            f"{show_count(now['now_fps'])} steps/s",
            f"return {show_number(now['return_mean'])}",
            f"ETA {show_duration(now['eta_s'])}",
        ]
        if self._main_outcome is not None:
            rate = (now["outcomes"] or {}).get(self._main_outcome)
            parts.insert(3, f"{self._main_outcome} {show_rate(rate)}")
        if now.get("stage"):
            parts.insert(2, f"stage {now['stage']['number']}/{now['stage']['of']}")
        wall_s = self._phases.get("wall")
        shares = {name: self._phases[name] / wall_s if wall_s else None for name in ("env", "act", "learn")}
        shares["cpu"] = self._row.get("machine/cpu")
        if "machine/gpu_use" in self._row:
            shares["gpu"] = self._row["machine/gpu_use"]
        use = ", ".join(f"{name} {show_rate(share)}" for name, share in shares.items())
        if (still := find_stall(now, time.time())) is not None:
            parts.insert(1, f"no step for {show_duration(still)}")
        if now.get("phase_total") is None:
            return [*parts, now["phase"], use]
        return [parts[0], _show_evaluating(now), *parts[1:], use]

    def make_line(self, width: int, *, ascii_only: bool) -> Text:
        """One line that fits: a bar if there is room, and as many parts as possible."""
        parts = self._list_parts()
        while len(parts) > 1 and len("  ".join(parts)) > width:
            parts.pop()
        text = "  ".join(parts)
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        room = min(width - len(text) - 2, _BAR[1])
        if room >= _BAR[0] and self._status.get("step") is not None:
            full, empty = ("#", "-") if ascii_only else ("━", "─")
            filled = room * min(self._status["step"], self._status["total"]) // self._status["total"]
            line.append(full * filled, style="green")
            line.append(empty * (room - filled), style="dim").append("  ")
        return line.append(text)

    def _show_eval(self, event: Event) -> str:
        names = [self._main_outcome] if self._main_outcome in event["outcomes"] else list(event["outcomes"])
        outcomes = "".join(f", {name} {show_outcome(event['outcomes'][name])}" for name in names)
        return (
            f"evaluation at step {show_count(event['step'])}: return {show_interval(event, 'return')}"
            f"{outcomes}, length {show_number(event['length_mean'])}, {event['episodes']} episodes"
        )


class _Curve:
    """The return over the run in one line of blocks; nothing if the terminal has only ASCII."""

    _BLOCKS = "▁▂▃▄▅▆▇█"
    _WIDTH = 40

    def __init__(self, values: Sequence[float]) -> None:
        every = -(-len(values) // self._WIDTH)
        self._values = [value for value in values[::every] if math.isfinite(value)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.ascii_only or not self._values:
            return
        low, high = min(self._values), max(self._values)
        scale = (len(self._BLOCKS) - 1) / (high - low) if high > low else 0.0
        blocks = "".join(self._BLOCKS[round((value - low) * scale)] for value in self._values)
        yield Text.assemble(("return  ", "cyan"), blocks, f"  {show_number(low)} to {show_number(high)}")


def _show_evaluating(status: Document) -> str:
    """The progress of a phase that plays episodes."""
    left = status.get("phase_eta_s")
    rest = "" if left is None else f", {show_duration(left)} left"
    return f"{status['phase']}: {status['phase_done']} of {show_count(status['phase_total'])} episodes{rest}"


def _show_confirmation(event: Event) -> str:
    """The best checkpoint, and the one that ranked first before the confirmation."""
    step, first = event["best"], event["candidates"][0]["step"]
    before = f"; step {show_count(first)} ranked first before" if first != step else ""
    return f"best: step {show_count(step)}{show_confirmed(event['episodes'])}{before}"


def _show_stage(event: Event) -> str:
    """The curriculum stage that a run enters, and why."""
    back = "back to " if event["stage"] < event["before"] else ""
    stage = f"{back}stage {event['stage']} of {event['of']} from step {show_count(event['step'])}"
    return f"{stage}: {event['name']} (stage {event['before']}: {event['why']})"


def _view_notes(notes: list[str]) -> list[Text]:
    return [Text(f"note: {note}", style="yellow") for note in notes]


def _view_warning(message: str) -> Text:
    return Text(f"warning: {message}", style="yellow")


def view_summary(
    run: RunDir,
    status: Document,
    end: Document,
    phases: Mapping[str, float],
    elapsed_s: float,
    metrics: Document,
) -> RenderableType:
    """How a run ended, how fast it was and where the time went. status and end: the run's status and its
    `end` event. phases, elapsed_s: seconds of this process. metrics: its last row."""
    made = end["time/process_steps"]
    own = "" if made == end["step"] else f", {show_count(made)} of them in this process,"
    rows = [
        ("steps", f"{show_count(end['step'])}{own} in {show_duration(end['time/elapsed_s'])}"),
        *list_stage(status),
        ("rate", _show_rates(status, end)),
        ("best", _show_best(run)),
        *_list_reward(metrics),
        *_list_slowest(metrics),
        *list_failures(status),
        ("time", _show_phases(phases, elapsed_s)),
        *list_machine(end.get("time/machine") or {}),
        *list_verdict(end.get("time/verdict")),
        ("run", show_path(run.path)),
    ]
    saved = f"; saved at step {show_count(end['step'])}" if end["state"] == "stopped" else ""
    cause = end["cause"].partition("\n")[0]  # the whole text comes with the error itself
    head = Text.assemble((end["state"], f"bold {STATE_STYLES[end['state']]}"), f": {cause}{saved}")
    return Group(Text(), head, make_pairs(rows))


def view_failure(run: RunDir, status: Document, end: Document) -> RenderableType:
    """How a run failed. The error itself, which is the cause, follows on the terminal."""
    rows = [
        *([("cause", end["failure"]), ("where", end["place"])] if end.get("failure") else []),
        *list_failures(status, besides=end.get("failure")),
        ("run", show_path(run.path)),
    ]
    head = Text.assemble(("failed", f"bold {STATE_STYLES['failed']}"), f" at step {show_count(end['step'])}")
    return Group(Text(), head, make_pairs(rows))


def list_next_commands(run: RunDir, status: Document, end: Document) -> list[tuple[str, str]]:
    """Useful next commands, each with its effect."""
    name, total = run_argument(run.path), 2 * end["step"] or status.get("total") or 0
    if end["state"] == "failed":
        commands = []
        if repro := end.get("repro"):
            path = shlex.quote(show_path(run.path / repro))
            commands.append((f"mission-gym check --repro {path}", "replay the failure"))
        if end["step"]:
            commands.append((f"mission-gym resume {name}", "continue after the fix"))
        return commands or [(f"mission-gym runs show {name}", "all details")]
    is_complete = end["state"] == "done" and end["step"] >= (status.get("total") or 0)
    if env := find_callable(run):  # only Python has it
        quoted = repr(shlex.split(name)[0])
        more = f", timesteps={total}" if is_complete else ""
        resume = f"mg.resume({quoted}, env={env}{more})"
        commands = [
            (f"mg.load({quoted}, env={env})", "the policy, with predict"),
            (f"mg.branch({quoted}, env={env}, timesteps={total})", "a child run with changes"),
        ]
    else:
        resume = f"mission-gym resume {name}" + (f" --timesteps {total}" if is_complete else "")
        commands = [
            (f"mission-gym eval {name}", "100 held-out episodes"),
            (f"mission-gym branch {name} --timesteps {total}", "a child run with changes"),
        ]
    is_live = end["state"] in ("starting", "running")
    if not end["goal"] and not is_live:  # a run that reached its goal has nothing left to do
        commands.insert(0, (resume, "continue training"))
    if run.tensorboard.exists():
        commands.append((f"tensorboard --logdir {shlex.quote(show_path(run.tensorboard))}", "curves"))
    return commands


def find_callable(run: RunDir) -> str:
    """The name of a callable that the run was trained on, if it can't be imported; else empty."""
    try:
        env_id = str(read_stored(run.config_yaml)["env.env_id"].value)
    except (ConfigError, KeyError):
        return ""
    name = env_id[1:-1].rpartition(".")[2]
    return "" if env_id[:1] != "<" else name if name.isidentifier() else "make_env"


def _show_rates(status: Document, end: Document) -> str:
    """The prediction is for collecting and learning, so it is compared with their rate."""
    predicted = show_count(status.get("predicted_fps"))
    overall = f"{show_count(end['time/fps'] or None)} overall"
    return f"{show_count(end['time/train_fps'])} steps/s of training, predicted {predicted}; {overall}"


def _show_best(run: RunDir) -> str:
    best = best_evaluation(run)
    if best is None:
        return MISSING
    rates = (best.get("outcomes") or {}).items()
    outcomes = "".join(f", {name} {show_outcome(rate)}" for name, rate in rates)
    step, episodes = show_count(best["step"]), best.get("episodes")
    result = f"return {show_interval(best, 'return')}{outcomes} at step {step}{show_choice(best)}"
    return f"{result}; of {show_count(episodes)} episodes, {show_unseen(episodes)}" if episodes else result


def _list_reward(metrics: Document) -> list[tuple[str, str]]:
    """The shares of the reward terms, the largest first; no row without terms."""
    prefix = "reward_share/"
    shares = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
    largest = sorted((name for name in shares if shares[name] > 0), key=lambda name: -shares[name])
    shown = [f"{name} {show_rate(shares[name])}" for name in largest[:_NUM_TERMS]]
    rest = sum(shares[name] for name in largest[_NUM_TERMS:])
    return [("reward", ", ".join([*shown, f"others {show_rate(rest)}"] if rest else shown))] if shown else []


def _list_slowest(metrics: Document) -> list[tuple[str, str]]:
    """The environment that produced the least data; no row if all produce the same."""
    if "rollout/share_min" not in metrics:
        return []
    env_id, least, most = (metrics[f"rollout/share_{which}"] for which in ("min_env", "min", "max"))
    return [
        ("data", f"least {100 * least:.1f} %, from environment {env_id:.0f}; most {100 * most:.1f} %")
    ]  # fmt: skip


def _show_phases(phases: Mapping[str, float], elapsed_s: float) -> str:
    counted = sum(phases.get(name, 0.0) for name in _PHASES)  # above the total if phases overlap
    total = max(elapsed_s, phases.get("wall", 0.0))

    def share(seconds: float) -> str:
        return show_rate(seconds / total if total else None)

    parts = {text: share(phases.get(name, 0.0)) for name, text in _PHASES.items()}
    inside = {"environments": "env", "acting": "act", "waiting": "wait"}
    inside |= {"calls that hang": "lost"} if phases.get("lost") else {}
    shown = ", ".join(f"{text} {share(phases.get(name, 0.0))}" for text, name in inside.items())
    parts["collecting"] += f" ({shown})"
    parts["other"] = share(max(total - counted, 0.0))
    return ", ".join(f"{text} {shown}" for text, shown in parts.items())
