"""Shared set-up: one thread per process, since tests side by side share cores; plans are kept for no one."""

import os
import tempfile

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
_CACHE = tempfile.TemporaryDirectory(prefix="mission-gym-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name
