"""Writes what happened: metrics.jsonl first, then its views progress.csv, monitor.csv and TensorBoard.

Rows are equal for equal runs but for keys that begin with `time/`, `phase/` or `machine/`. A disk that
refuses a row does not end the training: it is said once, and the next row is tried again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from mission_gym.data import EnvSpec, Episode
from mission_gym.errors import DiskError
from mission_gym.monitor.alarms import Watch
from mission_gym.store.rundir import RunDir
from mission_gym.store.tables import MetricsLog, MonitorCsv, ProgressCsv, TextLog

Listener = Callable[[dict[str, Any]], None]
_TERM = "reward_terms/"  # prefix of a reward term among an episode's metrics
_FLUSH_S = 1.0  # between flushes of TensorBoard's files, and of phases and the machine's use in them
_WINDOW = 100  # episodes behind the rolling means, as in SB3


class Recorder:
    """One run's writers. Every event goes to the listener, and to disk unless it is a mere tick."""

    def __init__(self, run: RunDir, spec: EnvSpec, listener: Listener, *, tensorboard: bool) -> None:
        self.run = run
        self.spec = spec
        self.listener = listener
        self.started = time.time()
        self.elapsed_before = 0.0  # seconds of earlier processes of this run
        self.num_episodes = 0
        self.watch = Watch(spec.main_outcome)
        self.window: deque[tuple[float, int, str | None, dict[str, float]]] = deque(maxlen=_WINDOW)
        self._metrics = MetricsLog(run.metrics_jsonl)
        self._progress = ProgressCsv(run.progress_csv)
        self._monitor = MonitorCsv(run.monitor_csv, env_id=spec.env_id, t_start=self.started)
        self._log = TextLog(run.log_txt)
        self._tensorboard_wanted = tensorboard
        self._tensorboard: Any = None
        self._flushed_at = 0.0  # of time.monotonic
        self._disk_failed = False
        self._rolling: dict[str, float] | None = None  # until another episode ends

    @property
    def elapsed_s(self) -> float:
        return self.elapsed_before + time.time() - self.started

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the record, so that a resumed run's rows go on where they were."""
        return {
            "window": [list(item) for item in self.window],
            "num_episodes": self.num_episodes,
            "elapsed_s": self.elapsed_s,
            "watch": self.watch.state(),
            "offsets": {
                "metrics": self._metrics.offset(),
                "progress": self._progress.offset(),
                "monitor": self._monitor.offset(),
            },
        }

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Go on after a checkpoint: rows that were written later describe work that is made again."""
        self.window.extend((float(r), int(n), outcome, extra) for r, n, outcome, extra in state["window"])
        self._rolling = None
        self.num_episodes = state["num_episodes"]
        self.elapsed_before = state["elapsed_s"]
        self.watch.load_state(state["watch"])
        self._metrics.truncate(state["offsets"]["metrics"])
        self._progress.truncate(state["offsets"]["progress"])
        self._monitor.truncate(state["offsets"]["monitor"])
        self._open_tensorboard(purge_step=step + 1)

    def _open_tensorboard(self, purge_step: int | None) -> None:
        if self._tensorboard_wanted and self._tensorboard is None:
            from tensorboardX import SummaryWriter

            self._tensorboard = SummaryWriter(str(self.run.tensorboard), purge_step=purge_step)

    def emit(self, event: str, **fields: Any) -> None:
        """Record an event and tell the listener."""
        row = {"event": event, **fields}
        self._write(lambda: self._metrics.append(row))
        if event not in ("progress", "timeline"):
            self._write(lambda: self._add_log(event, fields))
        self.listener(row)

    def _add_log(self, event: str, fields: dict[str, Any]) -> None:
        self._log.add(f"{datetime.now():%Y-%m-%d %H:%M:%S}", event, fields)

    def tick(self, **fields: Any) -> None:
        """Tell the listener alone: nothing worth keeping."""
        self.listener({"event": "tick", **fields})

    def add_episodes(self, episodes: list[Episode]) -> None:
        """Take finished episodes into monitor.csv and the rolling window; failed ones are left out."""
        for episode in episodes:
            if episode.failed:
                continue
            self.num_episodes += 1
            self.window.append((episode.ret, episode.length, episode.outcome, episode.metrics))
            self._rolling = None
            self._write(lambda e=episode: self._monitor.append(e, self.elapsed_s))  # type: ignore[misc]

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

    def add_row(self, step: int, metrics: dict[str, Any], alarms: list[str]) -> None:
        """Write one row of metrics to every view. Alarms about speed stand in the row: equal runs have equal
        rows, and not always these."""
        self.emit("progress", step=step, **metrics, **({"time/alarms": alarms} if alarms else {}))
        for message in alarms:
            self._write(lambda m=message: self._add_log("warning", {"step": step, "message": m}))  # type: ignore[misc]
        self._write(lambda: self._progress.append({"time/total_timesteps": step, **metrics}))
        self._add_scalars(step, metrics)
        self._alarm(step, self.watch.see_row(metrics))

    def add_evaluation(self, step: int, document: dict[str, Any], fields: dict[str, Any]) -> None:
        """Write an evaluation to the stream, the CSV and TensorBoard."""
        self.emit("eval", step=step, **document, **fields)
        scalars = {
            "eval/mean_reward": document["return_mean"],
            "eval/mean_ep_length": document["length_mean"],
        }
        scalars |= {f"eval/outcome_{name}": rate["rate"] for name, rate in document["outcomes"].items()}
        self._write(lambda: self._progress.append({"time/total_timesteps": step, **scalars}))
        self._add_scalars(step, scalars)
        self._alarm(step, self.watch.see_evaluation(document))

    def _alarm(self, step: int, message: str | None) -> None:
        if message is not None:
            self.emit("warning", step=step, message=message)

    def _add_scalars(self, step: int, scalars: dict[str, Any]) -> None:
        self._open_tensorboard(purge_step=None)
        if self._tensorboard is None:
            return
        # A scalar takes a fifth of a millisecond there and a flush five: much for every row of a quick run.
        is_time = time.monotonic() - self._flushed_at >= _FLUSH_S
        try:
            for name, value in scalars.items():
                is_wanted = is_time or not name.startswith(("phase/", "machine/"))
                if is_wanted and isinstance(value, int | float) and math.isfinite(value):
                    self._tensorboard.add_scalar(name, value, step)
            if is_time:
                self._flushed_at = time.monotonic()
                self._tensorboard.flush()
        except OSError as error:
            self._tell_once(f"TensorBoard files can't be written: {error}")

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except DiskError as error:
            self._tell_once(f"{error}; training goes on, rows are missing")

    def _tell_once(self, message: str) -> None:
        if not self._disk_failed:
            self._disk_failed = True
            self.listener({"event": "warning", "message": message})

    def close(self) -> None:
        for table in (self._metrics, self._progress, self._monitor, self._log):
            table.close()
        if self._tensorboard is not None:
            try:
                self._tensorboard.close()
            except OSError as error:
                self._tell_once(f"TensorBoard files can't be written: {error}")


def mean_extras(extras: list[dict[str, float]]) -> dict[str, float]:
    """Means of the environment's own episode metrics, and the share of each reward term.

    A share is the term's part of the sum of magnitudes: how much of the reward's movement it makes.
    """
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for extra in extras for name in extra):
        values = [extra[name] for extra in extras if name in extra]
        means[name] = sum(values) / len(values)
    terms = {name.removeprefix(_TERM): mean for name, mean in means.items() if name.startswith(_TERM)}
    total = sum(abs(mean) for mean in terms.values())
    metrics = {f"episode/{name}": mean for name, mean in means.items() if not name.startswith(_TERM)}
    for name, mean in terms.items():
        metrics[f"reward/{name}"] = mean
        metrics[f"reward_share/{name}"] = abs(mean) / total if total else float("nan")
    return metrics
