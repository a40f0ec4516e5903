"""Supervises the queue, tick by tick: follows the jobs, asks them to stop, and starts those that may start.

All of its state is on disk: journals, locks and runs. So it may be killed at any time, and the next
supervisor continues. Only measurements and exit codes are in memory; losing them costs no job.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mission_gym.errors import DiskError, RunStateError, UsageError
from mission_gym.fleet.groups import write_result
from mission_gym.fleet.mps import PIPES, MpsDaemon, choose_mps
from mission_gym.fleet.process import read_end, read_job_status, start_process, stop_process
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.schedule import (
    WINDOW_S,
    Capacity,
    JobRates,
    JobStart,
    MeasuredUse,
    MemoryUse,
    NearbyRuns,
    PresentRun,
    RunningJob,
    WaitingJob,
    plan_placements,
    plan_starts,
)
from mission_gym.procs import free_memory_bytes, usable_cores
from mission_gym.procs.machine import read_vram
from mission_gym.ray.nodes import Clusters, ClusterView
from mission_gym.store.groups import GroupDir, Job, read_announced

TICK_S = 0.5
_BACK_OFF_S = 1.0  # before the first retry; doubled for each further one, up to a minute
_LONG = 30  # windows that every running job has left if one measurement is negligible
_REAP_S = 10.0
_POLL_S = 0.05  # between two polls of the processes that were started here
_GRACE_S = 120.0  # for a job that was asked to stop; it may have to finish a step or an update

Say = Callable[[str], None]
Member = tuple[GroupDir, Job]


class Supervisor:
    """The one process that starts jobs. `tick` does everything that is due at a time of a monotonic clock."""

    def __init__(self, queue: Queue, say: Say) -> None:
        self._queue, self._say = queue, say
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()  # children whose end `rest` has noticed
        self._asked_at: dict[str, float] = {}  # when a job was asked to stop
        self._not_before: dict[str, float] = {}
        self._rates = JobRates()
        self._memory = MemoryUse()
        self._nearby = NearbyRuns()
        self._mps = MpsDaemon(queue.folder / "mps")
        self._clusters = Clusters()
        self._journals: dict[Path, tuple[int, dict[str, Job]]] = {}  # size and jobs of each journal
        self._said: dict[str, str] = {}

    def rest(self, seconds: float) -> None:
        """Wait this long, or until another process that was started here ends: its cores are free."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ended = {key for key, child in self._children.items() if child.poll() is not None}
            new, self._ended = ended - self._ended, ended
            if new:
                return
            time.sleep(min(left, _POLL_S))

    def tick(self, now: float) -> int:
        """Do everything that is due; returns the number of groups with unfinished jobs."""
        members: dict[str, Member] = {}
        groups, may_start = self._queue.list_groups(), True
        for group in groups:
            try:
                jobs = {name: self._update(group, job, now) for name, job in self._read_jobs(group).items()}
                if all(job.has_ended for job in jobs.values()):
                    write_result(group, jobs.values())
                    self._queue.remove(group)
                members |= {_key(group, name): (group, job) for name, job in jobs.items()}
                self._say_once(group.name, "")
            except RunStateError as error:  # damaged; the other groups continue
                self._say_once(group.name, f"{group.name}: {error}")
            except DiskError as error:  # its running jobs are unknown, and use an unknown share
                self._say_once(group.name, f"{group.name}: {error}")
                may_start = False
        try:
            if may_start:
                self._start_jobs(members, now)
        except DiskError as error:
            self._say_once("start", f"no job is started: {error}")
        return len(groups)

    def _read_jobs(self, group: GroupDir) -> dict[str, Job]:
        """The jobs of a group; the journal is read again if it has grown."""
        path = group.journal.path
        size = path.stat().st_size if path.exists() else 0
        if group.path not in self._journals or self._journals[group.path][0] != size:
            self._journals[group.path] = (size, group.read_jobs())
        return self._journals[group.path][1]

    def _update(self, group: GroupDir, job: Job, now: float) -> Job:
        """The present state of a job; changes are written to the journal."""
        key = _key(group, job.name)
        if job.state == "queued" and job.stop_asked:
            cause = f"not retried after: {job.cause}" if job.cause else "stopped before it started"
            return self._end(group, job, "stopped", cause)
        if job.state == "queued" or job.has_ended:
            return job
        announced = read_announced(group.run_file(job.name))
        if announced is not None and announced != job.run:
            group.note("run", job.name, run=str(announced))
            job = replace(job, run=announced)
            group.write(runs=[str(each.run) for each in group.read_jobs().values() if each.run is not None])
        if group.is_alive(job.name):
            if job.stop_asked:
                self._stop(group, job, now)
            return replace(job, state="running") if group.is_running(job) else job
        code, child = None, self._children.pop(key, None)
        if child is not None:
            with suppress(subprocess.TimeoutExpired):  # a living process without its lock
                code = child.wait(_REAP_S)
        if group.read_pid(job) is None:
            group.note("ended", job.name, state="queued", never_started=True)
            return replace(job, state="queued", attempts=job.attempts - 1, tries=job.tries - 1)
        end = read_end(group, job, code)
        if end.state == "stopped" and now - self._asked_at.get(key, now) > _GRACE_S:
            end = end._replace(cause=f"killed {_GRACE_S:.0f} s after it was asked to stop")
        if end.state == "failed" and job.under_mps and not read_job_status(job).get("step"):
            self._mps.give_up(f"{job.name} failed with it before its first step")
        if end.state == "failed" and end.may_retry and job.tries <= job.request.retries:
            self._not_before[key] = now + min(_BACK_OFF_S * 2 ** (job.tries - 1), 60.0)
            self._say(f"{job.name} failed and is retried: {end.cause}")
            return self._end(group, job, "queued", end.cause)
        return self._end(group, job, end.state, end.cause)

    def _stop(self, group: GroupDir, job: Job, now: float) -> None:
        """Ask a job to save and end; after a grace period it is killed."""
        key = _key(group, job.name)
        if key not in self._asked_at:
            self._asked_at[key] = now
            stop_process(group, job)
        elif now - self._asked_at[key] > _GRACE_S:
            stop_process(group, job, kill=True)

    def _end(self, group: GroupDir, job: Job, state: str, cause: str) -> Job:
        key = _key(group, job.name)
        group.note("ended", job.name, state=state, cause=cause)
        self._asked_at.pop(key, None)
        self._memory.forget(key)
        if state != "queued":
            self._say(f"{job.name} {state}" + (f": {cause}" if cause else ""))
        return replace(job, state=state, cause=cause)  # type: ignore[arg-type]

    def _start_jobs(self, members: dict[str, Member], now: float) -> None:
        """Start jobs on this machine and on clusters. A cluster node that is this machine shares its
        cores."""
        clusters = self._read_clusters(members)
        waiting = self._list_waiting(members)
        running: dict[str, list[RunningJob]] = {}  # by node, "" for this machine
        here = {node.name for each in clusters.values() for node in each.nodes if node.is_here}
        for key, (group, job) in _list_running(members):
            if job.request.cluster is not None:
                variant = _key(group, job.request.variant)
                row = RunningJob(key, variant, job.cores, uses_gpu=job.request.uses_gpu)
                running.setdefault("" if job.node in here else job.node, []).append(row)
        own = self._start_here(members, waiting.get(None, []), running.get("", []), now)
        for address, cluster in clusters.items():
            on_nodes = running | dict.fromkeys(here, own)
            decision = plan_placements(waiting.get(address, []), on_nodes, cluster.nodes, now)
            for start in decision.starts:
                self._start(members, start, cluster)
            self._say_once(f"cluster {address}", f"waiting: {decision.reason}" if decision.reason else "")

    def _read_clusters(self, members: dict[str, Member]) -> dict[str, ClusterView]:
        """The known clusters that jobs need; queued jobs of an unusable cluster fail."""
        keys_of: dict[str, list[str]] = {}
        for key, (_, job) in members.items():
            if job.request.cluster is not None and not job.has_ended:
                keys_of.setdefault(job.request.cluster, []).append(key)
        self._clusters.keep(keys_of.keys())
        found = {}
        for address, keys in keys_of.items():
            try:
                cluster = self._clusters.view(address)
            except UsageError as error:
                for group, job in [members[key] for key in keys if members[key][1].state == "queued"]:
                    members[_key(group, job.name)] = group, self._end(group, job, "failed", str(error))
                continue
            if cluster is not None:
                found[address] = cluster
        return found

    def _list_waiting(self, members: dict[str, Member]) -> dict[str | None, list[WaitingJob]]:
        """The jobs that could start, by cluster, None for this machine. Jobs of a failed parent fail."""
        waiting: dict[str | None, list[WaitingJob]] = {}
        for key, (group, job) in members.items():
            if job.state != "queued":
                continue
            request, parent = job.request, None
            if request.parent is not None:
                parent = members[_key(group, request.parent)][1]
            if parent is None or (parent.state == "done" and parent.run is not None):
                cores = max(request.cores, job.cores if job.run else 1)  # a resumed run keeps its plan
                variant, not_before = _key(group, request.variant), self._not_before.get(key, 0.0)
                row = WaitingJob(key, variant, request.priority, cores, not_before, request.uses_gpu)
                waiting.setdefault(request.cluster, []).append(row)
            elif parent.has_ended:
                self._end(group, job, "failed", f"its parent {parent.name} {parent.state}")
        return waiting

    def _start_here(
        self, members: dict[str, Member], waiting: list[WaitingJob], others: list[RunningJob], now: float
    ) -> list[RunningJob]:
        """Start jobs on this machine next to `others`, the cluster jobs on it; returns all running jobs."""
        running = list(others)
        steps, are_long = {}, True
        on_gpu, cores = _list_on_gpu(members), usable_cores()
        vram = read_vram() if on_gpu else None
        present = [
            _describe(key, *each) for key, each in _list_running(members) if each[1].request.cluster is None
        ]
        folders = {group.path.parent for group, _ in members.values()}
        nearby = self._nearby.find(folders, {each.pid for each in present}, cores, now)
        for each in (*present, *nearby):
            memory = self._memory.measure(
                each.key, each.variant, each.pid, now, is_running=each.is_running,
                vram=vram.by_pid if vram else {},
            )  # fmt: skip
            uses_gpu = each.uses_gpu or memory.vram_bytes > 0
            row = (each.key, each.variant, each.cores, memory.memory_bytes, uses_gpu, memory.vram_bytes)
            running.append(RunningJob(*row, each.min_cores))
            steps[each.key] = each.steps
            are_long = are_long and (each.status.get("eta_s") or 0.0) > _LONG * WINDOW_S
        modes = {job.under_mps for job in on_gpu if job.state != "queued"}
        under_mps = modes == {True}
        self._rates.add(now, steps, under_mps=under_mps if len(modes) < 2 else None)
        capacity = Capacity(cores, free_memory_bytes(), vram and vram.free_bytes)
        rates = self._rates.rates[under_mps]
        use = MeasuredUse(self._memory.memory, self._memory.vram, rates, are_long=are_long)
        decision = plan_starts(waiting, running, capacity, use, now)
        for start in decision.starts:
            self._start(members, start)
        reason = decision.reason
        if reason and nearby:
            names = ", ".join(Path(each.key).name for each in nearby)
            reason += f"; other runs on this machine: {names}"
        self._say_once("start", f"waiting: {reason}" if reason else "")
        self._queue.note_reason(reason)
        return [*running, *(RunningJob(start.key, "", start.cores) for start in decision.starts)]

    def _start(self, members: dict[str, Member], start: JobStart, cluster: ClusterView | None = None) -> None:
        group, job = members[start.key]
        parent = job.request.parent
        parent_run = members[_key(group, parent)][1].run if parent else None
        log = group.log(job.name)
        may_share = job.request.uses_gpu and cluster is None
        under_mps, problem = self._choose_mps(members, job) if may_share else (False, "")
        if self._queue.list_foreign(group, [job.request]):
            problem = (
                "its command was not requested by this user, or was changed since; read it in journal.jsonl,"
                f" and allow it with `mission-gym jobs resume {group.path} --trust`"
            )
        if problem:
            self._end(group, job, "failed", problem)
            return
        group.note(
            "started", job.name, cores=start.cores, log_bytes=log.stat().st_size if log.exists() else 0,
            under_mps=under_mps, node=start.node,
        )  # fmt: skip
        job = replace(
            job, state="starting", cores=start.cores, attempts=job.attempts + 1, tries=job.tries + 1,
            under_mps=under_mps,
        )  # fmt: skip
        members[start.key] = group, job
        variables, program = self._mps.variables if under_mps else {}, ["mission_gym"]
        if cluster is not None:
            num_gpus = str(int(job.request.uses_gpu))
            program = ["mission_gym.ray.job_proxy", cluster.address, start.node, num_gpus]
            variables = cluster.variables
        try:
            child = start_process(group, job, parent_run, variables, program)
            self._children[start.key] = child
        except RunStateError:  # it lives: a killed supervisor started it
            return
        except (OSError, subprocess.SubprocessError) as error:  # the latter if the lock can't be signed
            self._end(group, job, "failed", f"it can't be started: {error}")

    def _choose_mps(self, members: dict[str, Member], job: Job) -> tuple[bool, str]:
        """Whether a job that starts on the GPU uses MPS, and the problem if it must and can't."""
        mode = job.request.cuda_mps
        on_gpu = _list_on_gpu(members)
        others = [each.under_mps for each in on_gpu if each.state != "queued"]
        may_share = choose_mps(mode, others, self._rates.rates, is_only=len(on_gpu) == 1)
        if not may_share or PIPES in job.request.variables:  # the latter: the user's own daemon
            return False, ""
        cause = self._mps.open()
        if cause and mode == "on":
            return False, f"cuda_mps=on is not possible: {cause}"
        self._say_once(
            "mps", f"CUDA MPS is not used: {cause}" if cause else "runs share the GPU through CUDA MPS"
        )
        return not cause, ""

    def close(self) -> None:
        """Leave clusters, and end the MPS daemon if the queue is empty."""
        self._clusters.keep(set())
        if not self._queue.list_groups():
            self._mps.close()

    def _say_once(self, about: str, text: str) -> None:
        """Report a text, unless it is the last one about this subject."""
        if text and self._said.get(about) != text:
            self._say(text)
        self._said[about] = text


def _key(group: GroupDir, name: str) -> str:
    return f"{group.path}/{name}"


def _describe(key: str, group: GroupDir, job: Job) -> PresentRun:
    request = job.request
    return PresentRun(
        key, _key(group, request.variant), group.read_pid(job), job.cores, max(request.cores, 1),
        request.uses_gpu, job.state == "running", read_job_status(job),
    )  # fmt: skip


def _list_running(members: dict[str, Member]) -> Iterable[tuple[str, Member]]:
    jobs = members.items()
    return [(key, each) for key, each in jobs if each[1].state != "queued" and not each[1].has_ended]


def _list_on_gpu(members: dict[str, Member]) -> list[Job]:
    """The unfinished jobs that use this machine's GPU."""
    jobs = (job for _, job in members.values() if job.request.cluster is None)
    return [job for job in jobs if job.request.uses_gpu and not job.has_ended]
