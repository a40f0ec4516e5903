"""Ctrl-C and SIGTERM as stop requests: the first is polled, a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mission_gym.pipeline.loop import StopFlag


@contextmanager
def stop_on_signals(stop: StopFlag) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `stop.reason`; outside the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.reason in ("SIGINT", "SIGTERM") and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.reason = signal.Signals(number).name

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
