"""One process of games: starts it, exchanges messages with a deadline, ends it with all its descendants.

In: a command. Out: an answer to each message, validated by `answers`. A failure is a BridgeError that names
the message and the last output of the process; the engine can't be used afterwards. Several games are stepped
with one message: games that `announce` their actions wait for the first `step`.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from mission_gym.bridge.answers import (
    BridgeError,
    GameError,
    GameStep,
    Hello,
    ProtocolError,
    read_frame,
    read_games,
    read_hello,
    read_states,
)
from mission_gym.bridge.clients.mission_gym_bridge import HEADER, SOCKET, VERSION, pack, unpack
from mission_gym.data import Array
from mission_gym.errors import UsageError
from mission_gym.names import BRIDGE
from mission_gym.procs.children import OutputReader, ProcessTree, describe_code
from mission_gym.procs.pipes import Pipes, PolledPipes, make_pipes, wait_for_pipes
from mission_gym.procs.start import end_process, start_command

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

START_S = 270.0  # until the first answer, and for a reset; a worker waits 300 s
_MAX_BYTES = 1 << 28  # of one answer; more is not a message
_SPARE_BYTES = 1 << 24  # of an answer, in addition to its observations
_FRAME_BYTES = 1 << 25  # of an image; one of 4K has 24 MiB
_SOCKET_WORD = "{socket}"  # in a command: replaced by the path of a Unix socket, instead of stdin and stdout
_TAIL_BYTES = 2000  # of output in a message
_OUTPUT_BYTES = 1 << 20  # of each process that are passed on
_GRACE_S = 1.0  # to end after its input was closed
_POLL_S = 0.1
_SOON_S = 2e-3  # sleeping costs little for longer waits
_RESTS = (2, 1000)  # messages without spinning after the core was lost, doubled each time in a row
_THREAD = getattr(resource, "RUSAGE_THREAD", None)  # only on Linux
_T = TypeVar("_T")


class Engine:
    """A running process of games."""

    def __init__(
        self, command: str, kwargs: dict[str, Any], *, render: bool = False, timeout_s: float = 60.0
    ) -> None:
        self._name = f"{BRIDGE}{command}"
        self.timeout_s = timeout_s
        self.broken: BridgeError | None = None
        self.games: set[int] = set()  # in use
        self.num_messages = 0
        self.last_answer: dict[str, Any] = {}  # for the conformance check
        self._buffer = bytearray()
        self._wait = AdaptiveWait()
        self._announced: dict[int, list[bytes]] = {}
        self._arrived: dict[int, GameStep] = {}
        self._game_bytes = 0  # of one game's observation
        self._link: socket.socket | None = None
        self._owner = os.getpid()
        self._start(_split(command))
        hello = {"type": "hello", "version": VERSION, "kwargs": kwargs, "render": render}
        self.hello: Hello = self._read(hello, read_hello, max(START_S, timeout_s))
        self._game_bytes = self.hello.observations.size_bytes

    def _start(self, words: list[str]) -> None:
        if not any(_SOCKET_WORD in word for word in words):
            self._process = start_command(words)
            self._watch_output(self._process.stderr)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._pipes = make_pipes(self._process.stdin.fileno(), self._process.stdout.fileno())
            return
        if not hasattr(socket, "AF_UNIX"):
            raise UsageError(f"{self._name}: this system has no Unix sockets; leave {_SOCKET_WORD} out")
        folder = tempfile.mkdtemp(prefix="mission-gym-")  # accessible to this user only
        path = os.path.join(folder, "bridge")
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen(1)
                self._process = start_command(
                    [word.replace(_SOCKET_WORD, path) for word in words],
                    folder=folder,
                    separate_stderr=False,
                    variables={SOCKET: path},
                )
                self._watch_output(self._process.stdout)
                self._link = self._accept(listener)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._pipes = make_pipes(self._link.fileno(), self._link.fileno())

    def _accept(self, listener: socket.socket) -> socket.socket:
        limit_s = max(START_S, self.timeout_s)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            is_gone = self._process.poll() is not None
            if select.select([listener], [], [], _POLL_S)[0]:
                return listener.accept()[0]
            if is_gone:
                raise self._break(f"{self._describe_end()} before it connected to its socket")
        raise self._break(f"did not connect to its socket for {limit_s:.0f} s")

    def _watch_output(self, pipe: Any) -> None:
        self._output = OutputReader(pipe, self._process.pid, _BoundedEcho(), _TAIL_BYTES)
        # Also if the environment is never closed; a forked copy of this process must not end the game.
        self._finish = weakref.finalize(self, _finish, self._process, self._owner)

    @property
    def pid(self) -> int:
        """The subreaper above the game's process."""
        return self._process.pid

    def read_cpu_s(self) -> float:
        """Return the CPU seconds of the game's process and its descendants."""
        return ProcessTree(self._process.pid).read_cpu_s()

    def reset(self, game: int, seed: int | None, options: dict[str, Any] | None) -> GameStep:
        """Start an episode of a game."""
        self._forget(game)
        return _checked(self.reset_games([game], [seed], [options] if options else None)[0])

    def reset_games(
        self, games: list[int], seeds: Sequence[int | None], options: Sequence[Any] | None = None
    ) -> list[GameStep]:
        """Start episodes of several games with one message."""
        message: dict[str, Any] = {"type": "reset", "games": games, "seeds": list(seeds)}
        if options:
            message["options"] = list(options)
        read = partial(read_games, self.hello, count=len(games), steps=False)
        return self._read(message, read, max(START_S, self.timeout_s))

    def announce(self, game: int, action: list[bytes]) -> None:
        """Step a game with the next message, together with the other games that were announced."""
        self._announced[game] = action

    def has_stepped(self, game: int) -> bool:
        """Return whether a game was stepped together with another one, and its result is here."""
        return game in self._arrived

    def step(self, game: int) -> GameStep:
        """Return the result of an announced game; steps all announced games first, if it has none yet."""
        if game not in self._arrived:
            announced, self._announced = self._announced, {}
            results = self.step_games(list(announced), list(announced.values()))
            self._arrived.update(zip(announced, results, strict=True))
        return _checked(self._arrived.pop(game))

    def step_games(self, games: list[int], actions: Sequence[list[bytes]]) -> list[GameStep]:
        """Step several games with one message."""
        columns = [b"".join(leaf) for leaf in zip(*actions, strict=True)]
        message = {"type": "step", "games": games, "actions": columns}
        return self._read(message, partial(read_games, self.hello, count=len(games), steps=True))

    def render(self, game: int) -> Array:
        """Return an image of a game."""
        return self._read({"type": "render", "game": game}, read_frame)

    def get_state(self, game: int) -> Any:
        """Return the state of a game."""
        return self._read({"type": "get_state", "games": [game]}, lambda answer: read_states(answer, 1))[0]

    def set_state(self, game: int, state: Any) -> None:
        """Restore the state of a game."""
        self._forget(game)
        self._read({"type": "set_state", "games": [game], "states": [state]}, lambda answer: None)

    def leave(self, game: int) -> None:
        """Make a game available to another environment."""
        self._forget(game)
        self.games.discard(game)

    def _forget(self, game: int) -> None:
        self._announced.pop(game, None)
        self._arrived.pop(game, None)

    def _read(
        self, message: dict[str, Any], read: Callable[[dict[str, Any]], _T], timeout_s: float | None = None
    ) -> _T:
        """Send a message and validate its answer; an error in the answer ends the process."""
        answer = self.exchange(message, timeout_s)
        if answer.get("error") is not None:
            raise self._break(f"answered with an error: {answer['error']}", message)
        try:
            return read(answer)
        except ProtocolError as error:
            raise self._break(f"answered wrongly: {error}", message) from None

    def exchange(self, message: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and return its answer, a map, which may report an error."""
        if self.broken is not None:
            raise BridgeError(str(self.broken)) from self.broken
        self._refuse_unrequested()  # it would be taken for the answer
        self.num_messages += 1
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        data = pack(message)
        try:
            if not self._pipes.write(HEADER.pack(len(data)) + data, limit_s):
                raise self._break(f"accepted no message for {limit_s:g} s", message)
        except OSError:
            raise self._break(self._describe_end(), message) from None
        body = self._take(message, deadline, limit_s)
        try:
            answer = unpack(body)
        except ValueError as error:
            what = f"sent an answer that is {error}; it starts with {body[:24]!r}"
            raise self._break(what, message) from None
        if not isinstance(answer, dict):
            raise self._break(f"answered with a {type(answer).__name__}, not a map", message)
        self.last_answer = answer
        return answer

    def _refuse_unrequested(self) -> None:
        if wait_for_pipes([self._pipes], 0.0, spin=False):
            with suppress(OSError):  # the process has ended, which sending the message reports
                chunk, _ = self._pipes.read()
                if chunk:
                    what = f"sent {len(chunk)} bytes more than one answer, after message {self.num_messages}"
                    raise self._break(what)

    def _take(self, message: dict[str, Any], deadline: float, limit_s: float) -> bytes:
        """Return the bytes of one answer."""
        buffer, head, most = self._buffer, HEADER.size, self._limit(message)
        while True:
            length = HEADER.unpack_from(buffer)[0] if len(buffer) >= head else 0
            if most < length <= _MAX_BYTES:
                what = f"sent an answer of {length} bytes, and its spaces allow {most}"
                raise self._break(what, message)
            if length > _MAX_BYTES:
                what = f"sent something that is not a message; it starts with {bytes(buffer[:40])!r}. Only "
                what += "messages may go to stdout: print to stderr, or use a client library, which does so"
                raise self._break(what, message)
            if len(buffer) >= head + length and len(buffer) >= head:
                body = bytes(buffer[head : head + length])
                del buffer[: head + length]
                if buffer:
                    raise self._break(f"sent {len(buffer)} bytes more than one answer", message)
                return body
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                part = f", only {len(buffer)} bytes of it" if buffer else ""
                raise self._break(f"sent no answer for {limit_s:g} s{part}", message)
            if not self._wait.wait(self._pipes, left_s):
                continue
            try:
                chunk, ended = self._pipes.read()
            except OSError:  # a socket whose other end was killed
                chunk, ended = b"", True
            buffer += chunk
            if ended and not chunk:
                when = f"after {len(buffer)} bytes of its answer" if buffer else "before it answered"
                raise self._break(f"{self._describe_end()} {when}", message)

    def _limit(self, message: dict[str, Any]) -> int:
        """The most bytes of an answer. Reading one may take many times its size."""
        spare = _FRAME_BYTES if message["type"] == "render" else _SPARE_BYTES
        return min(spare + len(message.get("games", ())) * self._game_bytes, _MAX_BYTES)

    def _describe_end(self) -> str:
        try:
            return describe_code(self._process.wait(_GRACE_S))
        except subprocess.TimeoutExpired:
            return "closed its end"

    def _break(self, what: str, message: dict[str, Any] | None = None) -> BridgeError:
        """End the process and return the error, which all later calls raise."""
        if message is not None:
            games = message.get("games", ())
            about = f" of {len(games)} games" if len(games) > 1 else ""
            what = f"{what} [message {self.num_messages}, {message['type']}{about}]"
        self.end(0.0)
        tail = self._output.tail().rstrip()
        output = f"; its last output:\n{tail}" if tail else ""
        self.broken = BridgeError(f"{self._name}: the game's process {what}{output}")
        return self.broken

    def end(self, grace_s: float = _GRACE_S) -> bool:
        """End the process and its descendants; return whether it ended by itself when its input closed."""
        if self.broken is None:
            self.broken = BridgeError(f"{self._name}: its process was ended")
        if not self._finish.detach() or os.getpid() != self._owner:
            return False
        if self._link is not None:
            with suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)
        if hasattr(self, "_pipes"):
            self._pipes.close()
        ended_by_itself = end_process(self._process, grace_s)
        self._output.close(_GRACE_S)
        for pipe in (self._link, self._process.stdout, self._process.stderr):
            if pipe is not None and pipe is not self._output.pipe:
                pipe.close()
        return ended_by_itself


class AdaptiveWait:
    """Waits for answers: spins if they come soon and no other thread wants the core, and sleeps otherwise.

    A process that slept continues late and with cold caches.
    """

    def __init__(self) -> None:
        self._left = 0  # messages until it spins again
        self._rest = _RESTS[0]

    def wait(self, pipes: Pipes, timeout_s: float) -> bool:
        """Wait until there is something to read; False after the timeout."""
        start = time.perf_counter()
        if self._left > 0 or _THREAD is None or not isinstance(pipes, PolledPipes):
            self._left -= 1
        else:
            before = _count_preemptions()
            came = self._spin(pipes, start + min(_SOON_S, timeout_s))
            least, most = _RESTS
            if _count_preemptions() > before:
                self._left, self._rest = self._rest, min(2 * self._rest, most)
            else:
                self._rest = max(self._rest // 2, least)
            if came:
                return True
        came = bool(wait_for_pipes([pipes], max(timeout_s - (time.perf_counter() - start), 0.0), spin=False))
        if time.perf_counter() - start > _SOON_S:
            self._left = max(self._left, 1)
        return came

    def _spin(self, pipes: PolledPipes, until: float) -> bool:
        while time.perf_counter() < until:
            if wait_for_pipes([pipes], 0.0, spin=False):
                return True
        return False


def _count_preemptions() -> int:
    """Return how often this thread lost its core to another one."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nivcsw


def _finish(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        end_process(process, 0.0)


def _checked(result: GameStep) -> GameStep:
    if result.error:
        raise GameError(result.error)
    return result


class _BoundedEcho:
    """Passes output on to our stderr, up to a limit."""

    def __init__(self) -> None:
        self._left = _OUTPUT_BYTES

    def __call__(self, chunk: bytes) -> None:
        if self._left > 0:
            end = b"\n[further output of the game is dropped]\n" if len(chunk) >= self._left else b""
            with suppress(OSError):  # our stderr is closed
                os.write(2, chunk[: self._left] + end)
            self._left -= len(chunk)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command, posix=os.name != "nt")
    except ValueError as error:
        raise UsageError(f"{BRIDGE}{command} is not a command ({error})") from None
    if not words:
        raise UsageError(f"{BRIDGE} needs a command, such as {BRIDGE}'node game.cjs'")
    return words
