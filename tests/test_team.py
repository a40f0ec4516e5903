"""Threads that share short work: each task once a round, errors raised, and threads that end."""

import gc
import threading
import time

import pytest

from mission_gym.team import Team
from timeouts import LONG_S, wait_until


def threads_of(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.mark.parametrize(("num_tasks", "num_helpers"), [(0, 0), (1, 0), (5, 0), (1, 2), (3, 1), (40, 3)])
def test_every_task_is_done_once_in_each_round(num_tasks, num_helpers):
    team = Team(num_helpers, "rounds")
    counts = [0] * num_tasks

    def make(place):
        def task():
            counts[place] += 1
            return place * counts[place]

        return task

    tasks = [make(place) for place in range(num_tasks)]
    for k in range(1, 301):
        if k % 100 == 0:
            time.sleep(0.02)  # long enough for the helpers to fall asleep
        assert team.run(tasks) == [place * k for place in range(num_tasks)]
        assert counts == [k] * num_tasks
    team.close()


def test_two_tasks_run_at_the_same_time_also_after_the_helper_slept():
    team = Team(1, "both")
    for _ in range(3):
        time.sleep(0.05)
        meeting = threading.Barrier(2, timeout=LONG_S)  # breaks unless both are there
        team.run([meeting.wait, meeting.wait])
    team.close()


def test_tasks_that_wait_for_each_other_meet_whenever_the_helper_falls_asleep():
    team = Team(1, "meet")
    for pause in range(400):  # around the half millisecond after which it sleeps
        time.sleep(pause * 1e-5)
        meeting = threading.Barrier(2, timeout=LONG_S)
        team.run([meeting.wait, meeting.wait])
    team.close()


def test_an_error_of_any_thread_is_raised_and_the_team_goes_on():
    team = Team(1, "errors")
    meeting = threading.Barrier(2, timeout=LONG_S)

    def fail():
        meeting.wait()
        raise ValueError("of a task")

    for tasks in ([fail, meeting.wait], [meeting.wait, fail]):
        with pytest.raises(ValueError, match="of a task"):
            team.run(tasks)
        assert team.run([lambda: 1, lambda: 2]) == [1, 2]
    team.close()


def test_the_threads_end_with_close_and_with_the_team():
    team = Team(3, "ends")
    assert len(threads_of("ends")) == 3
    team.close()
    wait_until(lambda: not threads_of("ends"))
    team = Team(3, "ends")
    team.run([int, int])
    del team
    gc.collect()
    wait_until(lambda: not threads_of("ends"))
