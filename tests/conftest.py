"""Shared set-up: one thread per process, since tests side by side share cores; plans are kept for no one.

The toy environments of this folder (`toys:Identity`) can be imported everywhere, also by processes that tests
start, and may run in this one, as only built-in environments may otherwise. The processor counts as one
without bf16, so that no run of a test is learned as a measurement of this moment chose: float32 is timed
against bf16 where a test asks for that (`plan/test_setups.py`). Folders of tests lie in memory where there is
enough of it: a short run waits for the disk some fifty times, which took longer than all that it computes.
"""

import os
import shutil
import tempfile
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
_MEMORY, _ENOUGH_BYTES = Path("/dev/shm"), 2 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
_CACHE = tempfile.TemporaryDirectory(prefix="mission-gym-tests-")
os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = _CACHE.name
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (os.environ.get("PYTHONPATH"), str(Path(__file__).parent)))
)

from mission_gym.env import factory  # noqa: E402  not before the threads are capped
from mission_gym.plan import setups  # noqa: E402

factory._TRUSTED += ("toys",)  # type: ignore[assignment]
setups._CPU_FLAGS.clear()
