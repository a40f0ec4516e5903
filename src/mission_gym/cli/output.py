"""What a command says: one JSON document or a view on stdout, notes on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import RenderableType

from mission_gym.report.screen.live import make_console
from mission_gym.store.files import to_json


def show(document: Any, *, as_json: bool, view: Callable[[Any], RenderableType]) -> None:
    """Print a document as JSON, or as `view` makes it."""
    if as_json:
        print(json.dumps(to_json(document), indent=2, allow_nan=False), flush=True)
    else:
        make_console().print(view(document))


@contextmanager
def messages_to_stderr() -> Iterator[None]:
    """Whatever the user's environment prints in the block goes to stderr: stdout is for the result."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
