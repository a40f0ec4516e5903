"""Conformance of a game over a bridge: asks its process message by message, and names the first wrong answer.

In: an EnvRequest of `bridge:COMMAND`. Out: findings, of which an error ends the examination. The rules of
single answers are those that training reads by (`bridge/answers.py`); here are those of several messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from mission_gym.bridge.answers import KNOWN, BridgeError, GameStep, Hello
from mission_gym.bridge.clients.mission_gym_bridge import VERSION
from mission_gym.bridge.engine import Engine
from mission_gym.check.findings import Finding, tell
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import UsageError, nearest
from mission_gym.names import BRIDGE

_NUM_STEPS = 64
_TIMEOUT_S = 20.0
_END_S = 3.0  # for the game's process, once its input has ended
_SEEDS = (11, 12)


def check_bridge(request: EnvRequest, timeout_s: float = _TIMEOUT_S) -> list[Finding]:
    """Talk to the game's process once; an error is the first thing that it does wrong."""
    start = partial(Engine, request.env_id.removeprefix(BRIDGE), request.kwargs, timeout_s=timeout_s)
    try:
        engine = start()
    except BridgeError as error:
        return [tell("bridge", "wrong", what=str(error))]
    except UsageError as error:
        return [Finding("error", "bridge", str(error), "the command can't be started", "check the command")]
    try:
        exam = _Exam(engine, start)
        findings = list(exam.examine())
        if not any(finding.level == "error" for finding in findings):
            findings += exam.conclude()
        return findings
    except BridgeError as error:
        return [*exam.warnings(), tell("bridge", "wrong", what=str(error))]
    finally:
        engine.end(0.0)


class _Exam:
    """The conversation."""

    def __init__(self, engine: Engine, start: Callable[..., Engine]) -> None:
        self._engine, self._start = engine, start
        self._hello: Hello = engine.hello
        self._kind = "hello"
        self._strange: dict[str, set[str]] = {}
        self._note()
        self._told = ["hello", "reset", "step"]
        self._rng = np.random.default_rng(0)
        self._hello.action_space.seed(0)

    def examine(self) -> Iterator[Finding]:
        """Ask for everything that the game says it can."""
        alone: list[list[GameStep]] = []
        played: list[list[list[bytes]]] = []
        for game, seed in enumerate(_SEEDS):  # both as game 0: one after the other
            rows, actions = [], []
            row = self._reset([0], [seed])[0]
            rows.append(row)
            while (
                not self._find_wrong(row, 0)
                and len(rows) <= _NUM_STEPS
                and not (row.terminated or row.truncated)
            ):
                actions.append(self._draw(row))
                row = self._step([0], [actions[-1]])[0]
                rows.append(row)
            if finding := self._find_wrong(row, 0):
                yield finding
                return
            alone.append(rows)
            played.append(actions)
            if game + 1 == min(len(_SEEDS), self._hello.max_games):
                break
        self._reset([0], [None])  # an episode without a seed
        if self._hello.max_games > 1 and (finding := self._play_beside(alone, played)):
            yield finding
            return
        if self._hello.render:
            self._told.append("render")
            self._ask_frame()
        if self._hello.state:
            self._told += ["get_state", "set_state"]
            if finding := self._try_state():
                yield finding
                return
        yield from self.warnings()

    def conclude(self) -> Iterator[Finding]:
        """What ends the process: a message that nobody knows, and the end of its input."""
        count = self._engine.num_messages
        try:
            if self._engine.exchange({"type": "something-new"}).get("error") is None:
                yield tell("bridge", "unheard", what="it was answered otherwise")
        except BridgeError as error:
            yield tell("bridge", "unheard", what=str(error))
        else:
            if not self._engine.end(_END_S):
                yield tell("bridge", "stays")
        told = ", ".join(self._told)
        yield tell("bridge", "conforms", count=count, version=VERSION, told=told)

    def warnings(self) -> Iterator[Finding]:
        """Fields that nobody knows."""
        for kind, fields in self._strange.items():
            known = KNOWN[kind]
            near = "".join(nearest(name, known) for name in sorted(fields))
            fix = f"remove it{near}; {kind} knows {', '.join(sorted(known)) or 'nothing'}"
            shown = ", ".join(repr(name) for name in sorted(fields))
            yield tell("bridge", "unknown", kind=kind, fields=shown, fix=fix)

    def _play_beside(
        self, alone: Sequence[Sequence[GameStep]], played: Sequence[Sequence[list[bytes]]]
    ) -> Finding | None:
        """The same episodes in one message, named in the other order."""
        games = [1, 0]
        rows = self._reset(games, [_SEEDS[game] for game in games])
        for step in range(min(map(len, played)) + 1):
            for row, game in zip(rows, games, strict=True):
                if part := _differ(row, alone[game][step]):
                    return self._tell("beside", game=game, part=part)
            if step < min(map(len, played)):
                rows = self._step(games, [played[game][step] for game in games])
        return None

    def _try_state(self) -> Finding | None:
        """Some steps from a state in the middle of an episode, twice."""
        engine = self._engine
        row = self._reset([0], [_SEEDS[0]])[0]
        for _ in range(3):
            if not (row.terminated or row.truncated):
                row = self._step([0], [self._draw(row)])[0]
        self._kind = "get_state"
        state = engine.get_state(0)
        self._note()
        actions: list[list[bytes]] = []
        first: list[GameStep] = []
        while len(first) < 8 and not (row.terminated or row.truncated):
            actions.append(self._draw(row))
            row = self._step([0], [actions[-1]])[0]
            first.append(row)
        self._reset([0], [_SEEDS[1]])
        self._kind = "set_state"
        engine.set_state(0, state)
        self._note()
        for action, before in zip(actions, first, strict=True):
            if part := _differ(self._step([0], [action])[0], before):
                return self._tell("state", game=0, part=part)
        return None

    def _reset(self, games: list[int], seeds: list[int | None]) -> list[GameStep]:
        self._kind = "reset"
        rows = self._engine.reset_games(games, seeds)
        self._note()
        return rows

    def _step(self, games: list[int], actions: list[list[bytes]]) -> list[GameStep]:
        self._kind = "step"
        rows = self._engine.step_games(games, actions)
        self._note()
        return rows

    def _ask_frame(self) -> None:
        """A picture, of a process that heard in its handshake that there will be some."""
        before, self._engine = self._engine, self._start(render=True)
        try:
            self._reset([0], [_SEEDS[0]])
            self._kind = "render"
            self._engine.render(0)
            self._note()
        finally:
            self._engine.end(0.0)
            self._engine = before

    def _note(self) -> None:
        strange = {str(name) for name in set(self._engine.last_answer) - KNOWN[self._kind]}
        if strange:
            self._strange.setdefault(self._kind, set()).update(strange)

    def _find_wrong(self, row: GameStep, game: int) -> Finding | None:
        if row.error:
            return self._tell("game", error=row.error)
        space = self._hello.observation_space
        if space.contains(row.obs):
            return None
        return self._tell("outside", game=game, problem=_describe_outside(space, row.obs))

    def _tell(self, case: str, **values: Any) -> Finding:
        return tell("bridge", case, number=self._engine.num_messages, kind=self._kind, **values)

    def _draw(self, row: GameStep) -> list[bytes]:
        """A random action, a legal one where a flat mask says which are."""
        space, mask = self._hello.action_space, row.info.get("action_mask")
        action = space.sample()
        if isinstance(mask, np.ndarray) and isinstance(space, spaces.Discrete) and mask.any():
            action = space.start + self._rng.choice(np.flatnonzero(mask))
        elif isinstance(mask, np.ndarray) and isinstance(space, spaces.MultiDiscrete):
            parts = np.split(mask, np.cumsum(space.nvec)[:-1])
            if len(mask) == sum(space.nvec) and all(part.any() for part in parts):
                action = np.array([self._rng.choice(np.flatnonzero(part)) for part in parts])
        return self._hello.actions.pack(action)


def _differ(one: GameStep, other: GameStep) -> str:
    """The first part in which two rows differ."""
    for part in ("obs", "reward", "terminated", "truncated", "error"):
        if not _equal(getattr(one, part), getattr(other, part)):
            return "observation" if part == "obs" else part
    return ""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(map(_equal, one, other))
    return bool(np.array_equal(one, other, equal_nan=isinstance(one, np.ndarray) and one.dtype.kind == "f"))


def _describe_outside(space: spaces.Space[Any], obs: Any) -> str:
    if isinstance(space, spaces.Box):
        wrong = np.flatnonzero(~((obs >= space.low) & (obs <= space.high)).ravel())
        if len(wrong):
            place = int(wrong[0])
            low, high = space.low.ravel()[place], space.high.ravel()[place]
            return f"number {place} is {obs.ravel()[place]:g}, the space is from {low:g} to {high:g}"
    shown = repr(obs)
    return f"{shown[:80]} is not in {space}"
