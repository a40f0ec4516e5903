"""The origin of a run, and the checkpoints of a run that other runs started from.

A child keeps lineage.json. Its parent keeps pins.json, whose checkpoints retention never deletes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from pydantic import TypeAdapter

from mission_gym.data import LeafKind
from mission_gym.store import lock
from mission_gym.store.files import write_json
from mission_gym.store.rundir import RunDir
from mission_gym.store.validation import Count, Str, read_validated

_PIN_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class InferredLeaf:
    """The layout of a leaf whose space was ambiguous, so its values decided: fields of its LeafSpec."""

    kind: LeafKind
    nvec: tuple[Count, ...]
    start: tuple[int, ...]
    channels_last: bool
    open_ended: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a run; the three `parent` fields are None for a run from scratch."""

    config_hash: Str
    env_signature: Str
    parent: Str | None = None  # name of the run
    parent_path: Str | None = None
    parent_step: Count | None = None
    folder: Str = ""  # working directory at the start, where modules of the user may be
    readings: dict[Str, InferredLeaf] = field(default_factory=dict)  # by leaf


_LINEAGE = TypeAdapter(Lineage)
_PINS = TypeAdapter(dict[Count, list[Str]])


def write_lineage(run: RunDir, lineage: Lineage) -> None:
    """Write lineage.json."""
    write_json(run.lineage_json, asdict(lineage))


def read_lineage(run: RunDir) -> Lineage:
    """Read lineage.json; RunStateError if it is missing or damaged."""
    return read_validated(run.lineage_json, _LINEAGE)


def pin(run: RunDir, step: int, child: str) -> None:
    """Keep checkpoint `step` of `run` for the run named `child`; several branches may call this at once."""
    run.check_plain()
    with lock.hold(run.path / ".pins-lock", wait_s=_PIN_WAIT_S):
        pins = read_pins(run)
        children = [*pins.get(step, []), child]
        write_json(run.pins_json, pins | {step: sorted(set(children))})


def read_pins(run: RunDir) -> dict[int, list[str]]:
    """Return the pinned steps of `run`, each with the names of the runs that started from it."""
    return read_validated(run.pins_json, _PINS) if run.pins_json.exists() else {}
