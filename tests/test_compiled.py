"""The disk cache of compiled functions."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from pathlib import Path

import pytest

SOURCE = """
from mission_gym.compiled import entry

@entry
def double(x):
    return 2.0 * x
"""


def test_a_cache_that_names_a_class_of_another_version_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cached_kernels.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("cached_kernels").double(1.0) == 2.0
    (index,) = tmp_path.rglob("*.nbi")
    version = pickle.load(io.BytesIO(index.read_bytes()))
    index.write_bytes(pickle.dumps(version) + b"cmission_gym.compiled\nGone\n.")
    for _ in range(2):
        del sys.modules["cached_kernels"]
        assert importlib.import_module("cached_kernels").double(1.0) == 2.0
    assert b"Gone" not in index.read_bytes()
