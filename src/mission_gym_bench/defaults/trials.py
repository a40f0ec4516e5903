"""The cases of `bench defaults`, and trainings of a side on a case. Those of peers are measured once and
kept.

`python -m mission_gym_bench.defaults.trials FILE [SIDE ...] [CASE ...]` measures the peers again, both unless
a SIDE is named, or `ours`. It runs the trials that FILE lacks, two at a time, and stores each result as it
arrives. All of it takes hours.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mission_gym.errors import MissionGymError, UsageError, nearest
from mission_gym.procs import usable_cores
from mission_gym.store.files import read_json, write_atomic
from mission_gym_bench.runner import (
    OURS,
    TrainingJob,
    TrainingResult,
    describe_machine,
    find_sides,
    run_jobs,
)

PEERS = ("sb3", "cleanrl")
KEPT = Path(__file__).with_name("peers.json")
_TRAINERS = {
    OURS: "ours:train_defaults",
    "sb3": "defaults.peers:train_sb3",
    "cleanrl": "defaults.peers:train_cleanrl",
}
_MODULES = {
    "box2d": "Box2D",
    "mujoco": "mujoco",
}  # extras of ours -> the module that shows they are installed
_SEEDS = (1, 2, 3, 4, 5)  # the least of a comparison; most kept cases have two or three
_OWN = "mission-gym"  # the version that does not affect peers
_HOW = (
    "train_s: CPU seconds of training, in one process with one thread, without start-up and evaluations."
    " score: of the final policy, 100 episodes of the report suite. curve: step and return, of 10"
    " episodes of the selection suite. cleanrl: its values, run by SB3's PPO."
)


@dataclass(frozen=True, slots=True)
class DefaultsCase:
    """An environment without shipped settings, and its budget."""

    name: str
    timesteps: int
    random: float  # the return of random actions: exact for toys, otherwise the mean of 100 episodes
    known: str  # a return that is known to be reachable
    extra: str = ""  # that it needs

    @property
    def env_id(self) -> str:
        return f"mission_gym_bench.environments:{self.name}"

    @property
    def is_there(self) -> bool:
        """Whether the package it needs is installed."""
        return not self.extra or importlib.util.find_spec(_MODULES[self.extra]) is not None


# In the order of importance, in which peers were measured.
CASES = (
    DefaultsCase("lunar_lander", 300_000, -188.0, "200 is solved", "box2d"),
    DefaultsCase("hopper", 300_000, 16.0, "2,410 in RL Zoo after 1M", "mujoco"),
    DefaultsCase("half_cheetah", 300_000, -277.0, "5,819 in RL Zoo after 1M", "mujoco"),
    DefaultsCase("pendulum", 100_000, -1234.0, "about -150"),
    DefaultsCase("cart_pole", 100_000, 23.0, "500"),
    DefaultsCase("acrobot", 200_000, -500.0, "about -72"),
    DefaultsCase("lunar_lander_continuous", 300_000, -220.0, "200 is solved", "box2d"),
    DefaultsCase("LargeRewards", 100_000, -89_406.0, "91,000"),
    DefaultsCase("RarePrizes", 100_000, 650.0, "1,000"),
    DefaultsCase("LargeObservations", 100_000, 50 / 3, "50"),
    DefaultsCase("FarOffset", 100_000, 50 / 3, "50"),
    DefaultsCase("SparseGoal", 100_000, 0.261, "1"),
    DefaultsCase("Continuing", 100_000, 304.0, "1,650"),
    DefaultsCase("bipedal_walker", 300_000, -99.0, "300 is solved", "box2d"),
    DefaultsCase("mountain_car", 200_000, -200.0, "about -100"),
    DefaultsCase("mountain_car_continuous", 200_000, -33.0, "about 94"),
    DefaultsCase("CatchPixels", 100_000, -5.0, "10"),
    DefaultsCase("CatchPlanes", 100_000, -5.0, "10"),
)


@dataclass(frozen=True, slots=True)
class DefaultsTrial:
    """One training."""

    case: str
    side: str
    seed: int
    score: float
    steps: int
    gradient_steps: int
    train_s: float
    wall_s: float  # of the whole process, including delays by other processes
    curve: list[list[float]]  # step, return


def measure_trials(
    sides: Sequence[str],
    cases: Sequence[DefaultsCase],
    seeds: Sequence[int],
    *,
    report_episodes: int = 100,
    known: Sequence[DefaultsTrial] = (),
    keep: Callable[[DefaultsTrial], None] = lambda trial: None,
) -> list[DefaultsTrial]:
    """Train each side on each case with each seed, seed by seed, except the known ones; `keep` gets each
    result."""
    done = {(each.side, each.case, each.seed) for each in known}
    jobs = [
        TrainingJob(
            side,
            case.env_id,
            {"timesteps": case.timesteps, "seed": seed},
            report_episodes,
            trainer=_TRAINERS[side],
        )
        for seed in seeds
        for side in sides
        for case in cases
        if (side, case.name, seed) not in done
    ]
    results = run_jobs(
        jobs, at_once=min(2, usable_cores()), keep=lambda job, result: keep(_make_trial(job, result))
    )
    return [_make_trial(*each) for each in results]


def _make_trial(job: TrainingJob, result: TrainingResult) -> DefaultsTrial:
    assert result.report_return is not None
    return DefaultsTrial(
        case=job.env_id.partition(":")[2],
        side=job.side,
        seed=job.flags["seed"],
        score=result.report_return,
        steps=result.warm_steps,
        gradient_steps=result.gradient_steps,
        train_s=result.warm_s,
        wall_s=result.wall_s,
        curve=[[each.step, each.return_mean] for each in result.evals],
    )


def read_trials(path: Path = KEPT) -> tuple[dict[str, str], list[DefaultsTrial]]:
    """Return the machine with its versions, and the trials measured there."""
    kept = read_json(path)
    return kept["machine"], [DefaultsTrial(**each) for each in kept["trials"]]


def write_trials(path: Path, machine: Mapping[str, str], trials: Sequence[DefaultsTrial]) -> None:
    """Write the file of `read_trials`, one line per training so that people can read its diffs."""
    lines = ",\n  ".join(json.dumps(_shorten(asdict(each)), allow_nan=False) for each in trials)
    head = json.dumps({"how": _HOW, "machine": machine}, indent=1).removesuffix("\n}")
    write_atomic(path, f'{head},\n "trials": [\n  {lines}\n ]\n}}\n')


def measure_lacking(path: Path, sides: Sequence[str], cases: Sequence[DefaultsCase]) -> None:
    """Measure the trials that the file lacks; UsageError if it comes from another machine or versions."""
    machine = describe_machine()
    if "sb3" not in find_sides() and set(sides) != {OURS}:
        raise UsageError('both peers need SB3, which is not installed; run: pip install "mission-gym[sb3]"')
    kept: list[DefaultsTrial] = []
    if path.exists():
        measured_on, kept = read_trials(path)
        changed = [name for name in machine if measured_on.get(name) != machine[name] and name != _OWN]
        if changed:
            raise UsageError(
                f"{path} was measured elsewhere ({', '.join(changed)} differ); rates of two machines cannot"
                " be compared: name a new file"
            )

    def keep(trial: DefaultsTrial) -> None:
        kept.append(trial)
        write_trials(path, machine, kept)

    measure_trials(sides, [case for case in cases if case.is_there], _SEEDS, known=kept, keep=keep)


def _shorten(value: Any) -> Any:
    """Round to five digits; no training repeats more closely on another processor."""
    if isinstance(value, dict):
        return {key: _shorten(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shorten(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def find_cases(names: Sequence[str]) -> list[DefaultsCase]:
    """Return the named cases, or all without a name; UsageError for an unknown one."""
    by_name = {case.name: case for case in CASES}
    for name in names:
        if name not in by_name:
            raise UsageError(
                f"case {name!r} is unknown{nearest(name, by_name)}; use one of {', '.join(by_name)}"
            )
    return [by_name[name] for name in names or by_name]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        names = sys.argv[2:]
        chosen = [name for name in names if name in _TRAINERS]
        measure_lacking(
            Path(sys.argv[1]), chosen or PEERS, find_cases([name for name in names if name not in chosen])
        )
    except MissionGymError as error:
        sys.exit(f"error: {error}")
