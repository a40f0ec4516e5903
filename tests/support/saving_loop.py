"""Forks a process that saves checkpoints without end, kills it at a random moment, verifies; repeats."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from mission_gym.store.checkpoints import (
    list_checkpoints,
    load_checkpoint,
    load_last_good,
    recover,
    save_checkpoint,
)


def save(folder: Path, step: int, value: int) -> None:
    arrays = {"w": np.full(64, value, np.float32)}
    save_checkpoint(folder, step, policy=arrays, state=arrays, state_json={"value": value}, meta={})


def save_for_ever(folder: Path, first: int) -> None:
    value = first
    while True:
        # Mostly the same steps again, so that kills also fall into superseding.
        save(folder, value // 8, value)
        os.write(1, b".")
        value += 1


def verify(folder: Path) -> int:
    infos = list_checkpoints(folder)
    values = [load_checkpoint(info.path).state_json["value"] for info in infos]
    last, notes = load_last_good(folder)
    assert notes == []
    assert values[-1] == last.state_json["value"]
    assert np.all(last.policy["w"] == np.float32(values[-1]))
    return max(values)


def main(folder: Path, num_kills: int, seed: int) -> None:
    rng = random.Random(seed)
    save(folder, 0, 0)
    newest = 0
    for _ in range(num_kills):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(writer, 1)
            os.close(reader)
            save_for_ever(folder, newest + 1)
        os.close(writer)
        os.read(reader, 1)  # at least one was committed
        time.sleep(rng.uniform(0, 0.006))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        committed = 1 + len(os.read(reader, 1 << 16))
        os.close(reader)
        before = verify(folder)
        assert before >= newest + committed, "a committed checkpoint was lost"
        recover(folder)
        newest = verify(folder)
        assert newest == before
        assert all(name.startswith("step_") for name in os.listdir(folder))
    print("kills", num_kills, "saved", newest)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
