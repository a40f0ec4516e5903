"""One stream of events to every sink, each with its own state: one that fails costs no other a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mission_gym.store.files import disk_errors
from mission_gym.store.sinks import Event, Sink, SinkContext, Writer, load_sink


class _Outlet:
    """One sink, and whether it takes what it is given."""

    def __init__(self, name: str, sink: Sink, place: SinkContext, position: int | None) -> None:
        self.name = name
        self.num_lost = 0  # rows since the sink was opened
        self.news: list[str] = []  # to be told
        self._sink = sink
        self._failed_kind: str | None = None  # of event; None: it works
        self._num_lost_before = 0  # the failure that is under way
        self.writer: Writer | None = None
        try:
            with disk_errors(place.run.path):
                self.writer = sink.open(place._replace(tell=self.news.append), position)
        except sink.errors as error:
            if not sink.may_lose_rows:
                raise
            self.news.append(f"{error}; the run goes on without {name}")

    @property
    def is_failing(self) -> bool:
        return self._failed_kind is not None

    def write(self, event: Event) -> None:
        if self.writer is None:
            return
        try:
            self.writer.write(event)
        except self._sink.errors as error:
            self._fail(event, error)
        else:
            # A nearly full disk takes short rows and refuses long ones: only one of the same kind is a proof.
            if event["event"] == self._failed_kind:
                self._failed_kind = None
                lost = self.num_lost - self._num_lost_before
                self.news.append(f"{self.name} is written again; it lacks {_rows(lost)}")

    def _fail(self, event: Event, error: Exception) -> None:
        if self._sink.may_lose_rows:
            self.news.append(f"{error}; no more is written to {self.name}, and training goes on")
            self.writer = None
            return
        if self._failed_kind is None:
            self._failed_kind, self._num_lost_before = event["event"], self.num_lost
            self.news.append(f"{error}; training goes on, and {self.name} loses rows until it can be written")
        self.num_lost += 1

    def close(self) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        try:
            writer.close()
        except self._sink.errors as error:
            self.news.append(f"the end of {self.name} is missing: {error}")


class Stream:
    """The opened sinks of a run."""

    def __init__(self, names: Sequence[str], place: SinkContext, positions: Mapping[str, int | None]) -> None:
        """Open the sinks at the positions of a checkpoint; those it does not know stay as they are."""
        self._outlets = [_Outlet(name, load_sink(name), place, positions.get(name)) for name in names]

    def write(self, event: Event) -> None:
        """Give an event to every sink; `take_news` says what became of it."""
        for outlet in self._outlets:
            outlet.write(event)

    def take_news(self) -> list[str]:
        """What failed or works again since the last call."""
        news = []
        for outlet in self._outlets:
            while outlet.news:  # one by one: threads of sinks add to it
                news.append(outlet.news.pop(0))
        return news

    @property
    def num_lost(self) -> dict[str, int]:
        """Rows lost so far by the sinks that lost any."""
        return {outlet.name: outlet.num_lost for outlet in self._outlets if outlet.num_lost}

    def list_failing(self) -> list[str]:
        """What sinks that still fail have lost, in words."""
        return [f"{each.name} lacks {_rows(each.num_lost)}" for each in self._outlets if each.is_failing]

    def positions(self) -> dict[str, int]:
        """Where the sinks stand, by name; DiskError if the disk does not have all of it."""
        found = {each.name: each.writer.position() for each in self._outlets if each.writer is not None}
        return {name: position for name, position in found.items() if position is not None}

    def close(self) -> None:
        """Close every sink, once; `take_news` says what could not be written."""
        for outlet in self._outlets:
            outlet.close()


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count:,} rows"
