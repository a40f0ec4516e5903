"""log.txt: what happened, for people; one line an event, without rows of numbers, never cut."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mission_gym.store.files import plain
from mission_gym.store.sinks import Event, Sink
from mission_gym.store.tables import Table


class TextLog(Table):
    """Lines `time event name=value ...`."""

    def write(self, event: Event) -> None:
        match event["event"]:
            case "progress":
                for message in event.get("time/alarms", ()):
                    self._add("warning", {"step": event["step"], "message": message})
            case "timeline" | "episode":
                pass
            case kind:
                self._add(kind, {name: value for name, value in event.items() if name != "event"})

    def position(self) -> None:
        return None

    def _add(self, kind: str, fields: Mapping[str, Any]) -> None:
        told = " ".join(f"{name}={plain(value)}" for name, value in fields.items())
        self._append(f"{datetime.now():%Y-%m-%d %H:%M:%S} {kind} {' '.join(told.split())}\n")


SINK = Sink(lambda place, position: TextLog(place.run.log_txt))
