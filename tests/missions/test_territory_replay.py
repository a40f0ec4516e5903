"""Pictures and replays: the page in a real browser, from a file."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

import mission_gym as mg
from mission_gym.cli.main import main
from mission_gym_missions.territory.env import TerritoryEnv
from timeouts import LONG_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; `apt-get install chromium` brings it"
)


@pytest.fixture
def played():
    """An environment in the middle of an episode with a long seed."""
    env = TerritoryEnv(render_mode="rgb_array")
    obs, info = env.reset(seed=2**61 + 12345)
    for _ in range(60):
        obs, _, _, _, info = env.step(env.baselines["conqueror"](obs, info))
    return env


def test_a_picture_shows_the_nations(played):
    first = played.render()
    assert first.shape == (720, 1020, 3)
    played.step(0)
    assert not np.array_equal(played.render(), first)
    assert (np.abs(first[:, :720].astype(int) - (235, 250, 255)).sum(axis=2) < 60).any()  # the agent's border


def test_a_replay_survives_a_resume_and_is_plain_json(played):
    replay = json.loads(json.dumps(played.make_replay()))
    other = TerritoryEnv()
    other.set_state(played.get_state())
    assert other.make_replay() == replay
    assert (replay["seed"], len(replay["actions"]), replay["outcome"]) == (str(2**61 + 12345), 60, None)
    assert len(played.make_page()) < 300_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The page that `record` writes of a run's policy, on the seed 7."""
    folder = tmp_path_factory.mktemp("recorded")
    sizes = {"n_envs": 2, "n_steps_per_env": 16, "timesteps": 32, "batch_size": 16, "n_epochs": 1}
    shared = {"runs_dir": str(folder), "progress": False, "eval_freq": 0, "tensorboard": False}
    mg.train("mission_gym/Territory-v0", run_name="war", wrap=["time-limit:40"], **sizes, **shared)
    path = folder / "game.html"
    assert main(["record", "war", "--runs-dir", str(folder), "--seed", "7", "--out", str(path)]) == 0
    return path


def test_record_writes_the_page_of_the_episode_that_was_played(recorded):
    inside = re.search(
        r'<script id="replay" type="application/json">(.*?)</script>', recorded.read_text("utf-8")
    )
    replay = json.loads(inside[1])
    env = TerritoryEnv()
    env.reset(seed=7)
    for action in replay["actions"]:
        env.step(action)
    assert len(replay["actions"]) == 40
    assert env.make_replay() == replay


@needs_chromium
def test_the_recorded_page_plays_in_a_browser(recorded):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        page.set_default_timeout(1000 * LONG_S)
        page.goto(recorded.as_uri())
        page.click("#play")
        page.wait_for_function("game.time === 40 && timer === null")
        assert page.inner_text("#error") == ""
        browser.close()


@needs_chromium
def test_the_page_plays_the_game_from_a_file(played, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "game.html"
    path.write_text(played.make_page(), "utf-8")
    cells = played.simulator.state.cells[0].tolist()
    complaints, asked = [], []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        page.set_default_timeout(1000 * LONG_S)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        assert page.inner_text("#state").startswith("step 0 of 240, rank ")
        seek = "time => { const bar = document.getElementById('time'); bar.value = time; bar.oninput(); }"
        page.evaluate(seek, 60)
        assert page.evaluate("[...game.cells]") == cells
        assert page.inner_text("#error") == ""
        page.evaluate(seek, 31)  # back, over a state that was kept
        page.click("#play")
        page.wait_for_function("game.time === 60 && timer === null")
        assert page.evaluate("[...game.cells]") == cells
        assert "you" in page.inner_text("#nations")
        wrong = json.dumps(played.make_replay() | {"seed": "1"})
        page.evaluate("text => load(new File([text], 'other.json'))", wrong)
        page.evaluate(seek, 60)
        assert "does not end like the recorded one" in page.inner_text("#error")
        page.evaluate("load(new File(['{}'], 'empty.json'))")
        page.wait_for_function(
            "document.getElementById('error').textContent.startsWith('empty.json: this is not')"
        )
        browser.close()
    assert not complaints
    assert asked == [path.as_uri()]
