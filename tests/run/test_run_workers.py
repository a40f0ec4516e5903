"""Runs whose environments are in workers: contained failures, and bundles that reproduce them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from mission_gym.check.repro import replay_bundle
from mission_gym.cli.main import main
from mission_gym.errors import ConfigError, EnvFailure, WorkerDied
from mission_gym.run import environment
from mission_gym.run.config import resolve
from mission_gym.run.settle import prepare_run
from mission_gym.run.start import start_run
from mission_gym.store.rundir import RunDir
from runs import NO_EVALS, PPO, drain, rows, silent, start

WORKERS = {"vector": "workers", "num_workers": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_of_training_and_evaluation_load_no_torch(tmp_path: Path) -> None:
    """It takes seconds and 200 MB in each; the toy has no step limit, so evaluations wrap it."""
    with start(tmp_path, "toys:Identity", **WORKERS) as session:
        for _ in session.updates():
            below = psutil.Process().children(recursive=True)
            maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in below]
            assert not any("libtorch" in text for text in maps)
            assert sum("numpy" in text for text in maps) >= 2


def hazard_flags(tmp_path: Path, **hazard: Any) -> dict[str, Any]:
    kwargs = [f"{key}={value}" for key, value in hazard.items()]
    flags = {**PPO, **WORKERS, **NO_EVALS, "runs_dir": str(tmp_path), "env_kwargs": kwargs, "max_restarts": 1}
    return {name: value for name, value in flags.items() if value is not None}


@pytest.mark.parametrize(("wait_s", "expected"), [(0.01, 12), (0.0, 2)])
def test_requested_processes_share_cores_if_environments_wait(
    wait_s: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short run is not planned, and these environments do not declare that they wait."""
    monkeypatch.setattr(environment, "count_cpus", lambda backend: 2)
    flags = {"vector": "workers", "n_envs": 12, "timesteps": 1536}
    burn = {"env_kwargs": [f"wait_s={wait_s}", "spins=2000"]}
    resolved = resolve("mission_gym_bench.synthetic:Burn", flags | burn)
    assert prepare_run(resolved, None, lambda text: None).resolved.settled.vector.num_workers == expected


def test_a_crash_costs_an_episode_and_is_counted(tmp_path: Path) -> None:
    flags = hazard_flags(tmp_path, kind="exit", at=18, once=str(tmp_path / "x"))
    with start_run(resolve("hazards:Hazard", flags), silent) as session:
        run = drain(session)
    status = run.read_status()
    assert status["state"] == "done"
    assert status["worker_restarts"] == 1
    assert status["env_failures"] == 2  # both environments of that worker
    assert [row["rollout/env_failures"] for row in rows(run) if row["event"] == "progress"][-1] == 2


@pytest.mark.parametrize(
    ("death", "restarts"),
    [(0, 0), (1, 1), (5, 0)],
    ids=["as it is looked at", "as training starts", "as an evaluation starts"],
)
def test_a_kill_while_environments_are_built_ends_no_run(death: int, restarts: int, tmp_path: Path) -> None:
    """One is built to be looked at, four to train, and as many as there are episodes to evaluate."""
    births = tmp_path / "births"
    births.mkdir()
    flags = hazard_flags(tmp_path / "runs", births=str(births), deaths=f"[{death}]")
    flags |= {"eval_freq": 128, "eval_episodes": 2}
    with start_run(resolve("hazards:Hazard", flags), silent) as session:
        run = drain(session)
    status = run.read_status()
    assert (status["state"], status["worker_restarts"], status["env_failures"]) == ("done", restarts, 0)
    assert len([row for row in rows(run) if row["event"] == "eval"]) == 3


@pytest.mark.parametrize(("kind", "error"), [("segfault", WorkerDied), ("raise", EnvFailure)])
def test_a_failure_beyond_recovery_leaves_a_bundle_that_replays(
    kind: str, error: type[Exception], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    resolved = resolve("hazards:Hazard", hazard_flags(tmp_path, kind=kind, at=15))
    with pytest.raises(error, match=r"environment \d, seed \d+"), start_run(resolved, silent) as session:
        drain(session)
    (run,) = [RunDir(path) for path in tmp_path.iterdir() if path.is_dir()]
    assert run.read_status()["state"] == "failed"
    (bundle,) = run.path.glob("repro-*.json")
    replay = replay_bundle(bundle)
    assert replay.failed
    assert "the failure was reproduced at step 14" in replay.text
    assert ("SIGSEGV" if kind == "segfault" else "the simulator fell over") in replay.text
    assert main(["check", "--repro", str(bundle), "--json"]) == 3
    assert json.loads(capfd.readouterr().out)["failed"]


def test_values_for_workers_are_refused_without_workers(tmp_path: Path) -> None:
    flags = {"vector": "serial", "num_workers": 2, "env_timeout": "5s", "runs_dir": str(tmp_path)}
    with (
        pytest.raises(ConfigError, match=r"(?s)num_workers=2 is not used.*env_timeout=5.0 is not used"),
        start_run(resolve("CartPole-v1", flags), silent),
    ):
        pass


def test_an_environment_of_the_user_is_kept_out_of_this_process(tmp_path: Path) -> None:
    flags = {**PPO, "runs_dir": str(tmp_path), "timesteps": 64, "vector": "auto", "eval_freq": 64}
    sys.modules.pop("hazards", None)
    with start_run(resolve("hazards:Hazard", flags), silent) as session:
        assert session.config.vector.vector == "workers"
        drain(session)
    assert "hazards" not in sys.modules
