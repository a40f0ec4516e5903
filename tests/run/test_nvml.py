"""NVIDIA's own bindings against a library that stands in for the driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import json
from mission_gym.run.sampler import load_nvml, open_gpu
print(json.dumps({name: probe() for name, probe in open_gpu(load_nvml(), "GPU-1", "MIG-1").items()}))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("gcc"), reason="needs gcc and the loader of Linux"
)
def test_a_part_of_a_card_is_read_through_the_real_bindings(tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    source, library = Path(__file__).parents[1] / "support" / "nvml_stub.c", tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    asked = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
    assert json.loads(asked.stdout) == {
        "gpu_use": 0.37, "gpu_power_w": None, "gpu_temperature_c": 61.0, "gpu_clock_mhz": 1800.0,
    }  # fmt: skip
