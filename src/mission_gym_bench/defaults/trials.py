"""Trainings of a side on a case; those of peers were measured once and are kept as data.

`python -m mission_gym_bench.defaults.trials FILE [CASE ...]` measures peers anew, as they are installed: what
FILE does not hold yet is trained, two at a time, and kept there as it arrives. All of it takes hours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mission_gym.errors import MissionGymError, UsageError, nearest
from mission_gym.procs import usable_cores
from mission_gym.store.files import read_json, write_atomic
from mission_gym_bench.contest import describe_machine, find_sides, run_jobs
from mission_gym_bench.defaults.cases import CASES, Case
from mission_gym_bench.sides import Job, Result

PEERS = ("sb3", "cleanrl")  # modules beside this one
KEPT = Path(__file__).with_name("peers.json")
_SEEDS = (1, 2, 3)
_FOLDER = "defaults."
_OWN = "mission-gym"  # the version that does not matter to peers
_HOW = (
    "train_s: what the processor spent on training, in one process with one thread, start and evaluations"
    " left out. score: of the final policy, 100 episodes of the report suite. curve: step and return, of 10"
    " episodes of the selection suite. cleanrl: its values, run by SB3's PPO."
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One training."""

    case: str
    side: str
    seed: int
    score: float
    steps: int
    gradient_steps: int
    train_s: float
    wall_s: float  # of the whole process, beside whatever else ran
    curve: list[list[float]]  # step, return


def measure_trials(
    sides: Sequence[str],
    cases: Sequence[Case],
    seeds: Sequence[int],
    *,
    report_episodes: int = 100,
    known: Sequence[Trial] = (),
    keep: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Train each side on each case with each seed, one seed after the other, but for what is known; `keep` is
    given what arrives."""
    done = {(each.side, each.case, each.seed) for each in known}
    jobs = [
        Job(_FOLDER + side, case.env_id, {"timesteps": case.timesteps, "seed": seed}, report_episodes)
        for seed in seeds
        for side in sides
        for case in cases
        if (side, case.name, seed) not in done
    ]
    results = run_jobs(
        jobs, at_once=min(2, usable_cores()), keep=lambda job, result: keep(_make_trial(job, result))
    )
    return [_make_trial(*each) for each in results]


def _make_trial(job: Job, result: Result) -> Trial:
    assert result.report_return is not None
    return Trial(
        case=job.env_id.partition(":")[2],
        side=job.side.removeprefix(_FOLDER),
        seed=job.flags["seed"],
        score=result.report_return,
        steps=result.warm_steps,
        gradient_steps=result.gradient_steps,
        train_s=result.warm_s,
        wall_s=result.wall_s,
        curve=[[each.step, each.return_mean] for each in result.evals],
    )


def read_trials(path: Path = KEPT) -> tuple[dict[str, str], list[Trial]]:
    """The machine with its versions, and what was measured there."""
    kept = read_json(path)
    return kept["machine"], [Trial(**each) for each in kept["trials"]]


def write_trials(path: Path, machine: Mapping[str, str], trials: Sequence[Trial]) -> None:
    """Write what `read_trials` reads, a line for each training: people read the file, and its changes."""
    lines = ",\n  ".join(json.dumps(_shorten(asdict(each)), allow_nan=False) for each in trials)
    head = json.dumps({"how": _HOW, "machine": machine}, indent=1).removesuffix("\n}")
    write_atomic(path, f'{head},\n "trials": [\n  {lines}\n ]\n}}\n')


def measure_peers(path: Path, cases: Sequence[Case]) -> None:
    """Measure what the file does not hold; UsageError if it is of another machine or other versions."""
    machine = describe_machine()
    if "sb3" not in find_sides():
        raise UsageError(
            "both peers are trained by SB3, which is not installed; pip install mission-gym[sb3]"
        )
    kept: list[Trial] = []
    if path.exists():
        measured_on, kept = read_trials(path)
        changed = [name for name in machine if measured_on.get(name) != machine[name] and name != _OWN]
        if changed:
            raise UsageError(
                f"{path} was measured elsewhere ({', '.join(changed)} differ); rates of two machines can't be"
                " compared: give the name of a new file"
            )

    def keep(trial: Trial) -> None:
        kept.append(trial)
        write_trials(path, machine, kept)

    measure_trials(PEERS, [case for case in cases if case.is_there], _SEEDS, known=kept, keep=keep)


def _shorten(value: Any) -> Any:
    """Numbers in five digits: a training can't be repeated any closer on other processors."""
    if isinstance(value, dict):
        return {key: _shorten(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shorten(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def find_cases(names: Sequence[str]) -> list[Case]:
    """The cases of these names, all if there is none; UsageError for an unknown one."""
    by_name = {case.name: case for case in CASES}
    for name in names:
        if name not in by_name:
            raise UsageError(
                f"no case is called {name!r}{nearest(name, by_name)}; choose from {', '.join(by_name)}"
            )
    return [by_name[name] for name in names or by_name]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        measure_peers(Path(sys.argv[1]), find_cases(sys.argv[2:]))
    except MissionGymError as error:
        sys.exit(f"error: {error}")
