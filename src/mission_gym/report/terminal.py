"""A run as it happens: the plan, one live line, evaluations and warnings above it, the summary.

In come a run's events (the rows of metrics.jsonl, and ticks); all goes to stderr. Without a terminal
there are plain lines, at most one in five seconds and one per evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from mission_gym.report.console import make_console
from mission_gym.report.formats import show_count, show_duration, show_number, show_path, show_rate
from mission_gym.report.summary import list_next_commands, view_summary
from mission_gym.report.tables import show_interval, show_outcome, view_plan
from mission_gym.store.rundir import RunDir

Event = dict[str, Any]
_LIVE_S = 0.1  # seconds between repaints; a repaint costs about a millisecond
_PLAIN_S = 5.0
_BAR = (8, 24)  # smallest bar worth showing, and the longest


class LiveView:
    """A context manager that gives the listener of a run."""

    def __init__(self) -> None:
        self._console = make_console(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._began = self._shown_at = time.monotonic()
        self._first: tuple[int, float] | None = None  # step and time of the first tick
        self._run: RunDir | None = None
        self._main_outcome: str | None = None
        self._now: Event = {}
        self._phases: dict[str, float] = {}
        self._machine: dict[str, float] = {}

    def __enter__(self) -> Callable[[Event], None]:
        return self._listen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_live()

    def _listen(self, event: Event) -> None:
        match event["event"]:
            case "plan":
                self._begin(event)
                self._print(view_plan(event["time/plan"]))
                self._print_notes(event["time/plan"]["notes"])
            case "resume":
                self._begin(event)
                step, total = show_count(event["step"]), show_count(event["total"])
                self._print(Text(f"resumes at step {step} of {total}"))
                self._print_notes(event["notes"])
            case "tick":
                self._tick(event)
            case "progress":
                self._add_phases(event)
                self._machine |= {key: value for key, value in event.items() if key.startswith("machine/")}
                for message in event.get("time/alarms", ()):
                    self._print(Text(f"warning: {message}", style="yellow"))
            case "eval":
                self._print(Text(self._eval_text(event)))
            case "note":
                self._print(Text(event["message"], style="dim"))
            case "warning":
                self._print(Text(f"warning: {event['message']}", style="yellow"))
            case "end":
                self._end(event)

    def _begin(self, event: Event) -> None:
        self._run = RunDir(Path(event["run"]))
        self._main_outcome = event["main_outcome"]
        self._began = time.monotonic()
        self._print(Text(f"run {show_path(self._run.path)}", style="bold"))

    def _end(self, event: Event) -> None:
        self._add_phases(event)
        self._stop_live()
        if self._run is not None:
            elapsed_s = time.monotonic() - self._began
            self._print(view_summary(self._run, event, self._phases, elapsed_s, self._now))
            self._print(Text("next", style="bold"))
            for command, why in list_next_commands(self._run, event):
                # Never folded, so that it can be copied from any width.
                text = Text(f"  {command}").append(f"  # {why}", style="dim")
                self._console.print(text, soft_wrap=True)

    def _add_phases(self, event: Event) -> None:
        for key, seconds in event.items():
            if key.startswith("phase/") and key.endswith("_s"):
                name = key.removeprefix("phase/").removesuffix("_s")
                self._phases[name] = self._phases.get(name, 0.0) + seconds

    def _print(self, view: RenderableType) -> None:
        # The lines of a pipe stay whole.
        self._console.print(view, soft_wrap=isinstance(view, Text) and not self._console.is_terminal)

    def _print_notes(self, notes: list[str]) -> None:
        for note in notes:
            self._print(Text(f"note: {note}", style="yellow"))

    def _tick(self, event: Event) -> None:
        changed = event["phase"] != self._now.get("phase")
        self._now |= event
        now = time.monotonic()
        if self._first is None:
            self._first = event["step"], now
        if not self._is_live:
            if now - self._shown_at >= _PLAIN_S:
                self._shown_at = now
                self._print(Text("  ".join(self._parts())))
        elif changed or now - self._shown_at >= _LIVE_S:
            self._shown_at = now
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(self._line(self._console.width), refresh=True)

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _parts(self) -> list[str]:
        """The words of the progress line, the dispensable ones last."""
        now = self._now
        parts = [
            f"{show_count(now['step'])}/{show_count(now['total'])}",
            f"{show_count(now['fps'] or None)} steps/s",
            f"return {show_number(now.get('rollout/ep_rew_mean'))}",
            f"ETA {show_duration(self._eta_s())}",
        ]
        if self._main_outcome is not None:
            rate = now.get(f"outcome/{self._main_outcome}")
            parts.insert(3, f"{self._main_outcome} {show_rate(rate)}")
        return [*parts, now["phase"], *self._shares()]

    def _shares(self) -> list[str]:
        """How the time so far and the machine were used."""
        wall_s = self._phases.get("wall")
        shares = {name: self._phases[name] / wall_s if wall_s else None for name in ("env", "act", "learn")}
        parts = [f"{name} {show_rate(share)}" for name, share in shares.items()]
        parts.append(f"cpu {show_rate(self._machine.get('machine/cpu'))}")
        if "machine/gpu_use" in self._machine:
            parts.append(f"gpu {show_rate(self._machine['machine/gpu_use'])}")
        return [", ".join(parts)]

    def _eta_s(self) -> float | None:
        """Seconds to go at the pace so far, evaluations included."""
        assert self._first is not None
        step, start = self._first
        made = self._now["step"] - step
        pace = (time.monotonic() - start) / made if made else None
        return None if pace is None else pace * (self._now["total"] - self._now["step"])

    def _line(self, width: int) -> Text:
        """One line that fits: a bar where there is room, and words as far as they go."""
        parts = self._parts()
        while len(parts) > 1 and len("  ".join(parts)) > width:
            parts.pop()
        words = "  ".join(parts)
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        room = min(width - len(words) - 2, _BAR[1])
        if room >= _BAR[0]:
            full, empty = ("#", "-") if self._console.options.ascii_only else ("━", "─")
            filled = room * min(self._now["step"], self._now["total"]) // self._now["total"]
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
