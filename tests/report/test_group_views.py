"""Comparisons of groups, from run directories with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from mission_gym.fleet.groups import write_result
from mission_gym.intervals import describe_seeds
from mission_gym.report.groups import (
    RunSet,
    compare_groups,
    describe_group,
    describe_jobs,
    gather_runs,
    make_comparison_csv,
    make_group_html,
    show_comparison,
    view_group,
    view_group_comparison,
    view_jobs,
)
from mission_gym.report.tables import show_seeds
from mission_gym.store.evals import write_eval
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog


def make_run(folder: Path, name: str, last: float, gamma: float = 0.9, env_id: str = "") -> RunDir:
    """A run whose return rose to `last` over 100 steps in 10 seconds."""
    run = RunDir.create(folder, name)
    with run.lock():
        run.write_status(state="done", step=100)
    run.eval.mkdir()
    write_eval(run, 50, "select", {"return_mean": 0.0, "score": 0.0})
    write_eval(run, 100, "select", {"return_mean": last, "score": last})
    log = MetricsLog(run.metrics_jsonl)
    for step in (0, 50, 100):
        share = step / 100
        log.append(
            {
                "event": "progress",
                "step": step,
                "time/time_elapsed": 10 * share,
                "rollout/ep_rew_mean": last * share,
            }
        )
    log.close()
    run.config_yaml.write_text(f"ppo: {{gamma: {gamma}}}\nrun: {{seed: {int(last)}}}\nsources: {{}}\n")
    if env_id:
        with run.config_yaml.open("a") as file:
            file.write(f"env: {{env_id: {env_id}}}\n")
    return run


def text_of(view: object) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view)
    return console.export_text()


@pytest.fixture
def sets(tmp_path: Path) -> list[RunSet]:
    ours = tuple(make_run(tmp_path, f"a{n}", last) for n, last in enumerate((3.0, 5.0, 4.0, 6.0)))
    theirs = tuple(make_run(tmp_path, f"b{n}", last, gamma=0.99) for n, last in enumerate((1.0, 3.0)))
    return [RunSet("theirs", theirs), RunSet("ours", ours)]


def test_groups_are_compared_by_their_last_returns(sets: list[RunSet]) -> None:
    document = compare_groups(sets, print)
    theirs, ours = document["groups"]
    assert (theirs["iqm"], ours["iqm"]) == (2.0, 4.5)
    assert (ours["low"], ours["values"]) == (None, [3.0, 4.0, 5.0, 6.0])
    (improvement,) = document["improvement"]
    assert (improvement["of"], improvement["over"]) == ("ours", "theirs")
    assert improvement["probability"] == 7.5 / 8
    assert document["differences"] == {"ppo.gamma": [0.99, 0.9]}
    for key, end in (("by_step", 100.0), ("by_time", 10.0)):
        last = ours["curves"][key][-1]
        assert (last["x"], last["mean"]) == (end, 4.5)
    shown = text_of(view_group_comparison(document))
    assert "compared with theirs" in shown
    assert "too few seeds" in shown
    assert len(make_comparison_csv(document).splitlines()) == 7
    page = make_group_html("both", document)
    assert page.count('class="band ') == 0, "too few runs"
    assert "ppo.gamma" in page


def test_an_unreadable_run_is_left_out(sets: list[RunSet]) -> None:
    sets[0].runs[0].status_json.write_text("{")
    told: list[str] = []
    document = compare_groups(sets, told.append)
    assert len(document["groups"][0]["runs"]) == 1
    assert (document["groups"][0]["iqm"], document["groups"][0]["low"]) == (3.0, None)
    assert [text for text in told if "is left out" in text]


def test_a_group_is_shown_with_its_curve(sets: list[RunSet], tmp_path: Path) -> None:
    requests = [
        JobRequest(name=f"s{n}", variant="seeds", arguments=(), folder=".", python="python") for n in range(3)
    ]
    group = GroupDir.create(tmp_path, "g", "seeds", requests)
    group.write(
        runs=[str(run.path) for run in sets[1].runs], iqm=4.5, low=3.0, high=6.0, values=[4.5],
        best_run=str(sets[1].runs[3].path),
        variants={"seeds": {"iqm": 4.5, "low": 3.0, "high": 6.0, "seeds": 4}},
    )  # fmt: skip
    document = describe_group(group)
    assert len(document["curve"]) == 40
    assert document["curve"][-1]["estimate"] == 4.5
    shown = text_of(view_group(document))
    assert "IQM 4.5 (95 %: 3 to 6)" in shown
    assert sets[1].runs[3].name in shown
    group.note("started", "s0", cores=2)
    group.note("started", "s1", cores=2)
    group.note("ended", "s1", state="failed", cause="RuntimeError: [bold]fell[/bold] over")
    rows = describe_jobs(group, group.read_jobs())
    assert [(row["state"], row["cause"]) for row in rows] == [
        ("failed", "the process was killed"), ("failed", "RuntimeError: [bold]fell[/bold] over"),
        ("queued", None),
    ]  # fmt: skip
    assert set(rows[0]) >= {"name", "state", "run", "step", "fps", "return_mean", "attempts", "cause"}
    assert "[bold]fell[/bold] over" in text_of(view_jobs(rows))


def test_a_group_of_several_jobs_is_resampled_job_by_job(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{n}", last) for n, last in enumerate((0.0, 1.0, 100.0, 101.0, 50.0))]
    requests = [
        JobRequest(
            name=f"j{n}", variant="low" if n < 2 else "high", arguments=(), folder=".", python="python"
        )
        for n in range(5)
    ]
    group = GroupDir.create(tmp_path, "g", "jobs", requests)
    for n, run in enumerate(runs):
        group.note("started", f"j{n}")
        group.note("run", f"j{n}", run=f"/another/machine/{run.name}")
        group.note("ended", f"j{n}", state="done" if n < 4 else "failed")
    told: list[str] = []
    found = gather_runs(group, told.append)
    assert [run.path for run in found.runs] == [run.path for run in runs[:4]]
    assert found.variants == ("low", "low", "high", "high")
    assert told == [f"{group.name}/j4 is left out: it is not done"]
    (row,) = compare_groups([found], print)["groups"]
    assert row["iqm"] == 50.5
    assert (row["low"], row["values"]) == (None, [0.0, 1.0, 100.0, 101.0])
    assert row["curves"] == {"by_step": [], "by_time": []}
    assert describe_group(group)["curve"] == []


def test_returns_of_different_environments_are_not_pooled(tmp_path: Path) -> None:
    requests = [
        JobRequest(name=name, variant=name, arguments=(), folder=".", python="python") for name in "ab"
    ]
    group = GroupDir.create(tmp_path, "g", "jobs", requests)
    for name, last in (("a", 500.0), ("b", -100.0)):
        run = make_run(tmp_path, name, last, env_id=name)
        group.note("started", name)
        group.note("run", name, run=str(run.path))
        group.note("ended", name, state="done")
    write_result(group, group.read_jobs().values())
    record = group.read()
    assert (record.iqm, record.best_run) == (None, None)
    assert [each.iqm for each in record.variants.values()] == [500.0, -100.0]
    assert "per job, since their environments differ" in text_of(view_group(describe_group(group)))
    assert compare_groups([gather_runs(group, print)], print)["groups"][0]["iqm"] is None


def test_comparisons_need_five_seeds_and_state_their_test(tmp_path: Path) -> None:
    def make_set(name: str, *returns: float) -> RunSet:
        runs = (make_run(tmp_path, f"{name}{n}", last) for n, last in enumerate(returns))
        return RunSet(name, tuple(runs))

    def compare(*sets: RunSet) -> str:
        (found,) = compare_groups(sets, print)["improvement"]
        return show_comparison(found)

    low, high = make_set("low", 1.0, 2.0, 3.0, 4.0, 5.0), make_set("high", 6.0, 7.0, 8.0, 9.0, 10.0)
    assert compare(low, high) == "better: p = 0.0079, higher in 100 % of pairs"
    assert compare(high, low) == "worse: p = 0.0079, higher in 0 % of pairs"
    assert compare(low, make_set("same", 1.5, 2.5, 3.5, 4.5, 5.5)).startswith("no difference shown: p = 0.")
    assert compare(make_set("two", 1.0, 1.0), make_set("too", 2.0, 2.0)).startswith("too few seeds")
    # The word is that of the means, which the test compares, not that of most pairs.
    found = {"probability": 0.58, "difference": -41.0, "p_value": 0.037}
    assert show_comparison(found) == "worse: p = 0.037, higher in 58 % of pairs"
    many = compare_groups([low, high, high, high, high, high, high, high], print)["improvement"]
    assert [each["p_value"] for each in many] == [pytest.approx(7 * 2 / 252)] * 7
    assert {show_comparison(each) for each in many} == {
        "no difference shown: p = 0.056, higher in 100 % of pairs"
    }


def test_the_results_of_seeds() -> None:
    def show(*values: float) -> str:
        return show_seeds(describe_seeds([values]))

    assert show(3.0, 1.0) == "1, 3 (too few for a mean)"
    assert show(1.0, 2.0, 3.0, 4.0, 5.0) == "mean 3 of 1, 2, 3, 4, 5 (no interval below 10 seeds)"
    assert show(*[7.0] * 12) == "7 (all equal)"
    assert show(*range(12)).startswith("IQM 5.5 (95 %: ")
