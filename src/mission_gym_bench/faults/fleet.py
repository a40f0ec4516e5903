"""The job queue: its supervisor killed at random moments, killed jobs, a full disk, an edited job file.

Whatever happens, each requested job has one run, and the next supervisor completes them all.
"""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

from mission_gym.store.groups import GroupDir, Job, list_groups
from mission_gym.store.resolve import list_runs
from mission_gym_bench.faults.harness import Command, FaultCase, Harness, fill, must, small_disk

_HOLDS = "every job is done, with its own run and after one attempt; nothing is left behind"
_NUM_JOBS = 6
_STARTS_S = 4.0  # within which a supervisor is killed "soon after its start"
_ROW_S = 0.02  # around a row of the journal
_FILE = """
defaults:
  {{env: CartPole-v1, n_envs: 2, n_steps_per_env: 16, batch_size: 16, timesteps: {steps}, network_arch: [8],
    eval_freq: 0, checkpoint_freq: 64, tensorboard: false, tune: false, device: cpu, vector: serial}}
seeds: {seeds}
jobs: [{{name: a}}]
"""


def make_fleet_faults(num_full: int = 50, num_quick: int = 10, chain: int = 5) -> list[FaultCase]:
    """Return chains of killed supervisors, the first ones quick, and the other faults."""
    faults = [
        FaultCase(
            "jobs", f"supervisor killed, chain {number + 1}", _HOLDS,
            partial(_kill_supervisors, num_kills=chain, seed=number),
            quick=number < num_quick // chain, tried=chain,
        )
        for number in range(num_full // chain)
    ]  # fmt: skip
    return [
        *faults,
        FaultCase("jobs", "two supervisors", _HOLDS, _start_two, quick=True),
        FaultCase("jobs", "a job killed", "it continues its run, and is done", _kill_job, quick=True),
        FaultCase(
            "jobs", "file edited while it runs", "nothing changes; then it is refused", _edit, quick=True
        ),
        FaultCase(
            "jobs", "disk full", "no job is lost or duplicated; with space again all are done", _fill_disk
        ),
    ]


def _write_file(harness: Harness, name: str, steps: int = 320, seeds: int = _NUM_JOBS) -> Path:
    path = harness.here / f"{name}.yaml"
    path.write_text(_FILE.format(steps=steps, seeds=seeds))
    return path


def _start(harness: Harness, file: Path) -> Command:
    return harness.start("jobs", "run", str(file), "--runs-dir", str(harness.runs_dir))


def _kill_supervisors(harness: Harness, num_kills: int, seed: int) -> None:
    rng, killed, number = random.Random(seed), 0, 0
    file = _write_file(harness, "g0")
    while killed < num_kills:
        command = _start(harness, file)
        if _wait_for_moment(harness, command, rng):
            command.kill()
            killed += 1
        else:  # all were done before that moment: continue with another file
            command.wait().expect(0)
            number += 1
            file = _write_file(harness, f"g{number}")
    _start(harness, file).wait().expect(0)
    _must_be_done(harness, 1 + number)


def _wait_for_moment(harness: Harness, command: Command, rng: random.Random) -> bool:
    """Wait for a moment to kill: soon after the start, or around a row of a journal; False if it ended."""
    moment = rng.random()
    if rng.random() < 0.3:
        deadline = time.monotonic() + moment * _STARTS_S
        return (
            harness.wait_until(lambda: time.monotonic() > deadline, "a moment", command) and command.running
        )
    number = _count_rows(harness) + rng.randrange(1, 4)
    if not harness.wait_until(lambda: _count_rows(harness) >= number, "a row", command, look_s=0.0005):
        return False
    time.sleep(moment * _ROW_S)
    return command.running


def _count_rows(harness: Harness) -> int:
    return sum(path.read_bytes().count(b"\n") for path in harness.runs_dir.glob("*/journal.jsonl"))


def _start_two(harness: Harness) -> None:
    commands = [_start(harness, _write_file(harness, name, seeds=3)) for name in ("one", "two")]
    for command in commands:
        command.wait().expect(0)
    _must_be_done(harness, 2, seeds=3)


def _kill_job(harness: Harness) -> None:
    command = _start(harness, _write_file(harness, "g", steps=8_000, seeds=1))
    group, job = _wait_for_run(harness, command)
    harness.wait_for_step(command, 0)  # without a checkpoint it starts again in a new run
    pid = group.read_pid(job)
    assert pid is not None, "it runs"
    os.kill(pid, signal.SIGKILL)
    command.wait().expect(0)
    (job,) = group.read_jobs().values()
    must((job.state, job.attempts) == ("done", 2), f"{job.state} after {job.attempts} attempts")
    must(len(list_runs(harness.runs_dir)) == 1, "it has a second run")
    harness.must_leave_nothing()


def _edit(harness: Harness) -> None:
    file = _write_file(harness, "g", steps=8_000, seeds=1)
    command = _start(harness, file)
    group, _ = _wait_for_run(harness, command)
    _write_file(harness, "g", steps=9_000, seeds=2)
    command.wait().expect(0)
    (job,) = group.read_jobs().values()
    must(job.state == "done", f"it is {job.state}")
    ended = _start(harness, file).wait().expect(2)
    must("changed after it started" in ended.err, f"it printed: {ended.err}")
    must(len(list_runs(harness.runs_dir)) == 1, "it was started")
    harness.must_leave_nothing()


def _fill_disk(harness: Harness) -> None:
    with small_disk(harness.folder / "disk", "24m") as disk:
        runs_dir = disk / "runs"
        file = _write_file(harness, "g", steps=20_000, seeds=3)
        words = ("jobs", "run", str(file), "--runs-dir", str(runs_dir))
        command = harness.start(*words)
        harness.wait_until(lambda: any(runs_dir.glob("*/journal.jsonl")), "a journal", command)
        (group,) = list_groups(runs_dir)
        harness.wait_until(lambda: group.is_alive("a-s0"), "a job", command)
        ballast = fill(disk)
        time.sleep(5.0)  # training and the supervisor run without space
        ballast.unlink()
        command.wait().expect(0, 2, 3)
        harness.start(*words).wait().expect(0)
        jobs = group.read_jobs()
        must(len(jobs) == 3, f"there are {len(jobs)} jobs")
        must({job.state for job in jobs.values()} == {"done"}, f"{_describe(jobs)}")
        must(len({job.run for job in jobs.values()}) == 3, f"runs are shared: {_describe(jobs)}")
        must(len(list_groups(runs_dir)) == 1, "it has a second group")
    harness.must_leave_nothing()


def _wait_for_run(harness: Harness, command: Command) -> tuple[GroupDir, Job]:
    """Return the group and its only job, once that trains."""
    found: list[tuple[GroupDir, Job]] = []

    def runs() -> bool:
        for group in list_groups(harness.runs_dir):
            found[:] = [(group, job) for job in group.read_jobs().values() if group.is_running(job)]
        return bool(found)

    must(harness.wait_until(runs, "a run", command), "it ended before its job ran")
    return found[0]


def _must_be_done(harness: Harness, num_groups: int, seeds: int = _NUM_JOBS) -> None:
    groups = list_groups(harness.runs_dir)
    must(len(groups) == num_groups, f"there are {len(groups)} groups of {num_groups} files")
    for group in groups:
        jobs = group.read_jobs()
        must(len(jobs) == seeds, f"{group.name} has {len(jobs)} jobs")
        is_done = all((job.state, job.attempts) == ("done", 1) for job in jobs.values())
        must(is_done, f"{group.name}: {_describe(jobs)}")
        must(len(group.read().runs) == seeds, f"{group.name} lists {len(group.read().runs)} runs")
    num_runs = len(list_runs(harness.runs_dir))
    must(num_runs == num_groups * seeds, f"{num_groups * seeds} jobs have {num_runs} runs")
    harness.must_leave_nothing()


def _describe(jobs: dict[str, Job]) -> str:
    return ", ".join(f"{job.name} {job.state} after {job.attempts}: {job.cause}" for job in jobs.values())
