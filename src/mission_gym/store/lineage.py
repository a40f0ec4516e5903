"""Where a run came from, and which of its checkpoints other runs came from.

The child keeps lineage.json; the parent keeps pins.json, whose checkpoints retention never deletes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mission_gym.errors import RunStateError
from mission_gym.store import lock
from mission_gym.store.files import read_json, write_json
from mission_gym.store.rundir import RunDir

_PIN_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a run; the three `parent` fields are None for a run from scratch."""

    config_hash: str
    env_signature: str
    parent: str | None = None  # name of the run
    parent_path: str | None = None
    parent_step: int | None = None
    folder: str = ""  # where it was started: modules of the user's lie there


def write_lineage(run: RunDir, lineage: Lineage) -> None:
    """Write lineage.json."""
    write_json(run.lineage_json, asdict(lineage))


def read_lineage(run: RunDir) -> Lineage:
    """Read lineage.json; RunStateError if it is missing or damaged."""
    try:
        return Lineage(**read_json(run.lineage_json))
    except TypeError as error:
        raise RunStateError(
            f"{run.lineage_json} is damaged: {error}; restore it from a copy of the run"
        ) from error


def pin(run: RunDir, step: int, child: str) -> None:
    """Keep checkpoint `step` of `run` for the run named `child`; branches of one run may do so at once."""
    with lock.hold(run.path / ".pins-lock", wait_s=_PIN_WAIT_S):
        pins = read_pins(run)
        children = [*pins.get(step, []), child]
        write_json(run.pins_json, pins | {step: sorted(set(children))})


def read_pins(run: RunDir) -> dict[int, list[str]]:
    """The pinned steps of `run`, each with the names of the runs that came from it."""
    if not run.pins_json.exists():
        return {}
    return {int(step): children for step, children in read_json(run.pins_json).items()}
