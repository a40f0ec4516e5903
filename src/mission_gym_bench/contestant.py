"""The child process of a contest: a Job as JSON in the first line of stdin, the Result in a file.

The parent holds stdin open; when it closes, the parent is gone and so are we.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from mission_gym.store.files import write_json
from mission_gym_bench.sides import Job


def main(folder: Path) -> None:
    """Train the side that the job names."""
    job = Job(**json.loads(sys.stdin.readline()))
    os.chdir(folder)  # some simulators leave logs where they run
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    side = importlib.import_module(f"mission_gym_bench.{job.side}")
    write_json(folder / "result.json", asdict(side.train(job, folder)), durable=False)


def _end_with_parent() -> None:
    # Unbuffered: a thread that waits inside sys.stdin would hold its lock when the interpreter ends.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
