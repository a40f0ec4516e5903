"""Fulfils wishes with plain sockets, one after the other: for the plain form of the mission."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Generator
from http.client import HTTPConnection, HTTPException, HTTPResponse, parse_headers
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mission_gym_missions.explore import wishes
from mission_gym_missions.explore.addresses import may_connect
from mission_gym_missions.explore.wishes import Answer, Body, BodyError, Get, Limits, Wish, read_answer

_PORTS = {"http": 80, "https": 443}
Result = TypeVar("Result")


class _Deadline:
    """For sockets: no single wait ends later than the deadline, however many there are."""

    deadline: float = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.settimeout(left_s)  # type: ignore[attr-defined]
        count: int = super().recv_into(*args, **kwargs)  # type: ignore[misc]
        return count


class _Socket(_Deadline, socket.socket):
    pass


class _TlsSocket(_Deadline, ssl.SSLSocket):
    pass


class _Response(HTTPResponse):
    """Leaves out answers that others follow, such as 103: the one after it would be read as that of the next
    request."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 101 < found[1] < 200:
                return found
            parse_headers(self.fp)


class Client:
    """One connection to one site, opened when needed and kept open."""

    def __init__(self, limits: Limits, allow_loopback: bool) -> None:
        self._limits, self._allow_loopback = limits, allow_loopback
        self._connection: HTTPConnection | None = None
        self._tls: ssl.SSLContext | None = None

    def fulfil(self, asking: Generator[Wish, Answer | None, Result]) -> Result:
        """Run a generator of wishes to its end."""
        answer: Answer | None = None
        try:
            while True:
                wish = asking.send(answer)
                if isinstance(wish, Get):
                    answer = self.get(wish.url)
                else:
                    time.sleep(wish.seconds)
                    answer = None
        except StopIteration as done:
            result: Result = done.value
            return result

    def get(self, url: str) -> Answer:
        """Ask for an address; what goes wrong is told, never raised."""
        begun = time.monotonic()
        answer = self._get(url, begun + self._limits.timeout_s)
        if answer.failure:
            self.close()
        return answer._replace(took_s=time.monotonic() - begun)

    def _get(self, url: str, deadline: float) -> Answer:
        parts = urlsplit(url)
        if self._connection is None:
            try:
                self._connection = self._open(parts.scheme, parts.hostname or "", parts.port, deadline)
            except PermissionError:
                return Answer(failure=wishes.REFUSED)
            except (OSError, ssl.SSLError, UnicodeError):
                return Answer(failure=wishes.UNREACHABLE)
        connection: Any = self._connection
        connection.sock.deadline = deadline
        try:
            connection.sock.settimeout(self._limits.timeout_s)
            connection.request(
                "GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=wishes.HEADERS
            )
            response = connection.getresponse()
            body = Body(response.headers.get("Content-Encoding", ""), self._limits.max_bytes)
            while chunk := response.read(wishes.CHUNK):
                body.add(chunk)
            if response.length:  # it ended too early
                return Answer(failure=wishes.BROKEN)
            answer = read_answer(response.status, response.headers, body)
        except TimeoutError:
            return Answer(failure=wishes.TIMEOUT)
        except BodyError as error:
            return Answer(failure=str(error))
        except (OSError, HTTPException, ValueError):  # ValueError: a header or a chunk that can't be read
            return Answer(failure=wishes.BROKEN)
        if response.will_close:
            self.close()
        return answer

    def _open(self, scheme: str, host: str, port: int | None, deadline: float) -> HTTPConnection:
        """Connect to the first address of a host that answers; PermissionError if none may be."""
        port = port or _PORTS[scheme]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        allowed = [info for info in found if may_connect(str(info[4][0]), self._allow_loopback)]
        if not allowed:
            raise PermissionError
        failure: OSError | None = None
        for family, kind, protocol, _, address in allowed:
            sock = _Socket(family, kind, protocol)
            try:
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wrapped: Any = self._secure(sock, host) if scheme == "https" else sock
            except OSError as error:
                sock.close()
                failure = error
                continue
            connection = HTTPConnection(host, port)
            connection.default_port = _PORTS[scheme]  # else the Host header would name it
            connection.sock = wrapped
            connection.response_class = _Response
            connection.auto_open = 0  # it would connect by itself, to whatever the name means then
            return connection
        raise failure or OSError("no address")

    def _secure(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.sslsocket_class = _TlsSocket
        return self._tls.wrap_socket(sock, server_hostname=host)

    def close(self) -> None:
        """Let the connection go; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
