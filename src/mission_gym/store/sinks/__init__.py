"""Destinations of a run's events: one record per sink, and a line in `SINKS`.

Events are dicts with `event` and mostly `step`: the rows of metrics.jsonl, and `episode`, which is not stored
there. A record is loaded when it is used. A sink may have its own threads and libraries; it never touches the
training loop. `files` has the sinks that are always on, `tracker` the common part of trackers, and `stream`
opens all sinks and reports failures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from mission_gym.errors import DiskError, UsageError
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
