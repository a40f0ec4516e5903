"""Invented machines, and an invented entry of the plan cache with its scaling."""

from dataclasses import replace
from typing import Any

from mission_gym.procs import MachineFacts

GB = 1 << 30


def machine(cores: int, memory_gb: float = 16.0, **changes: Any) -> MachineFacts:
    facts = MachineFacts(
        cpu="invented",
        logical_cores=cores,
        allowed_cores=cores,
        physical_cores=cores,
        efficiency_cores=0,
        cpu_quota=None,
        memory_bytes=int(memory_gb * GB),
        memory_free_bytes=int(memory_gb * GB),
        memory_limit_bytes=None,
        dev_shm_free_bytes=None,
        shared_free_bytes=int(memory_gb * GB),
        runs_dir="runs",
        disk_free_bytes=GB,
        disk_writable=True,
        python="3.11",
        system="Linux",
        nvidia_driver=None,
    )
    return replace(facts, **changes)


_ENV = {"memory_bytes": 2_000_000, "worker_bytes": 30_000_000}


def _point(n_envs, rate, memory, *, workers=1, fits=True, knee=False, **more):
    return {
        "backend": "workers" if workers > 1 else "serial", "num_workers": workers, "n_envs": n_envs,
        "steps_per_s": rate, "memory_bytes": memory, "fits": fits, "knee": knee, **more,
    }  # fmt: skip


SCALING = {
    "scaling": [
        _point(1, 50.0, 400e6, tried=True),
        _point(4, 100.0, 430e6, workers=2, tried=True, knee=True),
        _point(8, 102.0, 470e6, workers=2),
        _point(16, 102.0, 50e9, workers=2, fits=False),
    ],
    "measured": {"env": _ENV},
    "spent_s": 29.6,
    "machine": {"cpu": "Abacus 3000", "usable_cores": 2, "memory_bytes": 8e9},
}
