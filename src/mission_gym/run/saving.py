"""Saves a run: checkpoints, thinned out by retention, and a repro bundle after a failure.

A disk that refuses a checkpoint does not end the training: a warning reports it, and the last one is kept.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from mission_gym.check.repro import write_bundle
from mission_gym.errors import DiskError, MissionGymError, NotFiniteError, RunStateError
from mission_gym.rollout.blocks import clear_block
from mission_gym.run.config import store_config
from mission_gym.run.retention import find_expired_checkpoints
from mission_gym.run.snapshot import RunContext, take_snapshot
from mission_gym.store.checkpoints import delete_checkpoint, list_checkpoints, save_checkpoint

_SAVE_S = 60.0  # a kill costs at most this much time, however slow the steps are


class Saver:
    """Writes the checkpoints of one run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._kept_because = ""  # the last warning about checkpoints that could not be deleted
        self.saved_at = time.monotonic()

    @property
    def is_saved(self) -> bool:
        """Whether the last checkpoint is of the current step."""
        return self._context.state.last_save == self._context.step

    def is_due(self) -> bool:
        """Whether a checkpoint is due between updates: by steps, or by time if there are new steps."""
        step, last = self._context.learner.step, self._context.state.last_save
        is_late = time.monotonic() - self.saved_at >= _SAVE_S and step > last
        return is_late or passed_multiple(step, last, self._context.config.checkpoints.checkpoint_freq)

    def save(self, score: float | None = None, *, interrupted_mid_step: bool = False) -> bool:
        """Write a checkpoint and apply retention; False, with a warning, if the disk refuses it.
        interrupted_mid_step: see `take_snapshot`."""
        context = self._context
        learner, state, config, recorder = context.learner, context.state, context.config, context.recorder
        context.run.check_not_moved()
        folder, before = context.run.checkpoints, state.last_save
        state.last_save = learner.step if interrupted_mid_step else context.step
        try:
            snapshot = take_snapshot(
                learner,
                context.collector,
                context.blocks,
                {"session": state.document(), "recorder": recorder.state()},
                interrupted_mid_step=interrupted_mid_step,
                extras_limit=config.checkpoints.checkpoint_budget_mb * 1_000_000,
            )
            save_checkpoint(
                folder,
                snapshot.step,
                policy=snapshot.policy,
                state=snapshot.state,
                state_json=snapshot.state_json | {"config": store_config(config)},
                meta={"score": score, "update": learner.version},
                replay=snapshot.extras,
            )
            self.saved_at = time.monotonic()
            self._retain()
        except DiskError as error:
            state.last_save = before
            kept = ", the last one is kept" if list_checkpoints(folder) else ""
            recorder.report("checkpoint", f"checkpoint not saved{kept}", error)
            return False
        recorder.report("checkpoint", "", None)
        return True

    def save_after(self, error: BaseException) -> None:
        """Save after a failure, if the weights are finite and not saved yet."""
        context = self._context
        learner, blocks = context.learner, context.blocks
        if not all(np.isfinite(array).all() for array in learner.weights().arrays.values()):
            return
        is_saved = context.state.last_save == learner.step
        if isinstance(error, NotFiniteError):
            # With overlap, the checkpoint of this step contains the block that is not finite.
            is_saved = is_saved and len(blocks) == 1
            for block in blocks:
                clear_block(block)
        if not is_saved:
            # A new checkpoint of this step keeps the score of the old one.
            infos = list_checkpoints(context.run.checkpoints)
            score = next((info.meta.get("score") for info in infos if info.step == learner.step), None)
            self.save(score, interrupted_mid_step=context.collector.interrupted_mid_step)

    def finish(self) -> None:
        """Delete checkpoints that were kept to be evaluated again."""
        try:
            self._retain(finished=True)
        except DiskError as error:
            self._context.recorder.warn(f"old checkpoints are kept: {error}")

    def _retain(self, *, finished: bool = False) -> None:
        context = self._context
        settings, best = context.config.checkpoints, context.best_step
        try:
            for info in find_expired_checkpoints(context.run, settings, best=best, finished=finished):
                delete_checkpoint(info.path)
        except (RunStateError, DiskError) as error:  # the new checkpoint is saved; old ones only take space
            if str(error) != self._kept_because:
                context.recorder.warn(f"old checkpoints are kept: {error}")
            self._kept_because = str(error)

    def save_repro(self, error: MissionGymError) -> Path | None:
        """Write a bundle that replays the failure of an environment; None if that is not possible."""
        if error.facts is None or "env_index" not in error.facts:
            return None
        context = self._context
        try:
            return write_bundle(context.run, error, *context.environment.recipe(error.facts.get("stage")))
        except (DiskError, TypeError) as second:  # keywords of a Python caller need not be JSON
            context.recorder.warn(f"no repro bundle was saved: {second}")
        return None


def passed_multiple(step: int, last: int, every: int) -> bool:
    """Whether a multiple of `every` was passed since `last`; 0 means never."""
    return bool(every) and step // every > last // every
