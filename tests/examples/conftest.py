"""Makes the examples importable, also in the workers of a run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
