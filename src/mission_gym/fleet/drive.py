"""Stays with a group until its jobs have ended: as the supervisor, or behind the one that there is.

Whoever asks for a group calls this. If the supervisor dies, one of those who wait takes its place; when a
supervisor's own group is done and others are not, a process of its own goes on with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from mission_gym.errors import RunStateError
from mission_gym.fleet.queue import Queue
from mission_gym.fleet.supervisor import TICK_S, Say, Supervisor
from mission_gym.store.groups import GroupDir, Job

Watch = Callable[[Mapping[str, Job]], None]
Feed = Callable[[Mapping[str, Job]], bool]


def stay_with(
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
    """Return the jobs of a group when all of `names` have ended. watch: is shown them at every tick.
    should_stop: once true, these jobs are asked to save and end, and waited for. joins: the group is new to
    the queue, and who looks after that is said. feed: is shown them too, may ask for more jobs, says whether
    it did, and is asked again until it does not; then all jobs of the group are waited for."""
    supervisor: Supervisor | None = None
    try:
        with ExitStack() as stack:
            told, asked = False, False
            while True:
                if supervisor is None and queue.try_supervise(stack):
                    supervisor = Supervisor(queue, say)
                    stack.callback(supervisor.close)
                elif supervisor is None and joins and not told:
                    say(f"process {queue.supervisor} looks after the queue; this group has joined it")
                    told = True
                if supervisor is not None:
                    supervisor.tick(time.monotonic())
                is_listed = any(each.path == group.path for each in queue.list_groups())  # before the journal
                jobs = group.read_jobs()
                watch(jobs)
                if feed is not None:
                    if not asked and not should_stop() and feed(jobs):
                        queue.register(group)  # another supervisor may have seen it without work, and left it
                        continue
                    names = list(jobs)
                if all(jobs[name].has_ended for name in names) and not _has_entry(queue, group, jobs):
                    return jobs
                if not is_listed and not any(group.is_alive(name) for name in names):
                    if feed is not None and not asked:  # the same, a moment later
                        queue.register(group)
                        continue
                    raise RunStateError(
                        f"{group.path} has jobs left and is in no queue of this machine;"
                        f" `mission-gym jobs resume {group.path}` goes on with it"
                    )
                if should_stop() and not asked:
                    asked = True
                    ask(group, [name for name in names if not jobs[name].has_ended], "stop")
                else:
                    (supervisor.rest if supervisor else time.sleep)(TICK_S)
    finally:  # also where this process is interrupted: what others asked for goes on
        if supervisor is not None and queue.list_groups():
            queue.start_supervisor()


def ask(group: GroupDir, names: Sequence[str], what: str) -> None:
    """Ask for jobs of a group to be stopped, or to go on."""
    for name in names:
        group.note("asked", name, what=what)


def _has_entry(queue: Queue, group: GroupDir, jobs: Mapping[str, Job]) -> bool:
    """Whether the result of a group that has ended is still to be written."""
    is_over = all(job.has_ended for job in jobs.values())
    return is_over and any(each.path == group.path for each in queue.list_groups())


def serve(queue: Queue, *, say: Say, should_stop: Callable[[], bool]) -> bool:
    """Look after the queue until it is empty. Behind another supervisor one process stands by, since that one
    may end in the moment in which a group joins; False if there is one already."""
    with ExitStack() as standing, ExitStack() as stack:
        if not queue.try_supervise(standing, "standby"):
            return False
        while not queue.try_supervise(stack):
            if should_stop() or not queue.list_groups():
                return True
            time.sleep(TICK_S)
        standing.close()
        supervisor = Supervisor(queue, say)
        stack.callback(supervisor.close)
        while supervisor.tick(time.monotonic()) and not should_stop():
            supervisor.rest(TICK_S)
    return True
