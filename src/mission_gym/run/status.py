"""The status of a run: status.json and the progress line.

The training thread writes the status between updates and when a phase begins. A second thread repeats it
every second with a new heartbeat, the steps made and the progress of the phase, so that no phase is silent,
however long it takes. The status follows the wall clock, so it is not part of the rows of a run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mission_gym.errors import RunStateError
from mission_gym.rollout.play import See
from mission_gym.run.curriculum import Progression
from mission_gym.run.recorder import Recorder
from mission_gym.run.snapshot import RunContext
from mission_gym.run.telemetry import Telemetry
from mission_gym.store.rundir import STALL_S, Status

_STATUS_S = 1.0  # between writes of status.json
_REPEAT_S = 1.0  # between the repetitions of a status
_TICK_S = 0.1  # between statuses for the listener
_MOMENT_S = 10.0  # without an update, after which the momentary rate is that of these seconds
_WORK = {"collect": "collecting", "update": "learning"}  # phases of the clocks


class StatusWriter:
    """Writes the status of one run to status.json, and passes it to the listener, until `close`.

    It begins before the environments are made, and knows the rest of the session from `attach` on.
    """

    def __init__(self, recorder: Recorder, phase: str) -> None:
        self._recorder = recorder
        self._context: RunContext | None = None
        self._telemetry: Telemetry | None = None
        self._progression: Progression | None = None
        self._written_at = self._shown_at = time.monotonic()
        self._begin(phase)
        self._last: dict[str, Any] = {}  # the last status of the training thread
        self._moved = (-1, time.time())  # the last progress that was seen, and its Unix time
        self._moments: list[tuple[float, int]] = []  # time and step of the last seconds
        self._is_collecting = False  # at the last repetition
        # A resumed run keeps the state of its last end until it trains.
        self._is_live = False
        with suppress(RunStateError):  # a damaged status is replaced
            self._is_live = recorder.run.read_status().get("state") in ("starting", "running")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="status", daemon=True)
        with suppress(RuntimeError):  # the system refuses a thread: a status without repetitions
            self._thread.start()

    def attach(self, context: RunContext, telemetry: Telemetry, progression: Progression) -> None:
        """The session is complete."""
        self._context, self._telemetry, self._progression = context, telemetry, progression

    def close(self) -> None:
        """Stop repeating the status."""
        self._is_over.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def begin(self) -> None:
        """The training begins."""
        self._begin("training")
        self.write(Status(state="running", cause=None))

    @property
    def worker_restarts(self) -> int:
        """Workers that were replaced."""
        assert self._context is not None
        return int(self._context.collector.vec.num_restarts)

    @property
    def stall_s(self) -> float | None:
        """Seconds without a step while environments are stepped, if they are many; None otherwise."""
        seconds = time.time() - self._moved[1]
        return seconds if self._is_collecting and seconds > STALL_S else None

    def _begin(self, phase: str) -> None:
        self._phase, self._began_at = phase, time.time()
        self._num_episodes: int | None = None  # of an evaluation
        self._played = (0, 0)  # of them: those that have ended, and steps

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show a phase if it takes a while or plays episodes; afterwards, the one before returns."""
        before = self._phase
        self._begin(name)
        try:
            yield
        finally:
            self._begin(before)

    def expect(self, num_episodes: int) -> See:
        """The present phase plays this many episodes; returns the function that takes its progress."""
        self._num_episodes, self._played = num_episodes, (0, 0)
        self.tick(self._phase)

        def see(num_ended: int, num_steps: int) -> None:
            self._played = num_ended, num_steps

        return see

    def tick(self, phase: str) -> None:
        """Show the status at once if the phase is new, else ten times per second; on disk once per second."""
        assert self._telemetry is not None
        now = time.monotonic()
        if phase == self._last.get("phase") and now - self._shown_at < _TICK_S:
            return
        if phase != self._phase:
            self._begin(phase)
        self._shown_at = now
        if now - self._written_at >= _STATUS_S:
            verdict = self._telemetry.summarize()["time/verdict"]
            self.write(Status(verdict=verdict), durable=False)
        else:
            self.write(on_disk=False)

    def write(self, changes: Status | None = None, *, on_disk: bool = True, durable: bool = True) -> None:
        """Show the status, and write it to status.json. changes: fields that are added or replaced; a state
        that is not live ends the status."""
        assert self._context is not None
        assert self._telemetry is not None
        assert self._progression is not None
        if on_disk:
            self._written_at = time.monotonic()
        context = self._context
        recorder, learner = context.recorder, context.learner
        rate, rolling = recorder.rate, recorder.rolling()
        status = Status(
            total=context.config.run.timesteps,
            updates=learner.version,
            gradient_steps=learner.gradient_steps,
            episodes=recorder.num_episodes,
            env_failures=context.state.env_failures,
            worker_restarts=self.worker_restarts,
            fps=rate.overall(learner.step) or None,
            train_fps=rate.training,
            return_mean=rolling.get("rollout/ep_rew_mean"),
            outcomes={name: rolling.get(f"outcome/{name}") for name in context.spec.outcomes} or None,
            best_step=context.best_step,
            stage=self._progression.status(),
        )
        fields = status.model_dump(exclude_unset=True) | self._describe_phase(context, context.step)
        if failures := self._telemetry.failures.document():
            fields["failures"] = failures
        if changes is not None:
            fields |= changes.model_dump(exclude_unset=True)
        with recorder.lock:
            if "state" in fields:
                self._is_live = fields["state"] == "running"
            if not self._is_live:
                fields |= Status(
                    phase=None, phase_since=None, phase_done=None, phase_total=None, phase_eta_s=None,
                    moved_at=None, now_fps=None, eta_s=None,
                ).model_dump(exclude_unset=True)  # fmt: skip
            self._last = fields
            recorder.put_status(fields, on_disk=on_disk, durable=durable)

    def _describe_phase(self, context: RunContext, step: int) -> dict[str, Any]:
        """The fields that change while a phase lasts. Both threads ask: only counters are read."""
        rate, total = context.recorder.rate, context.config.run.timesteps
        now = time.time()
        episodes, steps = self._played
        if self._moved[0] != step + steps:
            self._moved = step + steps, now
        eta_s, phase_eta_s = rate.eta_s(total, step), self._estimate_phase_s(context, now)
        if step >= total:
            eta_s = 0.0 if self._num_episodes is None else phase_eta_s
        elif eta_s is not None and phase_eta_s is not None:
            eta_s = round(eta_s + phase_eta_s, 1)
        if now - self._moved[1] > STALL_S and self._num_episodes is None:
            eta_s = None  # at this pace it never ends
        status = Status(
            step=step,
            phase=self._phase,
            phase_since=self._began_at,
            phase_done=None if self._num_episodes is None else episodes,
            phase_total=self._num_episodes,
            phase_eta_s=phase_eta_s,
            moved_at=self._moved[1],
            now_fps=rate.momentary,
            eta_s=eta_s,
        )
        return status.model_dump(exclude_unset=True)

    def _estimate_phase_s(self, context: RunContext, now: float) -> float | None:
        """Seconds until an evaluation ends, by its episodes or by its steps, whatever is farther."""
        if self._num_episodes is None:
            return None
        episodes, steps = self._played
        length = context.recorder.rolling_length or context.spec.max_episode_steps
        shares = [episodes / self._num_episodes, steps / (self._num_episodes * length) if length else 0.0]
        share = max(shares)
        return round((now - self._began_at) * (1.0 / share - 1.0), 1) if 0.0 < share <= 1.0 else None

    def _repeat(self) -> None:
        while not self._is_over.wait(_REPEAT_S):
            with self._recorder.lock:
                if self._last and not self._is_live:
                    continue  # the run has ended
                self._recorder.repeat_status(self._make_repeated(), on_disk=self._is_live)

    def _make_repeated(self) -> dict[str, Any]:
        """The last status with the present progress; before the training, only the phase."""
        context = self._context
        if context is None or not self._last:
            return {"phase": self._phase, "phase_since": self._began_at}
        # A full block that waits for its update does not count; the line would go back.
        step = max(context.step, self._last["step"])
        fields = self._last | self._describe_phase(context, step)
        for name in ("state", "cause", "verdict"):  # on disk they may be newer
            fields.pop(name, None)
        if self._phase == "training":
            running = {
                _WORK.get(clock.running or "") for clock in (context.collector.clock, context.learner.clock)
            }
            if len(running := running - {None}) == 1:
                fields["phase"] = running.pop()
            self._is_collecting = fields["phase"] == "collecting"
        now = time.monotonic()
        self._moments = [each for each in self._moments if now - each[0] <= _MOMENT_S] + [
            (now, fields["step"])
        ]
        spent_s = now - self._moments[0][0]
        if (
            now - self._written_at > _MOMENT_S / 2 and spent_s > 0.0
        ):  # no update: the rate of the last seconds
            fields["now_fps"] = round((fields["step"] - self._moments[0][1]) / spent_s, 1)
        return fields
