"""Reports the failures of environments while a run trains: at once, and counted by kind.

The first failure of a kind writes its traceback to env-output.txt and a repro bundle. The first, the tenth,
the hundredth and so on are `failure` events, which the terminal shows as warnings.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mission_gym.errors import MissionGymError
from mission_gym.procs import BoundedLog
from mission_gym.run.recorder import Recorder

HUNG = "hung"  # the kind of a call that did not return


@dataclass(slots=True)
class FailureKind:
    """Failures with the same call, type of exception and line."""

    text: str  # of the first one: KeyError: 'price' at shop.py:41
    place: str  # of the first one: environment 3, seed 17, step 41
    env_ids: set[int]  # environments that failed
    is_hung: bool
    repro: Path | None
    count: int = 0


class FailureLog:
    """The failures of one process's work on a run.

    save: writes the repro bundle of an error, None if there is none. get_step: the step of the run. `add` may
    be called in any thread; the others belong to the thread of the session.
    """

    def __init__(
        self,
        recorder: Recorder,
        output: BoundedLog,
        save: Callable[[MissionGymError], Path | None],
        get_step: Callable[[], int],
    ) -> None:
        self._recorder, self._output, self._save, self._get_step = recorder, output, save, get_step
        self._kinds: dict[Any, FailureKind] = {}
        self._new: deque[MissionGymError] = deque()
        self._thread: int | None = None  # of the session, once failures can be recorded

    def open(self) -> None:
        """Report the failures so far, and later ones at once: the session is complete."""
        self._thread = threading.get_ident()
        self.flush()

    def add(self, failure: MissionGymError) -> None:
        """Report a failure after which the run continues: at once, or with the next `flush` if this is not
        the session's thread."""
        self._new.append(failure)
        self.flush()

    def flush(self) -> None:
        """Report the failures that other threads have added."""
        while self._new and threading.get_ident() == self._thread:
            kind = self._count(self._new.popleft())
            if kind.count == 10 ** (len(str(kind.count)) - 1):
                self._emit(kind, f"{kind.place}: {kind.text}; {kind.count:,} so far")

    def end(self, error: BaseException) -> FailureKind | None:
        """Record the failure that ends the run, if it is the environment's; returns its kind."""
        self.flush()
        if not isinstance(error, MissionGymError) or error.facts is None:
            return None
        known = self._kinds.get(_make_key(error))
        if known is None:
            known = self._count(error)
            self._emit(known, f"{known.place}: {known.text}", is_last=True)
        return known

    def document(self) -> list[dict[str, Any]] | None:
        """The kinds for status.json, the most frequent first; None without failures."""
        kinds = sorted(self._kinds.values(), key=lambda kind: -kind.count)
        return [
            {
                "text": kind.text,
                "place": kind.place,
                "count": kind.count,
                "repro": kind.repro.name if kind.repro else None,
            }
            for kind in kinds
        ] or None

    def describe_hung(self) -> str:
        """The calls that did not return, as evidence of a verdict; empty without any."""
        texts = []
        for kind in self._kinds.values():
            if kind.is_hung:
                what, _, line = kind.text.partition(" at ")
                whose = f"environment {min(kind.env_ids)}" if len(kind.env_ids) == 1 else "environments"
                what = what.replace("()", f"() of {whose}", 1)
                texts.append(f"{what}, {_show_times(kind.count)}{f' ({line})' if line else ''}")
        return "; ".join(texts)

    def _count(self, failure: MissionGymError) -> FailureKind:
        key, facts = _make_key(failure), failure.facts or {}
        if key not in self._kinds:
            text = facts.get("what") or str(failure).partition("\n")[0]
            text += f" at {facts['line']}" if facts.get("line") else ""
            place = "an environment"
            if "env_index" in facts:
                step = "reset" if facts.get("call") == "reset" else f"step {facts['step']}"
                place = f"environment {facts['env_index']}, seed {facts['seed']}, {step}"
            if trace := facts.get("trace"):
                self._output(f"{place}: {text}\n{trace.rstrip()}\n".encode())
            repro = self._save(failure)
            is_hung = facts.get("kind") == HUNG
            self._kinds[key] = FailureKind(text, place, set(), is_hung, repro)
        if "env_index" in facts:
            self._kinds[key].env_ids.add(facts["env_index"])
        self._kinds[key].count += 1
        return self._kinds[key]

    def _emit(self, kind: FailureKind, message: str, *, is_last: bool = False) -> None:
        repro = kind.repro.name if kind.repro else None
        self._recorder.emit(
            "failure", step=self._get_step(), message=message, count=kind.count, repro=repro, is_last=is_last
        )


def _make_key(failure: MissionGymError) -> tuple[Any, ...]:
    facts = failure.facts or {}
    return facts.get("call"), facts.get("kind", type(failure).__name__), facts.get("line")


def _show_times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
