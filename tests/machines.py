"""Machines that are not here."""

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
