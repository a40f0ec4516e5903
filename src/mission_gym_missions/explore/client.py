"""Performs HTTP requests with plain sockets, one after another: for the plain form of the mission."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Generator
from http.client import HTTPConnection, HTTPException, HTTPResponse, parse_headers
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mission_gym_missions.explore import fetch
from mission_gym_missions.explore.fetch import Body, BodyError, FetchLimits, Get, IoRequest, Response

_PORTS = {"http": 80, "https": 443}
Result = TypeVar("Result")


class _Deadline:
    """A mixin for sockets: no receive ends later than the deadline, however many there are."""

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
    """Skips interim responses such as 103, after which the final one would count for the next request."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 101 < found[1] < 200:
                return found
            parse_headers(self.fp)


class HttpClient:
    """One connection to one site, opened when needed and kept open."""

    def __init__(self, limits: FetchLimits, allow_loopback: bool) -> None:
        self._limits, self._allow_loopback = limits, allow_loopback
        self._connection: HTTPConnection | None = None
        self._tls: ssl.SSLContext | None = None
        self._has_head = False

    def run(self, requests: Generator[IoRequest, Response | None, Result]) -> Result:
        """Perform the requests of a generator until it returns."""
        response: Response | None = None
        try:
            while True:
                request = requests.send(response)
                if isinstance(request, Get):
                    response = self.get(request.url)
                else:
                    time.sleep(request.seconds)
                    response = None
        except StopIteration as done:
            result: Result = done.value
            return result

    def get(self, url: str) -> Response:
        """Request an address. Failures are part of the response and never raised."""
        begun = time.monotonic()
        self._has_head = False
        response = self._get(url, begun + self._limits.timeout_s)
        if response.failure:
            self.close()
        return response._replace(took_s=time.monotonic() - begun, has_head=self._has_head)

    def _get(self, url: str, deadline: float) -> Response:
        parts = urlsplit(url)
        if self._connection is None:
            try:
                self._connection = self._open(parts.scheme, parts.hostname or "", parts.port, deadline)
            except PermissionError:
                return Response(failure=fetch.REFUSED)
            except (OSError, ssl.SSLError, UnicodeError):
                return Response(failure=fetch.UNREACHABLE)
        connection: Any = self._connection
        connection.sock.deadline = deadline
        try:
            connection.sock.settimeout(self._limits.timeout_s)
            connection.request(
                "GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=fetch.HEADERS
            )
            response = connection.getresponse()
            self._has_head = True
            body = Body(response.headers.get("Content-Encoding", ""), self._limits.max_bytes)
            while chunk := response.read(fetch.CHUNK):
                body.add(chunk)
            if response.length:  # the body ended too early
                return Response(failure=fetch.BROKEN)
            result = fetch.make_response(response.status, response.headers, body)
        except TimeoutError:
            return Response(failure=fetch.TIMEOUT)
        except BodyError as error:
            return Response(failure=str(error))
        except (OSError, HTTPException, ValueError):  # ValueError: a malformed header or chunk
            return Response(failure=fetch.BROKEN)
        if response.will_close:
            self.close()
        return result

    def _open(self, scheme: str, host: str, port: int | None, deadline: float) -> HTTPConnection:
        """Connect to the first address of a host that answers; PermissionError if all are refused."""
        port = port or _PORTS[scheme]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        allowed = [info for info in found if fetch.may_connect(str(info[4][0]), self._allow_loopback)]
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
            connection.default_port = _PORTS[scheme]  # keeps it out of the Host header
            connection.sock = wrapped
            connection.response_class = _Response
            connection.auto_open = 0  # it would reconnect without the address check
            return connection
        raise failure or OSError("no address")

    def _secure(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.sslsocket_class = _TlsSocket
        return self._tls.wrap_socket(sock, server_hostname=host)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
