"""Stop requests by signal: Ctrl-C, SIGTERM, a closed terminal, and warnings of clusters (SIGUSR1, SIGUSR2).

The loop polls the first request; a second Ctrl-C ends at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from mission_gym.learner.loop import StopFlag

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
WARNINGS = ("SIGUSR1", "SIGUSR2")  # before a cluster takes the machine; without a handler they kill
_MAY_BE_IGNORED = ("SIGHUP", *WARNINGS)  # not on Windows


def raise_interrupt(stop: StopFlag) -> None:
    """Raise KeyboardInterrupt after Ctrl-C, and SystemExit with code 130 after another signal."""
    if stop.reason == "SIGINT":
        raise KeyboardInterrupt
    if stop.reason in STOP_SIGNALS:
        raise SystemExit(130)


@contextmanager
def stop_on_signals(stop: StopFlag, names: Sequence[str] = STOP_SIGNALS) -> Iterator[None]:
    """Set `stop.reason` on a signal; does nothing outside the main thread. An ignored signal, such as SIGHUP
    under nohup, stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.reason in STOP_SIGNALS and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.reason = signal.Signals(number).name

    numbers = {name: getattr(signal, name) for name in names if hasattr(signal, name)}
    previous = {
        number: signal.signal(number, on_signal)
        for name, number in numbers.items()
        if name not in _MAY_BE_IGNORED or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
