"""Finds environments that hold up an event loop while the processor idles: `time.sleep`, `requests`.

In: the gauges, in which every turn of an environment at the loop is counted. A blocked loop shows as turns
that take longer than they compute. The environment with the longest turns is told, once, in the process's
output, with the line that it stood at; the gauge BLOCKED_NS tells the parent.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import PurePath

from mission_gym.env import event_loop
from mission_gym.env.pace import read_queued_s
from mission_gym.vector.gauges import BLOCKED_NS, HELD_NS, HELD_SINCE

SHARE = 0.3  # of the time, held without computing
_SAMPLE_S, _NUM_SAMPLES = 0.001, 3000
_TURNS = event_loop.__file__  # whose lines give an environment its turns


class LoopWatch:
    """Looks from inside the loop's thread."""

    def __init__(self, env_ids: Sequence[int], gauges: Sequence[memoryview]) -> None:
        self._env_ids, self._gauges = env_ids, gauges
        self._held_ns = [row[HELD_NS] for row in gauges]
        self._wall_s, self._busy_s = time.monotonic(), _read_busy_s()
        self._has_told = False

    def look(self) -> None:
        """Judge the time since the last look."""
        wall_s, busy_s = time.monotonic(), _read_busy_s()
        held_ns = [row[HELD_NS] for row in self._gauges]
        turns = [now - before for now, before in zip(held_ns, self._held_ns, strict=True)]
        idle_s = 1e-9 * sum(turns) - (busy_s - self._busy_s)
        if idle_s > SHARE * (wall_s - self._wall_s):
            worst = max(range(len(turns)), key=turns.__getitem__)
            self._gauges[worst][BLOCKED_NS] += int(1e9 * idle_s)
            if not self._has_told:
                self._has_told = True
                self._tell(worst, idle_s / (wall_s - self._wall_s))
        self._held_ns, self._wall_s, self._busy_s = held_ns, wall_s, busy_s

    def _tell(self, worst: int, share: float) -> None:
        text = (
            f"environment {self._env_ids[worst]} blocks the event loop, on which all others wait: "
            f"{100 * share:.0f} % of the time were turns that did not compute"
        )
        loop_thread = threading.get_ident()
        threading.Thread(target=self._tell_place, args=(text, loop_thread), daemon=True).start()

    def _tell_place(self, text: str, loop_thread: int) -> None:
        """Wait for the next turn that takes long, to say where it is."""
        for _ in range(_NUM_SAMPLES):
            time.sleep(_SAMPLE_S)
            since = max(row[HELD_SINCE] for row in self._gauges)
            if since and time.monotonic_ns() - since > 1e9 * _SAMPLE_S:
                text += find_blocking_line(loop_thread)
                break
        sys.stderr.write(f"{text}; await what it waits for, or use --vector threads\n")
        sys.stderr.flush()


def find_blocking_line(thread: int) -> str:
    """The line of an environment that a thread stands at: the innermost one of the file in which its turn
    began."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame) if frame is not None else []
    begun = [place for place, entry in enumerate(stack) if entry.filename == _TURNS]
    inside = stack[begun[-1] + 1 :] if begun else []
    own = [entry for entry in inside if entry.filename == inside[0].filename]
    if not own:
        return ""
    return f", at {PurePath(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}: {own[-1].line}"


def _read_busy_s() -> float:
    """Seconds that this process computed, or that this thread was ready to and had no core."""
    return time.process_time() + read_queued_s(f"self/task/{threading.get_native_id()}")
