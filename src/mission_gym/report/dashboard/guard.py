"""Which requests are allowed: those with our Host, no foreign Origin, and the token of the printed address.
Static files contain nothing about runs and need no token: the page that asks for the token needs them.

The token is in the address once. Then a cookie that scripts can't read has a secret of this address. Pages
load only from this server: the policy below forbids inline scripts and styles, frames and other hosts.
"""

from __future__ import annotations

import hmac
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

from mission_gym.errors import DiskError
from mission_gym.store.files import make_private, user_folder

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
    """This user's token, the same after a restart, so that open pages still work; a new one if it can't be
    stored."""
    try:
        path = user_folder("state") / "watch-token"
        make_private(path.parent)
        is_private = path.is_file() and not path.is_symlink()
        if os.name == "posix":
            is_private = is_private and not path.stat().st_mode & 0o077
        token = path.read_text("ascii").strip() if is_private else ""
        if len(token) < 32 or not token.isalnum():
            token = secrets.token_hex(24)
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(token)
        return token
    except (OSError, ValueError, DiskError):
        return secrets.token_hex(24)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_secret(token: str, cookie: str) -> str:
    """The value of a cookie, from which the token can't be computed. Browsers send cookies to every port of a
    host, so other servers see it, and it must be of no use for our servers on other ports."""
    return hmac.new(token.encode(), cookie.encode(), "sha256").hexdigest()


def _are_equal(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode(), secret.encode())


class Guard:
    """Checks all requests before the application gets them."""

    def __init__(
        self, app: ASGIApp, token: str, host: str, refuse: Refuse, *, in_notebook: bool = False
    ) -> None:
        """in_notebook: pages of this machine may show the dashboard in a frame."""
        self._app, self._token = app, token
        self._headers = _HEADERS | (_FRAMED if in_notebook else _ALONE)
        self._refuse = refuse
        self._is_open = not is_loopback(host)
        self._names = {*_LOOPBACK, host.lower()}
        if self._is_open:
            self._names.add(socket.gethostname().lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # web sockets are switched off

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._check(Request(scope)) or self._app
        await answer(scope, receive, send_guarded)

    def _check(self, request: Request) -> Response | None:
        """The response to a refused request, or a redirect that sets the cookie; None for an allowed
        request."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            return self._refuse(request, 403, "the request has an unknown host name")
        origin = request.headers.get("origin")
        own_origins = (f"http://{host.lower()}", f"https://{host.lower()}")
        if origin is not None and origin.lower() not in own_origins:
            return self._refuse(request, 403, "the request came from another site")
        if request.method not in _METHODS:
            return self._refuse(request, 405, "this server only answers GET requests")
        cookie = f"mission-gym-{request.url.port or 80}"
        secret = make_secret(self._token, cookie)
        given = request.query_params.get("token")
        if given is not None and _are_equal(given, self._token):
            left = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
            response = RedirectResponse(request.url.replace(query=urlencode(left)), 303)
            response.set_cookie(cookie, secret, max_age=_COOKIE_S, path="/", httponly=True, samesite="lax")
            return response
        is_own_file = request.scope["path"].startswith("/static/")
        if not is_own_file and not _are_equal(request.cookies.get(cookie, ""), secret):
            return self._refuse(
                request, 401, "open the address that `mission-gym watch` printed, including its token"
            )
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this server. Another site whose name points here (DNS rebinding) sends
        that name. The port may differ, as with `ssh -L`."""
        parts = _HOST.fullmatch(host)
        if parts is None or int(parts["port"] or 0) >= 1 << 16:
            return False
        name = parts["name"].strip("[]").lower()
        if name in self._names:
            return True
        if not self._is_open:
            return False
        try:
            ipaddress.ip_address(name)  # an address can't be rebound
        except ValueError:
            return False
        return True
