"""Shared set-up: one thread per process, since parallel tests share cores, and a plan cache per process.

The modules of `tests/support` (`toys:Identity`) can be imported everywhere: pytest's `pythonpath` adds the
folder for tests, and PYTHONPATH for the processes that they start. Toys may run in this process, as only
built-in environments may otherwise. The processor counts as one without bf16, so that no test depends on a
measurement; `plan/test_setups.py` times float32 against bf16. Temporary folders are in memory if there is
enough of it: a short run syncs to disk some fifty times, which takes longer than its computation.
"""

import os
import shutil
import sys
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
    filter(None, (os.environ.get("PYTHONPATH"), str(Path(__file__).parent / "support")))
)

from mission_gym.env import factory  # noqa: E402  not before the threads are capped
from mission_gym.plan import setups  # noqa: E402

factory._TRUSTED += ("toys",)  # type: ignore[assignment]
setups._CPU_FLAGS.clear()


def pytest_collection_finish() -> None:
    """Every run times a product of matrices; a pretended GPU takes seconds for one of the usual size."""
    if "torch" in sys.modules:
        from mission_gym.run import telemetry

        telemetry._MATMUL_SIZES = dict.fromkeys(telemetry._MATMUL_SIZES, 64)
