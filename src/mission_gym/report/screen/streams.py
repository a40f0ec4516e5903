"""Streams that nothing shown can harm, and that can't harm who shows. Standard library only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# What moves the cursor, colours or reorders a terminal's text: control characters (C0 but for tab and line
# break, C1), separators, marks of direction; and halves of characters, which can't be encoded.
_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def inert(text: str) -> str:
    """A text without what a terminal would obey."""
    return _ACTIVE.sub("", text)


def say(message: str) -> None:
    """Say something aside, to the user alone."""
    if message:
        sys.stderr.write(f"{inert(message)}\n")


class PatientStream:
    """A text stream whose reader may leave: a closed pipe or terminal and a full disk make it quiet."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115 - of a process without one
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
            os.dup2(null, self._stream.fileno())  # what is still buffered must not fail at exit
            os.close(null)
        except OSError:  # not a file, or no descriptor is left
            return


@contextmanager
def patient_streams() -> Iterator[PatientStream]:
    """stdout, which is given, and stderr are patient in the block, and there even where they were closed."""
    # Where one of the three was closed, the first file of a run would take its place, and what is printed.
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(null)
    before = sys.stdout, sys.stderr
    out, err = map(PatientStream, before)
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
