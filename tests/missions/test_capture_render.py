"""Pictures: drawn without a display, different where the game differs; a window only where there is one."""

import numpy as np
import pygame
import pytest

from mission_gym.errors import UsageError
from mission_gym_missions.capture.env import CaptureEnv


def test_a_picture_after_another_window_has_quit_pygame() -> None:
    env = CaptureEnv(render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    pygame.quit()  # as classic control does when it is closed
    other = CaptureEnv(render_mode="rgb_array")
    other.reset(seed=0)
    assert np.array_equal(other.render(), first)


def test_a_window_where_there_is_a_display(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = CaptureEnv(render_mode="human")
    env.reset(seed=0)
    env.step(np.zeros(4, np.int64))
    assert env.render() is None
    env.close()


def test_no_display_is_said_clearly(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    env = CaptureEnv(render_mode="human")
    with pytest.raises(UsageError, match=r"a window needs a display, .* use render_mode='rgb_array'"):
        env.reset(seed=0)
