"""The best checkpoint is played again on more seeds when a run ends, and only then called the best."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.data import EnvSpec, Episode
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.env.probe import probe
from mission_gym.errors import EnvFailure
from mission_gym.intervals import estimate_mean, estimate_rate
from mission_gym.report.documents import describe_run_fully
from mission_gym.report.terminal import RunView
from mission_gym.run.config import resolve
from mission_gym.run.evaluation import EvalResult, Evaluator, combine, summarise
from mission_gym.run.open import _warn_about_gap
from mission_gym.run.resume import resume_run
from mission_gym.run.retention import find_expired_checkpoints, plan_cleaning
from mission_gym.run.selection import bound_goal, confirm_best, find_candidates
from mission_gym.run.session import Session
from mission_gym.run.start import start_run
from mission_gym.store.checkpoints import list_checkpoints
from mission_gym.store.evals import best_step, read_evals, read_last_return, write_eval
from mission_gym.store.files import to_json
from mission_gym.store.resolve import RunRef, checkpoint_for
from mission_gym.store.rundir import RunDir
from mission_gym.streams import suite_seeds
from runs import drain

# Ten evaluations of two episodes of 20 steps: 400 steps, of which 160 pay for two more of three checkpoints.
FLAGS = {
    "n_envs": 4, "n_steps_per_env": 16, "batch_size": 64, "n_epochs": 1, "timesteps": 1280, "eval_freq": 128,
    "eval_episodes": 2, "network_arch": "8", "tensorboard": False, "vector": "serial", "tune": False,
    "learning_rate": 0.01, "checkpoint_freq": 100_000, "keep_last": 1, "seed": 2,
}  # fmt: skip


@contextmanager
def start(folder: Path, said: list[dict[str, Any]] | None = None, **flags: Any) -> Iterator[Session]:
    resolved = resolve("toys:Identity", FLAGS | {"runs_dir": str(folder)} | flags)
    with start_run(resolved, ([] if said is None else said).append) as session:
        yield session


def confirmations(run: RunDir) -> list[dict[str, Any]]:
    return [result for result in read_evals(run) if result["suite"] == "confirm"]


def saved(run: RunDir) -> list[int]:
    return [info.step for info in list_checkpoints(run.checkpoints)]


def test_the_three_best_are_played_again(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []
    with start(tmp_path, said) as session:
        run = drain(session)
    (confirmation,) = confirmations(run)
    assert (confirmation["step"], confirmation["episodes"]) == (1280, 2)
    selected = {result["step"]: result for result in read_evals(run) if result["suite"] == "select"}
    ranked = sorted(selected, key=lambda step: (selected[step]["score"], step), reverse=True)
    candidates = confirmation["candidates"]
    assert [each["step"] for each in candidates] == ranked[:3]
    assert {each["episodes"] for each in candidates} == {2}, "the new ones alone are reported"
    scores = {each["step"]: each["score"] for each in candidates}
    best = max(scores, key=lambda step: (scores[step], step))
    assert confirmation["best"] == best == best_step(run) == run.read_status()["best_step"]
    assert checkpoint_for(RunRef(run, "best")).step == checkpoint_for(RunRef(run, None)).step == best
    assert mg.load(run.path).step == best
    document = describe_run_fully(run, pytest.fail)
    assert (document["best_step"], document["best_confirmed"]) == (best, 2)
    assert [row["step"] for row in document["evals"] if row["suite"] == "confirm"] == ranked[:3]
    event = next(event for event in said if event["event"] == "confirm")
    assert to_json(event["candidates"]) == candidates
    shown = str(RunView().add(event)[0])
    assert shown.startswith(f"best: step {best:,}, confirmed on 2 more episodes")


def test_a_lucky_evaluation_does_not_last(tmp_path: Path) -> None:
    with start(tmp_path) as session:
        run = drain(session)
    bad = min(saved(run)[1:], key=lambda step: json.loads(path_of(run, step).read_text())["score"])
    top = max(result["score"] for result in read_evals(run) if result["suite"] == "select") + 0.5
    luck = {"score": top, "returns": [top, top], "return_mean": top}
    write_eval(run, bad, "select", json.loads(path_of(run, bad).read_text()) | luck)
    (run.eval / "step_000000001280-confirm.json").unlink()
    assert best_step(run) == bad
    document = confirm_best(run, session.config, session.environment, 400, lambda: False)
    assert document is not None
    assert document["candidates"][0]["step"] == bad
    assert document["best"] != bad
    write_eval(run, 1280, "confirm", document)
    assert best_step(run) == document["best"]


def path_of(run: RunDir, step: int) -> Path:
    return run.eval / f"step_{step:012d}-select.json"


def test_equal_runs_confirm_alike_and_a_stop_leaves_the_ordinary_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path / "straight") as session:
        straight = drain(session)

    def stop_first(*given: Any, **more: Any) -> Any:
        session.stop.reason = "SIGTERM"
        return confirm_best(*given, **more)

    with start(tmp_path / "cut") as session, monkeypatch.context() as patch:
        patch.setattr("mission_gym.run.selection.confirm_best", stop_first)
        cut = drain(session)
    assert cut.read_status()["state"] == "stopped"
    assert confirmations(cut) == []
    ordinary = max(read_evals(cut), key=lambda result: (result["score"], result["step"]))
    assert best_step(cut) == ordinary["step"]
    with resume_run(cut, [].append) as session:
        drain(session)
    assert cut.read_status()["state"] == "done"
    assert confirmations(cut) == confirmations(straight)
    assert saved(cut) == saved(straight)


def test_an_extended_run_confirms_again_at_its_end(tmp_path: Path) -> None:
    with start(tmp_path) as session:
        run = drain(session)
    before = best_step(run)
    write_eval(run, 1281, "select", {"score": 99.0})
    assert best_step(run) == 1281  # what came after a confirmation counts
    (run.eval / "step_000000001281-select.json").unlink()
    assert best_step(run) == before
    with resume_run(run, [].append, timesteps=2560) as session:
        drain(session)
    first, second = confirmations(run)
    assert (first["step"], second["step"]) == (1280, 2560)
    assert best_step(run) == second["best"] == run.read_status()["best_step"]


def test_the_confirmed_best_outlives_retention(tmp_path: Path) -> None:
    with start(tmp_path, keep_best=10) as session:
        run = drain(session)
    settings = session.config.checkpoints.model_copy(update={"keep_best": 1})

    def list_doomed(*, best: int | None = None, finished: bool = True) -> set[int]:
        return {info.step for info in find_expired_checkpoints(run, settings, best=best, finished=finished)}

    (confirmation,) = confirmations(run)
    first, *others = [each["step"] for each in confirmation["candidates"]]
    # Those in the middle of a power of two are kept for their score alone; three of them until the end.
    spare = {step for step in others if step in (384, 640, 768, 896, 1152)}
    assert spare
    assert list_doomed() >= spare
    assert not list_doomed(finished=False) & {first, *others}
    assert list_doomed() - list_doomed(best=min(spare)) == {min(spare)}
    settings = session.config.checkpoints.model_copy(update={"keep_best": 0})
    assert min(spare) in list_doomed(best=min(spare))
    settings = session.config.checkpoints.model_copy(update={"keep_best": 1})
    # Whatever ranks by the checkpoints' own scores: the best is the confirmed one.
    third = max(spare)
    scored = [each | {"score": float(each["step"] == third)} for each in confirmation["candidates"]]
    write_eval(run, 1280, "confirm", confirmation | {"candidates": scored})
    run.config_yaml.write_text(run.config_yaml.read_text().replace("keep_best: 10", "keep_best: 1"))
    assert best_step(run) == third
    assert {item.step for item in plan_cleaning([run])} == list_doomed(best=third)
    assert third not in list_doomed(best=third)


def test_what_can_not_be_played_again_is_told_and_the_run_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise EnvFailure("all 2 episodes failed")

    monkeypatch.setattr("mission_gym.run.selection.confirm_best", fail)
    said: list[dict[str, Any]] = []
    with start(tmp_path, said) as session:
        run = drain(session)
    assert run.read_status()["state"] == "done"
    told = [event["message"] for event in said if event["event"] == "warning"]
    assert "the best checkpoint is not confirmed: all 2 episodes failed" in told


def test_a_damaged_checkpoint_is_left_out(tmp_path: Path) -> None:
    with start(tmp_path) as session:
        run = drain(session)
    (run.eval / "step_000000001280-confirm.json").unlink()
    ranked = [info.step for info, _ in find_candidates(run)]
    assert len(ranked) == 3
    (run.checkpoints / f"step_{ranked[0]:012d}" / "policy.safetensors").write_bytes(b"")
    document = confirm_best(run, session.config, session.environment, 400, lambda: False)
    assert document is not None
    assert [each["step"] for each in document["candidates"]] == ranked[1:]
    assert document["best"] in ranked[1:]


def test_nothing_is_played_for_one_checkpoint_or_for_evaluations_without_returns(tmp_path: Path) -> None:
    with start(tmp_path, timesteps=128) as session:
        assert confirmations(drain(session)) == []
    with start(tmp_path) as session:
        run = drain(session)
    for result in read_evals(run):
        if result["suite"] == "select":
            write_eval(run, result["step"], "select", {**result, "returns": None})
    assert confirm_best(run, session.config, session.environment, 400, lambda: False) is None


@cache
def look(main: str | None) -> EnvSpec:
    spec = probe(make_factory(EnvRequest("CartPole-v1")), "CartPole-v1")
    fields = {name: getattr(spec, name) for name in EnvSpec.__dataclass_fields__}
    return EnvSpec(**fields | {"main_outcome": main, "outcomes": (main,) if main else ()})


def result_of(returns: list[float], wins: int, main: str | None) -> EvalResult:
    outcomes = ["won"] * wins + [None] * (len(returns) - wins)  # type: ignore[list-item]
    episodes = [
        Episode(number, 0, number, ret, 10 + number, outcome if main else None, True, {})
        for number, (ret, outcome) in enumerate(zip(returns, outcomes, strict=True))
    ]
    return summarise(episodes, look(main), explore=False)


@pytest.mark.parametrize("main", [None, "won"])
def test_two_evaluations_add_up_to_one_of_all_their_episodes(main: str | None) -> None:
    first, more = result_of([1.0, 2.0, 3.0], 2, main), result_of([4.0, 5.0], 1, main)
    kept = first.document() | {"returns": list(first.returns)}
    both = combine(to_json(kept), more)
    assert (both.episodes, both.num_steps, both.mode) == (5, 33 + 21, "greedy")
    assert both.length_mean == pytest.approx(54 / 5)
    mean, low, high = estimate_mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (both.return_mean, both.return_low, both.return_high) == (mean, low, high)
    assert both.score == (mean if main is None else estimate_rate(3, 5).low)


def test_new_episodes_alone_are_not_biased_by_the_choice() -> None:
    """50 equal checkpoints: the mean of all episodes of the best is too high, that of its new ones is not."""
    rng, all_bias, new_bias = np.random.default_rng(0), [], []
    for _ in range(200):
        first, more = rng.normal(size=(50, 20)), rng.normal(size=(50, 20))
        best = int(np.argmax(first.mean(axis=1)))
        all_bias.append(np.mean([first[best], more[best]]))
        new_bias.append(more[best].mean())
    assert np.mean(all_bias) > 0.2
    assert abs(np.mean(new_bias)) < 0.05


def test_greedy_and_sampled_play_differ_only_beyond_noise() -> None:
    def compare(greedy: EvalResult, sampled: EvalResult) -> list[str]:
        return _warn_about_gap(greedy, replace(sampled, mode="sampled"))

    zeros = [0.0] * 100
    assert compare(result_of(zeros, 60, "won"), result_of(zeros, 50, "won")) == []
    assert compare(result_of(zeros, 80, "won"), result_of(zeros, 50, "won")) == [
        "greedy and sampled play differ by over 5 points: won 80 % greedy, 50 % sampled"
    ]
    low, high = (
        [float(number % 10) for number in range(100)],
        [float(number % 10) for number in range(3, 103)],
    )
    assert compare(result_of(low, 0, None), result_of(high, 0, None)) == []
    assert compare(result_of(low, 0, None), result_of([each + 5 for each in low], 0, None)) == [
        "greedy and sampled play differ by over 5 % of the return: 4.5 greedy, 9.5 sampled"
    ]


# Returns whose mean is just below the goal, each with the goal.
GOALS: dict[str, tuple[Callable[[np.random.Generator, int], Any], float]] = {
    "500, or 100 in 3 %": (lambda rng, num: np.where(rng.random(num) < 0.97, 500.0, 100.0), 488.1),
    "about 500, or 100 in 3 %": (
        lambda rng, num: np.where(rng.random(num) < 0.97, 500.0, 100.0) + rng.normal(0.0, 1.0, num),
        488.1,
    ),
    "about 250, or -100 in 3 %": (
        lambda rng, num: np.where(rng.random(num) < 0.97, 250.0, -100.0) + rng.normal(0.0, 20.0, num),
        239.6,
    ),
    "normal": (lambda rng, num: rng.normal(0.0, 1.0, num), 1e-3),
    "exponential": (lambda rng, num: rng.exponential(1.0, num), 1.001),
    "negative exponential": (lambda rng, num: -rng.exponential(1.0, num), -0.999),
}


@pytest.mark.parametrize("name", [*GOALS, "won"])
def test_a_false_goal_is_rarely_declared(name: str) -> None:
    """50 looks at 20 episodes; each look that passes is checked on 100 others. `won` is a rate of 80 %."""
    rng, num_false, num_runs = np.random.default_rng(0), 0, 400
    main = name if name == "won" else None
    draw_returns, goal = GOALS.get(name, (lambda rng, num: np.zeros(num), 0.801))

    def play(num: int) -> EvalResult:
        wins = int((rng.random(num) < 0.8).sum()) if main else 0
        return result_of(draw_returns(rng, num).tolist(), wins, main)

    for _ in range(num_runs):
        recent, checked, checks = list[list[float]](), list[list[float]](), 0
        for _ in range(50):
            found = play(20)
            recent.append(list(found.returns))
            if found.low(main or "return") < goal:
                continue
            checks += 1
            more = play(100)
            seen = [value for values in (*recent[-5:], *checked) for value in values]
            bound = bound_goal(main or "return", more, seen, checks)
            checked.append(list(more.returns))
            if bound >= goal:
                num_false += 1
                break
    print(f"{name}: {num_false / num_runs:.3f}")
    assert num_false / num_runs <= 0.05


def test_a_goal_that_is_reached_is_declared() -> None:
    solved = result_of([500.0] * 100, 100, "won")
    assert bound_goal("return", solved, [500.0] * 100, 1) == 500.0
    assert bound_goal("return", solved, [100.0, 500.0], 1) == pytest.approx(500 - 0.0429 * 400, abs=0.1)
    # Lower returns than the lowest one of the check may be unseen, whatever its other returns are.
    mixed = result_of([400.0, *[500.0] * 99], 100, "won")
    alone = bound_goal("return", mixed, [450.0], 1)
    assert bound_goal("return", mixed, [100.0], 1) == pytest.approx(alone - 0.0429 * 300, abs=0.1)
    assert bound_goal("won", solved, [], 1) == pytest.approx(0.9638, abs=1e-3)


def test_a_run_declares_its_goal_after_further_seeds_confirm_it(tmp_path: Path) -> None:
    flags = {"timesteps": 20_000, "eval_episodes": 12, "stop_when": "return>=10"}
    with start(tmp_path, **flags) as session:
        run = drain(session)
    status = run.read_status()
    assert "further episodes" in status["cause"], status["cause"]
    checks = [result for result in read_evals(run) if result["suite"] == "goal"]
    assert checks[-1]["step"] == status["step"]
    assert {len(each["returns"]) for each in checks} == {100}
    assert session.state.goal_checks == len(checks)


def test_a_goal_that_further_seeds_do_not_confirm_is_not_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mission_gym.run.selection.bound_goal", lambda *given: 9.0)
    said: list[dict[str, Any]] = []
    with start(tmp_path, said, timesteps=20_000, eval_episodes=12, stop_when="return>=10") as session:
        run = drain(session)
    assert run.read_status()["cause"] == "all steps made"
    told = [event["message"] for event in said if event["event"] == "warning"]
    assert "return>=10 is not confirmed: at least 9 in 100 further episodes; training continues" in told


@pytest.mark.parametrize("what", ["evaluation", "check of the goal", "confirmation"])
def test_failed_episodes_are_reported_wherever_they_are_left_out(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = Evaluator.play

    def lose_one(self: Evaluator, *given: Any, **more: Any) -> EvalResult | None:
        result = ordinary(self, *given, **more)
        return result and replace(result, failed=1)

    monkeypatch.setattr(Evaluator, "play", lose_one)
    said: list[dict[str, Any]] = []
    with start(tmp_path, said, stop_when="return>=1e9" if what == "confirmation" else "return>=1") as session:
        drain(session)
    told = [event["message"] for event in said if event["event"] == "warning"]
    assert any(f"episodes of the {what} failed and are not counted" in text for text in told), told


def test_the_retest_plays_seeds_that_nothing_else_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: dict[tuple[str, int], set[int]] = {}
    ordinary = Evaluator.__init__

    def note(self: Evaluator, environment: Any, suite: Any, num_episodes: int, *, first: int = 0) -> None:
        ordinary(self, environment, suite, num_episodes, first=first)
        played[suite, first] = set(self._seeds)

    monkeypatch.setattr(Evaluator, "__init__", note)
    with start(tmp_path, retest_episodes=12) as session:
        run = drain(session)
    (found,) = (result for result in read_evals(run) if result["suite"] == "retest")
    assert (found["step"], found["episodes"]) == (1280, 12)
    (again,) = (first for suite, first in played if suite == "report")
    others = set(suite_seeds("report", 1000)).union(
        *(each for key, each in played.items() if key[1] != again)
    )
    assert len(played) == 3  # evaluations, confirmation, re-test
    assert not played["report", again] & others
    assert read_last_return(run) == found["return_mean"]
    assert best_step(run) == confirmations(run)[0]["best"], "it chooses nothing"
