"""The queue of jobs: its supervisor killed at random moments, jobs killed, a full disk, an edited job file.

Whatever happens, each job that was asked for has one run, and the supervisor that comes next ends them all.
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
from mission_gym_bench.faults.lab import Command, Fault, Lab, fill, must, small_disk

_HOLDS = "every job is done, with one run of its own and after one attempt; nothing is left behind"
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


def make_fleet_faults(num_full: int = 50, num_quick: int = 10, chain: int = 5) -> list[Fault]:
    """Chains of killed supervisors, of which the first ones are quick, and the rest."""
    faults = [
        Fault(
            "jobs", f"supervisor killed, chain {number + 1}", _HOLDS,
            partial(_kill_supervisors, num_kills=chain, seed=number),
            quick=number < num_quick // chain, tried=chain,
        )
        for number in range(num_full // chain)
    ]  # fmt: skip
    return [
        *faults,
        Fault("jobs", "two supervisors", _HOLDS, _start_two, quick=True),
        Fault("jobs", "a job killed", "it goes on with its run, and is done", _kill_job, quick=True),
        Fault("jobs", "file edited while it runs", "nothing changes; then it is refused", _edit, quick=True),
        Fault("jobs", "disk full", "no job is lost or doubled; with room again all are done", _fill_disk),
    ]


def _write_file(lab: Lab, name: str, steps: int = 320, seeds: int = _NUM_JOBS) -> Path:
    path = lab.here / f"{name}.yaml"
    path.write_text(_FILE.format(steps=steps, seeds=seeds))
    return path


def _start(lab: Lab, file: Path) -> Command:
    return lab.start("jobs", "run", str(file), "--runs-dir", str(lab.runs_dir))


def _kill_supervisors(lab: Lab, num_kills: int, seed: int) -> None:
    rng, killed, number = random.Random(seed), 0, 0
    file = _write_file(lab, "g0")
    while killed < num_kills:
        command = _start(lab, file)
        if _wait_for_moment(lab, command, rng):
            command.kill()
            killed += 1
        else:  # all were done before that moment: kills go on with another file
            command.wait().expect(0)
            number += 1
            file = _write_file(lab, f"g{number}")
    _start(lab, file).wait().expect(0)
    _must_be_done(lab, 1 + number)


def _wait_for_moment(lab: Lab, command: Command, rng: random.Random) -> bool:
    """Wait for a moment to kill, soon after the start or around a row of a journal; False if it ended."""
    moment = rng.random()
    if rng.random() < 0.3:
        deadline = time.monotonic() + moment * _STARTS_S
        return lab.wait_until(lambda: time.monotonic() > deadline, "a moment", command) and command.running
    number = _count_rows(lab) + rng.randrange(1, 4)
    if not lab.wait_until(lambda: _count_rows(lab) >= number, "a row", command, look_s=0.0005):
        return False
    time.sleep(moment * _ROW_S)
    return command.running


def _count_rows(lab: Lab) -> int:
    return sum(path.read_bytes().count(b"\n") for path in lab.runs_dir.glob("*/journal.jsonl"))


def _start_two(lab: Lab) -> None:
    commands = [_start(lab, _write_file(lab, name, seeds=3)) for name in ("one", "two")]
    for command in commands:
        command.wait().expect(0)
    _must_be_done(lab, 2, seeds=3)


def _kill_job(lab: Lab) -> None:
    command = _start(lab, _write_file(lab, "g", steps=8_000, seeds=1))
    group, job = _wait_for_run(lab, command)
    lab.wait_for_step(command, 0)  # one without a checkpoint begins again, in a run of its own
    pid = group.read_pid(job)
    assert pid is not None, "it runs"
    os.kill(pid, signal.SIGKILL)
    command.wait().expect(0)
    (job,) = group.read_jobs().values()
    must((job.state, job.attempts) == ("done", 2), f"{job.state} after {job.attempts} attempts")
    must(len(list_runs(lab.runs_dir)) == 1, "it has a second run")
    lab.must_leave_nothing()


def _edit(lab: Lab) -> None:
    file = _write_file(lab, "g", steps=8_000, seeds=1)
    command = _start(lab, file)
    group, _ = _wait_for_run(lab, command)
    _write_file(lab, "g", steps=9_000, seeds=2)
    command.wait().expect(0)
    (job,) = group.read_jobs().values()
    must(job.state == "done", f"it is {job.state}")
    ended = _start(lab, file).wait().expect(2)
    must("was changed since it began" in ended.err, f"it said: {ended.err}")
    must(len(list_runs(lab.runs_dir)) == 1, "it was started")
    lab.must_leave_nothing()


def _fill_disk(lab: Lab) -> None:
    with small_disk(lab.folder / "disk", "24m") as disk:
        runs_dir = disk / "runs"
        file = _write_file(lab, "g", steps=20_000, seeds=3)
        words = ("jobs", "run", str(file), "--runs-dir", str(runs_dir))
        command = lab.start(*words)
        lab.wait_until(lambda: any(runs_dir.glob("*/journal.jsonl")), "a journal", command)
        (group,) = list_groups(runs_dir)
        lab.wait_until(lambda: group.is_alive("a-s0"), "a job", command)
        ballast = fill(disk)
        time.sleep(5.0)  # of training and of ticks of the supervisor, without room
        ballast.unlink()
        command.wait().expect(0, 2, 3)
        lab.start(*words).wait().expect(0)
        jobs = group.read_jobs()
        must(len(jobs) == 3, f"there are {len(jobs)} jobs")
        must({job.state for job in jobs.values()} == {"done"}, f"{_tell(jobs)}")
        must(len({job.run for job in jobs.values()}) == 3, f"runs are shared: {_tell(jobs)}")
        must(len(list_groups(runs_dir)) == 1, "it has a second group")
    lab.must_leave_nothing()


def _wait_for_run(lab: Lab, command: Command) -> tuple[GroupDir, Job]:
    """The group and its only job, once that trains."""
    found: list[tuple[GroupDir, Job]] = []

    def runs() -> bool:
        for group in list_groups(lab.runs_dir):
            found[:] = [(group, job) for job in group.read_jobs().values() if group.is_running(job)]
        return bool(found)

    must(lab.wait_until(runs, "a run", command), "it ended before its job ran")
    return found[0]


def _must_be_done(lab: Lab, num_groups: int, seeds: int = _NUM_JOBS) -> None:
    groups = list_groups(lab.runs_dir)
    must(len(groups) == num_groups, f"there are {len(groups)} groups of {num_groups} files")
    for group in groups:
        jobs = group.read_jobs()
        must(len(jobs) == seeds, f"{group.name} has {len(jobs)} jobs")
        is_done = all((job.state, job.attempts) == ("done", 1) for job in jobs.values())
        must(is_done, f"{group.name}: {_tell(jobs)}")
        must(len(group.read().runs) == seeds, f"{group.name} lists {len(group.read().runs)} runs")
    num_runs = len(list_runs(lab.runs_dir))
    must(num_runs == num_groups * seeds, f"{num_groups * seeds} jobs have {num_runs} runs")
    lab.must_leave_nothing()


def _tell(jobs: dict[str, Job]) -> str:
    return ", ".join(f"{job.name} {job.state} after {job.attempts}: {job.cause}" for job in jobs.values())
