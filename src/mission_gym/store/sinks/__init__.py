"""Where a run's events go: a module for each sink, and a line of `SINKS`.

In come events: dicts with `event` and mostly `step`, the rows of metrics.jsonl, and `episode`, which is not
one. A module holds its record as `SINK` and is loaded when it is used. A sink may have threads and libraries
of its own; it never touches the training loop. `stream` opens them all and tells what fails.
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


class Row(NamedTuple):
    """A line of the table."""

    module: str
    switch: str = ""  # path of the config's value that turns it on, or lists it; without one it is always on
    package: str = ""  # of others that it needs, and the extra that brings it


# The names are also the keys of the positions in a checkpoint.
SINKS: Mapping[str, Row] = {
    "metrics": Row("mission_gym.store.sinks.jsonl"),
    "progress": Row("mission_gym.store.sinks.progress"),
    "monitor": Row("mission_gym.store.sinks.monitor"),
    "log": Row("mission_gym.store.sinks.log"),
    "tensorboard": Row("mission_gym.store.sinks.tensorboard", switch="run.tensorboard"),
    "wandb": Row("mission_gym.store.sinks.wandb", switch="run.track", package="wandb"),
    "mlflow": Row("mission_gym.store.sinks.mlflow", switch="run.track", package="mlflow"),
    "trackio": Row("mission_gym.store.sinks.trackio", switch="run.track", package="trackio"),
}


class SinkContext(NamedTuple):
    """What a sink is opened for."""

    run: RunDir
    env_id: str
    started: float  # Unix time of this process
    step: int | None = None  # of the checkpoint that the run goes on from; None at its start
    tell: Callable[[str], None] = lambda text: None  # the user, from any thread


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

    open: Callable[[SinkContext, int | None], Writer]
    errors: tuple[type[Exception], ...] = (DiskError, OSError)  # what its failures are
    may_lose_rows: bool = False


def choose_sinks(value: Callable[[str], Any]) -> list[str]:
    """The names of the sinks that a config turns on; `value` gives that at a path."""

    def is_on(name: str, row: Row) -> bool:
        switch = value(row.switch) if row.switch else True
        return name in switch if isinstance(switch, tuple) else bool(switch)

    return [name for name, row in SINKS.items() if is_on(name, row)]


def check_installed(names: Sequence[str]) -> None:
    """UsageError for a sink whose package is not there."""
    for name in names:
        package = SINKS[name].package
        if package and find_spec(package) is None:
            raise UsageError(
                f"track={name}: the package {package} is not installed; `pip install 'mission-gym[{name}]'`"
                " brings it [--track]"
            )


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
