"""The explore mission as a run, on tiny sites: its plan, a dead server, a video."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from local_sites import LocalSite, page
from mission_gym.cli.main import main
from mission_gym.errors import TargetSilent
from mission_gym.procs import companions
from mission_gym.run.config import resolve
from mission_gym.run.settle import prepare_run
from mission_gym.store.rundir import RunDir
from mission_gym_missions import EXPLORE_ID
from runs import DQN, PPO, start, train
from timeouts import scale_timeout

TINY = {"num_pages": 60, "latency_ms": 0, "jitter_ms": 0}
SHORT: dict[str, Any] = {
    "env_kwargs": TINY,
    "overlap": "off",
    "vector": "aio",
    "eval_freq": 0,
    "eval_episodes": None,
}


def find_servers() -> list[int]:
    """The processes of companions that this one has at work."""
    return [companion.pid for companion in companions._running.values() if not companion.is_closed]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(tmp_path_factory.mktemp("straight"), EXPLORE_ID, **SHORT)


def test_the_plan_shows_how_the_target_answers(straight: RunDir) -> None:
    assert (straight.path / "env" / "rules.yaml").is_file()
    facts = json.loads(straight.plan_json.read_text())["facts"]
    (target,) = (fact for fact in facts if fact["name"] == "target")
    assert target["value"].startswith("http://127.0.0.1:")
    assert re.fullmatch(r"answers after \d+ ms, the mean of \d+ requests", target["reason"])


def test_a_server_that_is_killed_costs_episodes_and_none_is_left(tmp_path: Path) -> None:
    given = TINY | {"patience_s": 0.1}  # shorter than a server takes to start
    with start(tmp_path, EXPLORE_ID, **SHORT | {"env_kwargs": given, "n_steps_per_env": 64}) as session:
        updates = session.updates()
        next(updates)
        assert len(find_servers()) == 1
        for server in find_servers():
            os.kill(server, signal.SIGKILL)
        for _ in updates:  # every server that replaces it is killed, too, until it has cost an episode
            if "site_down" not in session.run.monitor_csv.read_text():
                for server in find_servers():
                    os.kill(server, signal.SIGKILL)
        run = session.run
    assert run.read_status()["state"] == "done"
    assert "site_down" in run.monitor_csv.read_text()
    del session, updates  # who held it
    assert not find_servers()


def own_site(site: LocalSite) -> dict[str, Any]:
    own = {"base_url": site.url, "targets": "/b words", "allow_loopback": True, "requests_per_s": 0}
    return SHORT | {"env_kwargs": own | {"patience_s": 0.5, "timeout_s": 0.5}}


@pytest.mark.parametrize("backend", ["aio", "threads", "workers", "serial"])
def test_a_target_that_dies_ends_the_run(backend: str, tmp_path: Path) -> None:
    site = LocalSite({"/": page("home", "/a"), "/a": page("there", "/c")})
    running = ExitStack()
    running.enter_context(site)
    with running, start(tmp_path, EXPLORE_ID, **own_site(site) | {"vector": backend}) as session:
        updates = session.updates()
        next(updates)
        running.close()
        with pytest.raises(TargetSilent, match=f"^the target {site.url[:-1]} does not answer: "):
            list(updates)
        status = session.run.read_status()
    assert status["state"] == "failed"
    assert status["verdict"]["bound"] == "target"
    assert status["verdict"]["evidence"].startswith(f"the target {site.url[:-1]} does not answer: ")
    assert status["verdict"]["advice"][0].endswith(f"`mission-gym resume {session.run.name}`")


def test_a_target_that_is_down_is_refused_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalSite({}) as site:
        pass
    given = [f"{name}={value}" for name, value in own_site(site)["env_kwargs"].items()]
    asked = ["train", EXPLORE_ID, "--runs-dir", str(tmp_path / "runs"), "--env-kwargs", *given]
    assert main(asked) == 3
    assert f"the target {site.url[:-1]} does not answer: " in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"algo": "dqn", "prioritized": True, "vector": None}, ("aio", 1)),
        ({"vector": "workers", "n_envs": 16}, ("workers", 16)),
        ({"vector": "workers", "n_envs": 16, "num_workers": 3}, ("workers", 3)),
    ],
)
def test_environments_that_wait_get_an_event_loop_or_a_process_each(
    flags: dict[str, Any], expected: tuple[str, int], tmp_path: Path
) -> None:
    base = (DQN if "algo" in flags else PPO) | SHORT | {"runs_dir": str(tmp_path)} | flags
    resolved = resolve(EXPLORE_ID, {name: value for name, value in base.items() if value is not None})
    vector = prepare_run(resolved, None, lambda text: None).resolved.settled.vector
    assert (vector.vector, vector.num_workers) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (32, 1)),
        ({"n_envs": 6}, (6, 4)),
        ({"n_steps_per_env": 2}, (8, 2)),
        ({"vector": "workers"}, (8, 4)),
    ],
)
def test_many_short_segments_of_dqn_wait_on_an_event_loop(
    flags: dict[str, Any], expected: tuple[int, int]
) -> None:
    resolved = resolve(EXPLORE_ID, {"algo": "dqn", "timesteps": 2000, "env_kwargs": TINY} | flags)
    settled = prepare_run(resolved, None, lambda text: None).resolved.settled
    assert (settled.vector.n_envs, settled.algorithm.n_steps_per_env) == expected


def test_a_film_of_a_run(tmp_path: Path, straight: RunDir) -> None:
    film = tmp_path / "way.gif"
    assert main(["record", str(straight.path), "--out", str(film), "--episodes", "1"]) == 0
    assert film.stat().st_size > 1000
    assert not find_servers()


def test_a_plan_takes_the_event_loop_or_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ["tune", EXPLORE_ID, "--env-kwargs", "num_pages=60", "--budget", f"{scale_timeout(2):.0f}s"]
    assert main([*asked, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["backend"] in ("aio", "threads")
    assert plan["n_envs"] >= 16
    assert not find_servers()
