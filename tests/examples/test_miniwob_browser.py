"""MiniWoB++ in a real browser: observations, and no processes left after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import miniwob_elements
import psutil
import pytest

from mission_gym.env.factory import Env, EnvRequest, make_factory
from timeouts import LONG_S

pytest.importorskip("miniwob", reason="MiniWoB++ is not here; `pip install miniwob` brings it")
BINARIES = {
    "MINIWOB_CHROME_BINARY": shutil.which("chromium"),
    "MINIWOB_CHROMEDRIVER": shutil.which("chromedriver"),
}
pytestmark = pytest.mark.skipif(
    None in BINARIES.values(), reason="no browser here; `apt-get install chromium chromium-driver` brings it"
)
EXAMPLES = Path(miniwob_elements.__file__).parent
TASK = "miniwob:miniwob/click-test-2-v1"


@pytest.fixture(autouse=True)
def _binaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, path in BINARIES.items():
        monkeypatch.setenv(name, str(path))


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def find_browsers(parent: int) -> list[psutil.Process]:
    return [
        each for each in psutil.Process(parent).children(recursive=True) if each.name().startswith("chrom")
    ]


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


def make() -> Env:
    return make_factory(EnvRequest(TASK, wrap=("miniwob_elements:Elements(4)",)))()


def test_the_named_button_is_the_first_and_a_dead_driver_leaves_no_browser() -> None:
    env = make()
    outcomes, seen = [], []
    for place in (0, 1):
        obs, info = env.reset(seed=5)
        seen.append(obs["elements"].tobytes())
        assert env.observation_space.contains(obs)
        assert info["action_mask"].tolist() == [1, 1, 0, 0]
        outcomes.append(env.step(place)[4]["outcome"])
    assert outcomes == ["success", "failure"]
    assert seen[0] == seen[1]  # whatever was clicked before
    driver, *_ = (each for each in find_browsers(os.getpid()) if each.name() == "chromedriver")
    browsers = find_browsers(driver.pid)
    assert browsers
    driver.kill()
    with pytest.raises(Exception, match=r"onnection"):
        env.reset(seed=6)
    wait_until(lambda: are_gone(browsers))
    env.close()


def test_a_browser_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(miniwob_elements, "_ANSWER_S", 1.0)
    env = make()
    env.reset(seed=0)
    browsers = find_browsers(os.getpid())
    next(each for each in browsers if each.parent() in browsers).suspend()
    with pytest.raises(Exception, match="timed out"):
        env.step(0)
    env.close()
    wait_until(lambda: are_gone(browsers))


def test_a_killed_browser_costs_an_episode_and_a_killed_training_leaves_none(tmp_path: Path) -> None:
    flags = [
        "--wrap", "miniwob_elements:Elements(4)", "--vector", "threads", "--n-envs", "1", "--n-steps", "8",
        "--batch-size", "8", "--timesteps", "1M", "--eval-freq", "0", "--no-tune", "--runs-dir",
        str(tmp_path), "--no-tensorboard",
    ]  # fmt: skip
    command = [sys.executable, "-m", "mission_gym", "train", TASK, *flags]

    def read_step() -> int:
        for status in tmp_path.glob("*/status.json"):
            return int(json.loads(status.read_text()).get("step") or 0)
        return 0

    with subprocess.Popen(
        command, cwd=EXAMPLES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as training:
        try:
            wait_until(lambda: read_step() >= 8)
            (driver,) = (each for each in find_browsers(training.pid) if each.name() == "chromedriver")
            os.kill(driver.children()[0].pid, signal.SIGKILL)
            reached = read_step()
            wait_until(lambda: read_step() > reached + 8)
            browsers = find_browsers(training.pid)
            assert driver not in browsers
            assert len(browsers) > 1
        finally:
            training.kill()
    wait_until(lambda: are_gone(browsers))
