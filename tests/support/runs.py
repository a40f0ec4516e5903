"""Short training runs: start them, stop them anywhere, resume them, and compare two of them bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from mission_gym.run.config import resolve
from mission_gym.run.resume import resume_run
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import Checkpoint, list_checkpoints, load_checkpoint, load_replay
from mission_gym.store.metrics import TIMED, Metric, read_metrics
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

# 4 environments x 16 steps: a run is 6 updates of 8 gradient steps, with evaluations and checkpoints between.
PPO = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 16, "n_epochs": 2, "timesteps": 384, "eval_freq": 128,
    "eval_episodes": 2, "checkpoint_freq": 64, "network_arch": "16", "seed": 3, "tensorboard": False,
    "vector": "serial",
}  # fmt: skip
# 4 environments x 4 steps: an update is 8 gradient steps; the replay is full after 96 steps.
DQN = {
    "algo": "dqn", "n_envs": 4, "n_steps_per_env": 4, "replay_ratio": 0.5, "batch_size": 8, "replay_size": 96,
    "learning_starts": 32, "timesteps": 192, "target_update_interval": 40, "exploration_fraction": 0.5,
    "eval_freq": 64, "eval_episodes": 2, "checkpoint_freq": 32, "network_arch": "16", "seed": 3,
    "tensorboard": False, "vector": "serial",
}  # fmt: skip
SAC = {
    name: value
    for name, value in DQN.items()
    if name not in ("target_update_interval", "exploration_fraction")
}
SAC |= {"algo": "sac"}
NO_EVALS = {"eval_freq": 0, "eval_episodes": None}


def silent(event: dict[str, Any]) -> None:
    pass


def start(tmp_path: Path, env: str, **flags: Any) -> Any:
    """Start a short run of PPO, or of the algorithm of the flag `algo`; a flag that is None is left out."""
    base = {"dqn": DQN, "sac": SAC}.get(flags.get("algo", ""), PPO)
    wanted = base | {"runs_dir": str(tmp_path)} | flags
    return start_run(resolve(env, {key: value for key, value in wanted.items() if value is not None}), silent)


def drain(session: Session) -> RunDir:
    for _ in session.updates():
        pass
    return session.run


def train(tmp_path: Path, env: str, *, stop_at: int | None = None, **flags: Any) -> RunDir:
    """A short run, to its end or to a stop at that poll."""
    with start(tmp_path, env, **flags) as session:
        if stop_at is not None:
            stop_at_poll(session, stop_at)
        return drain(session)


def resume(run: RunDir, *, stop_at: int | None = None, timesteps: int | None = None) -> list[str]:
    """Continue a run, and return the notes about its resume."""
    heard: list[dict[str, Any]] = []
    more = {} if timesteps is None else {"timesteps": timesteps}
    with resume_run(run, heard.append, **more) as session:
        if stop_at is not None:
            stop_at_poll(session, stop_at)
        drain(session)
    notes: list[str] = next(event["notes"] for event in heard if event["event"] == "resume")
    return notes


def stop_at_poll(session: Session, number: int) -> None:
    """Request a stop when the run polls for the n-th time: while it collects, learns or evaluates."""
    polls = iter(range(10**9))
    original = session.stop

    class CountingStop(type(original)):  # type: ignore[misc]
        def __call__(self) -> bool:
            if next(polls) >= number:
                self.reason = "SIGTERM"
            return super().__call__()

    session.stop.__class__ = CountingStop


def last_checkpoint(run: RunDir) -> Checkpoint:
    return load_checkpoint(list_checkpoints(run.checkpoints)[-1].path)


def last_policy(run: RunDir) -> dict[str, np.ndarray]:
    """The weights of the last checkpoint, which depend on every number before."""
    return last_checkpoint(run).policy


def last_replay(run: RunDir) -> dict[str, Any]:
    replay = load_replay(last_checkpoint(run))
    assert replay is not None
    return replay


def final_state(run: RunDir) -> tuple[str, dict[str, Any]]:
    """A hash of every array of the last checkpoint, and its counters."""
    last = last_checkpoint(run)
    digest = hashlib.sha256()
    for arrays in (last.policy, last.state):
        for name in sorted(arrays):
            digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    recorder = last.state_json["counters"]["recorder"]
    counters = {"session": last.state_json["counters"]["session"], "window": recorder["window"]}
    return digest.hexdigest(), counters | {"episodes": recorder["num_episodes"], "step": last.step}


def rows(run: RunDir, *events: str) -> list[dict[str, Any]]:
    """The metrics rows without times; those of progress and evaluations, if no events are named."""
    return [
        {key: value for key, value in row.items() if not key.startswith(TIMED)}
        for row in MetricsLog.read(run.metrics_jsonl)
        if row["event"] in (events or ("progress", "eval"))
    ]


def monitor_rows(run: RunDir) -> list[str]:
    lines = run.monitor_csv.read_text().splitlines()[2:]
    return [",".join(cell for i, cell in enumerate(line.split(",")) if i != 2) for line in lines]


def assert_equal_arrays(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def assert_equal_runs(one: RunDir, other: RunDir) -> None:
    assert final_state(one) == final_state(other)
    assert rows(one) == rows(other)
    assert rows(one, "stage") == rows(other, "stage")
    assert monitor_rows(one) == monitor_rows(other)
    assert one.progress_csv.read_text().count("\n") == other.progress_csv.read_text().count("\n")


def cache_runs(make_folder: Callable[[], Path]) -> Callable[..., RunDir]:
    """A function that trains straight runs, and trains a run of the same flags only once."""
    made: dict[str, RunDir] = {}

    def get(env: str, **flags: Any) -> RunDir:
        key = f"{env} {sorted(flags.items())}"
        if key not in made:
            made[key] = train(make_folder(), env, **flags)
        return made[key]

    return get


def find_metric(name: str, own: Iterable[Metric] = ()) -> Metric | None:
    """The row of the metrics table that describes a name, or None; `own`: the rows of an algorithm."""
    return next((metric for metric in (*read_metrics(), *own) if fnmatchcase(name, metric.name)), None)
