"""A run that was trained on a pretended GPU, once per process; each test gets its own copy."""

import shutil
from pathlib import Path

import pytest

import mission_gym as mg
from device_runs import train
from mission_gym_bench.fake_gpu import pretend


@pytest.fixture(scope="session")
def trained_on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pretend("cuda"):
        return train(tmp_path_factory.mktemp("gpu")).path


@pytest.fixture
def left_run(trained_on_gpu: Path, tmp_path: Path) -> mg.Run:
    """A run of a machine with a GPU, on a machine without one."""
    return mg.Run(Path(shutil.copytree(trained_on_gpu, tmp_path / trained_on_gpu.name)))
