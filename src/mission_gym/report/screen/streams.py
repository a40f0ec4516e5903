"""Safe output: text without control characters, and streams that survive a closed reader. Standard library
only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Characters that a terminal obeys: control characters (C0 except tab and line break, C1), line separators and
# direction marks; and lone surrogates, which can't be encoded.
_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def strip_control(text: str) -> str:
    """The text without characters that a terminal obeys."""
    return _ACTIVE.sub("", text)


def say(message: str) -> None:
    """Print a message to stderr, unless it is empty."""
    if message:
        sys.stderr.write(f"{strip_control(message)}\n")


@contextmanager
def messages_to_stderr() -> Iterator[None]:
    """Send the output of the user's environment to stderr: stdout is for the result."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


class SafeStream:
    """A text stream that goes silent if its pipe or terminal is closed, or the disk is full."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115 - of a process without stdio
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._leave(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._leave(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _leave(self, error: OSError) -> None:
        self.failure = error
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # buffered text must not fail at exit
            os.close(null)
        except OSError:  # not a file, or no free descriptor
            return


@contextmanager
def patient_streams() -> Iterator[SafeStream]:
    """Make stdout, which is yielded, and stderr patient streams, also if they were closed."""
    # If one of the three was closed, the first file of a run would get its descriptor and the output.
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(null)
    before = sys.stdout, sys.stderr
    out, err = map(SafeStream, before)
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
