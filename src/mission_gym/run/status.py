"""Where a run stands: counters, rates and the phase, for status.json and for the listener.

Ticks go by the wall clock, so they are here and not in the run's rows: rows of equal runs are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mission_gym.clock import steady_s
from mission_gym.config.schema import Settled
from mission_gym.data import Block
from mission_gym.learner.contract import Learner
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.curriculum import Progression
from mission_gym.run.recorder import Recorder
from mission_gym.run.snapshot import count_steps
from mission_gym.run.telemetry import Telemetry

_STATUS_S = 1.0  # seconds between heartbeats in status.json
_TICK_S = 0.1  # seconds between statuses that the listener is handed


class StatusWriter:
    """Tells the status of one run. `counters` are the session's."""

    def __init__(
        self,
        config: Settled,
        learner: Learner,
        collector: BlockCollector,
        blocks: Sequence[Block],
        recorder: Recorder,
        telemetry: Telemetry,
        counters: Mapping[str, Any],
        progression: Progression,
    ) -> None:
        self._config, self._counters, self._progression = config, counters, progression
        self._learner, self._collector, self._blocks = learner, collector, blocks
        self._recorder, self._telemetry = recorder, telemetry
        self._written_at = self._told_at = steady_s()
        self._phase = "training"
        self.best_step: int | None = None

    @property
    def worker_restarts(self) -> int:
        """Workers that were replaced."""
        return int(self._collector.vec.num_restarts)

    def tick(self, phase: str) -> None:
        """Tell where the run stands: a new phase at once, else ten times a second; on disk once a second."""
        now = steady_s()
        if phase == self._phase and now - self._told_at < _TICK_S:
            return
        self._phase, self._told_at = phase, now
        if now - self._written_at >= _STATUS_S:
            self.write(durable=False, verdict=self._telemetry.summarize()["time/verdict"])
        else:
            self.write(on_disk=False)

    def write(self, *, on_disk: bool = True, durable: bool = True, **fields: Any) -> None:
        """Give the listener, and status.json, where the run stands; `fields` are added, or replace."""
        if on_disk:
            self._written_at = steady_s()
        recorder, learner, total = self._recorder, self._learner, self._config.run.timesteps
        rate, rolling = recorder.rate, recorder.rolling()
        status = {
            "step": count_steps(learner, self._blocks),
            "total": total,
            "phase": self._phase,
            "updates": learner.version,
            "gradient_steps": learner.gradient_steps,
            "episodes": recorder.num_episodes,
            "env_failures": self._counters["env_failures"],
            "worker_restarts": self.worker_restarts,
            "fps": rate.overall(learner.step),
            "train_fps": rate.training,
            "now_fps": rate.momentary,
            "eta_s": rate.eta_s(total),
            "return_mean": rolling.get("rollout/ep_rew_mean"),
            "outcomes": {name: rolling.get(f"outcome/{name}") for name in recorder.spec.outcomes} or None,
            "best_step": self.best_step,
            "stage": self._progression.status(),
        }
        recorder.put_status(status | fields, on_disk=on_disk, durable=durable)
