import subprocess
import sys

import pytest

from mission_gym.errors import RunStateError
from mission_gym.store.rundir import Lineage, RunDir, pin, read_lineage, read_pins, write_lineage

PINNER = """
import sys
from pathlib import Path
from mission_gym.store.rundir import pin
from mission_gym.store.rundir import RunDir
for step in range(20):
    pin(RunDir(Path(sys.argv[1])), step, sys.argv[2])
"""


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "parent")


def test_lineage_comes_back(run):
    with pytest.raises(RunStateError, match=r"can't read .*lineage\.json"):
        read_lineage(run)
    for lineage in (Lineage("e"), Lineage("e", "parent", "/runs/parent", 100)):
        write_lineage(run, lineage)
        assert read_lineage(run) == lineage


def test_pins_are_kept_once(run):
    assert read_pins(run) == {}
    for step, child in ((100, "b"), (100, "a"), (100, "b"), (20, "c")):
        pin(run, step, child)
    assert read_pins(run) == {100: ["a", "b"], 20: ["c"]}


def test_two_processes_lose_no_pin(run):
    children = [subprocess.Popen([sys.executable, "-c", PINNER, run.path, name]) for name in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    assert read_pins(run) == {step: ["a", "b"] for step in range(20)}
