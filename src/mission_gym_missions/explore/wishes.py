"""What passes between the mission and who asks the site for it: wishes, answers, and the limits of both.

A wish is Get or Pause. Clients (`client.py`, `aio_client.py`) fulfil them and tell what came of it; they
decide nothing but whether an address may be connected to, and when a body is too large.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

AGENT = "mission-gym"
HEADERS = {"User-Agent": f"{AGENT}/1", "Accept": "text/html,*/*;q=0.5", "Accept-Encoding": "gzip"}
CHUNK = 65_536  # bytes that are read at once
UNREACHABLE, TIMEOUT, BROKEN, TOO_LARGE, REFUSED = "unreachable", "timeout", "broken", "too_large", "refused"


class Limits(NamedTuple):
    """What one request, and one fetch, may take."""

    timeout_s: float = 8.0
    patience_s: float = 15.0
    max_bytes: int = 1 << 20


class Get(NamedTuple):
    url: str


class Pause(NamedTuple):
    seconds: float


Wish = Get | Pause


class Answer(NamedTuple):
    """What came of a Get; failure: one of the names above, or empty."""

    status: int = 0
    body: bytes = b""
    content_type: str = ""
    location: str = ""
    retry_after: str = ""
    failure: str = ""
    took_s: float = 0.0


class BodyError(Exception):
    """A body that is refused; the text is the failure."""


class Body:
    """Gathers a body as it comes, unpacked, within its limit."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise BodyError(BROKEN)
        self._unpack = (
            zlib.decompressobj(47 if name != "deflate" else 15) if name not in ("", "identity") else None
        )
        self._max_bytes, self._num_packed = max_bytes, 0
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """BodyError if it is too large, packed or unpacked, or can't be unpacked."""
        self._num_packed += len(chunk)
        if self._unpack is not None:
            try:
                chunk = self._unpack.decompress(chunk, self._max_bytes + 1 - len(self._data))
            except zlib.error as error:
                raise BodyError(BROKEN) from error
        self._data += chunk
        if max(len(self._data), self._num_packed) > self._max_bytes:
            raise BodyError(TOO_LARGE)

    def finish(self) -> bytes:
        """The whole body; BodyError if it was cut off."""
        if self._unpack is not None and self._num_packed and not self._unpack.eof:
            raise BodyError(BROKEN)
        return bytes(self._data)


def read_answer(status: int, headers: Mapping[str, str], body: Body) -> Answer:
    """The answer whose body has come; BodyError if it was cut off."""
    kind, location, retry_after = (
        headers.get(name, "") for name in ("Content-Type", "Location", "Retry-After")
    )
    return Answer(status, body.finish(), kind, location, retry_after)
