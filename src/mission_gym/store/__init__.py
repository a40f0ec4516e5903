"""The run directory on disk, which evaluation, resume, branches and reports read.

Inputs are plain values and NumPy arrays; outputs are atomic, durable, checksummed files. Nothing here is a
pickle, loads torch or starts a process. From the bottom up: `files`, `lock`; `checkpoints`,
`tables` (append-only), `metrics`; `rundir`; `evals`; `resolve` (names of runs), `groups`, `sweeps`;
`trusted`. `sinks` writes a run's events.

The names below are environment variables that the process starting a run sets for it.
"""

import os
from contextlib import suppress

RUN_FILE = "MISSION_GYM_RUN_FILE"  # file in which the run writes its path
GROUP = "MISSION_GYM_GROUP"  # name of the run's group
PID = "MISSION_GYM_PID"  # process that represents the run on the machine that started it
JOB_LOCK = "MISSION_GYM_JOB_LOCK"  # descriptor of the job's lock, which no other process may inherit
END_FILE = "MISSION_GYM_END_FILE"  # file in which the process writes its exit code


def keep_job_lock() -> None:
    """Keep the lock of this process's job from the processes that it starts: they may outlive it."""
    if JOB_LOCK in os.environ:
        with suppress(OSError, ValueError):
            os.set_inheritable(int(os.environ.pop(JOB_LOCK)), False)
