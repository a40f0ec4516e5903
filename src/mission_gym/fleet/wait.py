"""Waits until the jobs of a group have ended, as the supervisor or behind the present one.

Every process that requests a group calls this. If the supervisor dies, one of the waiting processes takes its
place. If a supervisor's own group is done and others are not, it starts a new supervisor process for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from mission_gym.errors import RunStateError
from mission_gym.fleet.groups import ask_jobs
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.supervisor import TICK_S, Say, Supervisor
from mission_gym.store.groups import GroupDir, Job

Watch = Callable[[Mapping[str, Job]], None]
Feed = Callable[[Mapping[str, Job]], bool]


def wait_for_jobs(
    queue: Queue,
    group: GroupDir,
    names: Sequence[str],
    *,
    say: Say = lambda text: None,
    watch: Watch = lambda jobs: None,
    should_stop: Callable[[], bool] = lambda: False,
    joins: bool = True,
    feed: Feed | None = None,
) -> dict[str, Job]:
    """Return the jobs of a group when all of `names` have ended.

    watch: called with the jobs at every tick. should_stop: once true, these jobs are asked to save and end,
    and are waited for. joins: the group is new to the queue, so a process that waits reports its supervisor.
    feed: called with the jobs, may add more, and returns whether it did. It is called until it returns False;
    then all jobs of the group are waited for.
    """
    supervisor: Supervisor | None = None
    try:
        with ExitStack() as stack:
            has_reported, has_asked = False, False
            while True:
                if supervisor is None and queue.try_supervise(stack):
                    supervisor = Supervisor(queue, say)
                    stack.callback(supervisor.close)
                elif supervisor is None and joins and not has_reported:
                    say(f"process {queue.supervisor} supervises the queue; this group has joined it")
                    has_reported = True
                if supervisor is not None:
                    supervisor.tick(time.monotonic())
                is_listed = _is_queued(queue, group)  # read before the journal
                jobs = group.read_jobs()
                watch(jobs)
                if feed is not None:
                    if not has_asked and not should_stop() and feed(jobs):
                        queue.register(group)  # a supervisor may have removed it when it had no work
                        continue
                    names = list(jobs)
                if all(jobs[name].has_ended for name in names):
                    is_over = all(job.has_ended for job in jobs.values())
                    if not (is_over and _is_queued(queue, group)):  # else its result is not written yet
                        return jobs
                if not is_listed and not any(group.is_alive(name) for name in names):
                    if feed is not None and not has_asked:  # removed by a supervisor meanwhile
                        queue.register(group)
                        continue
                    raise RunStateError(
                        f"{group.path} has unfinished jobs and is not in the queue of this machine;"
                        f" `mission-gym jobs resume {group.path}` continues it"
                    )
                if should_stop() and not has_asked:
                    has_asked = True
                    ask_jobs(group, [name for name in names if not jobs[name].has_ended], "stop")
                else:
                    (supervisor.rest if supervisor else time.sleep)(TICK_S)
    finally:  # also after an interruption: the jobs of other processes continue
        if supervisor is not None and queue.list_groups():
            queue.start_supervisor()


def _is_queued(queue: Queue, group: GroupDir) -> bool:
    return any(each.path == group.path for each in queue.list_groups())


def serve(queue: Queue, *, say: Say, should_stop: Callable[[], bool]) -> bool:
    """Supervise the queue until it is empty. While another process does, this one stands by: that process may
    end just when a group joins. Returns False if a process already stands by."""
    with ExitStack() as standby, ExitStack() as stack:
        if not queue.try_supervise(standby, "standby"):
            return False
        while not queue.try_supervise(stack):
            if should_stop() or not queue.list_groups():
                return True
            time.sleep(TICK_S)
        standby.close()
        supervisor = Supervisor(queue, say)
        stack.callback(supervisor.close)
        while supervisor.tick(time.monotonic()) and not should_stop():
            supervisor.rest(TICK_S)
    return True
