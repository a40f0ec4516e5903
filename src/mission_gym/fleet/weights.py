"""What running jobs take of the memory of machine and GPU, and the most that a run of each variant took."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil

_LOOK_S = 5.0  # between looks at one job


class Weight(NamedTuple):
    """Bytes that a job has now."""

    memory_bytes: int = 0
    vram_bytes: int = 0


class Weights:
    """Looks at jobs now and then; `memory` and `vram` are the most of a run, by variant."""

    def __init__(self) -> None:
        self.memory: dict[str, int] = {}
        self.vram: dict[str, int] = {}
        self._seen: dict[str, tuple[float, Weight]] = {}

    def look(
        self,
        key: str,
        variant: str,
        pid: int | None,
        now: float,
        *,
        is_running: bool,
        vram: Mapping[int, int] | None = None,
    ) -> Weight:
        """What a job has. is_running: before it trains it says nothing about what the run will take. vram: of
        processes by their ids."""
        looked, weight = self._seen.get(key, (-_LOOK_S, Weight()))
        if pid is not None and now - looked >= _LOOK_S:
            weight = weigh(pid, vram or {})
            self._seen[key] = (now, weight)
            if is_running:
                self.memory[variant] = max(weight.memory_bytes, self.memory.get(variant, 0))
                if weight.vram_bytes:  # else it is on no GPU yet, or the driver does not tell
                    self.vram[variant] = max(weight.vram_bytes, self.vram.get(variant, 0))
        return weight

    def forget(self, key: str) -> None:
        """A job has ended."""
        self._seen.pop(key, None)


def weigh(pid: int, vram: Mapping[int, int]) -> Weight:
    """What a process and all below it have, with its part of what it shares; nothing if it has just ended."""
    memory = on_gpu = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            on_gpu += vram.get(each.pid, 0)
            with suppress(psutil.Error):
                info = each.memory_full_info()
                memory += int(getattr(info, "pss", info.rss))
    return Weight(memory, on_gpu)
