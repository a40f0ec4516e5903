"""An environment by hand, in a window of SDL's dummy driver; the environment itself presses the keys."""

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium import spaces

from mission_gym.cli.main import main
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import EnvContractError, UsageError
from mission_gym.video.play import play_by_hand
from mission_gym_missions.capture.env import CaptureEnv
from mission_gym_missions.capture.keyboard import Keyboard
from mission_gym_missions.capture.sim.layout import HOLD, NUM_ACTIONS, TAG

UNITS = ["UGV_A", "UGV_B", "UAV_A", "UAV_B"]
ALL = np.ones(len(UNITS) * NUM_ACTIONS, np.int8)


def press(*names):
    for name in names:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.key.key_code(name)))


class Typist(gym.Env):
    """Presses 1 (illegal), then 2; after the end R, and in the second episode Esc."""

    metadata = {"render_modes": ["rgb_array"]}
    seen: list = []

    def __init__(self, render_mode=None):
        self.observation_space, self.action_space = spaces.Discrete(2), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.seen.append(seed)
        press(*(["1", "2"] if len(self.seen) == 1 else ["escape"]))
        return 0, {"action_mask": np.array([1, 0, 1])}

    def step(self, action):
        self.seen.append(action)
        press("r")
        return 0, 2.5, True, False, {"outcome": "won"}

    def render(self):
        return np.zeros((20, 300, 3), np.uint8)


class CommandedCapture(CaptureEnv):
    """Orders unit 1 to the north and quits after two commands."""

    commands: list = []

    def reset(self, **kwargs):
        press("1", "up")
        return super().reset(**kwargs)

    def step(self, action):
        self.commands.append(action.tolist())
        if len(self.commands) == 2:
            press("escape")
        return super().step(action)


@pytest.fixture
def _window(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.mark.usefixtures("_window")
def test_digits_act_r_resets_and_escape_quits():
    said = []
    play_by_hand(EnvRequest(f"{__name__}:Typist"), 7, said.append)
    assert Typist.seen == [7, 2, 8]
    assert said == ["episode 0 (seed 7): won, return 2.5"]


class Broken(Typist):
    """Raises in the given call, or renders nothing."""

    def __init__(self, place, render_mode=None):
        super().__init__(render_mode)
        self.place = place

    def reset(self, *, seed=None, options=None):
        press("2")
        self.fail("reset()")
        return 0, {}

    def step(self, action):
        self.fail("step()")
        return 0, 0.0, False, False, {}

    def render(self):
        self.fail("render()")
        return None if self.place == "frame" else np.zeros((20, 300, 3), np.uint8)

    def fail(self, place):
        if place == self.place:
            raise RuntimeError("no screen")


@pytest.mark.usefixtures("_window")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("reset()", r"^reset\(\) raised RuntimeError: no screen at test_play\.py:\d+$"),
        ("step()", r"^step\(\) raised RuntimeError: no screen at test_play\.py:\d+$"),
        ("render()", r"^render\(\) raised RuntimeError: no screen at test_play\.py:\d+$"),
        ("frame", r"^render\(\) returned object of shape \(\); .* it must return a uint8 image \[H, W, 3\]$"),
    ],
)
def test_an_exception_of_the_environment_ends_the_game_with_its_name(place, message):
    with pytest.raises(EnvContractError, match=message):
        play_by_hand(EnvRequest(f"{__name__}:Broken", {"place": place}), 7, print)


@pytest.mark.usefixtures("_window")
def test_the_mission_takes_orders():
    play_by_hand(EnvRequest(f"{__name__}:CommandedCapture"), 0, print)
    assert CommandedCapture.commands == [[3, 0, 0, 0]] * 2


@pytest.mark.usefixtures("_window")
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "toys:DictMask"])
def test_environments_without_keys_are_refused(env_id, capsys):
    assert main(["play", env_id]) == 2
    assert capsys.readouterr().err.startswith("mission-gym: ")


def test_without_a_display_the_message_names_record(monkeypatch, capsys):
    for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UsageError, match=r"no display .* `mission-gym record RUN` writes a video \[play\]"):
        play_by_hand(EnvRequest("CartPole-v1"), 0, print)
    assert main(["play", "CartPole-v1"]) == 2


@pytest.mark.parametrize(
    ("keys", "action"),
    [
        ("up", [3, 3, 3, 3]),
        ("2 d", [0, 1, 0, 0]),
        ("4 w a", [0, 0, 0, 4]),
        ("3 down 0 left", [6, 6, 6, 6]),  # both arrows are held: to the south-west
        ("right space", [0, 0, 0, 0]),
        ("1 left t", [TAG, 0, 0, 0]),
        ("9 x", [0, 0, 0, 0]),
    ],
)
def test_orders(keys, action):
    keyboard = Keyboard(UNITS)
    for key in keys.split():
        keyboard.press(key)
    assert keyboard.take_action(ALL).tolist() == action


def test_an_order_stands_and_a_tag_does_not():
    keyboard = Keyboard(UNITS)
    for key in ("1", "up", "t"):
        keyboard.press(key)
    keyboard.release("up")
    assert keyboard.take_action(ALL)[0] == TAG
    assert keyboard.take_action(ALL)[0] == 3
    none = ALL.copy()
    none.reshape(len(UNITS), NUM_ACTIONS)[:, 1:] = 0
    keyboard.press("t")
    assert keyboard.take_action(none)[0] == HOLD
    keyboard.reset()
    assert keyboard.take_action(ALL).tolist() == [HOLD] * 4
