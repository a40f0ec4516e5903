"""No phase of a run is silent: the status is repeated, with the progress, while one lasts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mission_gym.run import saving, session, start, status
from mission_gym.run.config import resolve
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from runs import drain
from timeouts import LONG_S

FLAGS = {
    "n_envs": 2, "n_steps_per_env": 32, "batch_size": 64, "n_epochs": 1, "timesteps": 256, "eval_freq": 128,
    "eval_episodes": 6, "network_arch": "8", "tensorboard": False, "vector": "serial", "overlap": "off",
}  # fmt: skip
EPISODES = {
    "evaluating": 6,
    "confirming the best": 12,
    "testing on fresh seeds": 3,
    "confirming the goal": 100,
}
PHASES = ["making environments", "measuring", "collecting", "learning", "saving", *EPISODES]


class Ear:
    """A listener; `wait_for` blocks until it has heard a phase three more times, as a slow phase does."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._counts: Counter[str | None] = Counter()
        self._news = threading.Condition()

    def listen(self, event: dict[str, Any]) -> None:
        with self._news:
            self.events.append(event)
            if event["event"] == "status":
                self._counts[event["phase"]] += 1
            self._news.notify_all()

    def wait_for(self, phase: str) -> None:
        with self._news:
            wanted = self._counts[phase] + 3
            assert self._news.wait_for(lambda: self._counts[phase] >= wanted, LONG_S), phase

    def statuses(self, phase: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("phase") == phase]


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ear, RunDir]:
    """A run in which every phase lasts until it was shown three times."""
    ear = Ear()

    waited: set[str] = set()

    def wait_once(phase: str) -> None:
        if phase not in waited:
            waited.add(phase)
            ear.wait_for(phase)

    def last(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def act(*args: Any, **more: Any) -> Any:
            wait_once(phase)
            return function(*args, **more)

        return act

    known = status.StatusWriter.expect

    def expect(writer: status.StatusWriter, num_episodes: int) -> Callable[[int, int], None]:
        see = known(writer, num_episodes)

        def see_and_wait(num_ended: int, num_steps: int) -> None:
            see(num_ended, num_steps)
            wait_once(writer._phase)

        return see_and_wait

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status, "_REPEAT_S", 0.001)
        patch.setattr(status.StatusWriter, "expect", expect)
        patch.setattr(session, "make_collector", last(session.make_collector, "making environments"))
        patch.setattr(start, "measure_collect", last(start.measure_collect, "measuring"))
        patch.setattr(saving, "save_checkpoint", last(saving.save_checkpoint, "saving"))
        folder = str(tmp_path_factory.mktemp("runs"))
        values = {"retest_episodes": 3, "stop_when": "return>=1000", "runs_dir": folder}
        with start.start_run(resolve("CartPole-v1", FLAGS | values), ear.listen) as made:
            patch.setattr(made.learner, "update", last(made.learner.update, "learning"), raising=False)
            patch.setattr(made.collector, "fill", last(made.collector.fill, "collecting"), raising=False)
            patch.setattr("mission_gym.run.selection.EvalResult.low", lambda result, name: 1000.0)
            patch.setattr("mission_gym.run.selection.bound_goal", lambda *args: 0.0)
            drain(made)
        return ear, made.run


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_is_repeated_while_it_lasts(heard: tuple[Ear, RunDir], phase: str) -> None:
    ear, _ = heard
    shown = ear.statuses(phase)
    assert len(shown) >= 3
    assert all(each["phase_since"] > 0 for each in shown)


@pytest.mark.parametrize("phase", EPISODES)
def test_an_evaluation_shows_its_episodes_and_the_time_left(heard: tuple[Ear, RunDir], phase: str) -> None:
    ear, _ = heard
    shown = [each for each in ear.statuses(phase) if each["phase_total"] is not None]
    assert {each["phase_total"] for each in shown} == {EPISODES[phase]}
    assert all(0 <= each["phase_done"] <= EPISODES[phase] for each in shown)
    assert any(each["phase_eta_s"] is not None for each in shown)


def test_a_run_that_is_stopped_while_an_environment_hangs_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ear = Ear()
    monkeypatch.setattr(status, "_REPEAT_S", 0.001)
    monkeypatch.setattr(status, "STALL_S", 0.0)
    with start.start_run(resolve("CartPole-v1", FLAGS | {"runs_dir": str(tmp_path)}), ear.listen) as made:

        def hang(block: Any, number: int, stop: Any) -> bool:
            ear.wait_for("collecting")
            made.stop.reason = "SIGTERM"
            return False

        monkeypatch.setattr(made.collector, "fill", hang, raising=False)
        run = drain(made)
    verdict = run.read_status()["verdict"]
    assert verdict["bound"] == "environment failures"
    assert "a call of an environment had not returned" in verdict["evidence"]
    assert any(each["eta_s"] is None for each in ear.statuses("collecting"))


def test_repetitions_end_with_the_run_and_are_no_rows(heard: tuple[Ear, RunDir]) -> None:
    ear, run = heard
    after = [event["event"] for event in ear.events]
    assert "status" not in after[after.index("end") :]
    stored = run.read_status()
    assert stored["state"] == "done"
    assert (
        not {"phase", "phase_since", "phase_done", "phase_total", "phase_eta_s", "moved_at"} & stored.keys()
    )
    assert "status" not in {row["event"] for row in MetricsLog.read(run.metrics_jsonl)}
