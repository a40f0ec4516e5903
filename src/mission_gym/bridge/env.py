"""A game in another process as a `gymnasium.Env`."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from mission_gym.bridge import EnginePool, current_pool
from mission_gym.bridge.clients.mission_gym_bridge import pack
from mission_gym.bridge.engine import Engine
from mission_gym.errors import UsageError
from mission_gym.names import BRIDGE

DEADLINE_S = 60.0


class BridgeEnv(gym.Env[Any, Any]):
    """One game of the process that `command` starts.

    kwargs: for the game. timeout_s: of one message; the handshake and each reset may take 270 s. Games of one
    vector share processes and are stepped with one message. If the game has a state, so does the environment:
    `get_state` and `set_state`.
    """

    # The command is positional only, so that a config can name one only by `bridge:`, which needs trust.
    def __init__(
        self, command: str, /, *, render_mode: str | None = None, timeout_s: float = DEADLINE_S, **kwargs: Any
    ) -> None:
        self.command, self.render_mode = command, render_mode
        try:
            packed = pack(kwargs)
        except (TypeError, ValueError) as error:
            raise UsageError(f"an argument can't be sent to the game: {error} [--env-kwargs]") from None
        self._pool: EnginePool | None = current_pool()
        self._key = (command, packed, render_mode)
        self._engine, self._game = self._find_game(kwargs, timeout_s)
        hello = self._engine.hello
        self.observation_space, self.action_space = hello.observation_space, hello.action_space
        modes = ["rgb_array"] if hello.render else []
        self.metadata = hello.metadata | {"render_modes": modes}
        if render_mode is not None and render_mode not in modes:
            self.close()
            why = "renders only rgb_array" if modes else 'can\'t render: its answer to hello has no "render"'
            raise UsageError(f"{BRIDGE}{command} {why} [render_mode={render_mode}]")
        limit = hello.max_episode_steps
        name = re.sub(r"[^\w.-]+", "-", hello.name)
        self.spec = EnvSpec(id=f"{name}-v0", entry_point=None, max_episode_steps=limit)
        if hello.state:  # only then, because resume relies on these methods
            self.get_state, self.set_state = self._get_state, self._set_state

    def _find_game(self, kwargs: dict[str, Any], timeout_s: float) -> tuple[Engine, int]:
        shared = [] if self._pool is None else self._pool.engines.setdefault(self._key, [])
        shared[:] = [engine for engine in shared if engine.broken is None]
        for engine in shared:
            if len(engine.games) < engine.hello.max_games:
                break
        else:
            engine = Engine(self.command, kwargs, render=self.render_mode is not None, timeout_s=timeout_s)
            shared.append(engine)
        game = min(set(range(len(engine.games) + 1)) - engine.games)
        engine.games.add(game)
        self._is_open = True
        return engine, game

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        result = self._engine.reset(self._game, seed, options)
        return result.obs, result.info

    def announce_action(self, action: Any) -> None:
        """Announce the next action, so that all games of a process are stepped with one message."""
        self._engine.announce(self._game, self._engine.hello.actions.pack(action))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game."""
        if not self._engine.has_stepped(self._game):
            self.announce_action(action)
        result = self._engine.step(self._game)
        return result.obs, result.reward, result.terminated, result.truncated, result.info

    def render(self) -> Any:
        """Return an image if render_mode is "rgb_array"."""
        return None if self.render_mode is None else self._engine.render(self._game)

    def engine_cpu_s(self) -> float:
        """Return the CPU seconds of the game's process."""
        return self._engine.read_cpu_s()

    def _get_state(self) -> Any:
        return self._engine.get_state(self._game)

    def _set_state(self, state: Any) -> None:
        self._engine.set_state(self._game, state)

    def close(self) -> None:
        """Leave the game; its process ends with its last game."""
        if not self._is_open:  # its number may be in use again
            return
        self._is_open = False
        self._engine.leave(self._game)
        if not self._engine.games:
            self._engine.end()
