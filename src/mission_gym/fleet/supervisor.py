"""Looks after the queue, tick by tick: sees how jobs are, asks them to stop, starts what may start.

All it knows is read anew: the journals, the jobs' locks, the runs. So it may be killed at any moment, and the
next one goes on; what is in memory here (rates, exit codes) only makes better choices and better words.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mission_gym.errors import DiskError, RunStateError, UsageError
from mission_gym.fleet.members import ask_to_stop, end_member, judge_end, start_member
from mission_gym.fleet.mps import PIPES, MpsDaemon, choose_mps
from mission_gym.fleet.placement import plan_placements
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.rates import WINDOW_S, Levels, Reading
from mission_gym.fleet.results import write_result
from mission_gym.fleet.schedule import Capacity, Facts, Running, Start, Waiting, plan_starts
from mission_gym.fleet.weights import Weights
from mission_gym.procs import free_memory_bytes, usable_cores
from mission_gym.procs.machine import read_vram
from mission_gym.ray.nodes import Clusters, ClusterView
from mission_gym.store.groups import GroupDir, Job, read_announced
from mission_gym.store.rundir import RunDir

TICK_S = 0.5
_BACK_OFF_S = 1.0  # before the first retry, then twice as long each time, at most a minute
_LONG = 30  # windows that every running job has left, where one more costs nothing
_REAP_S = 10.0
_LOOK_S = 0.05  # between looks at the processes that were started here
_GRACE_S = 120.0  # for a job that was asked to stop; a step or an update of its own may come first

Say = Callable[[str], None]
Member = tuple[GroupDir, Job]


class Supervisor:
    """The one process that starts jobs. `tick` does all there is to do at a time of a steady clock."""

    def __init__(self, queue: Queue, say: Say) -> None:
        self._queue, self._tell = queue, say
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()  # of the children, as far as `rest` has told
        self._asked_at: dict[str, float] = {}  # when a job was asked to stop
        self._not_before: dict[str, float] = {}
        self._levels = Levels()
        self._weights = Weights()
        self._mps = MpsDaemon(queue.folder / "mps")
        self._clusters = Clusters()
        self._known: dict[Path, tuple[int, dict[str, Job]]] = {}  # journals: their size, and what they say
        self._said: dict[str, str] = {}

    def rest(self, seconds: float) -> None:
        """Wait so long, or until one more process that was started here has ended: its core is free."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ended = {key for key, child in self._children.items() if child.poll() is not None}
            news, self._ended = ended - self._ended, ended
            if news:
                return
            time.sleep(min(left, _LOOK_S))

    def tick(self, now: float) -> int:
        """Look at everything once; returns the number of groups with work left."""
        members: dict[str, Member] = {}
        groups, may_start = self._queue.list_groups(), True
        for group in groups:
            try:
                jobs = {name: self._see(group, job, now) for name, job in self._read_jobs(group).items()}
                if all(job.has_ended for job in jobs.values()):
                    self._finish(group, jobs)
                members |= {_key(group, name): (group, job) for name, job in jobs.items()}
                self._say(group.name, "")
            except RunStateError as error:  # damaged; the others go on
                self._say(group.name, f"{group.name}: {error}")
            except DiskError as error:  # what runs there is not known, and takes its share
                self._say(group.name, f"{group.name}: {error}")
                may_start = False
        try:
            if may_start:
                self._admit(members, now)
        except DiskError as error:
            self._say("start", f"no job is started: {error}")
        return len(groups)

    def _read_jobs(self, group: GroupDir) -> dict[str, Job]:
        """The jobs of a group; a journal that has not grown says what it said."""
        path = group.journal.path
        size = path.stat().st_size if path.exists() else 0
        if group.path not in self._known or self._known[group.path][0] != size:
            self._known[group.path] = (size, group.read_jobs())
        return self._known[group.path][1]

    def _see(self, group: GroupDir, job: Job, now: float) -> Job:
        """The job as it is now; what has happened to it goes into the journal."""
        key = _key(group, job.name)
        if job.state == "queued" and job.stop_asked:
            cause = f"not tried again after: {job.cause}" if job.cause else "stopped before it began"
            return self._end(group, job, "stopped", cause)
        if job.state == "queued" or job.has_ended:
            return job
        announced = read_announced(group.run_file(job.name))
        if announced is not None and announced != job.run:
            group.note("run", job.name, run=str(announced))
            job = replace(job, run=announced)
            self._list_runs(group)
        if group.is_alive(job.name):
            if job.stop_asked:
                self._stop(group, job, now)
            return replace(job, state="running") if group.is_running(job) else job
        code = self._reap(key)
        if group.read_pid(job) is None:
            group.note("ended", job.name, state="queued", unborn=True)
            return replace(job, state="queued", attempts=job.attempts - 1, tries=job.tries - 1)
        ending = judge_end(group, job, code)
        if ending.state == "stopped" and now - self._asked_at.get(key, now) > _GRACE_S:
            ending = ending._replace(cause=f"killed {_GRACE_S:.0f} s after it was asked to end")
        if ending.state == "failed" and job.under_mps and not _read_status(job).get("step"):
            self._mps.give_up(f"{job.name} failed under it before its first step")
        if ending.state == "failed" and ending.may_retry and job.tries <= job.request.retries:
            self._not_before[key] = now + min(_BACK_OFF_S * 2 ** (job.tries - 1), 60.0)
            self._tell(f"{job.name} failed and is tried again: {ending.cause}")
            return self._end(group, job, "queued", ending.cause)
        return self._end(group, job, ending.state, ending.cause)

    def _stop(self, group: GroupDir, job: Job, now: float) -> None:
        """Ask a job to save and end; one that does not is ended."""
        key = _key(group, job.name)
        if key not in self._asked_at:
            self._asked_at[key] = now
            ask_to_stop(group, job)
        elif now - self._asked_at[key] > _GRACE_S:
            end_member(group, job)

    def _end(self, group: GroupDir, job: Job, state: str, cause: str) -> Job:
        key = _key(group, job.name)
        group.note("ended", job.name, state=state, cause=cause)
        self._asked_at.pop(key, None)
        self._weights.forget(key)
        if state != "queued":
            self._tell(f"{job.name} {state}" + (f": {cause}" if cause else ""))
        return replace(job, state=state, cause=cause)  # type: ignore[arg-type]

    def _reap(self, key: str) -> int | None:
        """The exit code of a process that this one started."""
        child = self._children.pop(key, None)
        try:
            return None if child is None else child.wait(_REAP_S)
        except subprocess.TimeoutExpired:  # it gave up its lock and lives: not known to happen
            return None

    def _admit(self, members: dict[str, Member], now: float) -> None:
        """Start what may start, on this machine and on clusters; a node that is this machine is packed as
        one with it."""
        sightings = self._look_at_clusters(members)
        waiting = self._list_waiting(members)
        running: dict[str, list[Running]] = {}  # by node, "" for this machine
        here = {node.name for each in sightings.values() for node in each.nodes if node.is_here}
        for key, (group, job) in members.items():
            if job.request.cluster is not None and job.state != "queued" and not job.has_ended:
                place = "" if job.node in here else job.node
                variant = _key(group, job.request.variant)
                row = Running(key, variant, job.cores, uses_gpu=job.request.uses_gpu)
                running.setdefault(place, []).append(row)
        own = self._admit_here(members, waiting.get(None, []), running.get("", []), now)
        for address, sighting in sightings.items():
            on_nodes = running | dict.fromkeys(here, own)
            decision = plan_placements(waiting.get(address, []), on_nodes, sighting.nodes, now)
            for start in decision.starts:
                self._start(members, start, sighting)
            self._say(f"cluster {address}", f"waiting: {decision.reason}" if decision.reason else "")

    def _look_at_clusters(self, members: dict[str, Member]) -> dict[str, ClusterView]:
        """The clusters that jobs need, as far as they are known; where one can't be used, they fail."""
        asked: dict[str, list[str]] = {}
        for key, (_, job) in members.items():
            if job.request.cluster is not None and not job.has_ended:
                asked.setdefault(job.request.cluster, []).append(key)
        self._clusters.keep(asked.keys())
        sightings = {}
        for address, keys in asked.items():
            try:
                sighting = self._clusters.view(address)
            except UsageError as error:
                for group, job in [members[key] for key in keys if members[key][1].state == "queued"]:
                    members[_key(group, job.name)] = group, self._end(group, job, "failed", str(error))
                continue
            if sighting is not None:
                sightings[address] = sighting
        return sightings

    def _list_waiting(self, members: dict[str, Member]) -> dict[str | None, list[Waiting]]:
        """What could start, by cluster, None for this machine."""
        waiting: dict[str | None, list[Waiting]] = {}
        for key, (group, job) in members.items():
            if job.state != "queued":
                continue
            asked, cause = job.request, self._waits_for(members, group, job)
            if cause is None:
                cores = max(asked.cores, job.cores if job.run else 1)  # a resumed run keeps its plan
                variant, not_before = _key(group, asked.variant), self._not_before.get(key, 0.0)
                row = Waiting(key, variant, asked.priority, cores, not_before, asked.uses_gpu)
                waiting.setdefault(asked.cluster, []).append(row)
            elif cause:
                self._end(group, job, "failed", cause)
        return waiting

    def _admit_here(
        self, members: dict[str, Member], waiting: list[Waiting], others: list[Running], now: float
    ) -> list[Running]:
        """Start what may start on this machine, beside others that are there; all that run there then."""
        running = list(others)
        readings, are_long = {}, True
        on_gpu = _list_on_gpu(members)
        vram = read_vram() if on_gpu else None
        for key, (group, job) in members.items():
            if job.request.cluster is None and job.state != "queued" and not job.has_ended:
                variant = _key(group, job.request.variant)
                weight = self._weights.look(
                    key, variant, group.read_pid(job), now, is_running=job.state == "running",
                    vram=vram and vram.by_pid,
                )  # fmt: skip
                running.append(Running(key, variant, job.cores, weight[0], job.request.uses_gpu, weight[1]))
                readings[key] = Reading(variant, _read_step(job) or 0)
                are_long = are_long and (_read_eta_s(job) or 0.0) > _LONG * WINDOW_S
        ways = {job.under_mps for job in on_gpu if job.state != "queued"}
        under_mps = ways == {True}
        self._levels.see(now, readings, under_mps=under_mps if len(ways) < 2 else None)
        capacity = Capacity(usable_cores(), free_memory_bytes(), vram and vram.free_bytes)
        levels = self._levels.rates[under_mps]
        facts = Facts(self._weights.memory, self._weights.vram, levels, are_long=are_long)
        decision = plan_starts(waiting, running, capacity, facts, now)
        for start in decision.starts:
            self._start(members, start)
        self._say("start", f"waiting: {decision.reason}" if decision.reason else "")
        return [*running, *(Running(start.key, "", start.cores) for start in decision.starts)]

    def _waits_for(self, members: dict[str, Member], group: GroupDir, job: Job) -> str | None:
        """None for a job that may start; an empty text while its parent is at work; the cause if it can't."""
        if job.request.parent is None:
            return None
        parent = members[_key(group, job.request.parent)][1]
        if parent.state == "done" and parent.run is not None:
            return None
        return f"its parent {parent.name} {parent.state}" if parent.has_ended else ""

    def _start(self, members: dict[str, Member], start: Start, cluster: ClusterView | None = None) -> None:
        group, job = members[start.key]
        parent = job.request.parent
        parent_run = members[_key(group, parent)][1].run if parent else None
        log = group.log(job.name)
        may_share = job.request.uses_gpu and cluster is None
        under_mps, refused = self._share_gpu(members, job) if may_share else (False, "")
        if refused:
            self._end(group, job, "failed", refused)
            return
        group.note(
            "started", job.name, cores=start.cores, log_bytes=log.stat().st_size if log.exists() else 0,
            under_mps=under_mps, node=start.node,
        )  # fmt: skip
        job = replace(
            job, state="starting", attempts=job.attempts + 1, tries=job.tries + 1, under_mps=under_mps
        )
        members[start.key] = group, job
        variables, program = self._mps.variables if under_mps else {}, ["mission_gym"]
        if cluster is not None:
            num_gpus = str(int(job.request.uses_gpu))
            program = ["mission_gym.ray.job_proxy", cluster.address, start.node, num_gpus]
            variables = cluster.variables
        try:
            child = start_member(group, job, start.cores, parent_run, variables, program)
            self._children[start.key] = child
        except RunStateError:  # it lives: a supervisor that was killed had started it
            return
        except (OSError, subprocess.SubprocessError) as error:  # the latter: the lock can't be signed
            self._end(group, job, "failed", f"it can't be started: {error}")

    def _share_gpu(self, members: dict[str, Member], job: Job) -> tuple[bool, str]:
        """Whether a job that starts on the GPU goes through MPS; with the cause if it must and can't."""
        wish = job.request.cuda_mps
        on_gpu = _list_on_gpu(members)
        others = [each.under_mps for each in on_gpu if each.state != "queued"]
        may_share = choose_mps(wish, others, self._levels.rates, is_only=len(on_gpu) == 1)
        if not may_share or PIPES in job.request.variables:  # the latter: a daemon of the user's
            return False, ""
        cause = self._mps.open()
        if cause and wish == "on":
            return False, f"CUDA MPS was asked for, and can't be had: {cause}"
        self._say("mps", f"CUDA MPS is not used: {cause}" if cause else "runs share the GPU through CUDA MPS")
        return not cause, ""

    def close(self) -> None:
        """Leave clusters, and end what the queue no longer needs, if nothing is left in it."""
        self._clusters.keep(set())
        if not self._queue.list_groups():
            self._mps.close()

    def _list_runs(self, group: GroupDir) -> None:
        group.write(runs=[str(job.run) for job in group.read_jobs().values() if job.run is not None])

    def _finish(self, group: GroupDir, jobs: dict[str, Job]) -> None:
        write_result(group, jobs.values())
        self._queue.remove(group)

    def _say(self, about: str, text: str) -> None:
        """Say something new, once."""
        if text and self._said.get(about) != text:
            self._tell(text)
        self._said[about] = text


def _key(group: GroupDir, name: str) -> str:
    return f"{group.path}/{name}"


def _list_on_gpu(members: dict[str, Member]) -> list[Job]:
    """The jobs that use this machine's GPU, or will."""
    jobs = (job for _, job in members.values() if job.request.cluster is None)
    return [job for job in jobs if job.request.uses_gpu and not job.has_ended]


def _read_step(job: Job) -> int | None:
    """The steps of a run that is under way; None before that."""
    status = _read_status(job)
    return status.get("step") if status.get("state") == "running" else None


def _read_eta_s(job: Job) -> float | None:
    return _read_status(job).get("eta_s")


def _read_status(job: Job) -> dict[str, Any]:
    if job.run is None:
        return {}
    try:
        return RunDir(job.run).read_status()
    except RunStateError:
        return {}
