"""An environment in a window, played with the keyboard.

An environment may bring its own keys: `env.unwrapped.make_keyboard()` gives an object like `Keys`. Others
with a Discrete action space take the digits, a step for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array
from mission_gym.env.agents import AgentsEnv
from mission_gym.env.factory import EnvRequest, make_factory
from mission_gym.errors import UsageError
from mission_gym.procs import with_companion
from mission_gym.video.studio import take_picture, telling

_BAR_PX = 30
_INK, _PAPER = (228, 234, 242), (16, 21, 30)
_PAINTS_PER_S = 30.0


class Keys(Protocol):
    """Keys by pygame's names to actions."""

    commands_per_s: float  # how often an action is taken

    @property
    def help(self) -> str: ...

    def reset(self) -> None: ...

    def press(self, key: str) -> None: ...

    def release(self, key: str) -> None: ...

    def take_action(self, mask: Any) -> Any: ...  # None: no step now


class _Digits:
    """A digit is an action, and a step."""

    commands_per_s = _PAINTS_PER_S

    def __init__(self, space: spaces.Discrete) -> None:
        self._first, self._count = int(space.start), int(space.n)
        self._action: int | None = None

    @property
    def help(self) -> str:
        return f"0-{self._count - 1} act"

    def reset(self) -> None:
        self._action = None

    def press(self, key: str) -> None:
        if key.isdigit() and int(key) < self._count:
            self._action = self._first + int(key)

    def release(self, key: str) -> None:
        pass

    def take_action(self, mask: Any) -> int | None:
        action, self._action = self._action, None
        is_legal = action is None or mask is None or bool(np.asarray(mask)[action - self._first])
        return action if is_legal else None


def play_by_hand(request: EnvRequest, seed: int, say: Callable[[str], None]) -> None:
    """Play until the window is closed; `say` hears how every episode ended."""
    _check_display()
    import pygame

    env, _companion = with_companion(
        lambda told: make_factory(replace(request, companion_kwargs=told), "rgb_array")()
    )
    with closing(env):
        if isinstance(env, AgentsEnv):
            raise UsageError(
                f"{request.env_id} has {len(env.agents)} agents, and there is one keyboard; `mission-gym"
                " record RUN` films what a policy plays [play]"
            )
        keys = _find_keys(env, request.env_id)
        try:
            pygame.display.init()
        except pygame.error as error:
            raise UsageError(
                f"no window could be opened ({error}); `mission-gym record RUN` writes a film [play]"
            ) from error
        try:
            pygame.font.init()
            _play(env, keys, seed, say, request.env_id)
        finally:
            pygame.display.quit()


def _check_display() -> None:
    named = any(os.environ.get(name) for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform.startswith("linux") and not named:
        raise UsageError(
            "there is no display to open a window on (DISPLAY and WAYLAND_DISPLAY are not set); play where "
            "there is one, or let a policy play: `mission-gym record RUN` writes a film [play]"
        )


def _find_keys(env: Any, env_id: str) -> Keys:
    make = getattr(env.unwrapped, "make_keyboard", None)
    if make is not None:
        keys: Keys = make()
        return keys
    space = env.action_space
    if not isinstance(space, spaces.Discrete) or space.n > 10:
        raise UsageError(
            f"{env_id} acts in {space}; by hand only Discrete spaces of at most ten actions can be played, "
            "or environments with a make_keyboard() of their own [play]"
        )
    return _Digits(space)


def _play(env: Any, keys: Keys, seed: int, say: Callable[[str], None], title: str) -> None:
    import pygame

    clock, font = pygame.time.Clock(), pygame.font.Font(None, 22)
    pygame.display.set_caption(f"Mission Gym: {title}")
    window: Any = None
    episode = 0
    while True:
        with telling("reset()"):
            _, info = env.reset(seed=seed + episode)
        keys.reset()
        total, verdict = 0.0, ""
        began = False
        while not began:
            for event in pygame.event.get():
                if event.type == pygame.QUIT:
                    return
                if event.type in (pygame.KEYDOWN, pygame.KEYUP):
                    key = pygame.key.name(event.key)
                    if event.type == pygame.KEYUP:
                        keys.release(key)
                    elif key == "escape":
                        return
                    elif key == "r":
                        began = True
                    else:
                        keys.press(key)
            action = None if verdict or began else keys.take_action(info.get("action_mask"))
            if action is not None:
                with telling("step()"):
                    _, reward, terminated, truncated, info = env.step(action)
                    total += float(reward)
                if terminated or truncated:
                    verdict = f"{info.get('outcome') or 'over'}, return {total:.4g}"
                    say(f"episode {episode} (seed {seed + episode}): {verdict}")
            frame = take_picture(env)
            if window is None:
                window = pygame.display.set_mode((frame.shape[1], frame.shape[0] + _BAR_PX))
            shown = f"{verdict}  |  " if verdict else ""
            _paint(window, frame, font.render(f"{shown}{keys.help}, R reset, Esc quit", True, _INK))
            clock.tick(keys.commands_per_s)
        episode += 1


def _paint(window: Any, frame: Array, words: Any) -> None:
    import pygame

    window.fill(_PAPER)
    window.blit(pygame.surfarray.make_surface(frame.transpose(1, 0, 2)), (0, 0))
    window.blit(words, (12, frame.shape[0] + 8))
    pygame.display.flip()
