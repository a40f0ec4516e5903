"""Records a run: events go to every sink and to the listener, the status to status.json. Also its rates.

Rows of equal runs are equal, except for keys that start with `time/`, `phase/` or `machine/`. Values that
change with the wall clock are in status.json, which the listener receives as well. A disk that refuses a row
does not end the training: a warning reports it, and the next row is tried again.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from mission_gym.algorithms import load_algorithm
from mission_gym.config.schema import Config
from mission_gym.data import EnvSpec, Episode, Progress
from mission_gym.env.agents import AGENTS
from mission_gym.env.contract import TERMS
from mission_gym.errors import DiskError, RunGoneError, UsageError
from mission_gym.run.alarms import Alarm, AlarmWatch
from mission_gym.store.metrics import read_metrics
from mission_gym.store.rundir import RunDir
from mission_gym.store.sinks import SinkContext, Stream, choose_sinks

Listener = Callable[[dict[str, Any]], None]
_WINDOW = 100  # episodes of the rolling means, as in SB3
_MIN_RATE_S = 0.5  # of training before its rate is worth storing
_MOMENT_S = 0.2
_USER = "user/"  # prefix of the caller's own metrics
_USER_NAME = re.compile(r"[\w.-][\w./-]{0,99}", re.ASCII)


class StepRate:
    """Steps per second of one process's work on a run: of training, of everything and of the last moment.

    Rows, the status, the cached plan and the screen all show these numbers.
    """

    def __init__(self) -> None:
        self.elapsed_before_s = 0.0  # of earlier processes of this run
        self._started = time.monotonic()
        self._training_since: float | None = None  # of time.monotonic
        self._first_step = self._step = 0
        self._steps, self._seconds = 0, 0.0  # of training
        self._moment = (0, 0.0)  # steps and seconds since the last momentary rate
        self.momentary: float | None = None  # steps/s of training, over 0.2 s or one update

    def begin_at(self, step: int) -> None:
        """Continue after steps that were made before."""
        self._first_step = self._step = step

    @property
    def elapsed_s(self) -> float:
        """Seconds of all processes of this run."""
        return self.elapsed_before_s + time.monotonic() - self._started

    @property
    def training(self) -> float | None:
        """Steps/s of collecting and learning only, as a plan predicts it; None at first. The first update and
        updates without gradient steps do not count. If collecting and learning overlap, the last one does not
        either: nothing is collected next to it."""
        return round(self._steps / self._seconds, 1) if self._seconds else None

    @property
    def is_reliable(self) -> bool:
        """Whether `training` covers enough time to be stored."""
        return self._seconds > _MIN_RATE_S

    def count_made(self, step: int) -> int:
        """Steps of this process, if the run is at `step`."""
        return step - self._first_step

    def overall(self, step: int) -> float:
        """Steps/s of this process since its start, including everything."""
        return round(self.count_made(step) / max(time.monotonic() - self._started, 1e-9), 1)

    def eta_s(self, total: int, step: int | None = None) -> float | None:
        """Seconds until `total` steps, at the pace of the training so far with its evaluations. step: the
        present one (default: of the last update)."""
        step = self._step if step is None else step
        made = self.count_made(step)
        if self._training_since is None or not made:
            return None
        return round((time.monotonic() - self._training_since) / made * (total - step), 1)

    def follow(self, loop: Iterator[Progress], *, overlaps: bool = False) -> Iterator[Progress]:
        """Pass the updates of a loop on; time between updates does not count as training."""
        self._training_since = time.monotonic()
        is_learning, last = False, (0, 0.0)
        while True:
            begun = time.monotonic()
            progress = next(loop, None)
            if progress is None:
                return
            steps, seconds = progress.step - self._step, time.monotonic() - begun
            self._step = progress.step
            self._moment = (self._moment[0] + steps, self._moment[1] + seconds)
            if self._moment[1] >= _MOMENT_S:
                self.momentary, self._moment = round(self._moment[0] / self._moment[1], 1), (0, 0.0)
            if is_learning:
                counted, last = (last, (steps, seconds)) if overlaps else ((steps, seconds), last)
                self._steps += counted[0]
                self._seconds += counted[1]
            is_learning = progress.gradient_steps > 0
            yield progress


class Recorder:
    """One run's stream of events. The first event opens its sinks, or `load_state` does at a position."""

    def __init__(self, run: RunDir, config: Config, spec: EnvSpec, listener: Listener) -> None:
        self.run, self.spec, self.rate = run, spec, StepRate()
        self._listener = listener
        self.lock = threading.RLock()  # of the listener and of status.json, which a second thread repeats
        self._num_unheard = 0  # events that the listener failed on
        self.num_episodes = 0
        metrics = (*read_metrics(), *load_algorithm(config.run.algo).metrics)
        self.watch = AlarmWatch(spec.main_outcome, metrics)
        self.window: deque[tuple[float, int, str | None, dict[str, float]]] = deque(maxlen=_WINDOW)
        self._context = SinkContext(run, spec.env_id, time.time())
        self._sinks = choose_sinks(config.value)
        self._opened: Stream | None = None
        self._problems: dict[str, str] = {}  # by kind: why the disk refuses it
        self._rolling: dict[str, float] | None = None  # cached until another episode ends
        self._logged: dict[str, float] = {}  # the caller's own numbers, until the next row

    @property
    def _stream(self) -> Stream:
        if self._opened is None:
            self._opened = Stream(self._sinks, self._context, {})
        return self._opened

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, from which a resumed run continues its rows."""
        return {
            "window": [list(item) for item in self.window],
            "num_episodes": self.num_episodes,
            "elapsed_s": self.rate.elapsed_s,
            "watch": self.watch.state(),
            "logged": self._logged,
            "offsets": self._stream.positions(),
        }

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Continue after a checkpoint; later rows are cut, since their work is repeated."""
        self.window.extend((float(r), int(n), outcome, extra) for r, n, outcome, extra in state["window"])
        self._rolling = None
        self.num_episodes = state["num_episodes"]
        self.rate.elapsed_before_s = state["elapsed_s"]
        self.watch.load_state(state["watch"])
        self._logged = dict(state["logged"])
        self._opened = Stream(self._sinks, self._context._replace(step=step), state["offsets"])

    def emit(self, event: str, **fields: Any) -> None:
        """Record an event, then the failures of sinks."""
        self._write({"event": event, **fields})
        for message in self._stream.take_news():  # failures from writing these are reported next time
            self._write({"event": "warning", "message": message})

    def _write(self, event: dict[str, Any]) -> None:
        self._stream.write(event)
        self._notify(event)

    def _notify(self, event: dict[str, Any]) -> None:
        """Pass an event to the listener; a closed terminal or full disk does not end the training."""
        try:
            with self.lock:
                self._listener(event)
        except OSError as error:
            self._num_unheard += 1
            if self._num_unheard == 1:
                message = f"progress can't be shown: {error.strerror or error}; training continues"
                self._stream.write({"event": "warning", "message": message})

    def report(self, kind: str, problem: str, error: Exception | None) -> None:
        """Warn about a disk problem, once until its cause changes; without an error, that it is over."""
        cause = str(error).rpartition(": ")[2] if error else ""
        before = self._problems.get(kind, "")
        self._problems[kind] = cause
        if cause and cause != before:
            self.warn(f"{problem}: {error}")
        elif before and not cause:
            self.warn(f"the {kind} can be written again")

    def warn(self, message: str, **fields: Any) -> None:
        """Record a warning."""
        self.emit("warning", **fields, message=message)

    def end(self, **fields: Any) -> None:
        """Record the end of this process's work, after the losses of failing sinks."""
        for message in self._stream.list_failing():
            self.warn(message)
        self.emit("end", **fields)

    def put_status(self, status: dict[str, Any], *, on_disk: bool, durable: bool) -> None:
        """Pass the status to the listener, and if `on_disk` write it to status.json. RunGoneError."""
        with self.lock:
            if on_disk:
                failure = None
                try:
                    self.run.write_status(durable=durable, **status, **self.losses())
                except DiskError as error:
                    failure = error
                self.report("status", "status not written", failure)
            self._notify({"event": "status", **status})

    def repeat_status(self, status: dict[str, Any], *, on_disk: bool) -> None:
        """Show a status again, from another thread. Problems are left to the next `put_status`."""
        with self.lock, suppress(OSError, DiskError, RunGoneError):
            if on_disk:
                self.run.write_status(durable=False, **status)
            self._listener({"event": "status", **status})

    def losses(self) -> dict[str, Any]:
        """Rows that sinks lost, by name, and events that the listener failed on; None for none."""
        return {"lost_rows": self._stream.num_lost or None, "lost_events": self._num_unheard or None}

    def add_episodes(self, episodes: list[Episode]) -> None:
        """Add finished episodes to the stream and the rolling window; failed ones are left out."""
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

    @property
    def rolling_length(self) -> float | None:
        """The mean length of the last 100 episodes, for any thread; None before the first one has ended."""
        return None if self._rolling is None else self._rolling.get("rollout/ep_len_mean")

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

    def log(self, name: str, value: float) -> None:
        """Add a number of the caller's own to the next row, as `user/NAME`."""
        if not isinstance(name, str) or not _USER_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a name for a metric; use letters, digits and any of _ . / -, at most 100"
            )
        try:
            self._logged[f"{_USER}{name}"] = float(value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name}={value!r} is not a number; log one number per name") from error

    def take_logged(self) -> dict[str, float]:
        """The caller's own numbers since the last row."""
        logged, self._logged = self._logged, {}
        return logged

    def add_row(self, step: int, metrics: dict[str, Any]) -> None:
        """Record a row of metrics and its alarms. Alarms about speed are part of the row: equal runs need not
        raise the same ones."""
        alarms = self.watch.see_row(step, metrics, len(self.window))
        timed = [alarm.message for alarm in alarms if alarm.is_timed]
        self.emit("progress", step=step, **metrics, **({"time/alarms": timed} if timed else {}))
        self._alarm(step, alarms)

    def add_evaluation(self, step: int, document: dict[str, Any], fields: dict[str, Any]) -> None:
        """Record an evaluation and its alarm."""
        self.emit("eval", step=step, **document, **fields)
        self._alarm(step, self.watch.see_evaluation(document))

    def _alarm(self, step: int, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            if not alarm.is_timed:
                self.warn(alarm.message, step=step)

    def close(self) -> None:
        """Close the sinks; the listener receives their last failures."""
        if self._opened is not None:
            self._opened.close()
            for message in self._opened.take_news():
                self._notify({"event": "warning", "message": message})


def mean_extras(extras: list[dict[str, float]]) -> dict[str, float]:
    """Means of the environment's own episode metrics, and the share of each reward term.

    A share is the term's part of the sum of magnitudes of all terms.
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
