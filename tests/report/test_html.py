"""The HTML report of a real run."""

import itertools
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from PIL import Image

import mission_gym as mg
from measurements import SCALING
from mission_gym.report.charts import color_outcomes, draw_curves
from mission_gym.report.documents import unique_names
from mission_gym.report.groups import RunSet
from mission_gym.report.html import Video, make_html
from mission_gym.store.evals import write_eval
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog

VOID = {"meta", "img"}


class Balance(HTMLParser):
    """Checks that every element that opens is closed, in order."""

    def __init__(self):
        super().__init__()
        self.stack = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = mg.train(
        "toys:DictMask", runs_dir=str(tmp_path_factory.mktemp("html")), run_name="toy",
        progress=False, n_envs=2, n_steps_per_env=64, timesteps=512, batch_size=64, n_epochs=1, eval_freq=128,
        eval_episodes=4, tensorboard=False,
    )  # fmt: skip
    return RunDir(made.path)


def test_the_report_is_complete_and_self_contained(run, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.gif")
    result = {
        "episodes": 20, "return_mean": 1.5, "return_low": 1.0, "return_high": 2.0, "length_mean": 9.0,
        "outcomes": {"won": {"rate": 0.9, "low": 0.7, "high": 0.97}},
    }  # fmt: skip
    page = make_html(
        [run], {"<trained>": result}, [Video(tmp_path / "a.gif", "A & B")], verdict="the goal was reached"
    )
    balance = Balance()
    balance.feed(page)
    assert balance.stack == []
    curves, _, diagnostics = page.partition("<summary>Diagnostics</summary>")
    assert curves.count('<figure class="curves">') == 5
    assert "<h3>shares of the reward</h3>" in curves
    assert diagnostics.partition("</details>")[0].count('<figure class="curves">') > 3
    assert 'class="mark c1"' in page  # an evaluation, with its interval
    for words in (
        "&lt;trained&gt;", "90 % (70 % to 97 %)", "1.5 (1 to 2)", "the goal was reached", "A &amp; B",
        "data:image/gif;base64,", "prefers-color-scheme: dark", "minibatches", "512 steps, done",
        "collector", "gradient steps", "bound by", 'class="lanes"', "CPU per core",
    ):  # fmt: skip
        assert words in page, words
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)


def test_a_report_begins_with_the_run_and_its_best_evaluation(run):
    head = make_html([run]).partition("<h2>")[0]
    for words in ("<dd>toys:DictMask</dd>", "<dd>ppo</dd>", "<dt>seed</dt>", "best evaluation: return "):
        assert words in head


def test_an_outcome_has_one_colour_whatever_the_order_of_names():
    """Green for the main outcome; without one, no outcome is green."""
    assert color_outcomes(["lost", "won", "late"], "won") == {"won": 2, "lost": 1, "late": 4}
    assert color_outcomes(["lost", "won"], None) == {"lost": 1, "won": 4}
    page = draw_curves("x", {"lost": [(0, 1), (1, 2)], "won": [(0, 1), (1, 2)]}, colors={"won": 2, "lost": 1})
    assert '<i class="dot c1"></i>lost' in page
    assert '<polyline class="line c2"' in page


def test_several_runs_and_a_group_are_compared(run, tmp_path):
    other = RunDir.create(tmp_path, "other")
    shutil.copytree(run.path, other.path, dirs_exist_ok=True)
    page = make_html([run, other], groups=[RunSet("<both>", (run, other))])
    balance = Balance()
    balance.feed(page)
    assert balance.stack == []
    assert page.count('class="curves"') == 4
    assert page.count('class="band') == 0, "too few runs"
    for words in (
        "2 runs",
        "&lt;both&gt;",
        "too few for a mean",
        "Values that differ",
        run.name,
        other.name,
    ):
        assert words in page, words


def test_runs_of_the_same_name_get_their_folders(tmp_path):
    runs = []
    for number, place in enumerate(("a", "b")):
        run = RunDir(tmp_path / place / "runs" / "same")
        run.path.mkdir(parents=True)
        run.write_status(state="done", step=number + 1, cause="")
        log = MetricsLog(run.metrics_jsonl)
        log.append({"event": "progress", "step": number + 1, "rollout/ep_rew_mean": 5.0})
        runs.append(run)
    page = make_html(runs)
    for number, name in enumerate(("a/runs/same", "b/runs/same")):
        assert f"</i>{name}</li>" in page
        assert f"{name}, {number + 1} steps, done" in page
    assert unique_names(runs[:1]) == ["same"]


def test_evaluations_are_sorted_by_step_and_one_is_the_best(tmp_path):
    run = RunDir.create(tmp_path, "evaluated")
    run.metrics_jsonl.write_text("")
    result = {"episodes": 4, "return_mean": 1.0, "return_low": 0.5, "return_high": 1.5, "score": 1.0}
    for step, suite in ((10, "select"), (9, "select"), (10, "report")):
        write_eval(run, step, suite, result | {"outcomes": {}, "length_mean": 1.0})
    panel = make_html([run]).partition("<h2>Evaluations</h2>")[2]
    assert re.findall(r'<td class="n">(\d+)(?: <span[^>]*>best</span>)?</td><td>(\w+)</td>', panel)[:3] == [
        ("10", "report"),
        ("10", "select"),
        ("9", "select"),
    ]
    assert panel.count(">best</span>") == 1


def test_markup_and_escapes_of_a_run_are_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>\x1b[31m"
    run = RunDir.create(tmp_path, "evil")
    log = MetricsLog(run.metrics_jsonl)
    log.append({"event": "plan", "time/plan": {"facts": [], "notes": [evil]}})
    log.append({"event": "progress", "step": 1, "time/time_elapsed": 1.0, f"outcome/{evil}": 0.5})
    rate = {"rate": 0.5, "low": 0.25, "high": 0.75}
    write_eval(run, 1, "select", {"episodes": 1, "outcomes": {evil: rate}, "score": 1.0, "return_mean": 1.0})
    run.log_txt.write_text(f"2026-01-01 00:00:00 warning message={evil}\n")
    run.write_status(state="failed", cause=evil)
    page = make_html(
        [run], {evil: {"episodes": 1, "outcomes": {evil: rate}, "length_mean": 1.0}}, verdict=evil
    )
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x") >= 6
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("tuning", "shown"), [(SCALING, True), (SCALING | {"scaling": []}, False), (None, False)]
)
def test_a_tuned_run_shows_the_scaling_guide(tmp_path, tuning, shown):
    run = RunDir.create(tmp_path, "tuned")
    run.metrics_jsonl.write_text("")
    fact = {"name": "rollout", "value": "512", "reason": "<4 x 128>"}
    run.plan_json.write_text(json.dumps({"facts": [fact], "notes": [], "tuning": tuning}))
    page = make_html([run])
    balance = Balance()
    balance.feed(page)
    assert balance.stack == []
    assert "&lt;4 x 128&gt;" in page
    assert ("Scaling guide of this machine" in page) == shown
    assert ("13:53:20" in page) == shown


def test_videos_of_the_run_are_part_of_the_file(tmp_path):
    run = RunDir.create(tmp_path, "video")
    run.metrics_jsonl.write_text("")
    Image.new("RGB", (8, 8)).save(run.path / "learning.gif")
    (run.path / "learning.mp4").write_bytes(b"x")
    (run.path / "step_1.mp4").write_bytes(b"x")
    page = make_html([run])
    assert page.count("data:image/gif") == 1
    assert page.count("data:video/mp4") == 1  # that of the same name is the GIF's twin


def test_a_run_without_rows_has_a_report_too(tmp_path):
    run = RunDir.create(tmp_path, "empty")
    run.metrics_jsonl.write_text("")
    page = make_html([run])
    assert "there is nothing to draw" in page
    assert "No timeline yet" in page


def test_curves_fill_the_chart_and_skip_values_that_are_not_finite():
    svg = draw_curves("t", {"a": [(0, 0.0), (50, float("nan")), (100, 8.0)]})
    assert 'points="58.0,206.0 538.0,14.0"' in svg
    assert ">100</text>" in svg


def test_marks_levels_and_a_legend_that_wraps():
    names = [f"run {number}" for number in range(9)]
    svg = draw_curves(
        "t", {name: [(0, 1.0), (9, 2.0)] for name in names}, marks={"<played>": [(9, 3.0, 2.0, 4.0)]},
        levels={"scripted & co": 2.5, "none": float("nan")},
    )  # fmt: skip
    assert svg.count("<li>") == 10
    assert "&lt;played&gt;</li>" in svg
    assert 'class="interval c1"' in svg
    assert ">scripted &amp; co</text>" in svg
    assert svg.count('class="level"') == 1
    assert draw_curves("t", {"a": []}) == ""


def test_names_of_levels_that_are_close_are_below_each_other():
    levels = {"a": 5.0, "b": 5.1, "c": 0.0, "d": 0.01, "e": 0.02}
    svg = draw_curves("t", {"x": [(0, 0.0), (9, 10.0)]}, levels=levels)
    names = re.findall(r'y="([\d.]+)" text-anchor="end">([a-e])<', svg)
    assert [name for _, name in names] == ["b", "a", "e"]  # there is no room for the last two
    heights = [float(y) for y, _ in names]
    assert all(lower - upper >= 13 for upper, lower in itertools.pairwise(heights))
    assert svg.count('class="level"') == 5


@pytest.mark.parametrize(
    "spans", ["x", [["main", "save", 1.0]], [["main", "<b>", 0.0, 1.0]], [["main", "save", 2, 1]]]
)
def test_a_damaged_timeline_shows_nothing(tmp_path, spans):
    run = RunDir.create(tmp_path, "odd")
    MetricsLog(run.metrics_jsonl).append(
        {"event": "timeline", "step": 1, "time/spans": spans, "time/cores": [2, "x"]}
    )
    page = make_html([run])
    assert "No timeline yet" in page
    assert "CPU per core" not in page


@pytest.mark.parametrize(
    "values",
    [[3.0], [2.0, 2.0], [-1e-9, 1e-9], [0.0, 1e9], [9.99999999999998, 10.0], [1e-12, 2e-12], [1e17, 1e17]],
)
def test_any_range_can_be_drawn(values):
    svg = draw_curves("t", {"a": [(0, value) for value in values]}, span=None)
    assert "nan" not in svg
    assert svg.count('class="grid"') >= 2
