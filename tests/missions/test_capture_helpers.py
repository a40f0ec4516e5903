"""Threads that share the rows of a step: each row once a step, and threads that end."""

import gc
import threading
import time

import numpy as np
import pytest

from mission_gym.compiled import entry
from mission_gym.missions.capture.helpers import Helpers
from mission_gym.missions.capture.sim.sharing import report_rows, take_rows


@entry
def count_rows(steps, counters, share, looks):
    """As `step_rows`, but a step adds one to a row."""
    num_rows = steps.shape[0]
    looked = 0
    while looked <= looks:
        first = take_rows(counters, num_rows, share)
        if first >= num_rows:
            looked += 1
            continue
        looked = 0
        last = min(first + share, num_rows)
        for i in range(first, last):
            steps[i] += 1
        report_rows(counters, last - first)


def work_on(steps):
    return lambda counters, share, looks: count_rows(steps, counters, share, looks)


def helper_threads():
    return {thread for thread in threading.enumerate() if thread.name == "capture"}


def wait_until(holds):
    deadline = time.monotonic() + 10.0
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert holds()


@pytest.mark.parametrize(("num_rows", "num_helpers"), [(1, 0), (7, 0), (7, 1), (100, 3), (1000, 7)])
def test_every_row_is_stepped_once_in_each_step(num_rows, num_helpers):
    steps = np.zeros(num_rows, np.int64)
    helpers = Helpers(work_on(steps), num_rows, num_helpers)
    for k in range(300):
        if k % 100 == 99:
            time.sleep(0.02)  # long enough for the helpers to fall asleep
        helpers.run()
        assert (steps == k + 1).all()
    helpers.close()


def test_a_helper_that_sleeps_is_woken_for_the_next_step():
    by_thread = {}

    def work(counters, share, looks):
        by_thread[threading.get_ident()] = by_thread.get(threading.get_ident(), 0) + 1
        count_rows(steps, counters, share, looks)

    steps = np.zeros(64, np.int64)
    helpers = Helpers(work, 64, 1)
    for k in range(3):
        wait_until(lambda: len(helpers._sleepers) == 1)
        helpers.run()
        wait_until(lambda k=k: sum(by_thread.values()) == 2 * (k + 1) + 1)
    assert sorted(by_thread.values()) == [3, 4]  # the caller, and the helper that also began on its own
    helpers.close()


def test_the_threads_end_with_close_and_with_their_owner():
    before = helper_threads()
    helpers = Helpers(work_on(np.zeros(8, np.int64)), 8, 3)
    assert len(helper_threads() - before) == 3
    helpers.close()
    wait_until(lambda: helper_threads() <= before)
    helpers = Helpers(work_on(np.zeros(8, np.int64)), 8, 3)
    helpers.run()
    del helpers
    gc.collect()
    wait_until(lambda: helper_threads() <= before)
