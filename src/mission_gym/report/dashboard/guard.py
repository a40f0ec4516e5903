"""Who may ask: every request needs our Host, no foreign Origin, and the token of the printed address. Our own
files, which tell nothing of any run, are given without the token: the page that asks for it needs them.

The token comes once in the address and is then a cookie that scripts can't read. Pages may load from here
alone: the policy below forbids inline scripts and styles, frames and other hosts.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Callable
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mission_gym.store.files import user_folder

_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; object-src 'none'; frame-ancestors "
_ALONE = {"Content-Security-Policy": f"{_POLICY}'none'", "X-Frame-Options": "DENY"}
_FRAMED = {"Content-Security-Policy": f"{_POLICY}http://localhost:* http://127.0.0.1:*"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_METHODS = ("GET", "HEAD")
_COOKIE_S = 30 * 24 * 3600
Refuse = Callable[[Request, int, str], Response]


def keep_token() -> str:
    """This user's token: the same after a restart, so that open pages go on; a new one where it can't be
    kept."""
    path = user_folder("state") / "watch-token"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if path.is_symlink() or (os.name == "posix" and path.stat().st_mode & 0o077):
                path.unlink()  # others could read it
                return keep_token()
            token = path.read_text("ascii").strip()
            if len(token) >= 32 and token.isalnum():
                return token
            path.unlink()
            return keep_token()
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            token = secrets.token_hex(24)
            file.write(token)
        return token
    except (OSError, ValueError):
        return secrets.token_hex(24)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """The border of the server, as a layer around all of its addresses."""

    def __init__(
        self, app: ASGIApp, token: str, host: str, refuse: Refuse, *, in_notebook: bool = False
    ) -> None:
        """in_notebook: pages of this machine may show ours in a frame."""
        self._app, self._token = app, token
        self._headers = _HEADERS | (_FRAMED if in_notebook else _ALONE)
        self._refuse = refuse
        self._is_open = not is_loopback(host)
        self._names = {*_LOOPBACK, host.lower()}
        if self._is_open:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # web sockets and the rest are switched off

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._judge(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _judge(self, request: Request) -> Response | None:
        """The answer to a request that goes no further."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return self._refuse(request, 403, "this address was not asked for by its own name")
        origin = request.headers.get("origin")
        own_origins = (f"http://{host.lower()}", f"https://{host.lower()}")
        if origin is not None and origin.lower() not in own_origins:
            return self._refuse(request, 403, "another page asked for this one")
        if request.method not in _METHODS:
            return self._refuse(request, 405, "pages can be read, and nothing else")
        cookie = f"mission-gym-{request.url.port or 80}"  # browsers share cookies between ports
        given = request.query_params.get("token")
        if given is not None and self._is_token(given):
            left = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
            response = RedirectResponse(request.url.replace(query=urlencode(left)), 303)
            response.set_cookie(
                cookie, self._token, max_age=_COOKIE_S, path="/", httponly=True, samesite="lax"
            )
            return response
        is_own_file = request.scope["path"].startswith("/static/")
        if not is_own_file and not self._is_token(request.cookies.get(cookie, "")):
            return self._refuse(
                request, 401, "open the address that `mission-gym watch` printed, token included"
            )
        return None

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())

    def _is_ours(self, host: str) -> bool:
        """A page of another site that has its own name point here (DNS rebinding) sends that name. Ports may
        differ: `ssh -L` forwards from another one."""
        parts = _HOST.fullmatch(host)
        if parts is None or int(parts["port"] or 0) >= 1 << 16:
            return False
        name = parts["name"].strip("[]").lower()
        if name in self._names:
            return True
        if not self._is_open:
            return False
        try:
            ipaddress.ip_address(name)  # no one else can give us an address for a name
        except ValueError:
            return False
        return True
