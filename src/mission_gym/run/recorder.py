"""What a run tells of itself: events to every sink and to the listener, and its status.

Rows are equal for equal runs but for keys that begin with `time/`, `phase/` or `machine/`. What changes with
the wall clock stands in status.json, and the listener is handed the same. A disk that refuses a row does not
end the training: it is said, and the next row is tried again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec, Episode
from mission_gym.env.agents import AGENTS
from mission_gym.env.contract import TERMS
from mission_gym.errors import DiskError
from mission_gym.run.alarms import Alarm, Watch
from mission_gym.run.rate import Rate
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import SinkContext, choose_sinks
from mission_gym.store.sinks.stream import Stream

Listener = Callable[[dict[str, Any]], None]
_WINDOW = 100  # episodes behind the rolling means, as in SB3


class Recorder:
    """One run's stream. Its sinks are opened by the first event, or by `load_state` at a position."""

    def __init__(self, run: RunDir, config: Config, spec: EnvSpec, listener: Listener, rate: Rate) -> None:
        self.run = run
        self.spec = spec
        self._listener = listener
        self._num_unheard = 0  # events that the listener failed on
        self.rate = rate
        self.num_episodes = 0
        self.watch = Watch(spec.main_outcome)
        self.window: deque[tuple[float, int, str | None, dict[str, float]]] = deque(maxlen=_WINDOW)
        self._place = SinkContext(run, spec.env_id, time.time())
        self._sinks = choose_sinks(config.value)
        self._opened: Stream | None = None
        self._problems: dict[str, str] = {}  # what the disk refuses, and why
        self._rolling: dict[str, float] | None = None  # until another episode ends

    @property
    def _stream(self) -> Stream:
        if self._opened is None:
            self._opened = Stream(self._sinks, self._place, {})
        return self._opened

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the record, so that a resumed run's rows go on where they were."""
        return {
            "window": [list(item) for item in self.window],
            "num_episodes": self.num_episodes,
            "elapsed_s": self.rate.elapsed_s,
            "watch": self.watch.state(),
            "offsets": self._stream.positions(),
        }

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Go on after a checkpoint: rows that were written later describe work that is made again."""
        self.window.extend((float(r), int(n), outcome, extra) for r, n, outcome, extra in state["window"])
        self._rolling = None
        self.num_episodes = state["num_episodes"]
        self.rate.elapsed_before_s = state["elapsed_s"]
        self.watch.load_state(state["watch"])
        self._opened = Stream(self._sinks, self._place._replace(step=step), state["offsets"])

    def emit(self, event: str, **fields: Any) -> None:
        """Record an event and tell the listener; then what became of the sinks."""
        self._tell({"event": event, **fields})
        for message in self._stream.take_news():  # what this costs in turn is told with the next event
            self._tell({"event": "warning", "message": message})

    def _tell(self, event: dict[str, Any]) -> None:
        self._stream.write(event)
        self._hand(event)

    def _hand(self, event: dict[str, Any]) -> None:
        """Give an event to the listener; a console whose terminal or disk is gone does not end a training."""
        try:
            self._listener(event)
        except OSError as error:
            self._num_unheard += 1
            if self._num_unheard == 1:
                what = f"what is said can't be shown: {error.strerror or error}; training goes on"
                self._stream.write({"event": "warning", "message": what})

    def report(self, kind: str, problem: str, error: Exception | None) -> None:
        """Tell what the disk refuses, once until the cause is another; without an error, that it is over."""
        cause = str(error).rpartition(": ")[2] if error else ""
        before = self._problems.get(kind, "")
        self._problems[kind] = cause
        if cause and cause != before:
            self.warn(f"{problem}: {error}")
        elif before and not cause:
            self.warn(f"the disk has room again; the {kind} is written")

    def warn(self, message: str, **fields: Any) -> None:
        """Record a warning."""
        self.emit("warning", **fields, message=message)

    def end(self, **fields: Any) -> None:
        """Record the end of this process's work, after what sinks that fail have lost."""
        for message in self._stream.list_failing():
            self.warn(message)
        self.emit("end", **fields)

    def put_status(self, status: dict[str, Any], *, on_disk: bool, durable: bool) -> None:
        """Hand the status to the listener, and `on_disk` the same to status.json. RunGoneError."""
        if on_disk:
            failure = None
            try:
                self.run.write_status(durable=durable, **status, **self.losses())
            except DiskError as error:
                failure = error
            self.report("status", "status not written", failure)
        self._hand({"event": "status", **status})

    def losses(self) -> dict[str, Any]:
        """Rows that sinks lost, by name, and events that the listener failed on; None for none."""
        return {"lost_rows": self._stream.num_lost or None, "lost_words": self._num_unheard or None}

    def add_episodes(self, episodes: list[Episode]) -> None:
        """Take finished episodes into the stream and the rolling window; failed ones are left out."""
        for episode in episodes:
            if episode.failed:
                continue
            self.num_episodes += 1
            self.window.append((episode.ret, episode.length, episode.outcome, episode.metrics))
            self._rolling = None
            elapsed_s = self.rate.elapsed_s
            self._stream.write({"event": "episode", "episode": episode, "time/elapsed_s": elapsed_s})

    def rolling(self) -> dict[str, float]:
        """Means over the last 100 episodes; empty before the first one has ended."""
        if self._rolling is None:
            self._rolling = self._average()
        return dict(self._rolling)

    def _average(self) -> dict[str, float]:
        if not self.window:
            return {}
        count = len(self.window)
        metrics = {
            "rollout/ep_rew_mean": sum(item[0] for item in self.window) / count,
            "rollout/ep_len_mean": sum(item[1] for item in self.window) / count,
        }
        outcomes = [item[2] for item in self.window if item[2] is not None]
        for name in dict.fromkeys([*self.spec.outcomes, *sorted(set(outcomes))]):
            metrics[f"outcome/{name}"] = outcomes.count(name) / count
        return metrics | mean_extras([item[3] for item in self.window])

    def count_cut(self, count: int, counters: dict[str, Any], kept: int) -> None:
        """Count sequences that were cut to the `kept` elements that are read; the first ones are told."""
        if count and not counters["cut_sequences"]:
            self.warn(
                f"{count} observed sequences had more than the {kept} elements that are read, and were cut;"
                f" rollout/cut_sequences counts them; use more with --max-sequence {2 * kept}"
            )
        counters["cut_sequences"] += count

    def add_row(self, step: int, metrics: dict[str, Any]) -> None:
        """Record a row of metrics, and the alarms that it gives. Those about speed stand in the row: equal
        runs have equal rows, and not always these."""
        alarms = self.watch.see_row(step, metrics)
        timed = [alarm.message for alarm in alarms if alarm.is_timed]
        self.emit("progress", step=step, **metrics, **({"time/alarms": timed} if timed else {}))
        self._alarm(step, alarms)

    def add_evaluation(self, step: int, document: dict[str, Any], fields: dict[str, Any]) -> None:
        """Record an evaluation, and the alarm that it gives."""
        self.emit("eval", step=step, **document, **fields)
        self._alarm(step, self.watch.see_evaluation(document))

    def _alarm(self, step: int, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            if not alarm.is_timed:
                self.warn(alarm.message, step=step)

    def close(self) -> None:
        """Close the sinks; what they could not write is told to the listener alone."""
        if self._opened is not None:
            self._opened.close()
            for message in self._opened.take_news():
                self._hand({"event": "warning", "message": message})


def mean_extras(extras: list[dict[str, float]]) -> dict[str, float]:
    """Means of the environment's own episode metrics, and the share of each reward term.

    A share is the term's part of the sum of magnitudes: how much of the reward's movement it makes.
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for extra in extras for name in extra):
        values = [extra[name] for extra in extras if name in extra]
        means[name] = sum(values) / len(values)
    terms = {name.removeprefix(TERMS): mean for name, mean in means.items() if name.startswith(TERMS)}
    total = sum(abs(mean) for mean in terms.values())
    metrics = {
        name if name.startswith(AGENTS) else f"episode/{name}": mean
        for name, mean in means.items()
        if not name.startswith(TERMS)
    }
    for name, mean in terms.items():
        metrics[f"reward/{name}"] = mean
        metrics[f"reward_share/{name}"] = abs(mean) / total if total else float("nan")
    return metrics
