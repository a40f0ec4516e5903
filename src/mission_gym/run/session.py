"""One process's work on one run: the loop, and between updates rows, evaluations and checkpoints.

`Session.updates` is the whole of it: it yields one Progress per update and leaves the run directory
whole however it ends: budget spent, goal reached, signal, caller's break, or exception.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from mission_gym.check.devices import explain_memory
from mission_gym.clock import steady_s
from mission_gym.config.layers import Resolved
from mission_gym.data import Progress
from mission_gym.errors import DiskError, MissionGymError, RunGoneError, describe
from mission_gym.learner import loop, overlap
from mission_gym.learner.contract import Learner
from mission_gym.learner.loop import StopFlag, newest
from mission_gym.procs import BoundedLog
from mission_gym.ray.backend import leave
from mission_gym.run.assemble import make_collector
from mission_gym.run.curriculum import Progression
from mission_gym.run.environment import Environment, training_seeds
from mission_gym.run.rate import Rate
from mission_gym.run.recorder import Listener, Recorder
from mission_gym.run.saving import Saver, keep_repro
from mission_gym.run.selection import Selection
from mission_gym.run.signals import stop_on_signals
from mission_gym.run.snapshot import Restored, count_steps, list_stages, restore_snapshot
from mission_gym.run.status import StatusWriter
from mission_gym.run.telemetry import Telemetry
from mission_gym.store.checkpoints import Checkpoint, list_checkpoints
from mission_gym.store.rundir import RunDir


class Session:
    """The compute bank of a run, its recorder, and the counters that live between updates."""

    def __init__(
        self,
        run: RunDir,
        resolved: Resolved,
        environment: Environment,
        learner: Learner,
        listener: Listener,
    ) -> None:
        self.run = run
        config = resolved.settled
        self.environment = replace(environment, log=BoundedLog(run.path / "env-output.txt"))
        self.stop = StopFlag()
        self.spec = environment.spec
        self.rate = Rate()
        self.recorder = Recorder(run, config, self.spec, listener, self.rate)
        self.learner = learner
        self.counters: dict[str, Any] = {"last_eval": 0, "last_save": -1, "episode_offset": 0}
        self.counters |= {"goal": None, "env_failures": 0, "began_at": 0, "eval_steps": 0}
        self.counters |= {"cut_sequences": 0}
        seeds = training_seeds(config.run.seed, self.counters)
        _, self.collector, self.blocks = make_collector(config, self.environment, seeds)
        self.progression = Progression(config.env.curriculum, self.counters, self.collector)
        self.adopt(resolved)
        self.has_begun = False
        self._deadline: float | None = None  # of steady_s

    def adopt(self, resolved: Resolved) -> None:
        """Take a config that differs in when evaluations are made; before the first step."""
        self.config = config = resolved.settled
        learner, collector, recorder, counters = self.learner, self.collector, self.recorder, self.counters
        self.saver = Saver(self.run, config, learner, collector, self.blocks, recorder, counters)
        self.telemetry = Telemetry(config, self.spec, collector, learner)
        self.status = StatusWriter(
            config, learner, collector, self.blocks, recorder, self.telemetry, counters, self.progression
        )
        self.selection = Selection(self.run, resolved, self.environment, learner, recorder, counters)
        self._follow_best()

    @property
    def step(self) -> int:
        """Transitions learned from, and those of the block that is being filled."""
        return count_steps(self.learner, self.blocks)

    def restore(self, checkpoint: Checkpoint) -> Restored:
        """Take up a checkpoint of this run; returns how everything came back."""
        record = checkpoint.state_json["counters"]
        self.counters |= record["session"] | {"goal": None}
        self.recorder.load_state(record["recorder"], checkpoint.step)
        self.progression.go_on(list_stages(checkpoint))
        restored = restore_snapshot(checkpoint, self.learner, self.collector, self.blocks)
        self.rate.begin_at(self.learner.step)
        return restored

    def begin_at(self, step: int, *, episode_offset: int, stages: dict[str, Any] | None = None) -> None:
        """Begin with a learner that has made `step` steps elsewhere, on episodes from the offset on, where it
        was in the same curriculum."""
        self.counters |= {"episode_offset": episode_offset, "last_eval": step, "began_at": step}
        self.progression.begin_at(step, stages)
        self.rate.begin_at(step)
        self.collector.start()

    def updates(self) -> Generator[Progress]:
        """Train. The collector was started or restored, and the caller holds the run's lock."""
        config = self.config
        if config.run.max_time is not None:
            self._deadline = steady_s() + config.run.max_time
        self.saver.saved_at = steady_s()
        with ExitStack() as stack:
            stack.callback(self.close)
            stack.enter_context(stop_on_signals(self.stop))
            stack.enter_context(self.telemetry)
            self._watch_speed()
            try:
                self.status.write(state="running", cause=None)
                self.has_begun = True
                self.run.keep_reserve()
                if not list_checkpoints(self.run.checkpoints) and not self._save():
                    # Where it all began; and a disk that takes no checkpoint is refused before hours pass.
                    raise DiskError(
                        f"no checkpoint can be written to {self.run.path}; make room and start again"
                    )
                self._between_updates()
                if not self._ended():
                    train = overlap.run if config.compute.overlap == "on" else loop.run
                    total = config.run.timesteps
                    updates = train(self.collector, self.learner, self.blocks, total, self._out_of_time)
                    for progress in self.rate.follow(updates):
                        self.telemetry.see(progress)
                        with self.telemetry.clock.phase("record"):
                            self._record(progress)
                        self._between_updates()
                        yield progress
                        if self._ended() or self._out_of_time():
                            break
                self._finish()
            except GeneratorExit:
                self._save_and_end("stopped", "the caller left the loop")
            except KeyboardInterrupt:
                self.status.write(state="stopped", cause="interrupted twice; the last checkpoint is intact")
                raise
            except BaseException as error:
                told = explain_memory(error, config)
                self._fail(told)
                if told is not error:
                    raise told from error
                raise

    def _watch_speed(self) -> None:
        known = self.telemetry.env_cpu_is_known
        self.recorder.watch.watch_speed(self.learner.step, env_cpu_is_known=known)

    def _out_of_time(self) -> bool:
        return self.stop() or (self._deadline is not None and steady_s() >= self._deadline)

    def _ended(self) -> bool:
        return self.stop() or self.counters["goal"] is not None

    def _finish(self) -> None:
        """The loop is over without an error: by a signal, by the deadline, by the goal or by the budget."""
        if not self.stop() and self.selection.is_due_at_end(self.step):
            self._evaluate(last=True)
        if self.config.evaluation.eval_freq and not self.stop() and (self.saver.is_saved or self._save()):
            self._confirm()
        if self.stop():
            self._save_and_end("stopped", f"{self.stop.reason}")
        elif self.counters["goal"]:
            self._save_and_end("done", f"goal reached: {self.counters['goal']}")
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

    def _end(self, state: str, cause: str, *, is_there: bool = True) -> None:
        """Tell the end; is_there: whether the run directory is."""
        times = {
            "time/elapsed_s": self.rate.elapsed_s,
            "time/fps": self.rate.overall(self.step),
            "time/train_fps": self.rate.training,
            "time/process_steps": self.rate.count_made(self.step),
        }
        times |= self.telemetry.take_row()
        self._add_timeline(None)
        summary = self.telemetry.summarize()
        status = {"state": state, "cause": cause, "verdict": summary["time/verdict"]}
        status |= {"phase": None, "now_fps": None, "eta_s": None}
        self.status.write(on_disk=is_there, **status)  # before the last word, which may fail
        losses, goal = self.recorder.losses(), self.counters["goal"]
        self.recorder.end(step=self.step, state=state, cause=cause, goal=goal, **times, **summary)
        if self.recorder.losses() != losses:
            self.status.write(on_disk=is_there, **status)

    def _fail(self, error: BaseException) -> None:
        """Record the cause, and keep what was learned if it is finite."""
        if isinstance(error, RunGoneError):
            self._end("failed", f"{error}", is_there=False)
            return
        try:
            with self.telemetry.clock.phase("save"):
                self.saver.save_after(error)
        except MissionGymError as second:
            self.recorder.warn(f"nothing was saved: {second}")
        self.fail_early(error)

    def fail_early(self, error: BaseException) -> None:
        """Record a failure after which there is nothing to save."""
        keep_repro(self.run, error, self.environment, self.recorder)
        self._end("failed", describe(error))

    def close(self) -> None:
        """End the environments and close the files."""
        with closing(self.recorder), closing(self.selection):
            self.collector.vec.close()
            leave(self.environment.backend)

    def _record(self, progress: Progress) -> None:
        """Count the update, and write a row where one is due."""
        self.recorder.add_episodes(progress.episodes)
        self.counters["env_failures"] += sum(episode.failed for episode in progress.episodes)
        self.recorder.count_cut(progress.num_cut or 0, self.counters, self.config.env.max_sequence)
        self.progression.see(progress.episodes)
        interval = self.config.run.log_interval
        if progress.update % interval == 0 or progress.step >= self.config.run.timesteps:
            metrics = self.recorder.rolling() | self.collector.metrics() | progress.metrics
            metrics |= self.progression.metrics(progress.step)
            metrics |= {
                "time/iterations": progress.update,
                "time/fps": self.rate.overall(progress.step),
                "time/time_elapsed": round(self.rate.elapsed_s, 3),
            }
            metrics |= self.telemetry.take_row() | {
                "rollout/env_failures": self.counters["env_failures"],
                "rollout/worker_restarts": self.status.worker_restarts,
                "train/gradient_steps": progress.gradient_steps,
            }
            if progress.num_cut is not None:
                metrics["rollout/cut_sequences"] = self.counters["cut_sequences"]
            self.recorder.add_row(progress.step, metrics)
        if moved := self.progression.move(progress.step):
            self.recorder.emit("stage", step=progress.step, **moved)
            self._watch_speed()  # that of another stage is another
        # A resume measures nothing, so that this is where the learner's show.
        for text in (*self.learner.take_notes(), *self.collector.take_notes()):
            self.recorder.warn(text)
        self._add_timeline(progress.update)
        self.status.tick("training")

    def _add_timeline(self, update: int | None) -> None:
        timeline = self.telemetry.make_timeline(update)
        if timeline is not None:
            self.recorder.emit("timeline", step=self.step, **timeline)

    def _between_updates(self) -> None:
        """Make the evaluation and the checkpoint that are due; what a stop left undone is made on resume."""
        if newest(self.blocks).num_filled or self.stop():
            return
        if self.selection.is_due():
            self._evaluate()
        if self.saver.is_due():
            self._save()

    def _evaluate(self, *, last: bool = False) -> None:
        """Play the selection suite, keep the result, and save a checkpoint with its score."""
        self.status.tick("evaluating")
        with self.telemetry.clock.phase("evaluate"):
            start = steady_s()
            is_last = last or self.step >= self.config.run.timesteps
            result = self.selection.play(self.stop if is_last else self._out_of_time)
            seconds = steady_s() - start
        if result is not None:
            self.selection.keep(self.step, result, seconds)
            self._follow_best()
            self._save(result.score)

    def _confirm(self) -> None:
        """Play the best checkpoints again, on more seeds."""
        self.status.tick("evaluating")
        with self.telemetry.clock.phase("evaluate"):
            self.selection.confirm(self.step, self.stop)
        self._follow_best()

    def _follow_best(self) -> None:
        self.saver.best = self.status.best_step = self.selection.best_step

    def _save(self, score: float | None = None) -> bool:
        with self.telemetry.clock.phase("save"):
            saved = self.saver.save(score)
            if saved:
                self.status.write(durable=False)
        return saved
