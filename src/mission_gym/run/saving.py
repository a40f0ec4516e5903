"""What a run keeps of itself: checkpoints, thinned out by retention, and what a failure needs to be repeated.

A disk that refuses a checkpoint does not end the training: it is said, and the last one is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mission_gym.check.repro import write_bundle
from mission_gym.clock import steady_s
from mission_gym.config.schema import Settled
from mission_gym.data import Block
from mission_gym.errors import DiskError, NotFiniteError, RunStateError, WorkerError
from mission_gym.learner.contract import Learner
from mission_gym.rollout.blocks import clear_block
from mission_gym.rollout.collector import BlockCollector
from mission_gym.run.environment import Environment
from mission_gym.run.exactness import store_config
from mission_gym.run.recorder import Recorder
from mission_gym.run.retention import find_expired_checkpoints
from mission_gym.run.snapshot import count_steps, take_snapshot
from mission_gym.store.checkpoints import delete_checkpoint, list_checkpoints, save_checkpoint
from mission_gym.store.rundir import RunDir

_SAVE_S = 60.0  # a kill costs at most this much, however slow the steps are


class Saver:
    """Writes the checkpoints of one run. `counters` are the session's; `last_save` is kept in them."""

    def __init__(
        self,
        run: RunDir,
        config: Settled,
        learner: Learner,
        collector: BlockCollector,
        blocks: Sequence[Block],
        recorder: Recorder,
        counters: dict[str, Any],
    ) -> None:
        self._run, self._config, self._recorder, self._counters = run, config, recorder, counters
        self._learner, self._collector, self._blocks = learner, collector, blocks
        self._stored = {"config": store_config(config)}
        self._kept_because = ""  # what was said when old checkpoints could not be thinned out
        self.saved_at = steady_s()
        self.best: int | None = None  # a step that retention keeps

    @property
    def is_saved(self) -> bool:
        """Whether the last checkpoint is that of the present step."""
        return bool(self._counters["last_save"] == count_steps(self._learner, self._blocks))

    def is_due(self) -> bool:
        """Whether a checkpoint is due between updates: by steps, or by time if there is something to save."""
        step, last = self._learner.step, self._counters["last_save"]
        is_late = steady_s() - self.saved_at >= _SAVE_S and step > last
        return is_late or passed_multiple(step, last, self._config.checkpoints.checkpoint_freq)

    def save(self, score: float | None = None, *, torn: bool = False) -> bool:
        """Write a checkpoint and apply retention; False, said aloud, if the disk refuses it."""
        self._run.check_not_moved()
        learner, counters, folder = self._learner, self._counters, self._run.checkpoints
        before = counters["last_save"]
        counters["last_save"] = learner.step if torn else count_steps(learner, self._blocks)
        try:
            snapshot = take_snapshot(
                learner, self._collector, self._blocks,
                {"session": counters, "recorder": self._recorder.state()},
                torn=torn, extras_limit=self._config.checkpoints.checkpoint_budget_mb * 1_000_000,
            )  # fmt: skip
            meta = {"score": score, "update": learner.version}
            save_checkpoint(
                folder, snapshot.step, policy=snapshot.policy, state=snapshot.state,
                state_json=snapshot.state_json | self._stored, meta=meta, replay=snapshot.extras,
            )  # fmt: skip
            self.saved_at = steady_s()
            self._retain()
        except DiskError as error:
            counters["last_save"] = before
            kept = ", the last one is kept" if list_checkpoints(folder) else ""
            self._recorder.report("checkpoint", f"checkpoint not saved{kept}", error)
            return False
        self._recorder.report("checkpoint", "", None)
        return True

    def save_after(self, error: BaseException) -> None:
        """Save what was learned before a failure, if it is finite and not saved yet."""
        learner = self._learner
        if not all(np.isfinite(array).all() for array in learner.weights().arrays.values()):
            return
        is_saved = self._counters["last_save"] == learner.step
        if isinstance(error, NotFiniteError):
            # With overlap the checkpoint of this step holds the block that can't be learned from.
            is_saved = is_saved and len(self._blocks) == 1
            for block in self._blocks:
                clear_block(block)
        if not is_saved:
            # A new checkpoint of this step must not lose the score of the old one.
            infos = list_checkpoints(self._run.checkpoints)
            score = next((info.meta.get("score") for info in infos if info.step == learner.step), None)
            self.save(score, torn=self._collector.interrupted_mid_step)

    def finish(self) -> None:
        """Drop what was kept for the confirmation of the best."""
        try:
            self._retain(finished=True)
        except DiskError as error:
            self._recorder.warn(f"old checkpoints are kept: {error}")

    def _retain(self, *, finished: bool = False) -> None:
        settings = self._config.checkpoints
        try:
            for info in find_expired_checkpoints(self._run, settings, best=self.best, finished=finished):
                delete_checkpoint(info.path)
        except (RunStateError, DiskError) as error:  # rather keep too much; the new one is saved
            if str(error) != self._kept_because:
                self._recorder.warn(f"old checkpoints are kept: {error}")
            self._kept_because = str(error)


def passed_multiple(step: int, last: int, every: int) -> bool:
    """Whether a multiple of `every` was passed since `last`; 0 is never."""
    return bool(every) and step // every > last // every


def keep_repro(run: RunDir, error: BaseException, environment: Environment, recorder: Recorder) -> None:
    """Write what an environment's failure needs to be repeated."""
    if not isinstance(error, WorkerError) or error.facts is None:
        return
    try:
        path = write_bundle(run, error, *environment.recipe(error.facts.get("stage")))
    except (DiskError, TypeError) as second:  # keywords of a Python caller need not be JSON
        recorder.warn(f"no repro bundle was kept: {second}")
    else:
        recorder.warn(f"mission-gym check --repro {path} replays the failure")
