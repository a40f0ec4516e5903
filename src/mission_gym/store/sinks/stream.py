"""Writes one stream of events to every sink; a sink that fails costs no other sink a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mission_gym.store.files import disk_errors
from mission_gym.store.sinks import Event, Sink, SinkContext, Writer, load_sink


class _OpenSink:
    """One sink, and the state of its failures."""

    def __init__(self, name: str, sink: Sink, context: SinkContext, position: int | None) -> None:
        self.name = name
        self.num_lost = 0  # rows since the sink was opened
        self.news: list[str] = []  # messages for the user
        self._sink = sink
        self._failed_kind: str | None = None  # kind of event that failed; None: the sink works
        self._num_lost_before = 0  # before the current failure
        self.writer: Writer | None = None
        try:
            with disk_errors(context.run.path):
                self.writer = sink.open(context._replace(notify=self.news.append), position)
        except sink.errors as error:
            if not sink.may_lose_rows:
                raise
            self.news.append(f"{error}; the run continues without {name}")

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
            # A nearly full disk accepts short rows and refuses long ones: only the same kind is a proof.
            if event["event"] == self._failed_kind:
                self._failed_kind = None
                lost = self.num_lost - self._num_lost_before
                self.news.append(f"{self.name} is written again; it lacks {_rows(lost)}")

    def _fail(self, event: Event, error: Exception) -> None:
        if self._sink.may_lose_rows:
            self.news.append(f"{error}; training continues without {self.name}")
            self.writer = None
            return
        if self._failed_kind is None:
            self._failed_kind, self._num_lost_before = event["event"], self.num_lost
            lost = f"{self.name} loses rows until it can be written"
            self.news.append(f"{error}; training continues, and {lost}")
        self.num_lost += 1

    def close(self) -> None:
        writer, self.writer = self.writer, None
        try:
            if writer is not None:
                writer.close()
        except self._sink.errors as error:
            self.news.append(f"the end of {self.name} is missing: {error}")


class Stream:
    """The open sinks of a run."""

    def __init__(
        self, names: Sequence[str], context: SinkContext, positions: Mapping[str, int | None]
    ) -> None:
        """Open the sinks at a checkpoint's positions; sinks without a position keep all their rows."""
        self._sinks = [_OpenSink(name, load_sink(name), context, positions.get(name)) for name in names]

    def write(self, event: Event) -> None:
        """Write an event to every sink; `take_news` returns failures."""
        for sink in self._sinks:
            sink.write(event)

    def take_news(self) -> list[str]:
        """Return messages about failures and recoveries since the last call."""
        news = []
        for sink in self._sinks:
            while sink.news:  # one by one: threads of sinks add to it
                news.append(sink.news.pop(0))
        return news

    @property
    def num_lost(self) -> dict[str, int]:
        """Number of lost rows so far, by name, of the sinks that lost any."""
        return {sink.name: sink.num_lost for sink in self._sinks if sink.num_lost}

    def list_failing(self) -> list[str]:
        """Return a message about the losses of each sink that still fails."""
        return [f"{sink.name} lacks {_rows(sink.num_lost)}" for sink in self._sinks if sink.is_failing]

    def positions(self) -> dict[str, int]:
        """Return the sinks' positions by name, after all rows are on the disk; DiskError."""
        found = {sink.name: sink.writer.position() for sink in self._sinks if sink.writer is not None}
        return {name: position for name, position in found.items() if position is not None}

    def close(self) -> None:
        """Close every sink once; `take_news` returns failures."""
        for sink in self._sinks:
            sink.close()


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count:,} rows"
