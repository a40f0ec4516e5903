"""One process's work on one run: the training loop, and rows, evaluations and checkpoints between updates.

`Session.updates` yields one Progress per update. It leaves a complete run directory however it ends: budget
used up, goal reached, signal, the caller's break, or an exception.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace

from mission_gym.check.devices import explain_memory
from mission_gym.config.layers import Resolved
from mission_gym.data import Progress
from mission_gym.errors import DiskError, MissionGymError, RunGoneError, UsageError, describe, nearest
from mission_gym.learner import loop
from mission_gym.learner.contract import Learner
from mission_gym.learner.loop import StopFlag, current_block
from mission_gym.procs import BoundedLog
from mission_gym.ray.backend import leave
from mission_gym.run.build import make_collector
from mission_gym.run.curriculum import Progression
from mission_gym.run.environment import Environment
from mission_gym.run.failures import FailureKind, FailureLog
from mission_gym.run.recorder import Listener, Recorder, StepRate
from mission_gym.run.saving import Saver
from mission_gym.run.selection import Selection
from mission_gym.run.signals import stop_on_signals
from mission_gym.run.snapshot import (
    Restored,
    RunContext,
    RunState,
    StageState,
    list_stages,
    read_run_state,
    restore_snapshot,
)
from mission_gym.run.status import StatusWriter
from mission_gym.run.telemetry import Telemetry
from mission_gym.run.verdict import judge_failure, judge_stall
from mission_gym.store.checkpoints import Checkpoint, list_checkpoints
from mission_gym.store.rundir import RunDir, Status, Verdict
from mission_gym.streams import TrainingSeeds


class Session(RunContext):
    """A run in this process: the shared context, and the parts that use it."""

    def __init__(
        self, run: RunDir, resolved: Resolved, environment: Environment, learner: Learner, listener: Listener
    ) -> None:
        config = resolved.settled
        recorder, output = Recorder(run, config, environment.spec, listener), BoundedLog(run.env_output)
        self.status = StatusWriter(recorder, "making environments")
        self.failures = FailureLog(
            recorder, output, lambda error: self.saver.save_repro(error), lambda: learner.step
        )
        environment = replace(environment, log=output, on_failure=self.failures.add)
        self._seeds = TrainingSeeds(config.run.seed)
        try:
            _, collector, blocks = make_collector(config, environment, self._seeds)
        except BaseException:
            self.status.close()
            raise
        super().__init__(run, resolved, environment, learner, collector, blocks, recorder, RunState())
        self.stop = StopFlag()
        self.has_begun = False
        self.is_paused = False  # the caller has an update
        self._unrecorded: Progress | None = None  # the update whose row is not written yet
        self._deadline: float | None = None  # of time.monotonic
        self.progression = Progression(config.env.curriculum, self.state, collector)
        self.saver = Saver(self)
        self.selection = Selection(self, self.status)
        self.telemetry = Telemetry(self, self.failures)
        self.status.attach(self, self.telemetry, self.progression)
        self.failures.open()

    @property
    def rate(self) -> StepRate:
        return self.recorder.rate

    def restore(self, checkpoint: Checkpoint) -> Restored:
        """Continue from a checkpoint of this run."""
        self.state = read_run_state(checkpoint)
        self._seeds.episode_offset = self.state.episode_offset
        self.recorder.load_state(checkpoint.state_json["counters"]["recorder"], checkpoint.step)
        self.progression.restore(self.state, list_stages(checkpoint))
        restored = restore_snapshot(checkpoint, self.learner, self.collector, self.blocks)
        self.learner.section = self.state.apply_settings(self.resolved).settled.algorithm
        self.rate.begin_at(self.learner.step)
        return restored

    def begin_at(self, step: int, *, episode_offset: int, stages: StageState | None = None) -> None:
        """Start with a learner of another run, at its step. stages: its position in the same curriculum."""
        self.state.last_eval = self.state.began_at = step
        self.state.episode_offset = self._seeds.episode_offset = episode_offset
        self.progression.begin_at(step, stages)
        self.rate.begin_at(step)
        self.collector.start()

    def updates(self) -> Generator[Progress]:
        """Train. The collector was started or restored, and the caller holds the run's lock."""
        config = self.config
        self.saver.saved_at = time.monotonic()
        if config.run.max_time is not None:
            self._deadline = self.saver.saved_at + config.run.max_time
        with ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(stop_on_signals(self.stop))
            stack.enter_context(self.telemetry)
            self._watch_speed()
            try:
                self.status.begin()
                self.has_begun = True
                if cause := self.telemetry.sampler.refusal:
                    self.recorder.warn(f"the use of CPU, GPU and memory is not measured: {cause}")
                self.run.keep_reserve()
                if not list_checkpoints(self.run.checkpoints) and not self._save():
                    # The first checkpoint: a disk without room is noticed before hours of training.
                    raise DiskError(
                        f"no checkpoint can be written to {self.run.path}; free disk space and start again"
                    )
                self._between_updates()
                if not self._ended():
                    train = loop.run_overlapping if config.compute.overlap == "on" else loop.run
                    total = config.run.timesteps
                    updates = train(self.collector, self.learner, self.blocks, total, self._out_of_time)
                    for progress in self.rate.follow(updates, overlaps=self.config.compute.overlap == "on"):
                        self.telemetry.see(progress)
                        with self.telemetry.clock.phase("record"):
                            self._count(progress)
                        self._unrecorded = progress
                        try:
                            self.is_paused = True
                            yield progress
                        finally:  # the row has the numbers that the caller logs, even if it leaves the loop
                            self.is_paused = False
                            self._record()
                        self._between_updates()
                        if self._ended() or self._out_of_time():
                            break
                self._finish()
            except GeneratorExit:
                self._save_and_end("stopped", "the caller left the loop")
            except KeyboardInterrupt:
                cause = "interrupted twice; the last checkpoint is intact"
                self.status.write(Status(state="stopped", cause=cause))
                raise
            except BaseException as error:
                explained = explain_memory(error, config)
                self._fail(explained)
                if explained is not error:
                    raise explained from error
                raise

    def _watch_speed(self) -> None:
        known = self.telemetry.env_cpu_is_known
        self.recorder.watch.watch_speed(self.learner.step, env_cpu_is_known=known)

    def _out_of_time(self) -> bool:
        """Whether to stop; it is polled while other threads collect, so it also shows their failures."""
        self.failures.flush()
        return self.stop() or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _ended(self) -> bool:
        return self.stop() or self.goal is not None

    def _finish(self) -> None:
        """The loop ended without an error: by a signal, the deadline, the goal or the budget."""
        if not self.stop() and self.selection.is_due_at_end(self.step):
            self._evaluate(last=True)
        if self.config.evaluation.eval_freq and not self.stop() and (self.saver.is_saved or self._save()):
            with self.telemetry.clock.phase("evaluate"):
                self.selection.confirm(self.step, self.stop)
        if self.config.evaluation.retest_episodes and not self.stop():
            with self.telemetry.clock.phase("evaluate"):
                self.selection.retest(self.step, self.stop)
        if self.stop():
            self._save_and_end("stopped", f"{self.stop.reason}")
        elif self.goal is not None:
            self._save_and_end("done", f"goal reached: {self.goal}")
        elif self.learner.step >= self.config.run.timesteps:
            self._save_and_end("done", "all steps made")
        else:
            self._save_and_end("stopped", "max_time reached")

    def _save_and_end(self, state: str, cause: str) -> None:
        if not self.saver.is_saved and not self._save():
            raise DiskError(f"the last checkpoint could not be written to {self.run.path}")
        if state == "done":
            self.saver.finish()
        self._end(state, cause)

    def _end(
        self,
        state: str,
        cause: str,
        *,
        exists: bool = True,
        failure: FailureKind | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """Record the end. exists: whether the run directory is still there. failure: of the environment, that
        caused it. verdict: replaces the measured one; a failed run has no other."""
        self.failures.flush()
        times = {
            "time/elapsed_s": self.rate.elapsed_s,
            "time/fps": self.rate.overall(self.step),
            "time/train_fps": self.rate.training,
            "time/process_steps": self.rate.count_made(self.step),
        }
        times |= self.telemetry.take_row()
        self._add_timeline(None)
        summary = self.telemetry.summarize()
        if state == "failed":  # its speed does not matter
            summary["time/verdict"] = None if verdict is None else verdict.model_dump()
        elif state == "stopped" and (stall_s := self.status.stall_s) is not None:
            summary["time/verdict"] = judge_stall(stall_s).model_dump()
        shown = summary["time/verdict"]
        status = Status(state=state, cause=cause, verdict=shown)
        self.status.write(status, on_disk=exists)  # before the last event, which may fail
        losses = self.recorder.losses()
        ended = {"step": self.step, "state": state, "cause": cause, "goal": self.goal}
        if failure is not None:
            repro = None if failure.repro is None else failure.repro.name
            ended |= {"failure": failure.text, "place": failure.place, "repro": repro}
        self.recorder.end(**ended, **times, **summary)
        if self.recorder.losses() != losses:
            self.status.write(status, on_disk=exists)

    def _fail(self, error: BaseException) -> None:
        """Save the weights if they are finite, and record the cause."""
        if isinstance(error, RunGoneError):
            self._end("failed", f"{error}", exists=False)
            return
        try:
            with self.status.phase("saving"), self.telemetry.clock.phase("save"):
                self.saver.save_after(error)
        except MissionGymError as second:
            self.recorder.warn(f"nothing was saved: {second}")
        self.fail_early(error)

    def fail_early(self, error: BaseException) -> None:
        """Record a failure after which there is nothing to save."""
        failure = self.failures.end(error)
        self._end("failed", describe(error), failure=failure, verdict=judge_failure(error, self.run.name))

    def close(self) -> None:
        """Close the environments and the files, and release the environment's companion."""
        with closing(self.recorder), closing(self.selection), closing(self.status):
            self.collector.vec.close()
            leave(self.environment.backend)
        self.environment = replace(self.environment, companion=None)

    def save(self) -> bool:
        """Write a checkpoint between two updates; False, with a warning, if the disk refuses it."""
        self._record()  # a resume does not repeat this update
        return self._save()

    def set_values(self, values: Mapping[str, float]) -> None:
        """Replace scheduled values of the algorithm from the next update on, in place of their schedules."""
        known = self.config.algorithm.SCHEDULED
        if wrong := next((name for name in values if name not in known), None):
            raise UsageError(
                f"{wrong!r} can't be set while training{nearest(wrong, known)}; update.set takes"
                f" {', '.join(known)}, and mg.branch changes other values"
            )
        state = replace(self.state, settings=self.state.settings | dict(values))
        if state == self.state:
            return
        self.learner.section = state.apply_settings(self.resolved).settled.algorithm
        self.state.settings = state.settings
        self.recorder.emit("set", step=self.step, values=dict(values))
        if self.saver.is_saved:  # a resume from this step must have them
            self._save()

    def _count(self, progress: Progress) -> None:
        """Count the update and its episodes."""
        self.recorder.add_episodes(progress.episodes)
        self.state.env_failures += sum(episode.failed for episode in progress.episodes)
        self._count_cut(progress.num_cut or 0)
        self.progression.see(progress.episodes)

    def _record(self) -> None:
        """Write the row of the last update if one is due, once."""
        if self._unrecorded is not None:
            progress, self._unrecorded = self._unrecorded, None
            with self.telemetry.clock.phase("record"):
                self._add_row(progress)

    def _add_row(self, progress: Progress) -> None:
        recorder, state = self.recorder, self.state
        interval = self.config.run.log_interval
        if progress.update % interval == 0 or progress.step >= self.config.run.timesteps:
            metrics = recorder.rolling() | self.collector.metrics() | progress.metrics
            metrics |= self.progression.metrics(progress.step) | recorder.take_logged()
            metrics |= {
                "time/iterations": progress.update,
                "time/fps": self.rate.overall(progress.step),
                "time/time_elapsed": round(self.rate.elapsed_s, 3),
            }
            metrics |= self.telemetry.take_row() | {
                "rollout/env_failures": state.env_failures,
                "rollout/worker_restarts": self.status.worker_restarts,
                "train/gradient_steps": progress.gradient_steps,
            }
            if progress.num_cut is not None:
                metrics["rollout/cut_sequences"] = state.cut_sequences
            recorder.add_row(progress.step, metrics)
        if moved := self.progression.move(progress.step):
            recorder.emit("stage", step=progress.step, **moved)
            self._watch_speed()  # another stage has another speed
        # A resume measures nothing, so the learner's notes appear here.
        for text in (*self.learner.take_notes(), *self.collector.take_notes()):
            recorder.warn(text)
        self._add_timeline(progress.update)
        self.status.tick("training")

    def _count_cut(self, count: int) -> None:
        """Count observed sequences that were truncated; the first ones raise a warning."""
        if count and not self.state.cut_sequences:
            limit = self.config.env.max_sequence
            self.recorder.warn(
                f"{count} observed sequences had more than {limit} elements and were truncated;"
                f" rollout/cut_sequences counts them; read more with --max-sequence {2 * limit}"
            )
        self.state.cut_sequences += count

    def _add_timeline(self, update: int | None) -> None:
        timeline = self.telemetry.make_timeline(update)
        if timeline is not None:
            self.recorder.emit("timeline", step=self.step, **timeline)

    def _between_updates(self) -> None:
        """Run the evaluation and write the checkpoint that are due; after a stop, the resumed run does."""
        if current_block(self.blocks).num_filled or self.stop():
            return
        if self.selection.is_due():
            self._evaluate()
        if self.saver.is_due():
            self._save()

    def _evaluate(self, *, last: bool = False) -> None:
        """Evaluate the weights, record the result, and save a checkpoint with its score."""
        with self.telemetry.clock.phase("evaluate"):
            start = time.monotonic()
            is_last = last or self.step >= self.config.run.timesteps
            result = self.selection.play(self.stop if is_last else self._out_of_time)
            seconds = time.monotonic() - start
        if result is not None:
            self.selection.add(self.step, result, seconds)
            self.selection.check_goal(self.step, result, self.stop if is_last else self._out_of_time)
            self._save(result.score)

    def _save(self, score: float | None = None) -> bool:
        with self.telemetry.clock.phase("save"):
            with self.status.phase("saving"):
                saved = self.saver.save(score)
            if saved:
                self.status.write(durable=False)
        return saved
