"""The pages in a real browser: what arrives without a reload, and what never goes out."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard_runs import HandRun, Server, make_row
from mission_gym.store.groups import GroupDir, JobRequest
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog
from timeouts import LONG_S

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; `apt-get install chromium` brings it"
)
LONG_MS = 1000 * LONG_S
# Steps, and values of the first line, of the chart with this title.
READ = """title => { const figure = [...document.querySelectorAll("figure.chart")].find(
  each => each.querySelector("h3").firstChild.textContent === title);
  const { data, plot } = figure?.chart || {};
  return data ? {x: data.x, y: data.series[0].values, zoom: plot && [plot.scales.x.min, plot.scales.x.max],
    top: figure.getBoundingClientRect().top} : null; }"""


def make_request(name: str) -> JobRequest:
    return JobRequest(name=name, variant=name.partition("-")[0], arguments=(), folder="/", python="python")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


class Tab:
    """A page that remembers what it complained about and whom it asked."""

    def __init__(self, browser: Any, server: Server, width: int = 1280) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800})
        self.page.set_default_timeout(LONG_MS)
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        self.page.on(
            "console", lambda message: message.type == "error" and self.complaints.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.asked.add(request.url))
        self.base = server.base
        self.page.goto(server.address)

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def read(self, title: str) -> Any:
        return self.page.evaluate(READ, title)

    def wait_for_steps(self, title: str, steps: list[int]) -> Any:
        self.page.wait_for_function(
            f"title => JSON.stringify(({READ})(title)?.x) === '{str(steps).replace(' ', '')}'", arg=title
        )
        return self.read(title)

    def check(self) -> None:
        """Nothing went wrong, and nobody else was asked."""
        assert not self.complaints
        assert all(url.startswith((self.base, "data:", "blob:")) for url in self.asked)


def test_a_run_appears_and_grows_without_a_reload(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(tmp_path)
    tab = Tab(browser, server)
    tab.page.wait_for_selector("#empty:has-text('No runs yet')")
    command = [sys.executable, "-m", "mission_gym", "train", "CartPole-v1", "--runs-dir", str(tmp_path)]
    flags = "--timesteps 2048 --n-envs 2 --n-steps 64 --batch-size 64 --n-epochs 2 --eval-freq 1024"
    made = subprocess.Popen(
        [*command, *flags.split(), "--vector", "serial", "--no-tune", "--eval-episodes", "2"],
        stderr=subprocess.DEVNULL,
    )
    tab.page.wait_for_selector("#runs tbody a")
    tab.page.click("#runs tbody a")
    tab.page.wait_for_function(f"() => ({READ})('Return')?.x.length >= 2")
    assert made.wait(LONG_S) == 0
    tab.page.wait_for_function("() => document.getElementById('state').textContent === 'done'")
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    with (run / "progress.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/loss"]]
    steps = [int(row["time/total_timesteps"]) for row in rows]
    shown = tab.wait_for_steps("Return", steps)
    assert shown["y"] == [
        float(row["rollout/ep_rew_mean"]) if row["rollout/ep_rew_mean"] else None for row in rows
    ]
    assert tab.read("loss")["y"] == [float(row["train/loss"]) for row in rows]
    assert tab.page.text_content("#eta") == "all steps made"
    tab.page.wait_for_selector("#panel-commands:has-text('mission-gym eval')", state="attached")
    tab.check()


def test_a_failure_takes_the_place_of_the_four_answers(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    kind = {
        "text": "KeyError: 'price' at shop.py:41",
        "place": "environment 3, seed 17, step 41",
        "count": 16,
    }
    hand_run.dir.write_status(state="failed", cause="EnvFailure: it broke\nTraceback", failures=[kind])
    (hand_run.dir.path / "repro-env3-episode0.json").write_text("{}")
    tab = Tab(browser, serve(tmp_path))
    tab.open(f"/run/{hand_run.name}")
    tab.page.wait_for_selector("#failure:visible")
    shown = tab.page.text_content("#failure")
    for text in ("EnvFailure: it broke", kind["text"], kind["place"], "check --repro", "Traceback"):
        assert text in shown
    assert not any(tab.page.is_visible(f"#{id}") for id in ("answers", "alarms"))
    tab.check()


def test_every_stage_in_view_is_named(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    """Also one that began left of the view: the first, before the first row, and others after a zoom."""
    run = HandRun(tmp_path, "staged", stages=["few", "more", "crowd"])
    for step, stage, made in ((10, 1, 10), (20, 2, 5), (30, 2, 15), (40, 3, 5), (50, 3, 15)):
        run.add(step, **{"curriculum/stage": stage, "curriculum/stage_steps": made})
    tab = Tab(browser, serve(tmp_path))
    tab.page.add_init_script(
        "const paint = CanvasRenderingContext2D.prototype.fillText; window.painted = [];"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {"
        " window.painted.push(text); paint.call(this, text, ...rest); }"
    )
    tab.open(f"/run/{run.name}")
    tab.wait_for_steps("Return", [10, 20, 30, 40, 50])
    tab.page.wait_for_function("() => ['few', 'more', 'crowd'].every(name => window.painted.includes(name))")
    # Other charts may be painted meanwhile: so this one alone is, until the names are those of one painting.
    named = tab.page.evaluate(
        "async () => { const figure = [...document.querySelectorAll('figure.chart')].find("
        " each => each.querySelector('h3').firstChild.textContent === 'Return');"
        " figure.chart.board.setZoom(21, 29); let named = [];"
        " for (let tries = 0; tries < 100 && named.join() !== 'more'; tries++) {"
        "  await new Promise(requestAnimationFrame); window.painted = []; figure.chart.plot.redraw(false);"
        "  await new Promise(requestAnimationFrame);"
        "  named = ['few', 'more', 'crowd'].filter(name => window.painted.includes(name)); }"
        " return named; }"
    )
    assert named == ["more"]
    tab.check()


def test_a_page_finds_a_restarted_server_again_and_keeps_its_zoom(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    server = serve(tmp_path)
    tab = Tab(browser, server)
    tab.open(f"/run/{hand_run.name}")
    tab.wait_for_steps("Return", [10, 20, 30])
    tab.page.focus("figure.chart")
    tab.page.keyboard.press("+")
    before = tab.read("Return")
    assert before["zoom"] == [15, 25]
    hand_run.add(40)
    after = tab.wait_for_steps("Return", [10, 20, 30, 40])
    assert after["zoom"] == before["zoom"]
    assert after["top"] == before["top"]  # nothing jumped
    tab.check()
    assert server.stop() == 0
    tab.page.wait_for_selector("#link.off")
    hand_run.add(50)
    serve(tmp_path, server.port)
    tab.wait_for_steps("Return", [10, 20, 30, 40, 50])
    tab.page.wait_for_selector("#link.on")
    tab.page.keyboard.press("0")
    assert tab.read("Return")["zoom"] == [10, 50]


def test_the_runs_page_goes_on_after_a_restart_and_in_the_row_that_has_the_focus(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    server = serve(tmp_path)
    tab = Tab(browser, server)
    box = f'input[aria-label="Compare {hand_run.name}"]'
    tab.page.focus(box)
    hand_run.dir.write_status(step=777)
    tab.page.wait_for_selector("#runs td:has-text('777')")
    assert tab.page.evaluate("box => document.activeElement.matches(box)", box)
    assert "Time left" in tab.page.text_content("#runs thead")
    assert tab.page.text_content("#runs td[data-label='Time left']") == ""
    tab.check()
    assert server.stop() == 0
    tab.page.wait_for_selector("#link.off")
    hand_run.dir.write_status(step=888)
    serve(tmp_path, server.port)
    tab.page.wait_for_selector("#runs td:has-text('888')")


def test_a_page_that_was_opened_early_finds_what_comes_later(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    run = RunDir.create(tmp_path / "runs", "early")
    run.write_status(state="done", outcomes={"lost": 0.5, "won": 0.25})
    tab = Tab(browser, serve(tmp_path / "runs"))
    tab.open(f"/run/{run.name}")
    tab.page.wait_for_selector("#winning:has-text('lost 50 %')")
    tab.page.wait_for_selector("#link.on")
    log = MetricsLog(run.metrics_jsonl)
    log.append({"event": "plan", "main_outcome": "won"})
    for step in (1, 2):
        log.append(make_row(step))
    log.append({"event": "timeline", "step": 2, "time/spans": [["main", "save", 0.0, 1.0]]})
    tab.wait_for_steps("Return", [1, 2])
    run.log_txt.write_text("more\n")
    tab.page.wait_for_selector("#winning:has-text('won 25 %')")
    tab.page.wait_for_selector("#panel-timeline svg")
    away = run.path.rename(tmp_path / "away")
    tab.page.wait_for_selector("#empty:has-text('no longer in the folder')")
    away.rename(run.path)
    tab.page.wait_for_selector("#empty", state="hidden")
    tab.check()


def test_markup_is_text_in_every_page(browser: Any, serve: Callable[..., Server], tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = HandRun(tmp_path, outcome=evil)
    run.add(1, 2, 3, **{f"train/{evil}": 1.0, f"reward_share/{evil}": 1.0, f"episode/{evil}": 2.0})
    run.evaluate(2)
    run.dir.path.rename(tmp_path / "<b>evil")
    other = HandRun(tmp_path, "other", outcome=evil)
    other.add(1, 2)
    tab = Tab(browser, serve(tmp_path))
    tab.page.wait_for_selector("#runs tbody tr:nth-child(2)")
    assert evil in tab.page.text_content("#runs")
    tab.open("/run/%3Cb%3Eevil")
    tab.wait_for_steps("Outcomes", [1, 2, 3])
    assert evil in tab.page.text_content("#charts")
    tab.open(f"/compare?run=%3Cb%3Eevil&run={other.name}&run=none")
    tab.page.wait_for_selector("#differences table")
    assert tab.page.query_selector('img[src="x"]') is None
    assert tab.page.query_selector("main b:not(.legend b)") is None
    assert not [text for text in tab.complaints if "404" not in text]  # of the missing run


def test_two_runs_and_a_group_are_compared(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    runs = [HandRun(tmp_path, name) for name in ("one", "two")]
    runs[0].add(10, 20)
    runs[1].add(10, 30)
    (tmp_path / "both").mkdir()
    names = ", ".join(f'"{run.dir.path}"' for run in runs)
    (tmp_path / "both" / "group.json").write_text(
        f'{{"name": "both", "kind": "seeds", "runs": [{names}], "iqm": 1}}'
    )
    tab = Tab(browser, serve(tmp_path))
    for run in runs:
        tab.page.check(f'input[aria-label="Compare {run.name}"]')
    tab.page.click("#compare")
    assert tab.wait_for_steps("Return in training", [10, 20, 30])["y"] == [10 / 7, 20 / 7, None]
    tab.page.click("#by-time")
    assert tab.read("Return in training")["x"] == [0.1, 0.2, 0.3]
    tab.open("/compare?group=both")
    assert tab.wait_for_steps("Return in training", [10, 20])["y"] == pytest.approx([10 / 7, 20 / 7])
    tab.check()


def test_a_group_has_a_curve_for_each_variant(
    browser: Any, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Runs that end early do not bend the curve of the others."""
    group = GroupDir.create(
        tmp_path, "both", "jobs", [make_request(name) for name in ("base-0", "base-1", "wide")]
    )
    for name, steps in {"base-0": (10, 20), "base-1": (10, 20, 30), "wide": (10, 20, 30, 40)}.items():
        run = HandRun(tmp_path, name)
        run.add(*steps)
        run.evaluate(20)
        group.note("started", name)
        group.note("run", name, run=str(run.dir.path))
        group.note("ended", name, state="done")
    tab = Tab(browser, serve(tmp_path))
    tab.open(f"/compare?group={group.path.name}")
    tab.wait_for_steps("Return in training", [10, 20, 30, 40])
    drawn = """title => [...document.querySelectorAll("figure.chart")].find(
      each => each.querySelector("h3").firstChild.textContent === title).chart.data.series.map(
      each => [each.label, each.values, Boolean(each.dots)])"""
    lines = tab.page.evaluate(drawn, "Return in training")
    assert [(label, dots) for label, _, dots in lines] == [("base, mean of 2", False), ("wide", False)]
    assert lines[0][1] == pytest.approx([10 / 7, 20 / 7, None, None])
    assert tab.page.evaluate(drawn, "Return in evaluations") == [
        ["base, mean of 2", [5], True],
        ["wide", [5], True],
    ]
    tab.page.wait_for_selector("#differences th:has-text('wide')")
    tab.page.click("#shortest")
    assert tab.read("Return in training")["zoom"] == [0, 20]
    tab.page.click("#unzoom")
    assert tab.read("Return in training")["zoom"] == [10, 40]
    tab.check()


@pytest.mark.parametrize(
    ("values", "course"),
    [
        ([0, 10, 20, 30, 40, 50, 60, 70, 80, 90], "rising"),
        ([0, 30, 60, 90, 100, 100, 99, 100, 101, 100], "level"),
        ([0, 50, 100, 100, 100, 90, 80, 60, 40, 30], "falling"),
        ([50, 50.1, 50, 49.9, 50, 50.1, 50, 49.9, 50, 50], "flat"),
        ([3, 9, 1, 8, 2, 9, 1, 8, 2, 5], "flat"),
        ([0, 98, 100, 99, *[100] * 96], "level"),
    ],
)
def test_a_curve_is_judged_by_its_course(
    browser: Any,
    serve: Callable[..., Server],
    hand_run: HandRun,
    tmp_path: Path,
    values: list[float],
    course: str,
) -> None:
    tab = Tab(browser, serve(tmp_path))
    tab.open(f"/run/{hand_run.name}")
    judge = """async values => (await import("/static/answers.js")).judgeCurve(
      values.map((_, row) => 10 * row), values)"""
    assert tab.page.evaluate(judge, values)["course"] == course
    assert tab.page.evaluate(judge, values[:4]) is None


def test_the_answers_follow_the_state_of_a_run(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    run, now = hand_run.dir, time.time()
    run.write_status(cause="goal reached: won>=0.5 (at least 0.6 in 100 further episodes)", step=130)
    tab = Tab(browser, serve(tmp_path))
    tab.open(f"/run/{hand_run.name}")
    tab.page.wait_for_selector("#eta:has-text('goal reached')")
    assert tab.page.text_content("#answers h2") == "Did it learn?"
    assert "13 % of the budget" in tab.page.text_content("#eta-why")
    assert tab.page.get_attribute("#progress", "aria-valuenow") == "100"
    assert "won 50 %" in tab.page.text_content("#winning")
    with run.lock():
        phase = {"phase": "evaluating", "phase_since": now, "phase_done": 3, "phase_total": 20}
        run.write_status(state="running", moved_at=now + 1000, phase_eta_s=75.0, eta_s=90.0, **phase)
        tab.page.wait_for_selector("#state:has-text('evaluating 3/20')")
        assert tab.page.text_content("#eta") == "in 1:30"
        assert "3 of 20 episodes, 1:15 left" in tab.page.text_content("#eta-why")
        run.write_status(moved_at=now - 45, phase="collecting", phase_total=None)
        tab.page.wait_for_selector("#eta:has-text('no step for')")
        assert "--env-timeout" in tab.page.text_content("#eta-why")
    tab.check()


def test_charts_are_searched_saved_and_drawn_with_a_logarithmic_axis(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    hand_run.add(40, **{"train/clip_range": 0.2, "episode/=SUM(A1)": 2.0})
    hand_run.add(50, **{"train/clip_range": 0.2, "episode/=SUM(A1)": 3.0})
    tab = Tab(browser, serve(tmp_path))
    tab.open(f"/run/{hand_run.name}")
    tab.wait_for_steps("Return", [10, 20, 30, 40, 50])
    assert "clip range 0.2" in tab.page.text_content("#constants")
    assert tab.page.query_selector("figure:has-text('clip range')") is None
    figure = "figure:has(.title:text-is('Return'))"
    tab.page.click(f"{figure} button:text-is('log')")
    tab.page.wait_for_function(
        "() => [...document.querySelectorAll('figure.chart')][0].chart.plot.scales.y.distr === 3"
    )
    with tab.page.expect_download() as download:
        tab.page.click(f"{figure} button:text-is('CSV')")
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == 'step,"training, last 100 episodes"'
    assert lines[1] == f"10,{10 / 7}"
    assert lines[-1] == '20,5,4,6,"evaluation, 95 %"'
    assert (
        tab.page.evaluate(
            "() => [...document.querySelectorAll('figure.chart')].find("
            "each => each.textContent.includes('=SUM')).chart.makeCsv().split('\\r\\n')[0]"
        )
        == "step,'=SUM(A1)"
    )
    tab.page.fill("#search", "LOSS")
    assert not tab.page.is_visible(figure)
    assert tab.page.is_visible("#chart-train\\/loss")
    tab.check()


@pytest.mark.parametrize("width", [380, 3840])
def test_pages_fit_any_width(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path, width: int
) -> None:
    tab = Tab(browser, serve(tmp_path), width)
    for path in ("/", f"/run/{hand_run.name}", f"/compare?run={hand_run.name}"):
        tab.open(path)
        tab.page.wait_for_selector("#runs tbody tr, figure.chart")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    tab.check()


def test_every_control_is_reached_by_keyboard_and_has_a_name(
    browser: Any, serve: Callable[..., Server], hand_run: HandRun, tmp_path: Path
) -> None:
    tab = Tab(browser, serve(tmp_path))
    for path in ("/", f"/run/{hand_run.name}", "/compare"):
        tab.open(path)
        tab.page.wait_for_selector("main *")
        nameless = """[...document.querySelectorAll("a, button, input, figure, svg[role=img]")].filter(each =>
          !(each.textContent.trim() || each.getAttribute("aria-label") || each.labels?.length)
          && each.checkVisibility()
        ).map(each => each.outerHTML)"""
        assert tab.page.evaluate(nameless) == []
    tab.open("/")
    tab.page.wait_for_selector("#runs tbody tr")
    reached = set()
    for _ in range(30):
        tab.page.keyboard.press("Tab")
        reached.add(tab.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"filter", "tree", "Run", hand_run.name} <= reached


@pytest.mark.skipif("MISSION_GYM_PICTURES" not in os.environ, reason="pictures of the docs are made by hand")
def test_pictures_of_the_docs(
    browser: Any, serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MISSION_GYM_PICTURES names a runs folder with the run of a demo; running jobs make the queue."""
    runs_dir = Path(os.environ["MISSION_GYM_PICTURES"])
    monkeypatch.chdir(runs_dir.parent)  # so that pages name the folder, and not where it lies
    server, images = serve(Path(runs_dir.name)), Path(__file__).parents[2] / "docs" / "images"
    shown = max(path.name for path in runs_dir.glob("demo-*"))
    for name, path, width, scheme in (
        ("run", f"/run/{shown}", 1440, "light"),
        ("run-dark", f"/run/{shown}", 1440, "dark"),
        ("runs", "/", 1440, "light"),
        ("phone", f"/run/{shown}", 380, "light"),
    ):
        tab = Tab(browser, server, width)
        tab.page.emulate_media(color_scheme=scheme)
        tab.open(path)
        tab.page.wait_for_selector("#runs tbody svg *, figure.chart canvas")
        tab.page.screenshot(path=images / f"watch-{name}.png")
