"""Where a run's events go: a module for each sink, and a line of `SINKS`.

In come events: dicts with `event` and mostly `step`, the rows of metrics.jsonl, and `episode`, which is not
one. A module holds its record as `SINK` and is loaded when it is used. A sink may have threads and libraries
of its own; it never touches the training loop. `stream` opens them all and tells what fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from mission_gym.errors import DiskError
from mission_gym.store.rundir import RunDir

Event = Mapping[str, Any]


class Row(NamedTuple):
    """A line of the table."""

    module: str
    switch: str = ""  # path of the config's value that turns it on; without one it is always on


# The names are also the keys of the positions in a checkpoint.
SINKS: Mapping[str, Row] = {
    "metrics": Row("mission_gym.sinks.jsonl"),
    "progress": Row("mission_gym.sinks.progress"),
    "monitor": Row("mission_gym.sinks.monitor"),
    "log": Row("mission_gym.sinks.log"),
    "tensorboard": Row("mission_gym.sinks.tensorboard", switch="run.tensorboard"),
}


class Place(NamedTuple):
    """What a sink is opened for."""

    run: RunDir
    env_id: str
    started: float  # Unix time of this process
    step: int | None = None  # of the checkpoint that the run goes on from; None at its start


class Writer(Protocol):
    """An opened sink."""

    def write(self, event: Event) -> None:
        """Take an event, or leave it; one of the record's errors if it is lost."""

    def position(self) -> int | None:
        """Where the sink stands, for a checkpoint; None if it is never cut."""

    def close(self) -> None:
        """Write what is left."""


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink's record.

    `open` begins at the position that a checkpoint kept: what was written behind it is cut, since that work
    is made again. Without `may_lose_rows` a sink must open, and is tried with each event after a failure;
    with it, a failure closes the sink for good.
    """

    open: Callable[[Place, int | None], Writer]
    errors: tuple[type[Exception], ...] = (DiskError, OSError)  # what its failures are
    may_lose_rows: bool = False


def load_sink(name: str) -> Sink:
    """The record of a sink, with its libraries."""
    sink = import_module(SINKS[name].module).SINK
    assert isinstance(sink, Sink)
    return sink


def pick_scalars(event: Event) -> dict[str, Any] | None:
    """The numbers of a row or an evaluation under SB3's names; None for an event without any."""
    if event["event"] == "progress":
        return {key: value for key, value in event.items() if key not in ("event", "step", "time/alarms")}
    if event["event"] != "eval":
        return None
    scalars = {"eval/mean_reward": event["return_mean"], "eval/mean_ep_length": event["length_mean"]}
    return scalars | {f"eval/outcome_{name}": rate["rate"] for name, rate in event["outcomes"].items()}
