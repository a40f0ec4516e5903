"""Environments that want a display where there is none: what their libraries raise, and what to set."""

from __future__ import annotations

from typing import NamedTuple

from mission_gym.errors import describe


class _Library(NamedTuple):
    says: tuple[str, ...]
    variable: str  # that lets it draw without a display


_LIBRARIES = (
    _Library(("NoSuchDisplayException",), "PYGLET_HEADLESS=true"),
    _Library(("No available video device", "video system not initialized"), "SDL_VIDEODRIVER=dummy"),
    _Library(
        ("DISPLAY environment variable is missing", "gladLoadGL", "OpenGL platform library"), "MUJOCO_GL=egl"
    ),
)


def describe_drawing(error: BaseException) -> str:
    """As `describe`, with what to do if a display is missing."""
    told = describe(error)
    for library in _LIBRARIES:
        if any(words in told for words in library.says):
            remedy = f"set {library.variable}, or give --env-kwargs render_mode=rgb_array"
            return f"{told}; there is no display: {remedy}"
    return told
