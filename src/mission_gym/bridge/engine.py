"""One process of games: started, asked message by message with a deadline, ended with all that it started.

In: a command. Out: an answer for each message, judged by `answers`. What goes wrong is a BridgeError that
names the message and the last words of the process; the engine is broken from then on. Several games are
stepped in one message: those that `announce` their actions wait for the first `step`.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from mission_gym.bridge.answers import (
    Fault,
    Hello,
    Row,
    read_frame,
    read_hello,
    read_rows,
    read_states,
)
from mission_gym.bridge.clients.mission_gym_bridge import HEADER, SOCKET, VERSION, pack, unpack
from mission_gym.bridge.errors import BridgeError, GameError
from mission_gym.bridge.waiting import Watch
from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.names import BRIDGE
from mission_gym.procs.children import describe_code
from mission_gym.procs.commands import end_command, read_cpu_s, start_command
from mission_gym.procs.pipes import make_pipes, wait_for_pipes

START_S = 270.0  # until the first answer, and for a reset; a worker waits 300 s
MAX_BYTES = 1 << 28  # of one answer
_PLACE = "{socket}"  # in a command: the path of a Unix socket, where the game does not use stdin and stdout
_TAIL_BYTES = 2000  # last words that a message tells
_OUTPUT_BYTES = 1 << 20  # of one process that are passed on
_GRACE_S = 1.0  # to end at the end of its input
_LOOK_S = 0.1
_T = TypeVar("_T")


class Engine:
    """A running process of games."""

    def __init__(
        self, command: str, kwargs: dict[str, Any], *, render: bool = False, timeout_s: float = 60.0
    ) -> None:
        self._name = f"{BRIDGE}{command}"
        self.timeout_s = timeout_s
        self.broken: BridgeError | None = None
        self.games: set[int] = set()  # that are taken
        self.num_messages = 0
        self.last_answer: dict[str, Any] = {}  # for who looks closer
        self._buffer = bytearray()
        self._watch = Watch()
        self._announced: dict[int, list[bytes]] = {}
        self._arrived: dict[int, Row] = {}
        self._tail: deque[bytes] = deque()
        self._link: socket.socket | None = None
        self._owner = os.getpid()
        self._start(_split(command))
        hello = {"type": "hello", "version": VERSION, "kwargs": kwargs, "render": render}
        self.hello: Hello = self._read(hello, read_hello, max(START_S, timeout_s))

    def _start(self, words: list[str]) -> None:
        if not any(_PLACE in word for word in words):
            self._process = start_command(words)
            self._watch_output(self._process.stderr)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._pipes = make_pipes(self._process.stdin.fileno(), self._process.stdout.fileno())
            return
        if not hasattr(socket, "AF_UNIX"):
            raise UsageError(f"{self._name}: this system has no Unix sockets; leave {_PLACE} out")
        folder = tempfile.mkdtemp(prefix="mission-gym-")  # the user's alone
        path = os.path.join(folder, "bridge")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(1)
                self._process = start_command(
                    [word.replace(_PLACE, path) for word in words],
                    folder=folder,
                    speaks=False,
                    variables={SOCKET: path},
                )
                self._watch_output(self._process.stdout)
                self._link = self._accept(listener)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._pipes = make_pipes(self._link.fileno(), self._link.fileno())

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + max(START_S, self.timeout_s)
        while time.monotonic() < deadline:
            is_gone = self._process.poll() is not None
            if select.select([listener], [], [], _LOOK_S)[0]:
                return listener.accept()[0]
            if is_gone:
                raise self._break(f"before it connected to its socket it {self._describe_end()}")
        raise self._break(f"did not connect to its socket for {max(START_S, self.timeout_s):.0f} s")

    def _watch_output(self, pipe: Any) -> None:
        self._drain = threading.Thread(
            target=_drain, args=(pipe, self._tail), name=f"output of {self._process.pid}", daemon=True
        )
        self._drain.start()
        # Also when nobody closes the environment; a forked copy of this process must not.
        self._finish = weakref.finalize(self, _finish, self._process, self._owner)

    @property
    def pid(self) -> int:
        """The process above the game's."""
        return self._process.pid

    def read_cpu_s(self) -> float:
        """CPU seconds of the game's process, and of those that it started."""
        return read_cpu_s(self._process)

    def reset(self, game: int, seed: int | None, options: dict[str, Any] | None) -> Row:
        """Begin an episode of a game."""
        self._forget(game)
        return _checked(self.reset_games([game], [seed], [options] if options else None)[0])

    def reset_games(
        self, games: list[int], seeds: Sequence[int | None], options: Sequence[Any] | None = None
    ) -> list[Row]:
        """Begin episodes of several games in one message."""
        message: dict[str, Any] = {"type": "reset", "games": games, "seeds": list(seeds)}
        if options:
            message["options"] = list(options)
        read = partial(read_rows, self.hello, count=len(games), steps=False)
        return self._read(message, read, max(START_S, self.timeout_s))

    def announce(self, game: int, action: list[bytes]) -> None:
        """Let a game be stepped with the next message, together with others that were announced."""
        self._announced[game] = action

    def has_stepped(self, game: int) -> bool:
        """Whether a game was stepped with another one, and what it showed is here."""
        return game in self._arrived

    def step(self, game: int) -> Row:
        """What a game shows that was announced: those that were are stepped now, unless they have been."""
        if game not in self._arrived:
            asked, self._announced = self._announced, {}
            rows = self.step_games(list(asked), list(asked.values()))
            self._arrived.update(zip(asked, rows, strict=True))
        return _checked(self._arrived.pop(game))

    def step_games(self, games: list[int], actions: Sequence[list[bytes]]) -> list[Row]:
        """Step several games in one message."""
        columns = [b"".join(leaf) for leaf in zip(*actions, strict=True)]
        message = {"type": "step", "games": games, "actions": columns}
        return self._read(message, partial(read_rows, self.hello, count=len(games), steps=True))

    def render(self, game: int) -> Array:
        """A picture of a game."""
        return self._read({"type": "render", "game": game}, read_frame)

    def get_state(self, game: int) -> Any:
        """A game's own state."""
        return self._read({"type": "get_state", "games": [game]}, lambda answer: read_states(answer, 1))[0]

    def set_state(self, game: int, state: Any) -> None:
        """Put a game into a state of its own."""
        self._forget(game)
        self._read({"type": "set_state", "games": [game], "states": [state]}, lambda answer: None)

    def leave(self, game: int) -> None:
        """Let another one have a game."""
        self._forget(game)
        self.games.discard(game)

    def _forget(self, game: int) -> None:
        self._announced.pop(game, None)
        self._arrived.pop(game, None)

    def _read(
        self, message: dict[str, Any], read: Callable[[dict[str, Any]], _T], timeout_s: float | None = None
    ) -> _T:
        """Ask, and judge the answer."""
        answer = self.ask(message, timeout_s)
        try:
            return read(answer)
        except Fault as fault:
            raise self._break(f"answered wrongly: {fault}", message) from None

    def ask(self, message: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and wait for its answer; one that tells of an error ends the process."""
        answer = self.exchange(message, timeout_s)
        if answer.get("error") is not None:
            raise self._break(f"answered with an error: {answer['error']}", message)
        return answer

    def exchange(self, message: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and wait for its answer, a map, which may tell of an error."""
        if self.broken is not None:
            raise BridgeError(str(self.broken)) from self.broken
        self._refuse_unasked()  # else it would be taken for the answer to come
        self.num_messages += 1
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        data = pack(message)
        try:
            if not self._pipes.write(HEADER.pack(len(data)) + data, limit_s):
                raise self._break(f"took no message for {limit_s:g} s", message)
        except OSError:
            raise self._break(self._describe_end(), message) from None
        body = self._take(message, deadline, limit_s)
        try:
            answer = unpack(body)
        except ValueError as error:
            raise self._break(
                f"answered with what is {error}; it begins with {body[:24]!r}", message
            ) from None
        if not isinstance(answer, dict):
            raise self._break(f"answered with a {type(answer).__name__}, not a map", message)
        self.last_answer = answer
        return answer

    def _refuse_unasked(self) -> None:
        if wait_for_pipes([self._pipes], 0.0, spin=False):
            with suppress(OSError):  # its end, which the message will meet
                chunk, _ = self._pipes.read()
                if chunk:
                    what = f"sent {len(chunk)} bytes more than one answer, behind message {self.num_messages}"
                    raise self._break(what)

    def _take(self, message: dict[str, Any], deadline: float, limit_s: float) -> bytes:
        """The bytes of one answer."""
        buffer, head = self._buffer, HEADER.size
        while True:
            length = HEADER.unpack_from(buffer)[0] if len(buffer) >= head else 0
            if length > MAX_BYTES:
                begin = bytes(buffer[:40])
                raise self._break(
                    f"answered with what is not a message; it begins with {begin!r}. Only messages may go to "
                    "stdout: print to stderr, or use a client library, which sees to it",
                    message,
                )
            if len(buffer) >= head + length and len(buffer) >= head:
                body = bytes(buffer[head : head + length])
                del buffer[: head + length]
                if buffer:
                    raise self._break(f"sent {len(buffer)} bytes more than one answer", message)
                return body
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                told = f", after {len(buffer)} bytes of it" if buffer else ""
                raise self._break(f"gave no answer for {limit_s:g} s{told}", message)
            if not self._watch.wait(self._pipes, left_s):
                continue
            try:
                chunk, ended = self._pipes.read()
            except OSError:  # a socket whose other end was killed
                chunk, ended = b"", True
            buffer += chunk
            if ended and not chunk:
                cut = f" in the middle of its answer, after {len(buffer)} bytes," if buffer else ""
                raise self._break(f"{self._describe_end()}{cut or ' before it answered'}", message)

    def _describe_end(self) -> str:
        try:
            return describe_code(self._process.wait(_GRACE_S))
        except subprocess.TimeoutExpired:
            return "closed its end"

    def _break(self, what: str, message: dict[str, Any] | None = None) -> BridgeError:
        """End the process, and keep why."""
        if message is not None:
            games = message.get("games", ())
            about = f" of {len(games)} games" if len(games) > 1 else ""
            what = f"{what} [message {self.num_messages}, {message['type']}{about}]"
        self.end(0.0)
        tail = b"".join(self._tail).decode("utf-8", "replace")[-_TAIL_BYTES:].rstrip()
        words = f"; its last words:\n{tail}" if tail else ""
        self.broken = BridgeError(f"{self._name}: the game's process {what}{words}")
        return self.broken

    def end(self, grace_s: float = _GRACE_S) -> bool:
        """End the process and all that it started; whether it ended by itself once its input did."""
        if self.broken is None:
            self.broken = BridgeError(f"{self._name}: its process was ended")
        if not self._finish.detach() or os.getpid() != self._owner:
            return False
        if self._link is not None:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)
        if hasattr(self, "_pipes"):
            self._pipes.close()
        by_itself = end_command(self._process, grace_s)
        self._drain.join(_GRACE_S)
        for pipe in (self._link, self._process.stdout, self._process.stderr):
            if pipe is not None and not self._drain.is_alive():
                pipe.close()
        return by_itself


def _finish(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        end_command(process, 0.0)


def _checked(row: Row) -> Row:
    if row.error:
        raise GameError(row.error)
    return row


def _drain(pipe: Any, tail: deque[bytes]) -> None:
    """Pass on what a process prints, up to a bound, and keep its last words."""
    left = _OUTPUT_BYTES
    with suppress(OSError, ValueError):
        while chunk := os.read(pipe.fileno(), 1 << 16):
            tail.append(chunk[-_TAIL_BYTES:])
            while len(tail) > 1 and sum(map(len, tail)) - len(tail[0]) > _TAIL_BYTES:
                tail.popleft()
            if left > 0:
                end = b"\n[further output of the game is dropped]\n" if len(chunk) >= left else b""
                with suppress(OSError):  # nobody reads here
                    os.write(2, chunk[:left] + end)
                left -= len(chunk)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command, posix=os.name != "nt")
    except ValueError as error:
        raise UsageError(f"{BRIDGE}{command} is not a command ({error})") from None
    if not words:
        raise UsageError(f"{BRIDGE} needs a command, such as {BRIDGE}'node game.cjs'")
    return words
