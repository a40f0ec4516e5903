"""A run as it happens: the plan, one progress line, evaluations and warnings, the summary.

In come a run's events, the rows of metrics.jsonl, and its status; out go what rich prints and the words of
the progress line.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from mission_gym.errors import RunStateError
from mission_gym.report.formats import show_count, show_duration, show_number, show_path, show_rate
from mission_gym.report.summary import list_next_commands, view_summary
from mission_gym.report.tables import show_confirmed, show_interval, show_outcome, view_plan
from mission_gym.report.timing import add_phases
from mission_gym.store.rundir import RunDir

Event = dict[str, Any]
_BAR = (8, 24)  # smallest bar worth showing, and the longest


class RunView:
    """What there is to show of one process's work on a run."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._run: RunDir | None = None
        self._main_outcome: str | None = None
        self._status: Event = {}
        self._row: Event = {}  # the last numbers
        self._phases: dict[str, float] = {}

    def see(self, event: Event) -> list[RenderableType]:
        """Take in an event; what there is to print of it."""
        match event["event"]:
            case "plan":
                plan = event["time/plan"]
                return [*self._begin(event), view_plan(plan), *_view_notes(plan["notes"])]
            case "resume":
                step, total = show_count(event["step"]), show_count(event["total"])
                words = Text(f"resumes at step {step} of {total}")
                return [*self._begin(event), words, *_view_notes(event["notes"])]
            case "status":
                self._status = event
            case "progress":
                self._row |= event  # the use of the machine is not in every row
                add_phases(self._phases, event)
                return [_view_warning(message) for message in event.get("time/alarms", ())]
            case "eval":
                return [Text(self._eval_text(event))]
            case "confirm":
                return [Text(_confirm_text(event))]
            case "stage":
                return [Text(_stage_text(event))]
            case "note":
                return [Text(event["message"], style="dim")]
            case "warning":
                return [_view_warning(event["message"])]
            case "end":
                return self._end(event)
        return []

    def _begin(self, event: Event) -> list[RenderableType]:
        self._run = RunDir(Path(event["run"]))
        self._main_outcome = event["main_outcome"]
        self._began = time.monotonic()
        return [Text(f"run {show_path(self._run.path)}", style="bold")]

    def _end(self, event: Event) -> list[RenderableType]:
        add_phases(self._phases, event)
        if self._run is None:
            return []
        elapsed_s = time.monotonic() - self._began
        try:
            status = self._run.read_status()
        except RunStateError:  # damaged in the meantime
            status = self._status
        commands = [
            Text(f"  {command}", no_wrap=True).append(f"  # {why}", style="dim")
            for command, why in list_next_commands(self._run, status, event)
        ]
        summary = view_summary(self._run, status, event, self._phases, elapsed_s, self._row)
        return [summary, Text("next", style="bold"), *commands]

    def show_words(self) -> str:
        """The progress line without a bar."""
        return "  ".join(self._parts())

    def _parts(self) -> list[str]:
        """The words of the progress line, the dispensable ones last."""
        now = self._status
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
        return [*parts, now["phase"], self._shares()]

    def _shares(self) -> str:
        """How the time so far and the machine were used."""
        wall_s = self._phases.get("wall")
        shares = {name: self._phases[name] / wall_s if wall_s else None for name in ("env", "act", "learn")}
        parts = [f"{name} {show_rate(share)}" for name, share in shares.items()]
        parts.append(f"cpu {show_rate(self._row.get('machine/cpu'))}")
        if "machine/gpu_use" in self._row:
            parts.append(f"gpu {show_rate(self._row['machine/gpu_use'])}")
        return ", ".join(parts)

    def make_line(self, width: int, *, ascii_only: bool) -> Text:
        """One line that fits: a bar where there is room, and words as far as they go."""
        parts = self._parts()
        while len(parts) > 1 and len("  ".join(parts)) > width:
            parts.pop()
        words = "  ".join(parts)
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        room = min(width - len(words) - 2, _BAR[1])
        if room >= _BAR[0]:
            full, empty = ("#", "-") if ascii_only else ("━", "─")
            filled = room * min(self._status["step"], self._status["total"]) // self._status["total"]
            line.append(full * filled, style="green").append(empty * (room - filled), style="dim").append(
                "  "
            )
        return line.append(words)

    def _eval_text(self, event: Event) -> str:
        names = [self._main_outcome] if self._main_outcome in event["outcomes"] else list(event["outcomes"])
        outcomes = "".join(f", {name} {show_outcome(event['outcomes'][name])}" for name in names)
        return (
            f"evaluation at step {show_count(event['step'])}: return {show_interval(event, 'return')}"
            f"{outcomes}, length {show_number(event['length_mean'])}, {event['episodes']} episodes"
        )


def _confirm_text(event: Event) -> str:
    """The best checkpoint, and the one that led before it was played again."""
    step, first = event["best"], event["candidates"][0]["step"]
    before = f"; step {show_count(first)} led before" if first != step else ""
    return f"best: step {show_count(step)}{show_confirmed(event['episodes'])}{before}"


def _stage_text(event: Event) -> str:
    """Where a run has come to in its curriculum, and why."""
    back = " again" if event["stage"] < event["before"] else ""
    place = f"stage {event['stage']} of {event['of']}{back} from step {show_count(event['step'])} on"
    return f"{place}: {event['name']} (stage {event['before']}: {event['why']})"


def _view_notes(notes: list[str]) -> list[Text]:
    return [Text(f"note: {note}", style="yellow") for note in notes]


def _view_warning(message: str) -> Text:
    return Text(f"warning: {message}", style="yellow")
