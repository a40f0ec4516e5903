"""The disk cache of compiled code survives an update of the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from timeouts import LONG_S

MODULE = """
from typing import NamedTuple

import numpy as np

from mission_gym.compiled import entry


class {name}(NamedTuple):
    values: np.ndarray


@entry
def total(rows: {name}) -> float:
    return rows.values[0]


print(total({name}(np.ones(1))), len(total.stats.cache_hits))
"""


def test_a_class_that_was_renamed_since_is_compiled_again(tmp_path: Path) -> None:
    for name in ("Rows", "Table"):
        (tmp_path / "updated.py").write_text(MODULE.format(name=name))
        for hits in (0, 1):
            found = subprocess.run(
                [sys.executable, "-c", "import updated"],
                cwd=tmp_path, capture_output=True, text=True, check=True, timeout=LONG_S,
            )  # fmt: skip
            assert found.stdout.split() == ["1.0", str(hits)]
