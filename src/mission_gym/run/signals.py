"""Ctrl-C, SIGTERM and a terminal that closes as stop requests: the first is polled, a second Ctrl-C ends at
once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mission_gym.pipeline.loop import StopFlag

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def stop_on_signals(stop: StopFlag) -> Iterator[None]:
    """Turn signals into `stop.reason`; outside the main thread nothing is changed. A SIGHUP that is ignored,
    as under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.reason in STOP_SIGNALS and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.reason = signal.Signals(number).name

    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
