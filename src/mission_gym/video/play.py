"""An environment that renders, on its own side of a recording or in a window.

`play_by_hand` opens a window and takes actions from the keyboard. An environment may bring its own keys:
`env.unwrapped.make_keyboard()` returns an object like `Keys`. Other environments with a Discrete action space
take one step per digit. `serve` runs in a child process and steps the environment for `record`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from mission_gym.data import Array, EnvSpec, Leaves
from mission_gym.env.agents import AgentsEnv
from mission_gym.env.agents_slot import make_slot
from mission_gym.env.factory import Env, EnvRequest, Factory, make_factory
from mission_gym.env.user_code import find_line
from mission_gym.errors import EnvContractError, MissionGymError, UsageError, describe
from mission_gym.procs import Link, describe_error, with_companion

PAGE_METHOD = "make_page"
_DEFAULT_FPS = 30.0
_BAR_PX = 30
INK, PAPER = (228, 234, 242), (16, 21, 30)


@contextmanager
def env_errors(call: str) -> Iterator[None]:
    """Turn any exception of the environment into an EnvContractError that names the call."""
    try:
        yield
    except Exception as error:  # border: the user's environment
        raise EnvContractError(f"{call} raised {describe(error)} at {find_line(error)}") from error


def render_frame(env: Env) -> Array:
    """The rendered frame, [H, W, 3]; EnvContractError if there is none."""
    with env_errors("render()"):
        frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3 or not np.issubdtype(frame.dtype, np.number):
        raise EnvContractError(
            f"render() returned {frame.dtype} of shape {frame.shape}; with render_mode='rgb_array' it must "
            "return a uint8 image [H, W, 3]"
        )
    return frame


class RenderInfo(NamedTuple):
    """The rendering that an environment declares."""

    modes: tuple[str, ...]
    fps: float
    has_pages: bool


class PlayState(NamedTuple):
    """The inputs of a policy. R rows: one per agent."""

    leaves: Leaves  # [R, ...]
    mask: Array | None  # [R, ...]
    has_ended: bool
    outcome: str | None = None  # of an episode that has ended


class _EnvService:
    """The methods that the parent process calls by name."""

    def __init__(self, factory: Factory, spec: EnvSpec) -> None:
        self.env, self._spec = factory(), spec
        self._seed = 0
        self._slot = make_slot(lambda: self.env, spec, 0, lambda episode: self._seed)

    def describe(self) -> RenderInfo:
        metadata = self.env.metadata
        modes = tuple(str(mode) for mode in metadata.get("render_modes") or ())
        fps = float(metadata.get("render_fps") or _DEFAULT_FPS)
        return RenderInfo(modes, fps, self.env.has_wrapper_attr(PAGE_METHOD))

    def reset(self, seed: int, options: dict[str, Any] | None) -> PlayState:
        self._seed = seed
        self._slot.reset(0, options=options)
        return self._read_state()

    def step(self, action: Any) -> PlayState:
        self._slot.step(action)
        return self._read_state()

    def render(self) -> Array:
        return render_frame(self.env)

    def make_page(self) -> str:
        with env_errors(f"{PAGE_METHOD}()"):
            return str(self.env.get_wrapper_attr(PAGE_METHOD)())

    def _read_state(self) -> PlayState:
        slot, spec = self._slot, self._spec
        leaves = slot.obs if spec.agents else tuple(np.asarray(leaf)[None] for leaf in slot.obs)
        mask = None if slot.mask is None else slot.mask.reshape(spec.num_agents, -1)
        return PlayState(leaves, mask, slot.ended, slot.info.get("outcome") if slot.ended else None)


def serve(link: Link, setup: bytes) -> None:
    """Build the environment in this child process, and answer calls until the parent is gone."""
    with ExitStack() as stack:
        service: _EnvService | None = None
        while True:
            name, *args = link.recv()
            try:
                if service is None:
                    service = _EnvService(*pickle.loads(setup))
                    stack.callback(service.env.close)
                reply: tuple[Any, ...] = ("ok", getattr(service, name)(*args))
            except MissionGymError as error:
                reply = ("error", *describe_error(error))
            link.send(reply)


class Keys(Protocol):
    """Turns keys, by pygame's names, into actions."""

    commands_per_s: float  # how often `take_action` is called

    @property
    def help(self) -> str: ...

    def reset(self) -> None: ...

    def press(self, key: str) -> None: ...

    def release(self, key: str) -> None: ...

    def take_action(self, mask: Any) -> Any: ...  # None: no step now


class _Digits:
    """Each digit is an action, and takes one step."""

    commands_per_s = _DEFAULT_FPS

    def __init__(self, space: spaces.Discrete) -> None:
        self._first, self._count = int(space.start), int(space.n)
        self._action: int | None = None
        self.help = f"0-{self._count - 1} act"

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
    """Play until the window is closed; `say` gets the result of every episode."""
    _check_display()
    import pygame

    env, _companion = with_companion(
        lambda companion_kwargs: make_factory(
            replace(request, companion_kwargs=companion_kwargs), "rgb_array"
        )()
    )
    with closing(env), ExitStack() as stack:
        if isinstance(env, AgentsEnv):
            raise UsageError(
                f"{request.env_id} has {len(env.agents)} agents, and the keyboard plays one; `mission-gym"
                " record RUN` records a policy's episodes [play]"
            )
        keys = _find_keys(env, request.env_id)
        stack.callback(pygame.display.quit)
        try:
            pygame.display.init()
        except pygame.error as error:
            raise UsageError(
                f"no window could be opened ({error}); `mission-gym record RUN` writes a video [play]"
            ) from error
        pygame.font.init()
        _play(env, keys, seed, say, request.env_id)


def _check_display() -> None:
    has_display = any(os.environ.get(name) for name in ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform.startswith("linux") and not has_display:
        raise UsageError(
            "there is no display for a window (DISPLAY and WAYLAND_DISPLAY are not set); play on a machine"
            " with a display, or record a policy: `mission-gym record RUN` writes a video [play]"
        )


def _find_keys(env: Any, env_id: str) -> Keys:
    if hasattr(env.unwrapped, "make_keyboard"):
        keys: Keys = env.unwrapped.make_keyboard()
        return keys
    space = env.action_space
    if not isinstance(space, spaces.Discrete) or space.n > 10:
        raise UsageError(
            f"{env_id} has the action space {space}; only Discrete spaces of at most ten actions can be"
            " played with the keyboard, or environments with their own make_keyboard() [play]"
        )
    return _Digits(space)


def _play(env: Any, keys: Keys, seed: int, say: Callable[[str], None], title: str) -> None:
    import pygame

    clock, font = pygame.time.Clock(), pygame.font.Font(None, 22)
    pygame.display.set_caption(f"Mission Gym: {title}")
    window: Any = None
    episode = 0
    while True:
        with env_errors("reset()"):
            _, info = env.reset(seed=seed + episode)
        keys.reset()
        total, result = 0.0, ""
        wants_reset = False
        while not wants_reset:
            for event in pygame.event.get():
                key = pygame.key.name(event.key) if event.type in (pygame.KEYDOWN, pygame.KEYUP) else ""
                if event.type == pygame.KEYUP:
                    keys.release(key)
                elif event.type == pygame.QUIT or key == "escape":
                    return
                elif key == "r":
                    wants_reset = True
                elif key:
                    keys.press(key)
            action = None if result or wants_reset else keys.take_action(info.get("action_mask"))
            if action is not None:
                with env_errors("step()"):
                    _, reward, terminated, truncated, info = env.step(action)
                    total += float(reward)
                if terminated or truncated:
                    result = f"{info.get('outcome') or 'over'}, return {total:.4g}"
                    say(f"episode {episode} (seed {seed + episode}): {result}")
            frame = render_frame(env)
            if window is None:
                window = pygame.display.set_mode((frame.shape[1], frame.shape[0] + _BAR_PX))
            head = f"{result}  |  " if result else ""
            text = font.render(f"{head}{keys.help}, R reset, Esc quit", True, INK)
            window.fill(PAPER)
            window.blit(pygame.surfarray.make_surface(frame.transpose(1, 0, 2)), (0, 0))
            window.blit(text, (12, frame.shape[0] + 8))
            pygame.display.flip()
            clock.tick(keys.commands_per_s)
        episode += 1
