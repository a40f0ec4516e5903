"""Destinations of a run's events: one record per sink, and a line in `SINKS`.

Events are dicts with `event` and mostly `step`: the rows of metrics.jsonl, and `episode`, which is not stored
there. A record is loaded when it is used. A sink may have its own threads and libraries; it never touches the
training loop. `files` has the sinks that are always on, `tracker` the common part of trackers. `Stream` opens
all sinks and reports failures: a sink that fails costs no other sink a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from mission_gym.errors import DiskError, UsageError
from mission_gym.store.files import disk_errors
from mission_gym.store.rundir import RunDir

Event = Mapping[str, Any]
_TRACK = "run.track"


class SinkEntry(NamedTuple):
    """A line of the table."""

    record: str  # module:name
    switch: str = ""  # config path whose value enables or lists the sink; "": always on
    package: str = ""  # third-party package that it needs, which is also our extra


# The names are also the keys of positions in a checkpoint.
SINKS: Mapping[str, SinkEntry] = {
    "metrics": SinkEntry("mission_gym.store.sinks.files:METRICS"),
    "progress": SinkEntry("mission_gym.store.sinks.files:PROGRESS"),
    "monitor": SinkEntry("mission_gym.store.sinks.files:MONITOR"),
    "log": SinkEntry("mission_gym.store.sinks.files:LOG"),
    "tensorboard": SinkEntry("mission_gym.store.sinks.tensorboard:SINK", "run.tensorboard"),
    "wandb": SinkEntry("mission_gym.store.sinks.wandb:SINK", _TRACK, "wandb"),
    "mlflow": SinkEntry("mission_gym.store.sinks.mlflow:SINK", _TRACK, "mlflow"),
    "trackio": SinkEntry("mission_gym.store.sinks.trackio:SINK", _TRACK, "trackio"),
}


class SinkContext(NamedTuple):
    """The run that a sink is opened for."""

    run: RunDir
    env_id: str
    started: float  # Unix time of this process
    step: int | None = None  # of the checkpoint that the run resumes from; None for a new run
    notify: Callable[[str], None] = lambda text: None  # shows the user a message; from any thread


class Writer(Protocol):
    """An open sink."""

    def write(self, event: Event) -> None:
        """Write or ignore an event; one of the record's errors if it is lost."""

    def position(self) -> int | None:
        """Return the position for a checkpoint; None if the sink is never truncated."""

    def close(self) -> None:
        """Write everything that is left."""


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink's record.

    `open` starts at the position of a checkpoint and drops later rows, because the run repeats
    that work. Unless `may_lose_rows`, a sink must open, and after a failure it is tried again with each
    event. With it, a failure closes the sink for good.
    """

    open: Callable[[SinkContext, int | None], Writer]
    owns: tuple[str, ...]  # globs, relative to the run, of all files and links that it writes
    errors: tuple[type[Exception], ...] = (DiskError, OSError)  # its possible failures
    may_lose_rows: bool = False


def choose_sinks(value: Callable[[str], Any]) -> list[str]:
    """Return the names of the sinks that a config enables; `value` returns the value at a config path."""

    def is_on(name: str, entry: SinkEntry) -> bool:
        switch = value(entry.switch) if entry.switch else True
        return name in switch if isinstance(switch, tuple) else bool(switch)

    return [name for name, entry in SINKS.items() if is_on(name, entry)]


def list_trackers() -> tuple[str, ...]:
    """Return the names that `track` accepts."""
    return tuple(name for name, entry in SINKS.items() if entry.switch == _TRACK)


def list_owned() -> list[str]:
    """Return globs, relative to a run, of the files and links of all sinks."""
    return [pattern for name in SINKS for pattern in load_sink(name).owns]


def check_installed(names: Sequence[str]) -> None:
    """Raise UsageError for a sink whose package is not installed."""
    for name in names:
        package = SINKS[name].package
        if package and find_spec(package) is None:
            raise UsageError(
                f"track={name}: the package {package} is not installed; run: pip install "
                f"'mission-gym[{name}]' [--track]"
            )


def load_sink(name: str) -> Sink:
    """Load the record of a sink; its libraries are loaded when it is opened."""
    module, _, attribute = SINKS[name].record.partition(":")
    sink = getattr(import_module(module), attribute)
    assert isinstance(sink, Sink)
    return sink


def pick_scalars(event: Event) -> dict[str, Any] | None:
    """Return the numbers of a progress or evaluation event under SB3's names; None for other events."""
    if event["event"] == "progress":
        return {key: value for key, value in event.items() if key not in ("event", "step", "time/alarms")}
    if event["event"] != "eval":
        return None
    scalars = {"eval/mean_reward": event["return_mean"], "eval/mean_ep_length": event["length_mean"]}
    return scalars | {f"eval/outcome_{name}": rate["rate"] for name, rate in event["outcomes"].items()}


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
