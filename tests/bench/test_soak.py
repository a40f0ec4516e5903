"""The parts of the soak: a clock that jumps, and disturbances that wait for the run."""

import os
import random
import subprocess
import sys
import time

import pytest

from mission_gym_bench.faults.fake_clock import fake_wall_clock, set_shift

if os.name == "nt":
    pytest.skip("signals and small disks", allow_module_level=True)

from mission_gym_bench.soak import _Schedule

CODE = """
import sys, time
from datetime import datetime
for line in sys.stdin:
    print(time.time(), time.time_ns() / 1e9, datetime.now().timestamp(), time.monotonic(), flush=True)
"""


def test_the_clock_of_a_process_is_shifted_while_it_runs(tmp_path):
    file = tmp_path / "seconds"
    set_shift(file, 0.0)
    env = os.environ | fake_wall_clock(tmp_path / "site", file)
    with subprocess.Popen(
        [sys.executable, "-c", CODE], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for shift in (0.0, -86_400.0, 3_600.0):
            set_shift(file, shift)
            before, steady = time.time(), time.monotonic()
            process.stdin.write("\n")
            process.stdin.flush()
            *walls, monotonic = map(float, process.stdout.readline().split())
            after = time.time()
            assert all(before + shift - 0.01 <= wall <= after + shift + 0.01 for wall in walls)
            assert steady <= monotonic <= time.monotonic()
        process.stdin.close()


def test_a_trouble_waits_until_the_run_has_come_on_unless_it_is_hasty():
    hasty = 0
    for seed in range(200):
        schedule = _Schedule(random.Random(seed), 0.0, 100)
        if schedule.is_due(99):
            hasty += 1
        else:
            assert not schedule.is_due(99)
            assert schedule.is_due(100)
    assert 20 < hasty < 80


def test_a_run_that_goes_on_from_an_earlier_step_is_not_waited_for_twice():
    schedule = next(
        schedule
        for seed in range(99)
        if not (schedule := _Schedule(random.Random(seed), 0.0, 100)).is_due(50)
    )
    assert schedule.is_due(1000)
    schedule._is_hasty = False
    assert not schedule.is_due(400)
    assert schedule.is_due(500)
