"""Conformance of a bridged game: sends each kind of message and reports the first wrong answer.

In: an EnvRequest of `bridge:COMMAND`. Out: findings; an error ends the check. The rules for single answers
are those of training (`bridge/answers.py`); here are the rules between messages.
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
from mission_gym.check.findings import Finding, has_errors, make_finding
from mission_gym.env.factory import EnvRequest
from mission_gym.errors import UsageError, nearest
from mission_gym.names import BRIDGE

_NUM_STEPS = 64
_TIMEOUT_S = 20.0
_END_S = 3.0  # for the game's process to end after its input was closed
_SEEDS = (11, 12)


def check_bridge(request: EnvRequest, timeout_s: float = _TIMEOUT_S) -> list[Finding]:
    """Check the game's process; an error is its first wrong answer."""
    start = partial(Engine, request.env_id.removeprefix(BRIDGE), request.read_kwargs(), timeout_s=timeout_s)
    try:
        engine = start()
    except BridgeError as error:
        return [make_finding("bridge", "wrong", what=str(error))]
    except UsageError as error:
        return [Finding("error", "bridge", str(error), "the command can't be started", "check the command")]
    try:
        conversation = _Conversation(engine, start)
        findings = list(conversation.play())
        return findings if has_errors(findings) else [*findings, *conversation.end()]
    except BridgeError as error:
        return [*conversation.warnings(), make_finding("bridge", "wrong", what=str(error))]
    finally:
        engine.end(0.0)


class _Conversation:
    """The messages that are exchanged with one game."""

    def __init__(self, engine: Engine, start: Callable[..., Engine]) -> None:
        self._engine, self._start = engine, start
        self._hello: Hello = engine.hello
        self._kind = "hello"
        self._unknown_fields: dict[str, set[str]] = {}
        self._note()
        self._tested = ["hello", "reset", "step"]
        self._rng = np.random.default_rng(0)
        self._hello.action_space.seed(0)

    def play(self) -> Iterator[Finding]:
        """Test everything that the game supports according to its handshake."""
        alone: list[list[GameStep]] = []
        played: list[list[list[bytes]]] = []
        for game, seed in enumerate(_SEEDS):  # both as game 0, one after the other
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
        if self._hello.max_games > 1 and (finding := self._play_together(alone, played)):
            yield finding
            return
        if self._hello.render:
            self._tested.append("render")
            self._request_frame()
        if self._hello.state:
            self._tested += ["get_state", "set_state"]
            if finding := self._try_state():
                yield finding
                return
        yield from self.warnings()

    def end(self) -> Iterator[Finding]:
        """Send an unknown message, then close the input."""
        count = self._engine.num_messages
        try:
            if self._engine.exchange({"type": "something-new"}).get("error") is None:
                yield make_finding("bridge", "no_error_reply", what="the answer has no error")
        except BridgeError as error:
            yield make_finding("bridge", "no_error_reply", what=str(error))
        else:
            if not self._engine.end(_END_S):
                yield make_finding("bridge", "does_not_exit")
        tested = ", ".join(self._tested)
        yield make_finding("bridge", "conforms", count=count, version=VERSION, tested=tested)

    def warnings(self) -> Iterator[Finding]:
        """Report unknown fields."""
        for kind, fields in self._unknown_fields.items():
            known = KNOWN[kind]
            near = "".join(nearest(name, known) for name in sorted(fields))
            fix = f"remove it{near}; {kind} has {', '.join(sorted(known)) or 'no fields'}"
            shown = ", ".join(repr(name) for name in sorted(fields))
            yield make_finding("bridge", "unknown", kind=kind, fields=shown, fix=fix)

    def _play_together(
        self, alone: Sequence[Sequence[GameStep]], played: Sequence[Sequence[list[bytes]]]
    ) -> Finding | None:
        """Play the same episodes with one message per step, in reverse order."""
        games = [1, 0]
        rows = self._reset(games, [_SEEDS[game] for game in games])
        for step in range(min(map(len, played)) + 1):
            for row, game in zip(rows, games, strict=True):
                if part := _differ(row, alone[game][step]):
                    return self._report("together", game=game, part=part)
            if step < min(map(len, played)):
                rows = self._step(games, [played[game][step] for game in games])
        return None

    def _try_state(self) -> Finding | None:
        """Play some steps twice from a state in the middle of an episode."""
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
                return self._report("state", game=0, part=part)
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

    def _request_frame(self) -> None:
        """Request an image from a new process, whose handshake announced rendering."""
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
            self._unknown_fields.setdefault(self._kind, set()).update(strange)

    def _find_wrong(self, row: GameStep, game: int) -> Finding | None:
        if row.error:
            return self._report("game", error=row.error)
        space = self._hello.observation_space
        if space.contains(row.obs):
            return None
        return self._report("outside", game=game, problem=_describe_outside(space, row.obs))

    def _report(self, case: str, **values: Any) -> Finding:
        return make_finding("bridge", case, number=self._engine.num_messages, kind=self._kind, **values)

    def _draw(self, row: GameStep) -> list[bytes]:
        """Draw a random action, a legal one if there is a flat mask."""
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
    """Return the first part in which two results differ."""
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
            index = int(wrong[0])
            low, high = space.low.ravel()[index], space.high.ravel()[index]
            return f"number {index} is {obs.ravel()[index]:g}, the space is from {low:g} to {high:g}"
    shown = repr(obs)
    return f"{shown[:80]} is not in {space}"
